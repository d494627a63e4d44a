"""A classifier in an ONNX file, run by ONNX Runtime on the CPU, as a module. It gives no gradients.

Its features are the input of the graph's last matrix product, or an output of that name. No file outside of the model's folder is
opened, and no custom operator is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from outfield.errors import FileFormatError, InputError, as_ours
from outfield.extras import library
from outfield.files import open_to_read

MODEL = "model"  # the buffer that holds the file
FEATURES, LOGITS = "features", "logits"
ONE_INPUT = "a classifier takes one, images (N, C, H, W)"
Shape = tuple[int | None, ...]
FLOATS = {1: np.float32, 10: np.float16}  # ONNX's numbers of the types that images may have
PASSED = ("Identity", "Softmax", "LogSoftmax", "Dropout", "Cast")  # may stand behind the last layer; logits go in
TOLERANCE = 1e-3  # of logits of our last layer beside the file's, relative to the largest


class Given(nn.Module):
    """The place of a last layer whose weights are not known: features go in, and the file's own logits come out."""

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        return logits


class FileNetwork(nn.Module):
    """A network whose body is a program in a file, and whose last layer is ours, so that hooks find its features."""

    head: nn.Module

    def __init__(self, shape: Shape, floats: bool, source: str) -> None:
        super().__init__()
        if len(shape) != 4 or shape[1] not in (1, 3) or not floats:
            raise InputError(f"{source} takes an input of shape {shape}; images are floats (N, C, H, W) with C 3 or 1")
        # Of its input, None where a size is free; to a fixed number of rows, too few images are filled up
        self.rows, self.channels, height, width = shape
        self.size = None if height is None or width is None else (height, width)
        self.map: nn.Module | None = None  # where hooks see the last feature map

    def _run(self, images: Tensor) -> tuple[Tensor, ...]:
        """Features, the logits where the last layer is not ours, and perhaps the last feature map."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) of images (N, C, H, W)."""
        if self.rows is None:
            found = list(self._run(images))
        else:
            pieces = []
            for piece in images.split(self.rows):
                whole = torch.cat([piece, piece[:1].expand(self.rows - len(piece), *piece.shape[1:])])
                pieces.append([value[: len(piece)] for value in self._run(whole)])
            found = [torch.cat(parts) for parts in zip(*pieces, strict=True)]
        if self.map is not None:
            self.map(found.pop())
        logits: Tensor = self.head(*found)
        return logits


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer of these numbers, which are not to be trained."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="cpu", dtype=torch.float32)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer.requires_grad_(False)


class OnnxNetwork(FileNetwork):
    """The network of an ONNX model, given as bytes with all of its weights; ``source`` is where they come from, for errors."""

    gives_gradients = False

    def __init__(self, content: bytes, source: str) -> None:
        model = _parsed(content, source)
        for tensor in _tensors(model):  # ONNX Runtime itself refuses operators that it does not have
            if tensor.data_location == tensor.EXTERNAL:
                raise FileFormatError(f"the numbers of {tensor.name!r:.100} of {source} lie in another file")
        with as_ours(f"{source} cannot be run"):
            graph = _graph_of(model, source)
            super().__init__(graph.shape, graph.kind is not None, source)
            self._graph = graph
            self.register_buffer(MODEL, torch.from_numpy(np.frombuffer(content, np.uint8).copy()))
            del model.graph.output[:]
            for name in {graph.features, graph.logits, *graph.constants}:
                model.graph.output.append(library("onnx", extra="onnx").helper.make_empty_tensor_value_info(name))
            runtime = library("onnxruntime", extra="onnx")
            options = runtime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = 3
            self._session = runtime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            self.head: nn.Module = self._last_layer(source)

    def _run(self, images: Tensor) -> tuple[Tensor, ...]:
        graph = self._graph
        return self._give(images, [graph.features, graph.logits] if isinstance(self.head, Given) else [graph.features])

    def _give(self, images: Tensor, names: Sequence[str]) -> tuple[Tensor, ...]:
        """Tensors of the graph by their names, in float32."""
        pixels: np.ndarray = images.detach().to("cpu", torch.float32).contiguous().numpy()
        found = self._session.run(names, {self._graph.image: pixels.astype(self._graph.kind, copy=False)})
        return tuple(torch.from_numpy(array.astype(np.float32, copy=False)).to(images.device) for array in found)

    def _last_layer(self, source: str) -> nn.Module:
        """Ours, of the numbers that the graph itself gives, where it gives the file's logits; else the place of theirs."""
        shape = (self.rows or 2, cast(int, self.channels), *(self.size or (224, 224)))
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
        graph = self._graph
        features, logits, *numbers = self._give(images, [graph.features, graph.logits, *graph.constants])
        if features.dim() != 2 or logits.dim() != 2:
            what = f"{source} gives features of shape {tuple(features.shape)} and logits of shape {tuple(logits.shape)}"
            raise InputError(f"{what}, not rows; export it with outputs that are called {FEATURES} and {LOGITS}")
        if not numbers:
            return Given()
        weight, *biases = numbers
        bias = biases[0].reshape(-1).expand(logits.shape[1]) if biases else None
        layer = linear(weight if graph.turned else weight.T, bias)
        within = TOLERANCE * max(1.0, float(logits.abs().max()))
        return layer if torch.allclose(layer(features), logits, rtol=0, atol=within) else Given()

    def __reduce__(self) -> tuple[Any, ...]:
        content: Tensor = getattr(self, MODEL)
        return OnnxNetwork, (content.cpu().numpy().tobytes(), "a copy")


