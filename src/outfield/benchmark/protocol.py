"""Protocols: which sets are near, mid and far from which ID set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from outfield.config import require, require_number
from outfield.errors import InputError, UnknownNameError

LEVELS = ("near", "mid", "far")
AVERAGE = "average"
TRAIN, TEST, HELD_OUT = "train", "test", "held_out"  # the ID sets of a backbone; OOD sets go by their own names


@dataclass(frozen=True)
class Protocol:
    """An ID set, the OOD sets to tell it from by their distance, and the one setting that depends on the ID set.

    Args:
        id: the ID set's name.
        near: names of the OOD sets most like it.
        mid: those in between.
        far: those least like it.
        neighbours: k of KNN, where no other is set.
        name: what it goes by among :data:`PROTOCOLS`, where that is not the ID set's name.

    Raises:
        InputError: no OOD set at all, one that is called "train", "test" or "held_out", a set that is named twice, or something
            that is no name.
    """

    id: str
    near: tuple[str, ...]
    mid: tuple[str, ...]
    far: tuple[str, ...]
    neighbours: int = 50
    name: str = ""

    def __post_init__(self) -> None:
        for level in LEVELS:
            names = getattr(self, level)
            require(isinstance(names, tuple | list), level, names, "a tuple of names")
            object.__setattr__(self, level, tuple(names))  # a list, as files have it, is as good
        require_number("neighbours", self.neighbours, least=1, whole=True)
        if not self.ood:
            raise InputError(f"the protocol of {self.id} has no OOD set; name at least one in {', '.join(LEVELS)}")
        if taken := {TRAIN, TEST, HELD_OUT} & {*self.ood}:
            raise InputError(f"an OOD set of {self.id} is called {taken.pop()}, as a part of the ID set is; rename it")
        names = (self.id, *self.ood)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"the protocol of {self.id} names {', '.join(twice)} more than once; a set has one role")

    @property
    def key(self) -> str:
        """What it goes by among :data:`PROTOCOLS`, if it is one of them."""
        return self.name or self.id

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """OOD sets by level."""
        return {level: getattr(self, level) for level in LEVELS}

    @property
    def ood(self) -> tuple[str, ...]:
        """All OOD sets, nearest first."""
        return self.near + self.mid + self.far

    def plain(self) -> dict[str, Any]:
        """Its settings for a file, without a name where it has none: ``Protocol(**protocol.plain())`` is the same."""
        return {name: value for name, value in asdict(self).items() if name != "name" or value}

    def level_of(self, name: str) -> str:
        """The level of an OOD set."""
        for level, names in self.levels.items():
            if name in names:
                return level
        raise UnknownNameError(f"{name!r} is no OOD set of {self.id}; it has {', '.join(self.ood)}")

    def with_ood(self, level: str, name: str) -> Protocol:
        """The same with one more OOD set.

        >>> PROTOCOLS["cifar10"].with_ood("far", "mine").far
        ('textures', 'svhn', 'mine')
        """
        if level not in LEVELS:
            raise UnknownNameError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
        more: dict[str, Any] = {level: (*self.levels[level], name)}
        return replace(self, **more)


_TEN, _HUNDRED = ("cifar100", "tinyimagenet"), ("cifar10", "tinyimagenet")  # near OOD of CIFAR-10 and CIFAR-100
_MID, _FAR, _OPENOOD = ("lsun", "places365"), ("textures", "svhn"), ("mnist", "svhn", "textures", "places365")
PROTOCOLS = {
    "cifar10": Protocol("cifar10", _TEN, _MID, _FAR, 50),
    "cifar100": Protocol("cifar100", _HUNDRED, _MID, _FAR, 200),
    "openood-cifar10": Protocol("cifar10", _TEN, (), _OPENOOD, name="openood-cifar10"),
    "openood-cifar100": Protocol("cifar100", _HUNDRED, (), _OPENOOD, name="openood-cifar100"),
}
"""The paper's two, and those of OpenOOD 1.5 for the same ID sets."""
