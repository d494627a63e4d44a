"""The changes that are tried on a call: a dropped argument, a dropped call, a neighbouring function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mutation.text import Edit, SourceText

DROPPED_METHODS = {"detach", "clone", "abs", "copy", "sqrt", "exp", "log", "square"}
DROPPED_FUNCTIONS = {"abs", "fabs", "deepcopy", "sqrt", "exp", "log", "square"}
_PAIRS = (
    ("min", "max"),
    ("amin", "amax"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("clamp_min", "clamp_max"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
)
SWAPPED_FUNCTIONS = dict(_PAIRS) | {second: first for first, second in _PAIRS}
SWAPPED_METHODS = SWAPPED_FUNCTIONS | {"mean": "sum", "sum": "mean"}


def call_edits(node: ast.Call, source: SourceText) -> Iterator[Edit]:
    """Every change of a call itself; those of its arguments are not among them."""
    yield from _without_keyword(node, source)
    yield from _dropped(node, source)
    yield from _swapped(node, source)
    yield from _other_bound(node, source)


def _without_keyword(node: ast.Call, source: SourceText) -> Iterator[Edit]:
    for keyword in node.keywords:
        unchecked = isinstance(node.func, ast.Name) and node.func.id == "zip" and keyword.arg == "strict"
        if keyword.arg is None or unchecked:
            continue
        start, end = source.start(keyword), source.end(keyword)
        comma = re.match(rb"\s*,", source.source[end:])
        end += comma.end() if comma else 0
        yield Edit("keyword", start, end, b"\n" * source.source.count(b"\n", start, end))


def _dropped(node: ast.Call, source: SourceText) -> Iterator[Edit]:
    """`x.detach()` → `x` and `abs(x)` → `(x)`."""
    if node.keywords:
        return
    if isinstance(node.func, ast.Attribute) and not node.args and node.func.attr in DROPPED_METHODS:
        end = source.end(node)
        found = re.search(rb"\.\s*\w+\s*\(\s*\)$", source.source[source.start(node) : end])
        if found is not None:
            yield Edit("call", end - len(found.group()), end, b"\n" * found.group().count(b"\n"))
    elif len(node.args) == 1 and _function(node.func) in DROPPED_FUNCTIONS:
        yield Edit("call", source.start(node.func), source.end(node.func), b"")


def _function(node: ast.expr) -> str:
    """The name of a function, or of one of a module: `abs`, `torch.abs`. Empty for a method of a value."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in {"torch", "np", "math", "copy"} else ""
    return ""


def _swapped(node: ast.Call, source: SourceText) -> Iterator[Edit]:
    end = source.end(node.func)
    if isinstance(node.func, ast.Name):
        old, new = node.func.id, SWAPPED_FUNCTIONS.get(node.func.id)
    elif isinstance(node.func, ast.Attribute):
        old, new = node.func.attr, SWAPPED_METHODS.get(node.func.attr)
    else:
        return
    if new is not None:
        yield Edit("swap", end - len(old), end, new.encode())


def _other_bound(node: ast.Call, source: SourceText) -> Iterator[Edit]:
    """`clamp(min=x)` → `clamp(max=x)`, where only one of both is given."""
    named = [keyword for keyword in node.keywords if keyword.arg in {"min", "max"}]
    if len(named) == 1 and not node.args and isinstance(node.func, ast.Attribute) and "cl" in node.func.attr:
        start = source.start(named[0])
        yield Edit("swap", start, start + len("min"), b"max" if named[0].arg == "min" else b"min")
