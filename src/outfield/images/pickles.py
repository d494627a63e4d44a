"""The published pickles of CIFAR, read without unpickling: a parser that knows plain values and arrays, and can call nothing.

A pickle is a program for a small machine, one of whose instructions calls any function by its name. The machine here only has
the instructions that build numbers, text, tuples, lists, dictionaries and numpy's arrays. A function that the program asks for is
never looked up: its name is compared with the few that numpy writes for an array, and what those would do is done here.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import FileFormatError
from outfield.files import open_to_read

DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "b1")
"""Types of plain numbers, as numpy calls them in a pickle."""
BYTES_AT_MOST = 2**30
"""Of a file; the largest published one has 155 megabytes."""


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary of text, numbers, lists and arrays that a pickle holds; nothing in it can run.

    Text that Python 2 wrote is read as Latin-1.

    Raises:
        StorageError: It cannot be read.
        FileFormatError: It is truncated, or holds anything else.
    """
    with open_to_read(path) as file:
        content = file.read(BYTES_AT_MOST + 1)
    try:
        if len(content) > BYTES_AT_MOST:
            raise ValueError(f"it has more than {BYTES_AT_MOST:,} bytes")
        found = _Machine().run(content)
        if type(found) is not dict or not all(type(key) is str for key in found):
            raise ValueError("it is no dictionary")
        if any(isinstance(value, _Name | _Dtype) for value in found.values()):
            raise ValueError("it holds a function or class")
        return {key: value.found if isinstance(value, _Array) else value for key, value in found.items()}
    except Exception as error:  # a damaged program fails anywhere, also deep inside of pickletools
        raise FileFormatError(f"{path} is truncated, or is not a pickle of plain values ({error})") from error


@dataclass(frozen=True)
class _Name:
    """A function or class that a pickle asks for; never looked up."""

    text: str


class _Dtype:
    """The type of an array, whose byte order comes later."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in DTYPES:
            raise ValueError(f"arrays of {code!r} are not read")
        self.found = np.dtype(code)

    def set_state(self, state: Any) -> None:
        """From (version, byte order, …), without fields or arrays inside."""
        _, order, *inner = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in inner[:3]):
            raise ValueError("arrays of structured values are not read")
        self.found = self.found.newbyteorder(order)


class _Array:
    """An array, whose content comes later."""

    found: np.ndarray | None = None

    def set_state(self, state: Any) -> None:
        """From (version, shape, type, whether columns go first, bytes)."""
        _, shape, dtype, columns_first, content = state
        content = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        if math.prod(shape) * dtype.found.itemsize != len(content):
            raise ValueError(f"an array of shape {shape} cannot have {len(content):,} bytes")
        self.found = np.frombuffer(content, dtype.found).reshape(shape, order="F" if columns_first else "C")


FUNCTIONS: dict[tuple[str, ...], Callable[..., Any]] = {
    ("numpy.core.multiarray._reconstruct", "numpy.ndarray"): lambda *_: _Array(),
    ("numpy._core.multiarray._reconstruct", "numpy.ndarray"): lambda *_: _Array(),
    ("numpy.dtype",): _Dtype,
    ("_codecs.encode",): lambda text, encoding: text.encode("latin-1") if encoding == "latin1" else None,
}
"""What is done where a pickle of numpy's calls the first name, with the others as its first arguments."""


class _Machine:
    """The stack and the memory of a pickle's program."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memory: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """What the program leaves on the stack."""
        for operation, argument, _ in pickletools.genops(content):
            if operation.name in PUSHED:
                self.stack.append(argument)
            elif operation.name in INSTRUCTIONS:
                INSTRUCTIONS[operation.name](self, argument)
            elif operation.name not in IGNORED:
                raise ValueError(f"it has the instruction {operation.name}, which plain values do not need")
        (result,) = self.stack
        return result

    def pop(self, count: int) -> list[Any]:
        """The last values."""
        taken = self.stack[-count:]
        if len(taken) < count:
            raise ValueError("it takes more than it made")
        del self.stack[-count:]
        return taken

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        taken, self.stack = self.stack, self.below.pop()
        return taken

    def remember(self, place: int | None) -> None:
        self.memory[len(self.memory) if place is None else place] = self.stack[-1]

    def call(self) -> Any:
        function, arguments = self.pop(2)
        for (name, *first), replacement in FUNCTIONS.items():
            if function == _Name(name) and list(arguments[: len(first)]) == [_Name(text) for text in first]:
                return replacement(*arguments)
        raise ValueError(f"it calls {getattr(function, 'text', function)!r}, which is never done")

    def build(self) -> None:
        (state,) = self.pop(1)
        if not isinstance(self.stack[-1], _Array | _Dtype):
            raise ValueError("it sets the state of what is no array")
        self.stack[-1].set_state(state)

    def append(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(values)

    def dictionary(self) -> dict[Any, Any]:
        values = self.since_mark()
        return dict(zip(values[::2], values[1::2], strict=True))

    def set_items(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise ValueError("it sets items of what is no dictionary")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine, Any], None]:
    def instruction(machine: _Machine, _: Any) -> None:
        made = make(machine)  # first, because it may go back to the stack below
        machine.stack.append(made)

    return instruction


IGNORED = {"PROTO", "FRAME", "STOP"}
PUSHED = {
    *("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
"""Instructions that push their argument."""
INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "NONE": _push(lambda machine: None),
    "NEWTRUE": _push(lambda machine: True),
    "NEWFALSE": _push(lambda machine: False),
    "EMPTY_TUPLE": _push(lambda machine: ()),
    "EMPTY_LIST": _push(lambda machine: []),
    "EMPTY_DICT": _push(lambda machine: {}),
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE": _push(lambda machine: tuple(machine.since_mark())),
    "TUPLE1": _push(lambda machine: tuple(machine.pop(1))),
    "TUPLE2": _push(lambda machine: tuple(machine.pop(2))),
    "TUPLE3": _push(lambda machine: tuple(machine.pop(3))),
    "LIST": _push(_Machine.since_mark),
    "DICT": _push(_Machine.dictionary),
    "APPEND": lambda machine, _: machine.append(machine.pop(1)),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda machine, place: machine.stack.append(machine.memory[place])
    ),
    "GLOBAL": lambda machine, name: machine.stack.append(_Name(name.replace(" ", "."))),
    "STACK_GLOBAL": _push(lambda machine: _Name(".".join(machine.pop(2)))),
    "REDUCE": _push(_Machine.call),
    "BUILD": lambda machine, _: machine.build(),
}
