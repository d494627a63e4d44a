"""Tensors of the Open Inference Protocol: datatypes, flat lists of numbers, and the bytes of the binary extension."""

from __future__ import annotations

import base64
import binascii
import math
from itertools import chain
from typing import Any

import numpy as np

from outfield.serve.refusals import Refused

TYPES: dict[str, np.dtype[Any]] = {
    "UINT8": np.dtype("u1"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT32": np.dtype("<i4"),
    "BOOL": np.dtype("?"),
    "INT64": np.dtype("<i8"),
}
"""Of numbers that come and go."""
MOST_NUMBERS = 2**31


def shape_of(given: Any, name: str) -> tuple[int, ...]:
    """A shape that says how many numbers there are.

    Raises:
        Refused: It is no list of numbers above 0, or of too many.
    """
    good = isinstance(given, list) and 0 < len(given) <= 8 and all(type(one) is int and one > 0 for one in given)
    if not good:
        raise Refused(
            400,
            f"the shape of input {name!r} is {str(given)[:100]}; it must be a list of one to eight whole numbers above 0",
        )
    if math.prod(given) > MOST_NUMBERS:
        raise Refused(
            400, f"the shape of input {name!r} is {str(given)[:100]}; these are more than {MOST_NUMBERS:,} numbers"
        )
    return tuple(given)


def numbers_of(data: Any, shape: tuple[int, ...], datatype: str, name: str) -> np.ndarray:
    """Numbers of a JSON list, flat or nested, as an array of the shape.

    Raises:
        Refused: They are something else, or too few or too many.
    """
    try:
        array = np.array(data)
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise Refused(400, f"the data of input {name!r} is no list of numbers") from error
    whole = datatype == "UINT8"
    if array.dtype.kind not in ("iu" if whole else "iuf") or array.size != math.prod(shape) or _holds_bool(data, array):
        raise Refused(
            400, f"the data of input {name!r} must be {math.prod(shape):,} numbers of {datatype}, as its shape says"
        )
    if whole and (array.min() < 0 or array.max() > 255):
        raise Refused(400, f"the data of input {name!r} must lie in 0 … 255")
    with np.errstate(over="ignore"):
        return array.astype(TYPES[datatype]).reshape(shape)


def _holds_bool(data: Any, array: np.ndarray) -> bool:
    """Whether true or false is among numbers, of which numpy makes 1 and 0; lists are nested as deep as the array has sides."""
    flat: Any = [data]
    for _ in range(array.ndim):
        flat = chain.from_iterable(flat)
    return bool in set(map(type, flat))


def numbers_of_bytes(content: memoryview, shape: tuple[int, ...], datatype: str, name: str) -> np.ndarray:
    """Numbers of a binary part, as an array of the shape.

    Raises:
        Refused: There are too few bytes, or too many.
    """
    kind = TYPES[datatype]
    if len(content) != math.prod(shape) * kind.itemsize:
        size = math.prod(shape) * kind.itemsize
        raise Refused(400, f"input {name!r} has {len(content):,} bytes; its shape and {datatype} make {size:,}")
    return np.frombuffer(content, kind).reshape(shape)


def texts_of(data: Any, name: str) -> list[bytes]:
    """Elements of BYTES in JSON: texts in Base64, in a flat list or one of one-element lists.

    Raises:
        Refused: They are something else.
    """
    flat = (
        [one[0] if isinstance(one, list) and len(one) == 1 else one for one in data] if isinstance(data, list) else []
    )
    try:
        return [base64.b64decode(one, validate=True) for one in flat]
    except (binascii.Error, ValueError, TypeError) as error:
        raise Refused(400, f"the data of input {name!r} must be a list of encoded images as Base64 texts") from error


def texts_of_bytes(content: memoryview, name: str) -> list[bytes]:
    """Elements of BYTES in a binary part: each is its length, 4 bytes, little end first, and so many bytes.

    Raises:
        Refused: A length does not agree with the bytes.
    """
    found, at = [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + length > len(content):
            raise Refused(400, f"input {name!r} ends within an element")
        found.append(bytes(content[at + 4 : at + 4 + length]))
        at += 4 + length
    return found
