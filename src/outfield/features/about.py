"""What a set of features knows of where it comes from: short texts by name, kept in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfield.errors import InputError

MOST = 64
"""How many texts a set keeps."""
LONGEST = 1000
"""Letters of a name or text."""


def checked_about(given: Any) -> dict[str, str]:
    """A copy of texts by name; of None, none.

    Raises:
        InputError: It is something else, or there is too much of it.

    >>> checked_about({"views": "flip"})
    {'views': 'flip'}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise InputError(f"about is {given!r:.100}; it must be texts by name, such as {{'views': 'flip'}}")
    if len(given) > MOST or any(len(text) > LONGEST for pair in given.items() for text in pair):
        raise InputError(f"about holds too much: at most {MOST} texts of {LONGEST} letters are kept")
    return dict(given)
