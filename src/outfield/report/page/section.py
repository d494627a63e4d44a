"""A section of the page: what it shows, and the template that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        id: Where links lead to.
        heading: Its heading.
        template: The file of the template that shows it.
        content: What that template is given.
        below: What in it has links of its own, as pairs of id and words.
    """

    id: str
    heading: str
    template: str
    content: Any
    below: Sequence[tuple[str, str]] = ()


def count(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> count(1, "set"), count(2, "set")
    ('1 set', '2 sets')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
