"""A classifier in an ONNX file, run by ONNX Runtime on the CPU, as a module. It gives no gradients.

Its features are the input of the graph's last matrix product, or an output of that name. No file outside of the model's folder is
opened, and no custom operator is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone.architectures import as_ours
from outfield.errors import FileFormatError, InputError
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

    shape: Shape  # of its input (N, C, H, W), None where a size is free; to a fixed N, too few images are filled up
    head: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.map: nn.Module | None = None  # where hooks see the last feature map

    def _run(self, images: Tensor) -> tuple[Tensor, ...]:
        """Features, the logits where the last layer is not ours, and perhaps the last feature map."""
        raise NotImplementedError

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the images that it takes, where they are fixed."""
        height, width = self.shape[2:]
        return None if height is None or width is None else (height, width)

    @property
    def channels(self) -> int:
        """Of the images that it takes."""
        return int(self.shape[1] or 3)

    def rows_of(self, images: Tensor) -> list[Tensor]:
        """What :meth:`_run` gives of any number of images."""
        rows = self.shape[0]
        if rows is None:
            return list(self._run(images))
        pieces = []
        for piece in images.split(rows):
            whole = torch.cat([piece, piece[:1].expand(rows - len(piece), *piece.shape[1:])])
            pieces.append([value[: len(piece)] for value in self._run(whole)])
        return [torch.cat(parts) for parts in zip(*pieces, strict=True)]

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) of images (N, C, H, W)."""
        found = self.rows_of(images)
        if self.map is not None:
            self.map(found.pop())
        logits: Tensor = self.head(*found)
        return logits


def checked_shape(shape: Shape, floats: bool, source: str) -> Shape:
    """The shape of a network's input, if that can be images."""
    if len(shape) != 4 or shape[1] not in (1, 3) or not floats:
        raise InputError(f"{source} takes an input of shape {shape}; images are floats (N, C, H, W) with C 3 or 1")
    return shape


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A layer of these numbers, which are not to be trained."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="cpu", dtype=torch.float32)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer.requires_grad_(False)


class OnnxNetwork(FileNetwork):
    """The network of an ONNX model, given as bytes with all of its weights; ``source`` is where they come from, for errors."""

    gives_gradients = False

    def __init__(self, content: bytes, source: str) -> None:
        super().__init__()
        self.register_buffer(MODEL, torch.from_numpy(np.frombuffer(content, np.uint8).copy()))
        model = _parsed(content, source)
        _check_self_contained(model, source)
        with as_ours(f"{source} cannot be run"):
            graph = _graph_of(model, source)
            self._graph, self.shape = graph, graph.shape
            self.head = Given() if graph.weight is None else linear(graph.weight, graph.bias)
            del model.graph.output[:]
            for name in dict.fromkeys((graph.features, graph.logits)):
                model.graph.output.append(library("onnx", extra="onnx").helper.make_empty_tensor_value_info(name))
            self._session = _session(model.SerializeToString())
            self._check(source)

    def _run(self, images: Tensor, both: bool = False) -> tuple[Tensor, ...]:
        graph = self._graph
        wanted = [graph.features, graph.logits] if both or isinstance(self.head, Given) else [graph.features]
        pixels: np.ndarray = images.detach().to("cpu", torch.float32).contiguous().numpy()
        found = self._session.run(wanted, {graph.image: pixels.astype(graph.kind, copy=False)})
        return tuple(torch.from_numpy(array.astype(np.float32, copy=False)).to(images.device) for array in found)

    def _check(self, source: str) -> None:
        """Run it once; where our last layer gives other logits than the file's, theirs are taken."""
        shape = (self.shape[0] or 2, self.channels, *(self.size or (224, 224)))
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
        features, logits = self._run(images, both=True)
        if features.dim() != 2 or logits.dim() != 2:
            what = f"{source} gives features of shape {tuple(features.shape)} and logits of shape {tuple(logits.shape)}"
            raise InputError(f"{what}, not rows; export it with outputs that are called {FEATURES} and {LOGITS}")
        within = TOLERANCE * max(1.0, float(logits.abs().max()))
        if isinstance(self.head, nn.Linear) and not torch.allclose(self.head(features), logits, rtol=0, atol=within):
            self.head = Given()

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


