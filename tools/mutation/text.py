"""Places of syntax nodes in the bytes of a source file."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol


class Placed(Protocol):
    """A syntax node that knows where it stands."""

    lineno: int
    col_offset: int
    end_lineno: int | None
    end_col_offset: int | None


@dataclass(frozen=True)
class Edit:
    """The bytes `start:end` replaced by `text`, by an operator of this kind."""

    kind: str
    start: int
    end: int
    text: bytes


class SourceText:
    """A source file, its syntax tree, and offsets into its bytes.

    Columns of the `ast` module count bytes of UTF-8, so everything here is bytes.
    """

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self._starts = [0]
        for line in source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def start(self, node: Placed) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: Placed) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node: Placed) -> bytes:
        return self.source[self.start(node) : self.end(node)]

    def line(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def line_of(self, edit: Edit) -> tuple[str, str]:
        """The line in which a change begins, before and after it, without indentation."""
        first = self._starts[self.line(edit.start) - 1]
        last = self._starts[self.line(edit.end)]
        after = self.source[first : edit.start] + edit.text + self.source[edit.end : last]
        return _first_line(self.source[first:last]), _first_line(after)

    def replace(self, kind: str, node: Placed, text: str) -> Edit:
        """An expression replaced by another, with as many line ends as before."""
        ends = self.of(node).count(b"\n")
        padded = f"({text}" + "\n" * ends + ")" if ends else text
        return Edit(kind, self.start(node), self.end(node), padded.encode())

    def swap(self, kind: str, left: Placed, right: Placed, old: str, new: str) -> list[Edit]:
        """The operator between two operands replaced by another."""
        first = self.end(left)
        pattern = r"\s+".join(re.escape(word) for word in old.split())
        found = re.search(pattern.encode(), self.source[first : self.start(right)])
        if found is None:
            return []
        return [Edit(kind, first + found.start(), first + found.end(), new.encode())]


def _first_line(text: bytes) -> str:
    return text.partition(b"\n")[0].decode().strip()
