"""What ``outfield choose`` and ``outfield fit auto`` share: stand-ins that are named on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outfield.cli.places import Input
from outfield.cli.sources import FEATURES, feature_file, named
from outfield.errors import InputError

if TYPE_CHECKING:
    from outfield.features.set import FeatureSource

Near = Annotated[
    list[str] | None,
    typer.Option("--near", help=f"Stand-ins for near OOD, FILE or NAME=FILE ({FEATURES}); any number of times."),
]
Far = Annotated[
    list[str] | None, typer.Option("--far", help="Stand-ins for far OOD, FILE or NAME=FILE; any number of times.")
]


def named_sets(option: str, sources: list[str] | None) -> dict[str, str]:
    """Sources by name.

    Raises:
        InputError: two have the same name.
    """
    found = dict(map(named, sources or []))
    if len(found) < len(sources or []):
        raise InputError(f"two sets of {option} have the same name; use NAME=FILE")
    return found


def set_files(option: str, sets: dict[str, str]) -> list[Input]:
    """The files of sets."""
    return [place for name, source in sets.items() for place in feature_file(f"the set {name} of {option}", source)]


def opened(sets: dict[str, str]) -> dict[str, FeatureSource]:
    """The sets, opened."""
    from outfield.features.stream import open_or_read

    return {name: open_or_read(source) for name, source in sets.items()}
