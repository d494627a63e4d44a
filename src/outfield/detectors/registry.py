"""Which detectors there are: classes of this room marked ``@register``, known from its sources, and those that a user marks."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from outfield.config import FINDERS, configurable
from outfield.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from outfield.detectors.base import Detector

D = TypeVar("D", bound="Detector")


class Registry(Mapping[str, "type[Detector]"]):
    """Detectors by name, in alphabetical order: names at once, classes when they are asked for."""

    def __init__(self) -> None:
        self._classes: dict[str, type[Detector]] = {}

    def __getitem__(self, name: str) -> type[Detector]:
        if name not in self:
            raise UnknownNameError(f"there is no detector {name!r}; there are {', '.join(self)}")
        if name not in self._classes:
            importlib.import_module(homes()[name])
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._classes or name in homes())

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*homes(), *self._classes}, key=str.casefold))

    def __len__(self) -> int:
        return len({*homes(), *self._classes})

    def __repr__(self) -> str:
        return f"DETECTORS({', '.join(self)})"

    def add(self, cls: type[Detector]) -> None:
        """Take a class under its name; a class of the same file and name replaces an older one."""
        name, place = cls.__name__, _place(cls)
        holder = _place(self._classes[name]) if name in self._classes else (homes().get(name, place[0]), place[1])
        if holder != place:
            raise InputError(f"{holder[0]} has a detector {name} already; call the class in {place[0]} by another name")
        self._classes[name] = cls


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


DETECTORS = Registry()
"""Every detector by name: what the command line and the contract tests walk."""


def register(cls: type[D]) -> type[D]:
    """Put a detector into :data:`DETECTORS` under its class name; it may also be a setting of another one.

    Raises:
        InputError: it is not a class of detectors, it lacks a method that detectors must have, or its name is taken.
    """
    from outfield.detectors.base import Detector  # by now imported, unless cls is something else

    if not (isinstance(cls, type) and issubclass(cls, Detector)):
        raise InputError(f"register takes a subclass of outfield.Detector, not {cls!r}")
    if inspect.isabstract(cls):
        lacks = ", ".join(sorted(cls.__abstractmethods__))
        raise InputError(f"{cls.__name__} cannot be registered: it lacks {lacks}, which a detector must have")
    DETECTORS.add(cls)
    return configurable(cls)


FINDERS.append(lambda name: name in DETECTORS and DETECTORS[name])


@functools.cache
def homes() -> dict[str, str]:
    """The module of each detector of this room, by the detector's name; none of them is imported for it."""
    found: dict[str, str] = {}
    room = Path(__file__).parent
    for file in sorted(room.rglob("*.py")):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and any(_is_register(mark) for mark in node.decorator_list):
                found[node.name] = ".".join((str(__package__), *file.relative_to(room).with_suffix("").parts))
    return found


def _is_register(mark: ast.expr) -> bool:
    return (mark.attr if isinstance(mark, ast.Attribute) else getattr(mark, "id", None)) == "register"
