"""The Open Inference Protocol (V2): from the body of a request to images or rows, and from verdicts to the body of an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from outfield.guard.verdict import Verdict
from outfield.serve import columns, tensors
from outfield.serve.refusals import Refused

HEADER_LENGTH = "inference-header-content-length"
"""The HTTP header that says how long the JSON in front of binary tensors is."""
OUTPUTS = {"score": "FP32", "p_value": "FP32", "is_ood": "BOOL", "label": "INT64"}
INPUT_TYPES = ("BYTES", "UINT8", "FP32")


class Asked(NamedTuple):
    """What a request asks for.

    Attributes:
        id: Which the answer repeats, or None.
        inputs: By name: a list of encoded images, or an array.
        outputs: Names of what is wanted, and whether as binary.
    """

    id: str | None
    inputs: dict[str, list[bytes] | np.ndarray]
    outputs: dict[str, bool]


def parse(body: bytearray, header_length: str | None, plain: bool = False) -> Asked:
    """Read a request.

    Args:
        body: JSON, and behind it the bytes of binary tensors, if any.
        header_length: How long the JSON is; None where there is nothing else.
        plain: Whether inputs are columns of a table: more types of numbers, and texts as they are, not images in Base64.

    Raises:
        Refused: It is no request of the protocol.
    """
    length = len(body)
    if header_length is not None:
        length = int(header_length) if header_length.isdecimal() and len(header_length) < 16 else -1
    if not 0 <= length <= len(body):
        raise Refused(
            400, f"Inference-Header-Content-Length is {str(header_length)[:20]!r}; the body has {len(body)} bytes"
        )
    try:
        said = json.loads(body[:length])
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is no JSON: {error}") from error
    inputs = said.get("inputs") if isinstance(said, dict) else None
    if not isinstance(inputs, list) or not inputs or not all(isinstance(one, dict) for one in inputs):
        raise Refused(400, "the request must be an object with a list of inputs")
    number = said.get("id")
    if number is not None and not isinstance(number, str):
        raise Refused(400, "the id of a request is a text")
    rest = memoryview(body)[length:]
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
    known = columns.TYPES if plain else INPUT_TYPES
    if not isinstance(name, str) or not isinstance(datatype, str) or datatype not in known:
        raise Refused(400, f"an input has a name and a datatype, one of {', '.join(known)}")
    shape = tensors.shape_of(said.get("shape"), name)
    size = _parameters(said).get("binary_data_size")
    if size is None:
        if "data" not in said:
            raise Refused(400, f"input {name!r} has no data")
        if plain:
            return name, columns.values_of(said["data"], shape, datatype, name), rest
        if datatype == "BYTES":
            return name, _counted(tensors.texts_of(said["data"], name), shape, name), rest
        return name, tensors.numbers_of(said["data"], shape, datatype, name), rest
    if type(size) is not int or not 0 <= size <= len(rest):
        raise Refused(400, f"input {name!r} says binary_data_size {str(size)[:20]}; {len(rest)} bytes are left")
    own, rest = rest[:size], rest[size:]
    if datatype == "BYTES":
        return name, _counted(tensors.texts_of_bytes(own, name), shape, name), rest
    return name, tensors.numbers_of_bytes(own, shape, datatype, name), rest


def _counted(elements: list[bytes], shape: tuple[int, ...], name: str) -> list[bytes]:
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
        array = np.array(found[output], tensors.TYPES[datatype])
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
