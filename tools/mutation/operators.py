"""The changes that are tried on each kind of syntax node."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from mutation.calls import call_edits
from mutation.text import Edit, SourceText

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.MatMult: ("@", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
# A key, an option, a suffix or a file's name. Anything with a space is taken for a message.
OPTION = re.compile(r"[\w.\-/+]{0,40}")


def edits(node: ast.AST, source: SourceText) -> Iterator[Edit]:
    """Every change of this node itself; those of the nodes inside it are not among them."""
    for kind, make in _OPERATORS:
        if isinstance(node, kind):
            yield from make(node, source)


def constant_edits(node: ast.Constant, source: SourceText, kind: str = "constant") -> Iterator[Edit]:
    """n → n + 1, x → 2x, 0.0 → 1.0, True ↔ False, and an option that nobody knows."""
    value = node.value
    if isinstance(value, bool):
        yield source.replace(kind, node, str(not value))
    elif isinstance(value, int):
        yield source.replace(kind, node, str(value + 1))
    elif isinstance(value, float):
        yield source.replace(kind, node, repr(2 * value if value else 1.0))
    elif isinstance(value, str) and OPTION.fullmatch(value):
        yield source.replace("string" if kind == "constant" else kind, node, f'"{value}X"')


def _compare(node: ast.Compare, source: SourceText) -> Iterator[Edit]:
    operands = [node.left, *node.comparators]
    for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
        old, others = COMPARISONS[type(operator)]
        for new in others:
            yield from source.swap("compare", left, right, old, new)


def _binary(node: ast.BinOp, source: SourceText) -> Iterator[Edit]:
    if not (_is_no_number(node.left) or _is_no_number(node.right)):
        old, new = ARITHMETIC[type(node.op)]
        yield from source.swap("arithmetic", node.left, node.right, old, new)


def _augmented(node: ast.AugAssign, source: SourceText) -> Iterator[Edit]:
    if not _is_no_number(node.value):
        old, new = ARITHMETIC[type(node.op)]
        yield from source.swap("arithmetic", node.target, node.value, f"{old}=", f"{new}=")
    yield _removed(node, source)


def _is_no_number(node: ast.expr) -> bool:
    """Whether an operand is text, a sequence or None, where another operator could only fail at once."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, (int, float))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp))


def _unary(node: ast.UnaryOp, source: SourceText) -> Iterator[Edit]:
    start = source.start(node)
    if isinstance(node.op, ast.Not):
        yield Edit("boolean", start, start + len("not"), b"")
    elif isinstance(node.op, (ast.USub, ast.Invert)):
        yield Edit("arithmetic", start, start + 1, b"")


def _boolean(node: ast.BoolOp, source: SourceText) -> Iterator[Edit]:
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values, node.values[1:], strict=False):
        yield from source.swap("boolean", left, right, old, new)


def _conditions(node: ast.If | ast.While | ast.IfExp, source: SourceText) -> Iterator[Edit]:
    yield from _negated(node.test, source)
    guards = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise) and not node.orelse
    if guards and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test)):
        yield source.replace("condition", node.test, "False")


def _comprehension(node: ast.comprehension, source: SourceText) -> Iterator[Edit]:
    for test in node.ifs:
        yield from _negated(test, source)


def _negated(test: ast.expr, source: SourceText) -> Iterator[Edit]:
    """`not (test)`, unless the operators of a comparison or of `not` make the same change."""
    same = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    if not (same or (isinstance(test, ast.Compare) and len(test.ops) == 1)):
        yield Edit("condition", source.start(test), source.end(test), b"not (" + source.of(test) + b")")


def _expression(node: ast.Expr, source: SourceText) -> Iterator[Edit]:
    if not isinstance(node.value, ast.Constant):
        yield _removed(node, source)


def _assignment(node: ast.Assign, source: SourceText) -> Iterator[Edit]:
    if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
        yield _removed(node, source)


def _removed(node: ast.stmt, source: SourceText) -> Edit:
    ends = source.of(node).count(b"\n")
    return Edit("statement", source.start(node), source.end(node), b"pass" + b"\n" * ends)


def _continue(node: ast.Continue, source: SourceText) -> Iterator[Edit]:
    yield source.replace("statement", node, "break")


def _return(node: ast.Return, source: SourceText) -> Iterator[Edit]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield source.replace("return", node.value, "None")


def _slice(node: ast.Slice, source: SourceText) -> Iterator[Edit]:
    for bound in (node.lower, node.upper):
        if bound is not None:
            yield Edit("slice", source.start(bound), source.end(bound), b"\n" * source.of(bound).count(b"\n"))


_OPERATORS: tuple[tuple[type[ast.AST] | tuple[type[ast.AST], ...], Callable[..., Iterator[Edit]]], ...] = (
    (ast.Compare, _compare),
    (ast.BinOp, _binary),
    (ast.AugAssign, _augmented),
    (ast.UnaryOp, _unary),
    (ast.BoolOp, _boolean),
    ((ast.If, ast.While, ast.IfExp), _conditions),
    (ast.comprehension, _comprehension),
    (ast.Constant, constant_edits),
    (ast.Expr, _expression),
    (ast.Assign, _assignment),
    (ast.Continue, _continue),
    (ast.Return, _return),
    (ast.Slice, _slice),
    (ast.Call, call_edits),
)
