"""The Open Inference Protocol (V2): from the body of a request to images, rows or columns, and from verdicts to an answer."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from outfield.features import NUMBER, TEXT, TRUTH, FeatureSet
from outfield.guard import Guard, Verdict
from outfield.serve.body import Upload
from outfield.serve.limits import Refused

HEADER_LENGTH = "inference-header-content-length"
"""The HTTP header that says how long the JSON in front of binary tensors is."""
OUTPUTS = {"score": "FP32", "p_value": "FP32", "is_ood": "BOOL", "label": "INT64"}
INPUTS = 10_000  # of a request, at most
INPUT_TYPES = ("BYTES", "UINT8", "FP32")


class Asked(NamedTuple):
    """What a request asks for: inputs by name, encoded images or an array, and outputs by name, binary or not."""

    id: str | None
    inputs: dict[str, list[bytes] | np.ndarray]
    outputs: dict[str, bool]


def parse(body: bytearray, header_length: str | None, plain: bool = False) -> Asked:
    """Read a request: JSON of ``header_length`` bytes, or all of the body, and behind it the bytes of binary tensors.

    With ``plain`` the inputs are columns of a table: more types of numbers, and texts as they are, not images in Base64.
    """
    return _asked(*_head(body, header_length), plain)


def _head(body: bytes | bytearray, header_length: str | None) -> tuple[Any, memoryview]:
    """The JSON of a request, and the bytes behind it."""
    said_length = str(len(body)) if header_length is None else header_length
    length = int(said_length) if said_length.isdecimal() and len(said_length) < 16 else -1
    if not 0 <= length <= len(body):
        raise Refused(400, f"Inference-Header-Content-Length is {said_length[:20]!r}; the body has {len(body)} bytes")
    try:
        return json.loads(body[:length]), memoryview(body)[length:]
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is no JSON: {error}") from error


def _asked(said: Any, rest: memoryview, plain: bool) -> Asked:
    inputs = said.get("inputs") if isinstance(said, dict) else None
    if not isinstance(inputs, list) or not inputs or not all(isinstance(one, dict) for one in inputs):
        raise Refused(400, "the request must be an object with a list of inputs")
    if len(inputs) > INPUTS:
        raise Refused(413, f"the request has {len(inputs):,} inputs; at most {INPUTS:,} are taken")
    number = said.get("id")
    if number is not None and not isinstance(number, str):
        raise Refused(400, "the id of a request is a text")
    found: dict[str, list[bytes] | np.ndarray] = {}
    for one in inputs:
        name, value, rest = _input(one, rest, plain)
        if name in found:
            raise Refused(400, f"input {name!r} is there twice")
        found[name] = value
    if len(rest):
        raise Refused(400, f"{len(rest):,} bytes at the end belong to no input")
    return Asked(number, found, _wanted(said))


def _input(said: dict[str, Any], rest: memoryview, plain: bool) -> tuple[str, list[bytes] | np.ndarray, memoryview]:
    """One input: its name, what it holds, and the bytes behind it."""
    name, datatype = said.get("name"), said.get("datatype")
    known = COLUMN_TYPES if plain else INPUT_TYPES
    if not isinstance(name, str) or not isinstance(datatype, str) or datatype not in known:
        raise Refused(400, f"an input has a name and a datatype, one of {', '.join(known)}")
    shape = shape_of(said.get("shape"), name)
    size = _parameters(said).get("binary_data_size")
    if size is None:
        if "data" not in said:
            raise Refused(400, f"input {name!r} has no data")
        return name, _from_json(said["data"], shape, datatype, name, plain), rest
    if type(size) is not int or not 0 <= size <= len(rest):
        raise Refused(400, f"input {name!r} says binary_data_size {str(size)[:20]}; {len(rest)} bytes are left")
    return name, _from_bytes(rest[:size], shape, datatype, name), rest[size:]


def _one_each(elements: list[bytes], shape: tuple[int, ...], name: str) -> list[bytes]:
    if len(elements) != math.prod(shape) or math.prod(shape[1:]) != 1:
        raise Refused(400, f"input {name!r} has {len(elements)} elements and shape {[*shape]}; it is [N] or [N, 1]")
    return elements


def _parameters(said: dict[str, Any]) -> dict[str, Any]:
    found = said.get("parameters", {})
    return found if isinstance(found, dict) else {}


def _wanted(said: dict[str, Any]) -> dict[str, bool]:
    """Outputs by name, and whether as binary; all where none is named."""
    binary = _parameters(said).get("binary_data_output", False) is True
    outputs = said.get("outputs") or [{"name": name} for name in OUTPUTS]
    if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
        raise Refused(400, "outputs must be a list of objects")
    for one in outputs:
        if not isinstance(one.get("name"), str) or one["name"] not in OUTPUTS:
            raise Refused(400, f"there is no output {str(one.get('name'))[:50]!r}; there are {', '.join(OUTPUTS)}")
    return {one["name"]: _parameters(one).get("binary_data", binary) is True for one in outputs}


def answer(asked: Asked, name: str, verdicts: Sequence[Verdict]) -> tuple[bytes, int | None]:
    """The body of an answer, and how long its JSON is where binary tensors follow, else None."""
    found = {
        "score": [one.score for one in verdicts],
        "p_value": [one.p_value for one in verdicts],
        "is_ood": [one.is_ood for one in verdicts],
        "label": [-1 if one.class_index is None else one.class_index for one in verdicts],
    }
    outputs, parts = [], []
    for output, binary in asked.outputs.items():
        datatype = OUTPUTS[output]
        array = np.array(found[output], NUMPY_TYPES[datatype])
        told: dict[str, Any] = {"name": output, "datatype": datatype, "shape": [len(verdicts)]}
        if binary:
            parts.append(array.tobytes())
            told["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            told["data"] = [one if math.isfinite(one) else None for one in array.tolist()]
        outputs.append(told)
    number = {} if asked.id is None else {"id": asked.id}
    head = json.dumps({"model_name": name, "model_version": "1", **number, "outputs": outputs}).encode()
    return b"".join([head, *parts]), len(head) if parts else None


# Tensors: datatypes, flat lists of numbers, and the bytes of the binary extension

NUMPY_TYPES = {"UINT8": "u1", "FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8", "BOOL": "?"}
JSON_TYPES: dict[str, set[type]] = {"BYTES": {str}, "BOOL": {bool}, "FP32": {int, float}, "FP64": {int, float}}
"""Of an element in JSON; of datatypes that are not here, int."""


def shape_of(given: Any, name: str) -> tuple[int, ...]:
    """The shape of an input."""
    good = isinstance(given, list) and 0 < len(given) <= 8
    if not good or not all(type(one) is int and 0 < one < 2**31 for one in given):
        text = f"the shape of input {name!r} is {str(given)[:100]}; it must be a list of one to eight whole numbers above 0"
        raise Refused(400, text)
    return tuple(given)


def _from_json(data: Any, shape: tuple[int, ...], datatype: str, name: str, plain: bool) -> list[bytes] | np.ndarray:
    """Texts, or numbers as an array, of a list that may be nested; in a column null is a missing number."""
    while isinstance(data, list) and data and all(isinstance(one, list) for one in data):
        data = [*chain.from_iterable(data)]
    types: set[type] = JSON_TYPES.get(datatype, {int}) | (
        {type(None)} if plain and datatype in ("FP32", "FP64") else set()
    )
    if not isinstance(data, list) or len(data) != math.prod(shape) or not {*map(type, data)} <= types:
        what = "cells" if plain else "Base64 texts" if datatype == "BYTES" else "numbers"
        raise Refused(400, f"the data of input {name!r} must be {math.prod(shape):,} {what} of {datatype}")
    if datatype == "BYTES":
        if plain:
            return [one.encode("utf-8", "surrogatepass") for one in data]
        try:
            return _one_each([base64.b64decode(one, validate=True) for one in data], shape, name)
        except ValueError as error:
            raise Refused(400, f"the data of input {name!r} must be encoded images as Base64 texts") from error
    try:
        array = np.array(data, bool if datatype == "BOOL" else np.float64)
    except OverflowError as error:
        raise Refused(400, f"input {name!r} holds a number that is too large") from error
    if plain:
        return array.reshape(shape)
    if datatype == "UINT8" and (array.min() < 0 or array.max() > 255):
        raise Refused(400, f"the data of input {name!r} must lie in 0 … 255")
    with np.errstate(over="ignore"):
        return array.astype(NUMPY_TYPES[datatype]).reshape(shape)


def _from_bytes(content: memoryview, shape: tuple[int, ...], datatype: str, name: str) -> list[bytes] | np.ndarray:
    """Texts, or numbers as an array of the shape, of a binary part."""
    if datatype == "BYTES":
        return _one_each(texts_of_bytes(content, name), shape, name)
    kind = np.dtype(NUMPY_TYPES[datatype])
    size = math.prod(shape) * kind.itemsize
    if len(content) != size:
        raise Refused(400, f"input {name!r} has {len(content):,} bytes; its shape and {datatype} make {size:,}")
    return np.frombuffer(content, kind).reshape(shape)


def texts_of_bytes(content: memoryview, name: str) -> list[bytes]:
    """Elements of BYTES in a binary part: each is its length in 4 bytes, little end first, and its bytes."""
    found, at = [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + length > len(content):
            raise Refused(400, f"input {name!r} ends within an element")
        found.append(bytes(content[at + 4 : at + 4 + length]))
        at += 4 + length
    return found


# Columns of a table: one input for each, named as the column is

DATATYPES = {NUMBER: "FP64", TRUTH: "BOOL", TEXT: "BYTES"}
"""Of the inputs that a guard of a table names; other numbers are taken, too."""

COLUMN_TYPES = ("BYTES", "FP64", "FP32", "INT64", "INT32", "UINT8", "BOOL")
"""Datatypes that a column may have."""


def inputs_of(guard: Guard) -> list[dict[str, Any]]:
    """The columns or features that a guard takes, as the protocol describes inputs."""
    if not guard.reader.columns:
        return [{"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in guard.widths.items()]
    return [{"name": one.name, "datatype": DATATYPES[one.kind], "shape": [-1]} for one in guard.reader.columns]


def images_of(asked: Asked) -> list[Any] | None:
    """The images of a request; None where it brings rows of the network instead."""
    values = [*asked.inputs.values()]
    if all(isinstance(one, np.ndarray) and one.dtype == np.float32 for one in values):
        return None
    if len(values) != 1:
        raise Refused(400, "images are one input, encoded (BYTES) or as pixels (UINT8), without others")
    if isinstance(values[0], np.ndarray) and (values[0].ndim != 4 or values[0].shape[3] != 3):
        raise Refused(400, f"pixels have shape {[*values[0].shape]}; it must be [N, H, W, 3]")
    return [*values[0]]


def rows_of(asked: Asked, guard: Guard) -> FeatureSet | dict[str, np.ndarray]:
    """The rows of a request: features, or the columns of a table."""
    if guard.reader.columns:
        if guard.table is not None and (unknown := guard.table.unknown(asked.inputs)):
            raise Refused(400, f"the request has {unknown}, which the guard does not know")
        return {name: _column(name, value) for name, value in asked.inputs.items()}
    widths, given = guard.widths, asked.inputs
    if not set(widths) - {"logits"} <= set(given) <= {*widths, "features", "logits"}:
        raise Refused(400, f"inputs are {', '.join(given)}; this guard scores {', '.join(widths)}")
    fields = {name: np.array(array, np.float32) for name, array in given.items()}
    return FeatureSet(**{"features": next(iter(fields.values())), **fields})


def _column(name: str, value: np.ndarray | list[bytes]) -> np.ndarray:
    """An input of a request, [N] or [N, 1], as the column of a table."""
    if isinstance(value, list):
        try:
            return np.array([text.decode() for text in value], dtype=object)
        except UnicodeDecodeError as error:
            raise Refused(400, f"input {name!r} holds texts that are no UTF-8") from error
    if value.size != max(value.shape):
        raise Refused(400, f"input {name!r} has shape {[*value.shape]}; a column is [N] or [N, 1]")
    return value.reshape(-1)


# What another model was asked, in V2 or V1, with its own names of inputs and outputs


def logged(
    body: bytes, header_length: str | None, guard: Guard
) -> list[Any] | FeatureSet | dict[str, np.ndarray] | Upload:
    """Images, rows, or a file of rows: the inputs of V2, or the ``instances`` of V1.

    One input [N, D] of any name, or a list of D numbers, is what the guard of rows looks at, in its order.
    """
    said, rest = _head(body, header_length)
    if isinstance(said, dict) and isinstance(said.get("instances"), list):
        return _instances(said["instances"], guard)
    rows = guard.takes != "images"
    asked = _asked({**said, "outputs": None} if isinstance(said, dict) else said, rest, plain=rows)
    if not rows and (images := images_of(asked)) is not None:
        return images
    if guard.reader.scored == "boxes":
        raise Refused(400, "a guard of boxes looks at images; send them as BYTES or UINT8")
    columns = guard.reader.columns
    widths = {column.name: 1 for column in columns} if columns else guard.widths
    first = next(iter(asked.inputs.values()))
    if isinstance(first, np.ndarray) and first.ndim == 2 and len(asked.inputs) == 1 and {*asked.inputs} != {*widths}:
        if first.shape[1] != (width := sum(widths.values())):
            raise Refused(400, f"the input has shape {[*first.shape]}; this guard looks at {width} numbers a row")
        parts = np.split(first, np.cumsum([*widths.values()])[:-1], axis=1)
        asked = asked._replace(inputs=dict(zip(widths, parts, strict=True)))
    if not columns and any(isinstance(one, list) for one in asked.inputs.values()):
        raise Refused(400, "an input holds texts; this guard looks at numbers")
    return rows_of(asked, guard)


def _instances(given: list[Any], guard: Guard) -> list[Any] | Upload:
    if guard.takes == "images":
        return [_image(one) for one in given]
    if guard.table is not None:
        names = [column.name for column in guard.table.columns]
        given = [dict(zip(names, row, strict=True)) if _is_list(row, len(names)) else row for row in given]
    return Upload(None, json.dumps(given).encode(), is_json=True)


def _is_list(row: Any, length: int) -> bool:
    return isinstance(row, list) and len(row) == length


def _image(instance: Any) -> bytes | np.ndarray:
    """An image in Base64, within objects of one key if need be, or pixels [H, W, 3]."""
    while isinstance(instance, dict) and len(instance) == 1:
        (instance,) = instance.values()
    try:
        if isinstance(instance, str):
            return base64.b64decode(instance, validate=True)
        pixels = np.array(instance)
    except (ValueError, OverflowError) as error:
        raise Refused(400, f"an instance is no image: {error!s:.100}") from error
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.kind != "i" or pixels.min() < 0 or pixels.max() > 255:
        raise Refused(
            400, 'an instance is an image in Base64, {"b64": …}, or its pixels [H, W, 3], whole numbers 0 … 255'
        )
    return pixels.astype(np.uint8)
