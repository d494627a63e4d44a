"""outfield detectors."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from outfield.cli.app import command, print_groups, print_table, say
from outfield.cli.options import Text

if TYPE_CHECKING:
    from outfield.detectors import Entry


@command("outfield detectors", "outfield detectors EnergyCorrected")
def detectors(
    name: Annotated[Text, Argument(help="One detector, to see all its settings.")] = None,
    markdown: Annotated[bool, Option("--markdown", help="Print the table of docs/detectors.md.")] = False,
) -> None:
    """List the detectors, what they need and what can be set."""
    from outfield.detectors import detector_groups, detectors_markdown

    if markdown:
        say(detectors_markdown().rstrip("\n"))
    elif name is not None:
        _one(name)
    else:
        shown = {
            f"{needs} ({len(group)})": [(one.name, _with_reference(one)) for one in group]
            for needs, group in detector_groups().items()
        }
        print_groups("detectors by what they need (higher score = more OOD)", shown)
        say("\noutfield detectors NAME tells more of one, and every setting that it has.")


def _with_reference(entry: Entry) -> str:
    """What it is and whose; a line does not end before a year, nor between "et" and "al."."""
    reference = re.sub(r" (?=\d{4}\b|al\.)", "\xa0", entry.reference)
    return f"{entry.what.rstrip('.')} ({reference})" if reference else entry.what


def _one(name: str) -> None:
    from outfield.config import settings_of
    from outfield.detectors import DETECTORS
    from outfield.report import Table

    cls = DETECTORS[name]
    say(re.sub(r"(?::\w+:)?(`{1,2})~?([^`]+)\1", r"\2", inspect.getdoc(cls) or ""))  # without marks for the reference
    say()
    rows = [[path, repr(value)] for path, value in settings_of(cls()).items()]
    title = f"settings of {name} (outfield fit {name} … --set NAME=VALUE)"
    print_table(Table(title, ["name", "default"], rows, left=2))
