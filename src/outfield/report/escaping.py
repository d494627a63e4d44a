"""Text that Markdown, LaTeX, spreadsheets and figures print as it is, whatever it holds.

Names of detectors, sets, backbones and classes are other people's: a name may hold markup, a formula or a sign that ends a line.
"""

from __future__ import annotations

import re
import unicodedata

SIGNS_OF_MARKDOWN = re.compile(r"([\\|*`<\[\]~${]|_(?![^\W_])|(?<![^\W_])_|&(?=#?\w+;))")
"""What would begin markup, a link, a formula or an entity, or end a cell of a table."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet computes."""


def visible(text: str) -> str:
    """Text on one line, in which what no reader sees (control characters, orders to write backwards, halves of characters) is �.

    >>> visible("a\\x00b\\u202ec\\nd")
    'a�b�c d'
    """
    return "".join("�" if _hidden(sign) else sign for sign in re.sub(r"[\n\r\t\v\f\u2028\u2029]+", " ", text))


def _hidden(sign: str) -> bool:
    return (
        unicodedata.category(sign) in ("Cc", "Cs") or sign in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


def markdown(text: str) -> str:
    """Text that cannot begin markup in Markdown, nor end a cell of a table.

    >>> print(markdown("a|b <i> [x](y) snake_case & _z_"))
    a\\|b \\<i> \\[x\\](y) snake_case & \\_z\\_
    """
    return SIGNS_OF_MARKDOWN.sub(r"\\\1", visible(text))


def csv_cell(value: object) -> object:
    """A cell of a CSV file: text that a spreadsheet would take for a formula begins with an apostrophe, which makes it text.

    >>> csv_cell("=1+1"), csv_cell("KNN"), csv_cell(-0.5)
    ("'=1+1", 'KNN', -0.5)
    """
    if not isinstance(value, str):
        return value
    return f"'{value}" if value.startswith(FORMULA) else value


TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # at the start of a row they would be arguments of the row's end before
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "→": r"$\rightarrow$",
    "…": r"\ldots{}",
    "’": "'",
    "�": "?",
}
"""What LaTeX would take for a command, or may have no letter for."""


def tex(text: str) -> str:
    r"""Text that LaTeX prints as it is; the sign of percent stands close to its number.

    >>> print(tex("50 % of a_b & {c} ± 1"))
    50\,\% of a\_b \& \{c\} $\pm$ 1
    """
    signs = "".join(TEX.get(sign, sign) for sign in visible(text))
    return re.sub(r"(?<=\d) \\%", r"\\,\\%", signs)
