"""Which sets a benchmark is about, as the command line names them: a published protocol, or one's own folders and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outfield.cli.places import Input
from outfield.cli.sources import feature_file, image_files
from outfield.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from outfield.benchmark.protocol import Protocol
    from outfield.features.set import FeatureSource
    from outfield.images.source import ImageSource

TAKEN = ("near", "mid", "far", "average")
"""Columns of the tables, after which no set can be called."""


@dataclass(frozen=True)
class OwnSets:
    """A protocol of one's own: what ``--id-train``, ``--id-test``, ``--near``, ``--mid`` and ``--far`` say.

    Args:
        name: What to call the protocol and its ID set.
        id_train: Where the ID training set is.
        id_test: Where the ID test set is.
        levels: By level, each OOD set as NAME=PLACE, or as the name of a published set that lies in the folder ``data``.
        data: Folder of published sets, or None.
        features: Whether places hold features, not images.
    """

    name: str
    id_train: str
    id_test: str
    levels: Mapping[str, Sequence[str]]
    data: Path | None = None
    features: bool = False

    def protocol(self) -> Protocol:
        """The sets by level.

        Raises:
            InputError: a name that cannot be, one that comes twice, or no OOD set.
        """
        from outfield.benchmark.protocol import PROTOCOLS, Protocol

        if self.name in PROTOCOLS:
            raise InputError(
                f"{self.name} is a published protocol, whose ID set is found in --data; with --id-train choose another name"
            )
        if not self.name or {*self.name} & {"/", "\\", "\0"}:
            raise InputError(f"the protocol is called {self.name!r}; a name of your own has letters, and no slash")
        if not any(self.levels.values()):
            raise InputError(
                "there is no OOD set; name at least one, such as --near NAME=FOLDER, --mid NAME=FOLDER or --far NAME=FOLDER"
            )
        names = {level: tuple(self._named(level, item)[0] for item in items) for level, items in self.levels.items()}
        return Protocol(self.name, names["near"], names["mid"], names["far"])

    def inputs(self) -> list[Input]:
        """Files that are read, which nothing may overwrite."""
        listed = feature_file if self.features else image_files
        return [place for part, (_, source) in self._places().items() if source for place in listed(part, source)]

    def images(self, download: bool = False) -> dict[str, ImageSource]:
        """Images of every set: "train" and "test" of the ID set, and OOD sets by name.

        Raises:
            OutfieldError: they are not there, or no images.
        """
        from outfield.images.files import open_images
        from outfield.images.finding import find

        return {
            part: open_images(source) if source else find(name, "test", self.data or "", download)
            for part, (name, source) in self._places().items()
        }

    def rows(self) -> dict[str, FeatureSource]:
        """Features of every set, in the same way."""
        from outfield.features.stream import open_or_read

        return {part: open_or_read(source) for part, (_, source) in self._places().items()}

    def _places(self) -> dict[str, tuple[str, str]]:
        """Name and place of each set; no place for a published one."""
        named = [self._named(level, item) for level, items in self.levels.items() for item in items]
        sets = {"train": (self.name, self.id_train), "test": (self.name, self.id_test)}
        return sets | {name: (name, source) for name, source in named}

    def _named(self, level: str, item: str) -> tuple[str, str]:
        name, equals, source = item.partition("=")
        if not name or (equals and not source):
            raise InputError(f"--{level} {item}: write {self._example()}")
        if not equals and (self.data is None or self.features):
            hint = "" if self.features else ", or give --data for a set that is known by name"
            raise InputError(f"--{level} {item}: write {self._example()}{hint}")
        if name in TAKEN:
            raise InputError(f"--{level} {item}: {name} is a column of the tables; call the set something else")
        return name, source

    def _example(self) -> str:
        return "NAME=FILE, such as cats=cats.npz" if self.features else "NAME=FOLDER, such as cats=photos/cats"


def own_sets(
    name: str,
    id_train: str | None,
    id_test: str | None,
    levels: Mapping[str, Sequence[str] | None],
    data: Path | None,
    features: bool,
) -> OwnSets | None:
    """The user's own sets, or None where a published protocol is meant.

    Raises:
        InputError: options that belong to one's own sets come without all of them.
    """
    given = {"--id-train": id_train, "--id-test": id_test}
    lacks = [option for option, value in given.items() if value is None]
    extras = [f"--{level}" for level, items in levels.items() if items] + ["--features"] * features
    if len(lacks) == 2 and not extras:
        return None
    if id_train is None or id_test is None:
        said = ", ".join([*(option for option in given if option not in lacks), *extras])
        more = "; to a published protocol, --ood LEVEL=NAME adds a set" if len(lacks) == 2 else ""
        raise InputError(f"{said} without {' and '.join(lacks)}: sets of your own need both{more}")
    return OwnSets(name, id_train, id_test, {level: items or [] for level, items in levels.items()}, data, features)


def published_protocol(name: str, ood: Sequence[str]) -> Protocol:
    """The protocol of that name, with more OOD sets, each LEVEL=NAME.

    Raises:
        UnknownNameError: there is no such protocol or level.
        InputError: a set that is not written like that, or comes twice.
    """
    from outfield.benchmark.protocol import PROTOCOLS

    if name not in PROTOCOLS:
        raise UnknownNameError(
            f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}, and your own with --id-train, --id-test and "
            "--near, --mid or --far"
        )
    plan = PROTOCOLS[name]
    for item in ood:
        level, equals, added = item.partition("=")
        if not equals:
            raise InputError(f"--ood {item}: write LEVEL=NAME, such as far=noise")
        plan = plan.with_ood(level, added)
    return plan
