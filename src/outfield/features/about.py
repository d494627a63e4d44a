"""What a set of features knows of where it comes from: short texts by name, kept in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfield.errors import InputError

MOST = 64
"""How many texts a set keeps."""
LONGEST = 1000
"""Letters of a name or text."""


NETWORK = "network"
"""Under this name a set says which network, with which preprocessing, gave its rows: a name for people, then a digest."""


def network_text(name: str, fingerprint: str) -> str:
    """What a set says of its network.

    >>> network_text("cifar10", "0123456789abcdef0123456789abcdef")
    'cifar10 0123456789abcdef'
    """
    return f"{name[:200]} {fingerprint[:16]}".strip()


def agree(name: str, one: str, other: str) -> bool:
    """Whether two texts under a name say the same: of a network its digest counts, whatever people call it.

    >>> agree("network", "mine 0123456789abcdef", "yours 0123456789abcdef"), agree("views", "flip", "six")
    (True, False)
    """
    if name == NETWORK:
        return one.rpartition(" ")[2] == other.rpartition(" ")[2]
    return one == other


def common_about(sets: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What several sets say together; of a network nothing, unless all of them do.

    Raises:
        InputError: They say different things.
    """
    first, *others = sets
    known = set(first) | {NETWORK}
    for other in others:
        same = all(agree(name, first[name], other[name]) for name in set(first) & set(other))
        if not same or set(other) | {NETWORK} != known:
            raise InputError(f"the sets to join come from different places: {dict(first)} and {dict(other)}")
    return {name: text for name, text in first.items() if all(name in other for other in others)}


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
