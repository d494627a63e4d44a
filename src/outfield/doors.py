"""The door of a room: the names that other rooms may import, each loaded from its module when it is first asked for.

A room's ``__init__`` says ``__getattr__, __dir__, __all__ = door(__name__, {"module": ("Name", …)})``. Importing a room then
imports nothing else. Type checkers and editors read the ``__init__.pyi`` beside it, which ``python tools/stubs.py`` writes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def door(
    room: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a room.

    Args:
        room: its ``__name__``.
        homes: the public names by the module, relative to the room, that defines them.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{room}.{home_of[name]}"), name)
        setattr(sys.modules[room], name, value)  # from now on found without this function
        return value

    return load, lambda: sorted({*vars(sys.modules[room]), *home_of}), sorted(home_of)
