"""Imports on demand: a room's public names, and libraries that only a part of Outfield needs.

A room's ``__init__`` says ``__getattr__, __dir__, __all__ = door(__name__, {"module": ("Name", …)})``; importing it imports
nothing else. Type checkers read the ``__init__.pyi`` beside it, which ``python tools/stubs.py`` writes. Libraries beyond
PyTorch, numpy and safetensors come with an extra of the package, ``pip install 'outfield[images]'``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from outfield.errors import MissingExtraError


def library(name: str, extra: str) -> ModuleType:
    """A module such as "PIL.Image" of a library that is installed with an extra of Outfield, such as "images".

    >>> library("json", extra="none").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root
        raise _missing(root, extra, "is not installed" if missing else f"cannot be imported ({error})") from error


def check_installed(extra: str, *names: str) -> None:
    """Find out before long work, without importing them, whether the libraries of an extra are there."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise _missing(name, extra, "is not installed")


def _missing(name: str, extra: str, reason: str) -> MissingExtraError:
    return MissingExtraError(f"this needs {name}, which {reason}: pip install 'outfield[{extra}]'")


def door(
    room: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a room, whose public names are given by the module that defines them."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{room}.{home_of[name]}"), name)
        setattr(sys.modules[room], name, value)  # from now on found without this function
        return value

    return load, lambda: sorted({*vars(sys.modules[room]), *home_of}), sorted(home_of)
