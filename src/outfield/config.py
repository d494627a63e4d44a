"""Settings as plain data: what a detector was built with, written to a file and read back.

A class whose constructor arguments are settings is marked :func:`configurable`; its instances then travel inside a
detector's file as ``{"type": name, argument: value, ...}``. An unknown type or argument is an error, never ignored.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from outfield.errors import InputError, UnknownNameError

CONFIGURABLE: dict[str, type] = {}
"""Every class that may appear as a setting, by name."""

C = TypeVar("C", bound=type)


def configurable(cls: C) -> C:
    """Let instances of ``cls`` be settings of a detector. Its constructor must store each argument under its name.

    Raises:
        InputError: it is not a class, or another class has that name; a class of the same file and name takes its place.
    """
    if not isinstance(cls, type):
        raise InputError(f"configurable takes a class, not {cls!r}")
    holder = CONFIGURABLE.get(cls.__name__, cls)
    if (holder.__module__, holder.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InputError(
            f"there is a setting {cls.__name__} already, in {holder.__module__}; call the class in {cls.__module__} "
            "by another name"
        )
    CONFIGURABLE[cls.__name__] = cls
    return cls


def arguments(obj: Any) -> dict[str, Any]:
    """Constructor arguments of ``obj``, read back from its attributes."""
    return {name: getattr(obj, name) for name in inspect.signature(type(obj)).parameters}


def to_plain(value: Any) -> Any:
    """Settings to what JSON can hold.

    Raises:
        InputError: a value that is neither plain nor of a :func:`configurable` class.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    name = type(value).__name__
    if CONFIGURABLE.get(name) is not type(value):
        raise InputError(
            f"{value!r} cannot be kept in a file; settings are numbers, text, tuples of them, or objects whose class is marked "
            "with @outfield.config.configurable"
        )
    return {"type": name, **{key: to_plain(item) for key, item in arguments(value).items()}}


def from_plain(value: Any) -> Any:
    """What :func:`to_plain` made, back to settings.

    Raises:
        UnknownNameError: a type that is not registered.
        InputError: an argument that the type does not take, or a value it refuses.
    """
    if isinstance(value, list):
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    rest = {key: from_plain(item) for key, item in value.items() if key != "type"}
    name = value.get("type")
    if name not in CONFIGURABLE:
        raise UnknownNameError(f"unknown setting of type {name!r}; known: {', '.join(sorted(CONFIGURABLE))}")
    return construct(CONFIGURABLE[name], rest)


def construct(cls: type, settings: dict[str, Any]) -> Any:
    """``cls(**settings)``, with an error that lists what it takes when a name is unknown."""
    known = list(inspect.signature(cls).parameters)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    try:
        return cls(**settings)
    except TypeError as error:
        raise InputError(f"{cls.__name__} cannot be built from {settings}: {error}") from error


def construct_from_text(cls: type, settings: Mapping[str, str]) -> Any:
    """``cls`` with settings given as text; ``training.epochs`` reaches into a setting that has settings of its own.

    >>> construct_from_text(CONFIGURABLE["MLP"], {"hidden": "8"})
    MLP(hidden=8, depth=4, slope=0.2)
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    chosen: dict[str, Any] = {}
    for path, text in settings.items():
        name, _, inner = path.partition(".")
        value = _parse(text)
        if inner:
            owner = chosen.get(name, defaults.get(name))
            if type(owner).__name__ not in CONFIGURABLE:
                raise InputError(f"{cls.__name__} has no setting {path}; it has {', '.join(defaults) or 'none'}")
            value = construct(type(owner), arguments(owner) | {inner: value})
        chosen[name] = value
    return construct(cls, chosen)


def settings_of(obj: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of ``obj`` by the path that :func:`construct_from_text` takes.

    >>> settings_of(CONFIGURABLE["MLP"]())
    {'hidden': 1024, 'depth': 4, 'slope': 0.2}
    """
    found: dict[str, Any] = {}
    for name, value in arguments(obj).items():
        inner = type(value).__name__ in CONFIGURABLE
        found |= settings_of(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


def _parse(text: str) -> Any:
    """Text as a number, a pair, a settings class with its defaults, or itself."""
    if text in CONFIGURABLE:
        return CONFIGURABLE[text]()
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return tuple(value) if isinstance(value, list) else value


def require(condition: bool, name: str, value: Any, right: str) -> None:
    """Raise an :class:`InputError` that names the argument, its value and what would be right."""
    if not condition:
        raise InputError(f"{name} is {value!r}; it must be {right}")


def require_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise an :class:`InputError` unless ``value`` is a finite number with above < value, least ≤ value ≤ most."""
    kind = Integral if whole else Real
    good = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
    bounds += [f"at most {most:g}"] * (most < math.inf)
    what = " ".join(["a whole number" if whole else "a number", " and ".join(bounds)]).strip()
    require(good and above < value and least <= value <= most, name, value, what)
