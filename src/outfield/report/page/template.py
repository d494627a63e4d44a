"""The templates: every value is text and is escaped; only our own drawings, styles and script go in as they are.

Jinja comes with the extra ``outfield[report]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from outfield.extras import library
from outfield.report.table import visible

PACKAGE = "outfield.report.page"
LONG = 36  # characters of a name that stays on one line


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


@functools.cache
def environment() -> Any:
    """Jinja's environment: escapes everything, and refuses a name that a template misspells."""
    jinja2 = library("jinja2", extra="report")
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: asset(f"templates/{name}")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters["syllables"] = syllables
    made.tests["long"] = is_long
    return made


def render(template: str, **values: Any) -> str:
    """A template's text."""
    return str(environment().get_template(template).render(values))


def asset(name: str) -> str:
    """A file of this package as text."""
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def is_long(text: str) -> bool:
    """Whether a text may go over several lines though there is room for numbers beside it."""
    return len(text) > LONG or "\n" in text


def syllables(name: str) -> list[str]:
    """Where a name may go on in the next line of a narrow column.

    >>> syllables("EnergyCorrected"), syllables("near-OOD"), syllables("KNN")
    (['Energy', 'Corrected'], ['near-', 'OOD'], ['KNN'])
    """
    return re.split(r"(?<=[a-z])(?=[A-Z])|(?<=[-_/.,])(?=\w)", name)


def count(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> count(1, "set"), count(2, "set")
    ('1 set', '2 sets')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _printed(value: Any) -> Any:
    """Text as it is printed: nothing that no reader sees, and a number on one line with its sign of percent."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    lines = "\n".join(map(visible, value.split("\n")))
    return re.sub(r"(?<=\d) %", "\u00a0%", lines)
