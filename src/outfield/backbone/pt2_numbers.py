"""Plain values in a program of ``torch.export``: what JSON may hold in the place of a number, and what is computed of sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 2**63
"""Sizes and numbers of a program are smaller; Python's own grow without end."""
NUMBERS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
"""How such files write numbers that JSON lacks."""
PLAIN: Mapping[str, tuple[tuple[type, ...], int]] = {
    "as_int": ((int,), 0),
    "as_ints": ((int,), 1),
    "as_float": ((int, float), 0),
    "as_floats": ((int, float), 1),
    "as_bool": ((bool,), 0),
    "as_bools": ((bool,), 1),
    "as_string": ((str,), 0),
    "as_int_lists": ((int,), 2),
    "as_float_lists": ((int, float), 2),
}
"""Of each kind of value its types, and how many lists are around it."""
OF_NUMBERS = ("add", "sub", "mul", "floordiv", "mod", "neg", "truediv", "eq", "ne", "ge", "gt", "le", "lt")


def plain(kind: str, value: Any) -> Any:
    """A value of one of the kinds of :data:`PLAIN`.

    Raises:
        ValueError: it is of another type than its kind says, or too large.
    """
    return _checked(value, *PLAIN[kind])


def _checked(value: Any, types: tuple[type, ...], lists: int) -> Any:
    if lists:
        if not isinstance(value, list):
            raise ValueError(f"{str(value)[:80]!r} is no list")
        return [_checked(one, types, lists - 1) for one in value]
    if float in types and isinstance(value, str):
        value = NUMBERS.get(value, value)
    if type(value) not in types or (type(value) is int and abs(value) >= LARGEST):
        raise ValueError(f"{str(value)[:80]!r} is no {types[-1].__name__}")
    return value


def _of_numbers(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)

    def compute(*given: Any) -> Any:
        if not all(isinstance(one, int | float) and abs(one) < LARGEST for one in given):
            raise ValueError(f"{name} takes numbers below 2**63")
        return function(*given)

    return compute


def _item(values: Any, index: Any) -> Any:
    if not isinstance(values, list | tuple) or not isinstance(index, int):
        raise ValueError("getitem takes a list of values and an index")
    return values[index]


ON_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "_operator.getitem": _item,
    **{f"_operator.{name}": _of_numbers(name) for name in OF_NUMBERS},
}
"""Functions on sizes, by the names that such files have for them."""
