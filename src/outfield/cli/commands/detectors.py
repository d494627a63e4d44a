"""outfield detectors."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any

import typer

from outfield.cli.app import command
from outfield.cli.tables import print_table, say


@command("outfield detectors", "outfield detectors EnergyCorrected")
def detectors(
    name: Annotated[
        str | None, typer.Argument(help="One detector, to see every setting that fit --set can change.")
    ] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the table of docs/detectors.md: what each is, whose, what it reads."),
    ] = False,
) -> None:
    """List the detectors, what they need and what can be set."""
    from outfield.detectors import DETECTORS
    from outfield.report.table import Table

    if markdown:
        from outfield.detectors import listing

        say(listing.markdown().rstrip("\n"))
        return
    if name is not None:
        _one(name)
        return
    rows = []
    for each, cls in DETECTORS.items():
        needs = ", ".join(cls().needs_to_score) + "".join(f"; {field} to fit" for field in cls().needs_to_fit)
        settings = ", ".join(f"{p.name}={_short(p.default)}" for p in inspect.signature(cls).parameters.values())
        rows.append([each, needs, (inspect.getdoc(cls) or "").splitlines()[0], settings or "–"])
    header = ["name", "needs", "what it is", "settings"]
    print_table(Table("detectors (higher score = more OOD)", header, rows, left=4))


def _one(name: str) -> None:
    from outfield.config import settings_of
    from outfield.detectors import DETECTORS
    from outfield.report.table import Table

    cls = DETECTORS[name]
    say(inspect.getdoc(cls) or "")
    say()
    rows = [[path, repr(value)] for path, value in settings_of(cls()).items()]
    title = f"settings of {name} (outfield fit {name} … --set NAME=VALUE)"
    print_table(Table(title, ["name", "default"], rows, left=2))


def _short(value: Any) -> str:
    return type(value).__name__ + "(…)" if dataclasses.is_dataclass(value) else repr(value)
