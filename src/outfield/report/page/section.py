"""A section of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outfield.report.page.markup import Html


@dataclass(frozen=True)
class Section:
    """A part of the page: where links lead to, its heading, its content, and what below it has links of its own."""

    id: str
    heading: str
    body: Html
    below: Sequence[tuple[str, str]] = ()


def count(number: int, noun: str) -> str:
    """A number and what it counts."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
