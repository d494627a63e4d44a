"""How shares, counts and long lists are written, wherever a person reads them: "94.0 %", "1 image"."""

from collections.abc import Sequence


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, with its sign."""
    return f"{in_percent(share, digits)} %"


def in_percent(share: float, digits: int = 1) -> str:
    """A share in percent, where a heading says so already."""
    return f"{100 * share:.{digits}f}"


def counted(count: int, what: str) -> str:
    """A count in words.

    >>> counted(1, "cell"), counted(1200, "cell"), counted(2, "class")
    ('1 cell', '1,200 cells', '2 classes')
    """
    plural = "" if count == 1 else "es" if what.endswith(("ss", "x")) else "s"
    return f"{count:,} {what}{plural}"


def listed(names: Sequence[str]) -> str:
    """Names in quotes, of many the first eight.

    >>> listed("ab"), listed("abcdefghij")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h' and 2 more")
    """
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
