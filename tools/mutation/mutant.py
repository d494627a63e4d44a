"""One small change of one source file."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache

Lines = tuple[int, int]  # first and last, counted from 1


@dataclass(frozen=True)
class Mutant:
    """The bytes `start:end` of a file replaced by `text`.

    A change keeps the number of lines, so that tracebacks and `inspect.getsource` stay right.

    Attributes:
        file: The source file, relative to the project, with forward slashes.
        kind: Which operator made the change, for example "compare".
        start: Offset of the first replaced byte.
        end: Offset after the last replaced byte.
        text: What stands there instead.
        line: Line of the first replaced byte.
        lines: The lines of the changed expression or statement.
        statement: The lines of the statement around it; of a compound statement, its head.
        near: The lines of the function or class around it; None at the top of a module.
        at_import: Whether the place runs when the module is imported, not when a function is called.
        name: The function, class or constant that the place belongs to; empty where there is none.
        before: The source line as it is.
        after: The same line after the change.
        twin: How many mutants with the same file, kind, `before` and `after` stand above this one.
    """

    file: str
    kind: str
    start: int
    end: int
    text: bytes
    line: int
    lines: Lines
    statement: Lines
    near: Lines | None
    at_import: bool
    name: str
    before: str
    after: str
    twin: int = 0

    @property
    def key(self) -> str:
        """A name that stays the same when other lines of the file move."""
        parts = (self.file, self.kind, self.before, self.after, str(self.twin))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def apply(self, source: bytes) -> bytes:
        """The source with the change made."""
        return source[: self.start] + self.text + source[self.end :]

    def is_valid(self, source: bytes) -> bool:
        """Whether the changed source is Python, and other Python than before."""
        try:
            changed = compile(self.apply(source), self.file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        except SyntaxError:
            return False
        return ast.dump(changed) != _dump(source)


@cache
def _dump(source: bytes) -> str:
    return ast.dump(ast.parse(source))
