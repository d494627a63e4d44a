"""The Open Inference Protocol (V2): from the body of a request to images, rows or columns, and from verdicts to an answer."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from outfield.errors import InputError, as_ours
from outfield.features import NUMBER, TEXT, TRUTH, FeatureSet
from outfield.guard import Guard, Verdict
from outfield.serve.body import Rows, Upload
from outfield.serve.limits import Refused

HEADER_LENGTH = "inference-header-content-length"  # says how long the JSON in front of binary tensors is
OUTPUTS = {"score": "FP32", "p_value": "FP32", "is_ood": "BOOL", "label": "INT64"}
INPUTS = 10_000  # of a request, at most
INPUT_TYPES = ("BYTES", "UINT8", "FP32")


Inputs = dict[str, list[Any] | np.ndarray]  # texts or encoded images, or numbers, by the name of the input


class Asked(NamedTuple):
    """What a request asks for: images or rows, and outputs by name, binary or not."""

    id: str | None
    given: list[Any] | Rows
    outputs: dict[str, bool]


def parse(body: bytearray, header_length: str | None, guard: Guard) -> Asked:
    """Read a request: JSON of ``header_length`` bytes, or all of the body, and behind it the bytes of binary tensors."""
    said, rest = _head(body, header_length)
    inputs = _inputs(said, rest, plain=bool(guard.reader.columns))
    if not isinstance(number := said.get("id"), str | None):
        raise InputError("the id of a request is a text")
    images = None if guard.reader.columns else _images_of(inputs)
    return Asked(number, _rows_of(inputs, guard) if images is None else images, _wanted(said))


def _head(body: bytes | bytearray, header_length: str | None) -> tuple[Any, memoryview]:
    """The JSON of a request, and the bytes behind it."""
    said_length = str(len(body)) if header_length is None else header_length
    length = int(said_length) if said_length.isdecimal() and len(said_length) < 16 else -1
    if not 0 <= length <= len(body):
        raise InputError(f"Inference-Header-Content-Length is {said_length[:20]!r}; the body has {len(body)} bytes")
    with as_ours("the request is no JSON", InputError, ValueError, RecursionError):
        return json.loads(body[:length]), memoryview(body)[length:]


def _inputs(said: Any, rest: memoryview, plain: bool) -> Inputs:
    """The inputs of a request; with ``plain`` they are columns: more types of numbers, and texts that are not in Base64."""
    inputs = said.get("inputs") if isinstance(said, dict) else None
    if not isinstance(inputs, list) or not inputs or not all(isinstance(one, dict) for one in inputs):
        raise InputError("the request must be an object with a list of inputs")
    if len(inputs) > INPUTS:
        raise Refused(413, f"the request has {len(inputs):,} inputs; at most {INPUTS:,} are taken")
    found: Inputs = {}
    for one in inputs:
        name, datatype, known = one.get("name"), one.get("datatype"), COLUMN_TYPES if plain else INPUT_TYPES
        if not isinstance(name, str) or datatype not in known:
            raise InputError(f"an input has a name and a datatype, one of {', '.join(known)}")
        if name in found:
            raise InputError(f"input {name!r} is there twice")
        shape = _shape(one.get("shape"), name)
        size = _parameters(one).get("binary_data_size")
        if size is None:
            found[name] = _from_json(one.get("data"), shape, datatype, name, plain)
        elif type(size) is int and 0 <= size <= len(rest):
            found[name], rest = _from_bytes(rest[:size], shape, datatype, name), rest[size:]
        else:
            raise InputError(f"input {name!r} says binary_data_size {str(size)[:20]}; {len(rest)} bytes are left")
        if isinstance(found[name], list) and not len(found[name]) == math.prod(shape) == max(shape):
            raise InputError(
                f"input {name!r} has {len(found[name])} elements and shape {[*shape]}; it is [N] or [N, 1]"
            )
    if len(rest):
        raise InputError(f"{len(rest):,} bytes at the end belong to no input")
    return found


def _parameters(said: dict[str, Any]) -> dict[str, Any]:
    found = said.get("parameters", {})
    return found if isinstance(found, dict) else {}


def _wanted(said: dict[str, Any]) -> dict[str, bool]:
    """Outputs by name, and whether as binary; all where none is named."""
    binary = _parameters(said).get("binary_data_output", False)
    outputs = said.get("outputs") or [{"name": name} for name in OUTPUTS]
    if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
        raise InputError("outputs must be a list of objects")
    for one in outputs:
        if one.get("name") not in tuple(OUTPUTS):
            raise InputError(f"there is no output {str(one.get('name'))[:50]!r}; there are {', '.join(OUTPUTS)}")
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
JSON_TYPES = {"BYTES": (str,), "BOOL": (bool,), "FP32": (int, float), "FP64": (int, float)}  # of an element, else int


def _shape(given: Any, name: str) -> tuple[int, ...]:
    good = isinstance(given, list) and 0 < len(given) <= 8
    if not good or not all(type(one) is int and 0 < one < 2**31 for one in given):
        text = f"the shape of input {name!r} is {str(given)[:100]}; it must be a list of one to eight whole numbers above 0"
        raise InputError(text)
    return tuple(given)


def _from_json(data: Any, shape: tuple[int, ...], datatype: str, name: str, plain: bool) -> list[Any] | np.ndarray:
    """Texts, or numbers as an array, of a list that may be nested; in a column null is a missing number."""
    while isinstance(data, list) and data and all(isinstance(one, list) for one in data):
        data = [*chain.from_iterable(data)]
    types: set[type] = {*JSON_TYPES.get(datatype, (int,))}
    if plain and datatype in ("FP32", "FP64"):
        types.add(type(None))
    if not isinstance(data, list) or len(data) != math.prod(shape) or not {*map(type, data)} <= types:
        what = "cells" if plain else "Base64 texts" if datatype == "BYTES" else "numbers"
        raise InputError(f"the data of input {name!r} must be {math.prod(shape):,} {what} of {datatype}")
    if datatype == "BYTES":
        with as_ours(f"the data of input {name!r} must be encoded images as Base64 texts", InputError, ValueError):
            return data if plain else [base64.b64decode(one, validate=True) for one in data]
    with as_ours(f"input {name!r} holds a number that is too large", InputError, OverflowError):
        array = np.array(data, bool if datatype == "BOOL" else np.float64).reshape(shape)
    if plain:
        return array
    if datatype == "UINT8" and (array.min() < 0 or array.max() > 255):
        raise InputError(f"the data of input {name!r} must lie in 0 … 255")
    with np.errstate(over="ignore"):
        return array.astype(NUMPY_TYPES[datatype])


def _from_bytes(content: memoryview, shape: tuple[int, ...], datatype: str, name: str) -> list[Any] | np.ndarray:
    """Numbers as an array of the shape, or elements of BYTES: each is its length in 4 bytes, little end first, and its bytes."""
    if datatype != "BYTES":
        kind = np.dtype(NUMPY_TYPES[datatype])
        if len(content) != (size := math.prod(shape) * kind.itemsize):
            raise InputError(f"input {name!r} has {len(content):,} bytes; its shape and {datatype} make {size:,}")
        return np.frombuffer(content, kind).reshape(shape)
    found, at = [], 0
    while at < len(content):
        begin, length = at + 4, int.from_bytes(content[at : at + 4], "little")
        if (at := begin + length) > len(content):
            raise InputError(f"input {name!r} ends within an element")
        found.append(bytes(content[begin:at]))
    return found


# Columns of a table: one input for each, named as the column is

DATATYPES = {NUMBER: "FP64", TRUTH: "BOOL", TEXT: "BYTES"}  # that a guard of a table names; it takes others, too
COLUMN_TYPES = ("BYTES", "FP64", "FP32", "INT64", "INT32", "UINT8", "BOOL")


def inputs_of(guard: Guard) -> list[dict[str, Any]]:
    """The columns or features that a guard takes, as the protocol describes inputs."""
    if not guard.reader.columns:
        return [{"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in guard.widths.items()]
    return [{"name": one.name, "datatype": DATATYPES[one.kind], "shape": [-1]} for one in guard.reader.columns]


def _images_of(inputs: Inputs) -> list[Any] | None:
    """The images of a request; None where it brings rows of the network instead."""
    values = [*inputs.values()]
    if all(isinstance(one, np.ndarray) and one.dtype == np.float32 for one in values):
        return None
    if len(values) != 1:
        raise InputError("images are one input, encoded (BYTES) or as pixels (UINT8), without others")
    if isinstance(values[0], np.ndarray) and (values[0].ndim != 4 or values[0].shape[3] != 3):
        raise InputError(f"pixels have shape {[*values[0].shape]}; it must be [N, H, W, 3]")
    return [*values[0]]


def _rows_of(inputs: Inputs, guard: Guard) -> Rows:
    """The rows of a request: features, or the columns of a table."""
    if guard.reader.columns:
        if guard.table is not None and (unknown := guard.table.unknown(inputs)):
            raise InputError(f"the request has {unknown}, which the guard does not know")
        return {name: _column(name, value) for name, value in inputs.items()}
    widths = guard.widths
    if not set(widths) - {"logits"} <= set(inputs) <= {*widths, "features", "logits"}:
        raise InputError(f"inputs are {', '.join(inputs)}; this guard scores {', '.join(widths)}")
    fields = {name: np.array(array, np.float32) for name, array in inputs.items()}
    return FeatureSet(**{"features": next(iter(fields.values())), **fields})


def _column(name: str, value: np.ndarray | list[Any]) -> np.ndarray:
    """An input of a request, [N] or [N, 1], as the column of a table."""
    if isinstance(value, list):
        with as_ours(f"input {name!r} holds texts that are no UTF-8", InputError, UnicodeError):
            texts = [text.encode() if isinstance(text, str) else text for text in value]
            return np.array([text.decode() for text in texts], dtype=object)
    if value.size != max(value.shape):
        raise InputError(f"input {name!r} has shape {[*value.shape]}; a column is [N] or [N, 1]")
    return value.reshape(-1)


# What another model was asked, in V2 or V1, with its own names of inputs and outputs


def logged(body: bytes, header_length: str | None, guard: Guard) -> list[Any] | Rows | Upload:
    """Images, rows, or a file of rows: the inputs of V2, or the ``instances`` of V1.

    One input [N, D] of any name, or a list of D numbers, is what the guard of rows looks at, in its order.
    """
    said, rest = _head(body, header_length)
    columns = guard.reader.columns
    widths = {column.name: 1 for column in columns} if columns else guard.widths
    if isinstance(said, dict) and isinstance(given := said.get("instances"), list):
        if guard.takes == "images":
            return [_image(one) for one in given]
        if guard.table is not None:
            for place, row in enumerate(given):
                if isinstance(row, list) and len(row) == len(widths):
                    given[place] = dict(zip(widths, row, strict=True))
        return Upload(None, json.dumps(given).encode(), is_json=True)
    inputs = _inputs(said, rest, plain=guard.takes != "images")
    if guard.takes == "images" and (images := _images_of(inputs)) is not None:
        return images
    if guard.reader.scored == "boxes":
        raise InputError("a guard of boxes looks at images; send them as BYTES or UINT8")
    first = next(iter(inputs.values()))
    if isinstance(first, np.ndarray) and first.ndim == 2 and len(inputs) == 1 and {*inputs} != {*widths}:
        if first.shape[1] != (width := sum(widths.values())):
            raise InputError(f"the input has shape {[*first.shape]}; this guard looks at {width} numbers a row")
        parts = np.split(first, np.cumsum([*widths.values()])[:-1], axis=1)
        inputs = dict(zip(widths, parts, strict=True))
    if not columns and any(isinstance(one, list) for one in inputs.values()):
        raise InputError("an input holds texts; this guard looks at numbers")
    return _rows_of(inputs, guard)


def _image(instance: Any) -> bytes | np.ndarray:
    """An image in Base64, within objects of one key if need be, or pixels [H, W, 3]."""
    while isinstance(instance, dict) and len(instance) == 1:
        (instance,) = instance.values()
    with as_ours("an instance is no image", InputError, ValueError, OverflowError):
        if isinstance(instance, str):
            return base64.b64decode(instance, validate=True)
        pixels = np.array(instance)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.kind != "i" or pixels.min() < 0 or pixels.max() > 255:
        raise InputError(
            'an instance is an image in Base64, {"b64": …}, or its pixels [H, W, 3], whole numbers 0 … 255'
        )
    return pixels.astype(np.uint8)
