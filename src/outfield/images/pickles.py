"""The published pickles of CIFAR, read without unpickling: a parser that knows plain values and arrays, and can call nothing.

A pickle is a program for a small machine, one of whose instructions calls any function by its name. The machine here only has
the instructions that build numbers, text, tuples, lists, dictionaries and numpy's arrays. A function that the program asks for is
never looked up: its name is compared with the few that numpy writes for an array, and what those would do is done here.
"""

from __future__ import annotations

import math
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import FileFormatError
from outfield.files import open_to_read

DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "b1")  # Plain numbers, as numpy calls their types
BYTES_AT_MOST = 2**30  # Of a file; the largest published one has 155 megabytes
IGNORED = {"PROTO", "FRAME", "STOP"}
PUSHED = {  # Instructions that push their argument
    *("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary of text, numbers, lists and arrays that a pickle holds; text that Python 2 wrote is Latin-1."""
    with open_to_read(path) as file:
        content = file.read(BYTES_AT_MOST + 1)
    try:
        if len(content) > BYTES_AT_MOST:
            raise ValueError(f"it has more than {BYTES_AT_MOST:,} bytes")
        found = _run(content)
        if type(found) is not dict or not all(type(key) is str for key in found):
            raise ValueError("it is no dictionary")
        values = {key: value.value if isinstance(value, _Slot) else value for key, value in found.items()}
        if any(isinstance(value, _Name | np.dtype) for value in values.values()):
            raise ValueError("it holds a function or class")
        return values
    except Exception as error:  # a damaged program fails anywhere, also deep inside of pickletools
        raise FileFormatError(f"{path} is truncated, or is not a pickle of plain values ({error})") from error


class _Name(str):
    """A function or class that a pickle asks for; never looked up."""


class _Slot:
    """An array, or the type of one, whose content comes later."""

    def __init__(self, value: np.dtype[Any] | None) -> None:
        self.value: np.dtype[Any] | np.ndarray | None = value

    def set_state(self, state: Any) -> None:
        """Of a type (version, byte order, …); of an array (version, shape, type, whether columns go first, bytes)."""
        if isinstance(self.value, np.dtype):
            _, order, *inner = state
            if order not in ("<", ">", "|", "=") or any(part is not None for part in inner[:3]):
                raise ValueError("arrays of structured values are not read")
            self.value = self.value.newbyteorder(order)
            return
        _, shape, dtype, columns_first, content = state
        content = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        if math.prod(shape) * dtype.value.itemsize != len(content):
            raise ValueError(f"an array of shape {shape} cannot have {len(content):,} bytes")
        self.value = np.frombuffer(content, dtype.value).reshape(shape, order="F" if columns_first else "C")


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What numpy's own functions for an array would give."""
    name = str(function) if isinstance(function, _Name) else ""
    if name in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
        if isinstance(arguments[0], _Name) and arguments[0] == "numpy.ndarray":
            return _Slot(None)
    elif name == "numpy.dtype":
        if arguments[0] not in DTYPES:
            raise ValueError(f"arrays of {arguments[0]!r} are not read")
        return _Slot(np.dtype(arguments[0]))
    elif name == "_codecs.encode" and arguments[1] == "latin1":
        return arguments[0].encode("latin-1")
    raise ValueError(f"it calls {function!r}, which is never done")


def _run(content: bytes) -> Any:
    """What the program leaves on the stack."""
    stack: list[Any] = []
    marks: list[int] = []
    memory: dict[int, Any] = {}

    def taken(start: int) -> list[Any]:
        if not 0 <= start <= len(stack):
            raise ValueError("it takes more than it made")
        values = stack[start:]
        del stack[start:]
        return values

    def last(kind: type) -> Any:
        if type(stack[-1]) is not kind:
            raise ValueError(f"it adds to what is no {kind.__name__.removeprefix('_')}")
        return stack[-1]

    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        match operation.name:
            case name if name in PUSHED:
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation.name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[operation.name]())
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(taken(marks.pop())))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(taken(len(stack) - int(operation.name[-1]))))
            case "LIST":
                stack.append(taken(marks.pop()))
            case "DICT":
                values = taken(marks.pop())
                stack.append(dict(zip(values[::2], values[1::2], strict=True)))
            case "APPEND" | "APPENDS":
                values = taken(len(stack) - 1 if operation.name == "APPEND" else marks.pop())
                last(list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = taken(len(stack) - 2 if operation.name == "SETITEM" else marks.pop())
                last(dict).update(zip(values[::2], values[1::2], strict=True))
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memory[len(memory) if argument is None else argument] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memory[argument])
            case "GLOBAL":
                stack.append(_Name(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                stack.append(_Name(".".join(taken(len(stack) - 2))))
            case "REDUCE":
                stack.append(_call(*taken(len(stack) - 2)))
            case "BUILD":
                (state,) = taken(len(stack) - 1)
                last(_Slot).set_state(state)
            case name if name not in IGNORED:
                raise ValueError(f"it has the instruction {name}, which plain values do not need")
    (result,) = stack
    return result