def build(state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network whose model is kept as a tensor."""
    if set(state) != {MODEL} or state[MODEL].dtype != torch.uint8 or state[MODEL].dim() != 1:
        raise FileFormatError(f"{source} holds no ONNX model")
    return OnnxNetwork(state[MODEL].cpu().numpy().tobytes(), source)


def _parsed(content: bytes, source: str) -> Any:
    with as_ours(f"{source} is no ONNX model"):
        model = library("onnx", extra="onnx").load_model_from_string(content)
    if not model.graph.node:
        raise FileFormatError(f"{source} is no ONNX model: it has no graph")
    return model


def _session(content: bytes) -> Any:
    runtime = library("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor of a message of protobuf, wherever in it."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _tensors(one)


def _check_self_contained(model: Any, source: str) -> None:
    """Refuse a model that would read other files; ONNX Runtime itself refuses operators that it does not have."""
    for tensor in _tensors(model):
        if tensor.data_location == tensor.EXTERNAL:
            raise FileFormatError(f"the numbers of {tensor.name!r:.100} of {source} lie in another file")


class _Graph(NamedTuple):
    """Names of a classifier's tensors, and its last layer (logits = features · weightᵀ + bias) where the file has its numbers."""

    image: str
    shape: tuple[int | None, ...]
    kind: type
    features: str
    logits: str
    weight: Tensor | None = None
    bias: Tensor | None = None


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
    shape = checked_shape(shape, tensor.elem_type in FLOATS, source)
    outputs = [one.name for one in graph.output]
    logits = LOGITS if LOGITS in outputs else next((name for name in outputs if name != FEATURES), "")
    if not logits or set(outputs) - {FEATURES, logits}:
        raise InputError(f"{source} has the outputs {', '.join(outputs)}; call them {LOGITS} and {FEATURES}")
    taken = (inputs[0].name, shape, FLOATS[tensor.elem_type])
    if FEATURES in outputs:
        return _Graph(*taken, FEATURES, logits)
    features, logits, weight, bias = _last_layer(logits, graph, constants, source)
    return _Graph(*taken, features, logits, weight, bias)


def _last_layer(logits: str, graph: Any, constants: Any, source: str) -> tuple[str, str, Tensor | None, Tensor | None]:
    """Names of features and logits, and weight and bias of the layer between them, None where they are computed."""
    makers = {name: node for node in graph.node for name in node.output}
    node, bias = makers.get(logits), None
    while node is not None and node.op_type in PASSED:
        logits = node.input[0]
        node = makers.get(logits)
    if node is not None and node.op_type == "Add":
        known = {name: _constant(name, makers, constants) for name in node.input}
        rest = [name for name, value in known.items() if value is None]
        if len(known) == 2 and len(rest) == 1:
            (bias,) = (value for value in known.values() if value is not None)
            node = makers.get(rest[0])
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        what = f"{source} does not end with a linear layer (Gemm or MatMul), so that its features are not known"
        raise InputError(f"{what}; export it with a second output, called {FEATURES}, and call the other {LOGITS}")
    return node.input[0], logits, *_numbers(node, bias, makers, constants)


def _numbers(node: Any, bias: np.ndarray | None, makers: Any, constants: Any) -> tuple[Tensor | None, Tensor | None]:
    """Weight (K, D) and bias (K,) or None of a matrix product, if the file has them."""
    weight = _constant(node.input[1], makers, constants)
    said = {one.name: one for one in node.attribute}
    if weight is None or weight.ndim != 2 or ("transA" in said and said["transA"].i):
        return None, None
    rows = weight if "transB" in said and said["transB"].i else weight.T
    if node.op_type == "Gemm":
        rows = rows * (said["alpha"].f if "alpha" in said else 1.0)
        if len(node.input) > 2 and node.input[2]:
            own = _constant(node.input[2], makers, constants)
            if own is None or bias is not None:
                return None, None
            bias = own * (said["beta"].f if "beta" in said else 1.0)
    found = torch.from_numpy(np.array(rows, np.float32))
    if bias is None:
        return found, None
    return found, torch.from_numpy(np.array(np.broadcast_to(bias.reshape(-1), len(rows)), np.float32))


def _constant(name: str, makers: Any, constants: Any) -> np.ndarray | None:
    """The numbers of a tensor that does not depend on the input: an initializer or constant, perhaps transposed."""
    helper = library("onnx.numpy_helper", extra="onnx")
    node = makers.get(name)
    if name in constants:
        return np.asarray(helper.to_array(constants[name]))
    if node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
        return np.asarray(helper.to_array(node.attribute[0].t))
    if node is None or node.op_type != "Transpose":
        return None
    inner = _constant(node.input[0], makers, constants)
    if inner is None or (node.attribute and list(node.attribute[0].ints) != list(range(inner.ndim))[::-1]):
        return None
    return inner.T
