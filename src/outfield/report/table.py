"""A table of text, ready for a terminal, a page, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outfield.report.escaping import markdown, tex


@dataclass(frozen=True)
class Table:
    """A table ready to print: a header and rows of text.

    Args:
        title: one line.
        header: of each column.
        rows: of text. A cell may show two numbers, "47.5 / 89.9". A row whose first cell is empty belongs to
            the one above.
        left: so many first columns are words, the others numbers.
        best: what to set in bold: (row, column, which of the numbers in the cell).
        notes: lines to go below it.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    left: int = 1
    best: frozenset[tuple[int, int, int]] = frozenset()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As a Markdown table."""
        rows = [
            [*map(markdown, self.header)],
            ["---"] * len(self.header),
            *self._marked(markdown, lambda text: f"**{text}**"),
        ]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def latex(self) -> str:
        """As a LaTeX ``tabular`` with the rules of booktabs."""
        lines = [rf"\begin{{tabular}}{{{'l' * self.left}{'r' * (len(self.header) - self.left)}}}", r"\toprule"]
        lines += [" & ".join(map(tex, self.header)) + r" \\", r"\midrule"]
        grouped = any(not row[0] for row in self.rows)
        for index, row in enumerate(self._marked(tex, lambda text: rf"\textbf{{{text}}}")):
            lines += [r"\addlinespace"] * (grouped and index > 0 and bool(row[0]))
            lines.append(" & ".join(row) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def _marked(self, escape: Callable[[str], str], bold: Callable[[str], str]) -> list[list[str]]:
        """Rows with their text escaped and the best numbers in bold."""
        return [
            [
                " / ".join(
                    bold(escape(part)) if (i, j, k) in self.best else escape(part)
                    for k, part in enumerate(cell.split(" / "))
                )
                for j, cell in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]
