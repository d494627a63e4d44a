"""Every mutant of a source file: where changes are tried, and where not."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mutation.mutant import Lines, Mutant
from mutation.operators import constant_edits, edits
from mutation.text import Edit, SourceText

# Functions whose text arguments are for people or for the type checker.
SPEAKING = {"warn", "getLogger", "TypeVar", "ParamSpec", "NewType", "cast", "namedtuple", "print"}
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}
CHECKING = ("require", "check_", "as_")  # functions that take the name of an argument, for their errors
NAMES = {"__all__", "__slots__", "__match_args__"}


@dataclass(frozen=True)
class _Place:
    """Where the walk is: the statement, the function or class around it, and when it runs."""

    statement: Lines
    near: Lines | None = None
    at_import: bool = True
    name: str = ""


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """The mutants of one file, from top to bottom.

    Left alone are docstrings, annotations, `if TYPE_CHECKING`, `__repr__`, whatever is inside `raise`, in an
    error or a warning that is made, or in a logged message, the name of an argument that a check is given for its
    error, f-strings, `__all__`, options of `@dataclass`, and functions in Triton's language.
    """
    text = SourceText(source)
    seen: set[tuple[int, int, bytes]] = set()
    twins: Counter[tuple[str, str, str]] = Counter()
    found = []
    for edit, node, place in _walk(text.tree, text, _Place((1, 1))):
        if (edit.start, edit.end, edit.text) in seen:
            continue
        seen.add((edit.start, edit.end, edit.text))
        line = text.line(edit.start)
        before, after = text.line_of(edit)
        twin = twins[edit.kind, before, after]
        twins[edit.kind, before, after] += 1
        found.append(
            Mutant(
                file=file,
                kind=edit.kind,
                start=edit.start,
                end=edit.end,
                text=edit.text,
                line=line,
                lines=node,
                statement=place.statement,
                near=place.near,
                at_import=place.at_import,
                name=place.name,
                before=before,
                after=after,
                twin=twin,
            )
        )
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def body_lines(source: bytes) -> int:
    """The lines inside functions, as a bit mask: bit n is line n.

    Lines outside them run when the module is imported, in whichever test imports it first.
    """
    mask = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            mask |= line_mask((node.body[0].lineno, node.end_lineno or node.lineno))
    return mask


def line_mask(lines: Lines) -> int:
    """The lines from first to last as a bit mask."""
    first, last = lines
    return ((1 << (last - first + 1)) - 1) << first


def _walk(node: ast.AST, text: SourceText, place: _Place) -> Iterator[tuple[Edit, Lines, _Place]]:
    if _is_left_alone(node):
        return
    if isinstance(node, ast.stmt):
        place = _at(node, place)
    lines = _lines(node, place)
    for edit in edits(node, text):
        yield edit, lines, place
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from _function(node, text, place)
        return
    if isinstance(node, ast.Lambda):
        place = replace(place, at_import=False)
    for child in _children(node):
        yield from _walk(child, text, place)


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, text: SourceText, place: _Place
) -> Iterator[tuple[Edit, Lines, _Place]]:
    for default in [*node.args.defaults, *node.args.kw_defaults]:
        if isinstance(default, ast.Constant):
            for edit in constant_edits(default, text, kind="default"):
                yield edit, _lines(default, place), place
        elif default is not None:
            yield from _walk(default, text, place)
    for decorator in node.decorator_list:
        yield from _walk(decorator, text, place)
    inside = replace(place, at_import=False)
    for statement in node.body:
        yield from _walk(statement, text, inside)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    names = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith(CHECKING)
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "type_comment"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            unseen = field == "decorator_list" and _name(child) == "dataclass"
            named = names and field == "args" and isinstance(child, ast.Constant) and isinstance(child.value, str)
            if isinstance(child, ast.AST) and not (unseen or named):
                yield child


def _at(node: ast.stmt, place: _Place) -> _Place:
    """The place of a statement, and of what it is called: the function, class or constant."""
    end = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    head = max(node.lineno, body[0].lineno - 1) if isinstance(body, list) else end
    here = replace(place, statement=(node.lineno, head))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return replace(here, near=(node.lineno, end), name=node.name)
    if place.near is None and isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return replace(here, name=target.id if isinstance(target, ast.Name) else "")
    return here


def _lines(node: ast.AST, place: _Place) -> Lines:
    if isinstance(node, (ast.If, ast.While)):
        node = node.test
    if isinstance(node, (ast.stmt, ast.expr)):
        return node.lineno, node.end_lineno or node.lineno
    return place.statement


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If):
        return _name(node.test) == "TYPE_CHECKING" or "'__main__'" in ast.unparse(node.test)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name == "__repr__" or any(_name(mark) in {"overload", "jit"} for mark in node.decorator_list)
    if isinstance(node, ast.Assign):
        return any(_name(target) in NAMES for target in node.targets)
    if isinstance(node, ast.Subscript):
        return _name(node.value) in {"Literal", "Annotated"}
    if isinstance(node, ast.keyword):
        return node.arg == "help"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or (isinstance(node.value, ast.Call) and _speaks(node.value))
    return isinstance(node, ast.Call) and _speaks(node)


def _speaks(node: ast.Call) -> bool:
    """Whether a call makes an error or a warning, or writes a message."""
    name = _name(node.func)
    if name.endswith(("Error", "Warning")) or name in SPEAKING:
        return True
    return isinstance(node.func, ast.Attribute) and name in LOGGED and "log" in ast.unparse(node.func.value).lower()


def _name(node: ast.AST) -> str:
    """The last part of a dotted name, also of one that is called."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
