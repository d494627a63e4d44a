"""A table of text, ready for a terminal, a page, Markdown, LaTeX or CSV; and text that each of these prints as it is.

Names of detectors, sets, backbones and classes are other people's: a name may hold markup, a formula or a sign that ends a line.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outfield.files import csv_cell

# What would begin markup, a link, a formula or an entity in Markdown, or end a cell of a table.
SIGNS_OF_MARKDOWN = re.compile(r"([\\|*`<\[\]~${]|_(?![^\W_])|(?<![^\W_])_|&(?=#?\w+;))")
ORDERS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # to write backwards
_NAMES = "textbackslash textasciitilde textasciicircum ldots"
_SYMBOLS = "pm times leq geq cdot downarrow uparrow rightarrow"
TEX = {"−": "$-$", "–": "--", "’": "'", "�": "?"}
TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
TEX |= {sign: f"{{{sign}}}" for sign in "[]*"}  # at the start of a row they would be arguments of the row's end before
TEX |= {sign: f"${sign}$" for sign in "<>|"}
TEX |= {sign: rf"\{name}{{}}" for sign, name in zip("\\~^…", _NAMES.split(), strict=True)}
TEX |= {sign: rf"$\{name}$" for sign, name in zip("±×≤≥·↓↑→", _SYMBOLS.split(), strict=True)}
"""What LaTeX would take for a command, or may have no letter for."""


@dataclass(frozen=True)
class Table:
    """A table ready to print: a header and rows of text; the first ``left`` columns are words, the others numbers.

    A cell may show two numbers, "47.5 / 89.9". A row whose first cell is empty belongs to the one above. ``best`` is what to set
    in bold: (row, column, which of the numbers in the cell). Notes go below.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    left: int = 1
    best: frozenset[tuple[int, int, int]] = frozenset()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As a Markdown table."""
        body = self._marked(markdown, lambda text: f"**{text}**")
        rows = [[*map(markdown, self.header)], ["---"] * len(self.header), *body]
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

        def marked(row: int, column: int, cell: str) -> str:
            parts = enumerate(map(escape, cell.split(" / ")))
            return " / ".join(bold(part) if (row, column, which) in self.best else part for which, part in parts)

        return [[marked(i, j, cell) for j, cell in enumerate(row)] for i, row in enumerate(self.rows)]


def visible(text: str) -> str:
    """Text on one line, in which what no reader sees (control characters, orders to write backwards, halves of characters) is �.

    >>> visible("a\\x00b\\u202ec\\nd")
    'a�b�c d'
    """
    line = re.sub(r"[\n\r\t\v\f\u2028\u2029]+", " ", text)
    return "".join("�" if unicodedata.category(sign) in ("Cc", "Cs") or sign in ORDERS else sign for sign in line)


def markdown(text: str) -> str:
    """Text that cannot begin markup in Markdown, nor end a cell of a table.

    >>> print(markdown("a|b <i> [x](y) snake_case & _z_"))
    a\\|b \\<i> \\[x\\](y) snake_case & \\_z\\_
    """
    return SIGNS_OF_MARKDOWN.sub(r"\\\1", visible(text))


def tex(text: str) -> str:
    r"""Text that LaTeX prints as it is; the sign of percent stands close to its number.

    >>> print(tex("50 % of a_b & {c} ± 1"))
    50\,\% of a\_b \& \{c\} $\pm$ 1
    """
    signs = "".join(TEX.get(sign, sign) for sign in visible(text))
    return re.sub(r"(?<=\d) \\%", r"\\,\\%", signs)


def csv_text(header: Sequence[str], rows: Iterable[Iterable[object]], lineterminator: str = "\r\n") -> str:
    """Rows as CSV; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator=lineterminator)
    writer.writerows([csv_cell(cell) for cell in row] for row in (header, *rows))
    return buffer.getvalue()
