"""Text that Markdown and LaTeX print as it is, whatever it holds."""

from __future__ import annotations

import re


def markdown(text: str) -> str:
    """Text that cannot end a cell of a Markdown table or begin markup in it."""
    return re.sub(r"([\\|*`<])", r"\\\1", text)


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
}
"""What LaTeX would take for a command, or may have no letter for."""


def tex(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    >>> print(tex("50 % of a_b & {c} ± 1"))
    50 \% of a\_b \& \{c\} $\pm$ 1
    """
    return "".join(TEX.get(sign, sign) for sign in text)
