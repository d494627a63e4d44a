"""Settings as plain data: what a detector was built with, written to a file and read back.

A class whose constructor arguments are settings is marked :func:`configurable`; its instances then travel inside a
detector's file as ``{"type": name, argument: value, ...}``. An unknown type or argument is an error, never ignored.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np

from outfield.errors import InputError, UnknownNameError

CONFIGURABLE: dict[str, type] = {}  # every class that may appear as a setting, by name

# called with a name that is not in CONFIGURABLE yet; one that knows it imports the class, which then is
FINDERS: list[Callable[[str], object]] = []

C = TypeVar("C", bound=type)


def configurable(cls: C) -> C:
    """Let instances of ``cls`` be settings of a detector. Its constructor must store each argument under its name.

    Raises:
        InputError: another class has that name; a class of the same file and name takes its place.
    """
    other = CONFIGURABLE.get(cls.__name__, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        there = f"there is a setting {cls.__name__} already, in {other.__module__}"
        raise InputError(f"{there}; call the class in {cls.__module__} by another name")
    CONFIGURABLE[cls.__name__] = cls
    return cls


def is_configurable(value: Any) -> bool:
    """Whether ``value`` is a setting that has settings of its own."""
    return CONFIGURABLE.get(type(value).__name__) is type(value)


def arguments(obj: Any) -> dict[str, Any]:
    """Constructor arguments of ``obj``, read back from its attributes; numpy's numbers as Python's."""
    names, cls = inspect.signature(type(obj)).parameters, type(obj).__name__
    if lost := [name for name in names if not hasattr(obj, name)]:
        raise InputError(f"{cls} does not keep its argument {lost[0]}; its constructor must store it")
    values = {name: getattr(obj, name) for name in names}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def to_plain(value: Any) -> Any:
    """Settings to what JSON can hold: plain values, and objects of :func:`configurable` classes."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if not is_configurable(value):
        kinds = "numbers, text, tuples of them, or objects whose class is marked with @outfield.config.configurable"
        raise InputError(f"{shown(value)} cannot be kept in a file; settings are {kinds}")
    return {"type": type(value).__name__, **{key: to_plain(item) for key, item in said_settings(value).items()}}


def said_settings(obj: Any) -> dict[str, Any]:
    """The settings of ``obj`` as files keep them: renamed ones by their old names, without ``added_settings`` as listed."""
    old = {new: name for name, new in getattr(type(obj), "renamed_settings", {}).items()}
    added: Mapping[str, Any] = getattr(type(obj), "added_settings", {})
    found = {old.get(name, name): value for name, value in arguments(obj).items()}
    silent = [(name, type(value), value) for name, value in added.items()]
    return {name: value for name, value in found.items() if (name, type(value), value) not in silent}


def from_plain(value: Any) -> Any:
    """What :func:`to_plain` made, back to settings."""
    if isinstance(value, list):
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    rest = {key: from_plain(item) for key, item in value.items() if key != "type"}
    name = value.get("type")
    if not isinstance(name, str) or not _is_known(name):
        known = sorted(CONFIGURABLE)
        some = difflib.get_close_matches(str(name)[:50], known, 5) or [*known[:24], "…"]
        raise UnknownNameError(f"unknown setting of type {shown(name)}; known: {', '.join(some)}")
    return construct(CONFIGURABLE[name], rest)


def _is_known(name: str) -> bool:
    """Whether a class of this name may be a setting; after this it is in :data:`CONFIGURABLE`."""
    if name not in CONFIGURABLE:
        for find in FINDERS:
            find(name)
    return name in CONFIGURABLE


def construct(cls: type, settings: Mapping[str, Any]) -> Any:
    """``cls(**settings)``, with an error that lists what it takes when a name is unknown."""
    known = list(inspect.signature(cls).parameters)
    for old, new in getattr(cls, "renamed_settings", {}).items():
        if old in settings and old not in known and new in known:
            settings = {new if name == old else name: value for name, value in settings.items()}
    unknown = [shown(name).strip("'") for name in settings if name not in known]
    if unknown:
        raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    try:
        return cls(**settings)
    except TypeError as error:
        raise InputError(f"{cls.__name__} cannot be built from {shown(settings)}: {error}") from error


def construct_from_text(cls: type, settings: Mapping[str, str]) -> Any:
    """``cls`` with settings given as text, checked; ``training.epochs`` reaches into a setting that has settings of its own."""
    chosen = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    given: dict[str, Any] = {}
    for path, text in settings.items():
        name = path.partition(".")[0]
        given[name] = chosen[name] = _changed(cls, chosen, path, text)
    made = construct(cls, given)
    if hasattr(made, "check_settings"):
        made.check_settings()
    return made


def _changed(cls: type, settings: Mapping[str, Any], path: str, text: str) -> Any:
    """The new value of the setting of ``cls`` that ``path`` begins with."""
    name, dot, inner = path.partition(".")
    if not dot:
        return _parse(text)
    owner = settings.get(name)
    if not is_configurable(owner):
        raise InputError(f"{cls.__name__} has no setting {path}; it has {', '.join(settings) or 'none'}")
    inside = arguments(owner)
    return construct(type(owner), inside | {inner.partition(".")[0]: _changed(type(owner), inside, inner, text)})


def settings_of(obj: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of ``obj`` by the path that :func:`construct_from_text` takes."""
    found: dict[str, Any] = {}
    for name, value in arguments(obj).items():
        found |= settings_of(value, f"{prefix}{name}.") if is_configurable(value) else {prefix + name: value}
    return found


def _parse(text: str) -> Any:
    """Text as a number, a tuple, a settings class with its defaults, one written as JSON, or itself."""
    if _is_known(text):
        return construct(CONFIGURABLE[text], {})
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, or brackets without end
        return text
    return from_plain(value)


def shown(value: Any) -> str:
    """A value as an error message shows it: its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}… ({len(text)} characters in all)"


def require(condition: bool, name: str, value: Any, right: str) -> None:
    """Raise an :class:`InputError` that names the argument, its value and what would be right."""
    if not condition:
        raise InputError(f"{name} is {shown(value)}; it must be {right}")


def require_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Raise an :class:`UnknownNameError`, which is an InputError, unless ``value`` is one of the ``known`` texts."""
    if not isinstance(value, str) or value not in known:
        raise UnknownNameError(f"{name} is {shown(value)}; it must be one of {', '.join(known)}")


def require_pair(name: str, value: Any, example: str, **bounds: Any) -> None:
    """Raise an :class:`InputError` unless ``value`` is two numbers, the smaller first, as :func:`require_number` wants them."""
    require(isinstance(value, tuple | list) and len(value) == 2, name, value, f"two numbers, such as {example}")
    for number in value:
        require_number(name, number, **bounds)
    require(value[0] <= value[1], name, value, "two numbers, the smaller first")


def require_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise an :class:`InputError` unless ``value`` is a finite number with above < value, least ≤ value ≤ most.

    Numbers are Python's or NumPy's. A whole number fits 64 bits, any other a float.
    """
    number = value.item() if isinstance(value, np.generic) else value
    good = isinstance(number, int if whole else int | float) and not isinstance(number, bool)
    limit = 2**63 - 1 if whole else sys.float_info.max
    bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
    bounds += [f"at most {most:g}"] * (most < math.inf)
    what = " ".join(["a whole number" if whole else "a number", " and ".join(bounds)]).strip()
    require(good and abs(number) <= limit and above < number and least <= number <= most, name, value, what)