def read_model(path: Path) -> bytes:
    """An ONNX model as bytes, with weights that lie in files beside it."""
    with open_to_read(path) as file:
        content = file.read()
    model = _parsed(content, str(path))
    if not any(tensor.data_location == tensor.EXTERNAL for tensor in _tensors(model)):
        return content
    with as_ours(f"the weights of {path} cannot be read"):  # onnx itself checks where the files lie
        library("onnx.external_data_helper", extra="onnx").load_external_data_for_model(model, str(path.parent))
        return bytes(model.SerializeToString())


def _parsed(content: bytes, source: str) -> Any:
    with as_ours(f"{source} is no ONNX model"):
        model = library("onnx", extra="onnx").load_model_from_string(content)
    if not model.graph.node:
        raise FileFormatError(f"{source} is no ONNX model: it has no graph")
    return model


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor of a message of protobuf, wherever in it."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _tensors(one)


class _Graph(NamedTuple):
    """Names of a classifier's tensors; of its last layer the constants, weight and bias, and whether the weight is (K, D)."""

    image: str
    shape: Shape
    kind: type | None
    features: str
    logits: str
    constants: tuple[str, ...] = ()
    turned: bool = False


def _graph_of(model: Any, source: str) -> _Graph:
    """Look through a model (``onnx.ModelProto``)."""
    graph = model.graph
    constants = {one.name: one for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in constants]
    if len(inputs) != 1 or not inputs[0].type.HasField("tensor_type"):
        names = ", ".join(one.name for one in inputs)
        raise InputError(f"{source} has {len(inputs)} inputs ({names}); {ONE_INPUT}")
    tensor = inputs[0].type.tensor_type
    shape = tuple(one.dim_value if one.dim_value > 0 else None for one in tensor.shape.dim)
    outputs = [one.name for one in graph.output]
    logits = LOGITS if LOGITS in outputs else next((name for name in outputs if name != FEATURES), "")
    if not logits or set(outputs) - {FEATURES, logits}:
        raise InputError(f"{source} has the outputs {', '.join(outputs)}; call them {LOGITS} and {FEATURES}")
    taken = (inputs[0].name, shape, FLOATS.get(tensor.elem_type))
    if FEATURES in outputs:
        return _Graph(*taken, FEATURES, logits)
    return _Graph(*taken, *_before_last(logits, graph, inputs[0].name, source))


def _before_last(logits: str, graph: Any, image: str, source: str) -> tuple[Any, ...]:
    """Names of features, of logits and of the constants between them, and whether the first of these is (K, D)."""
    makers = {name: node for node in graph.node for name in node.output}
    varying = {image}  # what depends on it
    for node in graph.node:
        varying |= {*node.output} if varying & {*node.input} else set()
    node, constants = makers.get(logits), []
    while node is not None and node.op_type in PASSED:
        logits = node.input[0]
        node = makers.get(logits)
    if node is not None and node.op_type == "Add" and len(varying & {*node.input}) == 1:
        constants = [name for name in node.input if name not in varying]
        node = makers.get(next(name for name in node.input if name in varying))
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        what = f"{source} does not end with a linear layer (Gemm or MatMul), so that its features are not known"
        raise InputError(f"{what}; export it with a second output, called {FEATURES}, and call the other {LOGITS}")
    inputs = [name for name in node.input[1:] if name] + constants
    turned = any(one.name == "transB" and one.i for one in node.attribute)
    return node.input[0], logits, () if varying & {*inputs} or len(inputs) > 2 else tuple(inputs), turned
