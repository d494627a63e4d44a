"""Where in the graph of an ONNX file the features are: the input of its last matrix product, or an output of that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from outfield.errors import FileFormatError, InputError
from outfield.extras import library

FEATURES, LOGITS = "features", "logits"
FLOATS = {1: np.float32, 10: np.float16}
"""ONNX's numbers of the types that images may be given in."""
PASSED = ("Identity", "Softmax", "LogSoftmax", "Dropout", "Cast")
"""What may stand behind the last layer; logits are what goes in."""


@dataclass(frozen=True)
class Layer:
    """The last layer: logits = features · weightᵀ + bias."""

    weight: np.ndarray
    bias: np.ndarray | None


@dataclass(frozen=True)
class Graph:
    """What is to be known of a classifier in ONNX.

    Attributes:
        image: name of its input.
        shape: of its input, (N, C, H, W); None where a size is free.
        kind: type of its input.
        features: name of the tensor that holds the features.
        logits: name of the tensor that holds the logits.
        layer: the last layer where its numbers are in the file.
    """

    image: str
    shape: tuple[int | None, ...]
    kind: type
    features: str
    logits: str
    layer: Layer | None


def examined(model: Any, source: str) -> Graph:
    """Look through a model (``onnx.ModelProto``).

    Raises:
        InputError: It is no image classifier whose features can be found.
    """
    graph = model.graph
    constants = {one.name: one for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in constants]
    if len(inputs) != 1 or not inputs[0].type.HasField("tensor_type"):
        names = ", ".join(one.name for one in inputs)
        raise InputError(f"{source} has {len(inputs)} inputs ({names}); a classifier takes one, images (N, C, H, W)")
    tensor = inputs[0].type.tensor_type
    shape = tuple(
        one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None for one in tensor.shape.dim
    )
    if len(shape) != 4 or shape[1] not in (1, 3) or tensor.elem_type not in FLOATS:
        raise InputError(
            f"{source} takes an input of shape {shape}; images are floats of shape (N, C, H, W) with 3 channels or 1"
        )
    outputs = [one.name for one in graph.output]
    makers = {name: node for node in graph.node for name in node.output}
    logits = LOGITS if LOGITS in outputs else next((name for name in outputs if name != FEATURES), "")
    if not logits or len(set(outputs) - {FEATURES, logits}):
        raise InputError(
            f"{source} has the outputs {', '.join(outputs)}; a classifier has one, or several of which one is called {LOGITS} "
            f"and perhaps one {FEATURES}"
        )
    found = (FEATURES, logits, None) if FEATURES in outputs else _last_layer(logits, makers, constants, source)
    return Graph(inputs[0].name, shape, FLOATS[tensor.elem_type], *found)


def _last_layer(logits: str, makers: Any, constants: Any, source: str) -> tuple[str, str, Layer | None]:
    """Names of features and logits, and the layer between them."""
    place, bias = logits, None
    node = makers.get(place)
    passed = {place}
    while node is not None and node.op_type in PASSED:
        place = node.input[0]
        if place in passed:
            raise FileFormatError(f"{source} goes in a circle: {place!r:.100} is made of itself")
        passed.add(place)
        node = makers.get(place)
    logits = place
    if node is not None and node.op_type == "Add":
        known = [name for name in node.input if _constant(name, makers, constants) is not None]
        rest = [name for name in node.input if name not in known]
        if len(known) == len(rest) == 1:
            bias, node = _constant(known[0], makers, constants), makers.get(rest[0])
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        raise InputError(
            f"{source} does not end with a linear layer (Gemm or MatMul), so that its features are not known; export it with a "
            f"second output, called {FEATURES}, and call the other {LOGITS}"
        )
    return node.input[0], logits, _layer(node, bias, makers, constants)


def _layer(node: Any, bias: np.ndarray | None, makers: Any, constants: Any) -> Layer | None:
    """The layer of a matrix product whose numbers are in the file, else None."""
    weight = _constant(node.input[1], makers, constants)
    said = {one.name: one for one in node.attribute}
    if weight is None or weight.ndim != 2 or ("transA" in said and said["transA"].i):
        return None
    rows = weight if "transB" in said and said["transB"].i else weight.T
    if node.op_type == "Gemm":
        rows = rows * (said["alpha"].f if "alpha" in said else 1.0)
        if len(node.input) > 2 and node.input[2]:
            own = _constant(node.input[2], makers, constants)
            if own is None or bias is not None:
                return None
            bias = own * (said["beta"].f if "beta" in said else 1.0)
    if bias is not None:
        if bias.size not in (1, len(rows)):
            return None
        bias = np.broadcast_to(bias.reshape(-1), len(rows))
    return Layer(rows.astype(np.float32), None if bias is None else bias.astype(np.float32))


def _constant(name: str, makers: Any, constants: Any, turns: int = 8) -> np.ndarray | None:
    """The numbers of a tensor that does not depend on the input: an initializer or constant, perhaps transposed a few times."""
    helper = library("onnx.numpy_helper", extra="onnx")
    node = makers.get(name)
    if name in constants:
        found = np.asarray(helper.to_array(constants[name]))
    elif node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
        found = np.asarray(helper.to_array(node.attribute[0].t))
    elif (
        node is not None
        and node.op_type == "Transpose"
        and turns > 0
        and (inner := _constant(node.input[0], makers, constants, turns - 1)) is not None
    ):
        found = inner.T
        if node.attribute and list(node.attribute[0].ints) != list(range(inner.ndim))[::-1]:
            return None
    else:
        return None
    if not np.isfinite(found).all():
        raise FileFormatError(f"the tensor {name} holds numbers that are not finite")
    return found
