"""A classifier in an ONNX file, run by ONNX Runtime, as a module: features come out of its graph, its last layer is ours.

It gives no gradients. It runs on the CPU wherever the images are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone.onnx_graph import Graph, examined
from outfield.backbone.onnx_limits import check_growth, check_model, check_shapes, tensors_of, try_once
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError
from outfield.extras import library
from outfield.files.opened import open_to_read

MODEL = "model"
MANY = 32
"""Images for which sizes are compared with those for two."""
LARGEST = 2**31 - 1
"""Bytes of a model with its weights: what a message of ONNX can hold."""
TOLERANCE = 1e-3
"""By how much logits of our last layer may differ from the file's, relative to the largest."""


class Given(nn.Module):
    """The place of the last layer where its numbers are not known: features go in, and the file's own logits come out."""

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """The logits."""
        return logits


class OnnxNetwork(nn.Module):
    """The network of an ONNX model.

    Args:
        content: The model, with all of its weights.
        source: Where it comes from, for errors.

    Raises:
        FileFormatError: It is broken, or its graph cannot be run.
        InputError: It is no image classifier whose features can be found, or it asks for too much memory or time.
        MissingExtraError: onnx or ONNX Runtime are not installed.
    """

    gives_gradients = False

    def __init__(self, content: bytes, source: str) -> None:
        super().__init__()
        self.register_buffer(MODEL, torch.from_numpy(np.frombuffer(content, np.uint8).copy()))
        model = _parsed(content, source)
        self.graph: Graph = _looked_through(model, source)
        self.head: nn.Module = Given()
        layer = self.graph.layer
        if layer is not None:
            self.head = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], bias=layer.bias is not None)
            with torch.no_grad():
                self.head.weight.copy_(torch.from_numpy(layer.weight))
                if layer.bias is not None:
                    self.head.bias.copy_(torch.from_numpy(layer.bias))
            self.head.requires_grad_(False)
        images, rerouted = self._images(), _with_outputs(model, self.graph)
        try_once(rerouted, (self.graph.features, self.graph.logits), {self.graph.image: images}, source)
        self._session = _session(rerouted, source)
        self._check(source)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the images that it takes, where they are fixed."""
        height, width = self.graph.shape[2:]
        return None if height is None or width is None else (height, width)

    @property
    def channels(self) -> int:
        """Of the images that it takes."""
        return int(self.graph.shape[1] or 3)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) of images (N, C, H, W)."""
        wanted = [self.graph.features] if self.graph.layer is not None else [self.graph.features, self.graph.logits]
        found = [torch.from_numpy(array).to(images.device) for array in self._run(images, wanted)]
        logits: Tensor = self.head(*found)
        return logits

    def _run(self, images: Tensor, wanted: list[str]) -> list[np.ndarray]:
        pixels: np.ndarray = (
            images.detach().to("cpu", torch.float32).contiguous().numpy().astype(self.graph.kind, copy=False)
        )
        rows = self.graph.shape[0] or len(pixels)
        pieces = [self._piece(pixels[start : start + rows], rows, wanted) for start in range(0, len(pixels), rows)]
        return [np.concatenate(parts).astype(np.float32, copy=False) for parts in zip(*pieces, strict=True)]

    def _piece(self, pixels: np.ndarray, rows: int, wanted: list[str]) -> list[np.ndarray]:
        """Of a network for a fixed number of images, too few are filled up."""
        count = len(pixels)
        if count < rows:
            pixels = np.concatenate([pixels, np.zeros((rows - count, *pixels.shape[1:]), pixels.dtype)])
        return [array[:count] for array in self._session.run(wanted, {self.graph.image: pixels})]

    def _images(self) -> np.ndarray:
        """Two of noise, or as many as it takes at a time."""
        images = torch.rand(*_shape(self.graph), generator=torch.Generator().manual_seed(0))
        pixels: np.ndarray = images.numpy().astype(self.graph.kind, copy=False)
        return pixels

    def _check(self, source: str) -> None:
        """Run it once, and compare our last layer with the file's."""
        images = torch.from_numpy(self._images()[:2]).float()
        try:
            features, logits = self._run(images, [self.graph.features, self.graph.logits])
        except Exception as error:  # of ONNX Runtime
            raise FileFormatError(f"{source} cannot be run: {str(error).splitlines()[0][:300]}") from error
        if features.ndim != 2 or logits.ndim != 2:
            raise InputError(
                f"{source} gives features of shape {features.shape} and logits of shape {logits.shape}; both must have a row for "
                "each image: export it with outputs that are called features and logits"
            )
        if isinstance(self.head, nn.Linear):
            ours = self.head(torch.from_numpy(features)).numpy()
            if not np.allclose(ours, logits, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(logits).max()))):
                raise InputError(
                    f"the last layer of {source} does not give its logits; name its outputs features and logits"
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxNetwork:
        return OnnxNetwork(content_of(self), "a copy")

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxNetwork, (content_of(self), "a copy")


def _shape(graph: Graph, images: int = 2) -> tuple[int, int, int, int]:
    """Of so many images, or of as many as it takes at a time."""
    count, channels, height, width = graph.shape
    fixed = (224, 224) if height is None or width is None else (height, width)
    return count or images, channels or 3, *fixed


def _looked_through(model: Any, source: str) -> Graph:
    """What is to be known of a model that may be run.

    Raises:
        FileFormatError: It is broken.
        InputError: It is no image classifier whose features can be found, or it asks for too much.
    """
    try:
        check_model(model, source)
        graph = examined(model, source)
        few, many = _shape(graph), _shape(graph, MANY)
        sizes = check_shapes(model, graph.image, few, source)
        if many != few:
            check_growth(model, graph.image, sizes, many, source)
    except OutfieldError:
        raise
    except Exception as error:  # of numpy and of onnx, about tensors and nodes that are not what they should be
        raise FileFormatError(f"{source} is broken: {type(error).__name__}: {str(error)[:200]}") from error
    return graph


def content_of(network: nn.Module) -> bytes:
    """The model of an :class:`OnnxNetwork` as bytes."""
    content: Tensor = getattr(network, MODEL)
    return content.cpu().numpy().tobytes()


def read_model(path: Path) -> bytes:
    """An ONNX model as bytes, with weights that lie in files beside it.

    Raises:
        StorageError: It cannot be read.
        FileFormatError: It is no such model, or weights lie outside of its folder.
        InputError: It is too large.
    """
    with open_to_read(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InputError(f"{path} is too large: a model may have {LARGEST:,} bytes")
    model = _parsed(content, str(path))
    helper = library("onnx.external_data_helper", extra="onnx")
    outside = [tensor for tensor in tensors_of(model) if helper.uses_external_data(tensor)]
    if not outside:
        return content
    _check_beside(path, outside)
    try:
        helper.load_external_data_for_model(model, str(path.parent))
        return bytes(model.SerializeToString())
    except OSError as error:
        raise StorageError(f"cannot read the weights of {path}: {error}") from error
    except Exception as error:  # of protobuf and of onnx's own checks
        raise FileFormatError(f"the weights of {path} cannot be read: {str(error).splitlines()[0][:300]}") from error


def build(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network whose model is kept as a tensor.

    Raises:
        FileFormatError: There is none.
    """
    if set(state) != {MODEL} or state[MODEL].dtype != torch.uint8 or state[MODEL].dim() != 1:
        raise FileFormatError(f"{source} holds no ONNX model")
    return OnnxNetwork(state[MODEL].cpu().numpy().tobytes(), source)


def _parsed(content: bytes, source: str) -> Any:
    onnx = library("onnx", extra="onnx")
    try:
        model = onnx.load_model_from_string(content)
        if not model.graph.node:
            raise FileFormatError(f"{source} is no ONNX model: it has no graph")
    except OutfieldError:
        raise
    except Exception as error:  # of protobuf
        raise FileFormatError(f"{source} is no ONNX model: {str(error).splitlines()[0][:300]}") from error
    return model


def _check_beside(path: Path, tensors: Iterable[Any]) -> None:
    """Refuse files of weights that are larger than a model may be: they would be read whole.

    Raises:
        InputError: They are.
    """
    names = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    places = [path.parent / name for name in names]
    total = sum(place.stat().st_size for place in places if place.is_file())
    if total > LARGEST:
        raise InputError(f"the weights of {path} are too large: {total:,} bytes; a model may have {LARGEST:,}")


def _with_outputs(model: Any, graph: Graph) -> bytes:
    """The model that gives features and logits, whatever its outputs were."""
    onnx = library("onnx", extra="onnx")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.output[:]
    for name in dict.fromkeys((graph.features, graph.logits)):
        changed.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return bytes(changed.SerializeToString())


def _session(content: bytes, source: str) -> Any:
    runtime = library("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of ONNX Runtime
        raise FileFormatError(f"{source} cannot be run: {str(error).splitlines()[0][:300]}") from error
