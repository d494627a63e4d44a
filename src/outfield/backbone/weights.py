"""Networks with trained weights: of a file that Outfield wrote, of a plain state dict, or of timm and torchvision themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from outfield.backbone.architectures import (
    PREFIXES,
    SMALL,
    create,
    load_classifier,
    load_weights,
    split_name,
    use_small_stem,
)
from outfield.backbone.origin import Origin
from outfield.backbone.preprocessing import TENSOR, Preprocessing
from outfield.backbone.pretrained import timm_pretrained, torchvision_pretrained
from outfield.backbone.seeding import building
from outfield.errors import FileFormatError, InputError
from outfield.extras import library
from outfield.files import atomic, storage
from outfield.files.headers import NAME
from outfield.files.paths import as_path
from outfield.files.tensors import find_tensors

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
"""Endings of files that are unpickled when they are read, which may run any code."""
Weights = atomic.PathLike | Mapping[str, Tensor]


class Takes(NamedTuple):
    """Height and width of the images that a file's network takes, None where they are free, and their channels."""

    size: tuple[int, int] | None
    channels: int


class Trained(NamedTuple):
    """A network on the CPU, how it takes images, what to call it and its classes, and how it is built again."""

    network: nn.Module
    expects: Preprocessing | None
    name: str
    classes: int | None = None
    names: tuple[str, ...] = ()
    origin: Origin | None = None
    head: str | None = None
    projects: bool = False
    takes: Takes | None = None


def from_our_file(path: atomic.PathLike, **asked: Any) -> Trained:
    """What ``outfield train`` wrote.

    Args:
        path: the file.
        asked: settings of its classifier that are expected, or None.

    Raises:
        StorageError: there is no such file.
        FileFormatError: truncated, changed, not a classifier, or not the one that is expected.
    """
    if not _is_ours(path):
        raise FileFormatError(
            f"{path} holds weights and nothing else; say of which architecture: timm:resnet34@{path}, or in Python "
            f"Backbone.named('resnet34', weights='{path}')"
        )
    network, made, _ = load_classifier(path)
    for name, value in asked.items():
        found = getattr(made, name)
        if value is not None and str(value).removeprefix("timm:") != str(found).removeprefix("timm:"):
            raise FileFormatError(f"{path} holds a classifier with {name} = {found!r}, not {value!r}")
    expects = Preprocessing(made.size, interpolation=TENSOR, mean=made.mean, std=made.std)
    origin = Origin.of_library(made.architecture, made.classes, made.small_images, made.size)
    return Trained(network, expects, Path(path).stem, made.classes, made.names, origin, projects=made.projects)


def from_weights(architecture: str, weights: Weights, classes: int | None, small_images: bool | None) -> Trained:
    """A network by name with weights of a safetensors file or a state dict; they say what is None.

    Raises:
        UnknownNameError: the library has no such model.
        InputError: ``weights`` is neither.
        FileFormatError: they do not fit, or would have to be unpickled.
        StorageError: there is no such file.
    """
    split_name(architecture)
    state, source, name = weights, "weights", architecture.removeprefix("timm:")
    if isinstance(weights, str | os.PathLike):
        if _is_ours(weights):
            return from_our_file(weights, architecture=architecture, classes=classes, small_images=small_images)
        state, source, name = storage.read_tensors(weights)[1], str(weights), Path(weights).stem
    if not isinstance(state, Mapping) or not state:
        raise InputError(
            f"weights is {type(weights).__name__}; it must be a safetensors file or a state dict, not empty"
        )
    wrong = [key for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if wrong:
        raise InputError(f"{source} has no tensor under {wrong[0]!r}; a state dict has nothing but tensors, by name")
    network, small = _build(architecture, state, classes, small_images)
    load_weights(network, state, source)
    expects = library_preprocessing(architecture, network)
    if small:
        expects = replace(expects, resize=SMALL, crop=None, interpolation=TENSOR, fit="exact")
    return Trained(network.eval(), expects, name, origin=_origin(architecture, network, small))


def from_library(architecture: str) -> Trained:
    """A network with the weights that its library publishes, out of the library's cache or from the network.

    Raises:
        UnknownNameError: the library has no such model.
        InputError: it publishes no weights of it.
        FileFormatError: what lies in the cache, or came, is not what was published, or would have to be unpickled.
        StorageError: the weights cannot be had.
    """
    owner, name = split_name(architecture)
    with building():
        network = timm_pretrained(name) if owner == "timm" else torchvision_pretrained(name)
    origin = _origin(architecture, network, small=False)
    expects = library_preprocessing(architecture, network)
    return Trained(network.eval(), expects, architecture.removeprefix("timm:"), origin=origin)


def from_hugging_face(folder: str) -> Trained:
    """An image classifier in a folder as transformers writes it; see :mod:`outfield.backbone.hugging_face`."""
    from outfield.backbone import hugging_face

    path = as_path(folder, "the folder behind hf:")
    network, config = hugging_face.read_network(path)
    names = hugging_face.class_names(config)
    expects, origin = hugging_face.read_preprocessing(path), Origin("hf", {"config": config})
    return Trained(network, expects, path.resolve().name, len(names) or None, names, origin)


def from_onnx(file: str) -> Trained:
    """A classifier in an ONNX file."""
    from outfield.backbone.onnx_network import Given, OnnxNetwork, read_model

    path = as_path(file, "the network")
    network = OnnxNetwork(read_model(path), str(path)).eval()
    head = "head" if isinstance(network.head, Given) else None
    takes = Takes(network.size, network.channels)
    return Trained(network, None, path.stem, origin=Origin("onnx"), head=head, takes=takes)


def from_pt2(file: str) -> Trained:
    """A classifier in a file of ``torch.export``."""
    from outfield.backbone.onnx_network import Given
    from outfield.backbone.pt2_network import read_network

    path = as_path(file, "the network")
    network = read_network(path).eval()
    head = "head" if isinstance(network.head, Given) else None
    takes = Takes(network.size, network.channels)
    return Trained(network, None, path.stem, origin=Origin("pt2"), head=head, takes=takes)


def library_preprocessing(architecture: str, network: nn.Module) -> Preprocessing:
    """How the library prepares images for a network of its own."""
    owner, name = split_name(architecture)
    if owner == "timm":
        return Preprocessing.of_timm(network)
    models = library("torchvision.models", extra="images")
    return Preprocessing.of_torchvision(models.get_model_weights(name).DEFAULT.transforms())


def _is_ours(path: atomic.PathLike) -> bool:
    """Whether Outfield wrote a safetensors file.

    Raises:
        FileFormatError: its ending is that of a pickle, or it is no safetensors file.
    """
    if Path(path).suffix in PICKLES:
        safe = Path(path).with_suffix(".safetensors")
        raise FileFormatError(
            f"{path} would have to be unpickled, which can run any code; convert it once, where you trust it: "
            f'safetensors.torch.save_file(torch.load("{path}", weights_only=True), "{safe}")'
        )
    return NAME in find_tensors(path).metadata


def _build(
    architecture: str, state: Mapping[str, Tensor], classes: int | None, small_images: bool | None
) -> tuple[nn.Module, bool]:
    """A fresh network of the shape that a state dict asks for, and whether it has the stem for small images."""
    with building():
        network = create(architecture, classes)
        wanted = _width(state, _head_name(network)) if classes is None else None
        if wanted is not None and wanted != _width(network.state_dict(), _head_name(network)):
            network = create(architecture, wanted)
        small = small_images if small_images is not None else _has_small_stem(state, network)
        if small:
            use_small_stem(network, architecture)
    return network, small


def _origin(architecture: str, network: nn.Module, small: bool) -> Origin:
    return Origin.of_library(architecture, _width(network.state_dict(), _head_name(network)), small)


def _head_name(network: nn.Module) -> str:
    """The name of what timm calls the classifier, or of the last linear layer."""
    timm_own = getattr(network, "get_classifier", None)
    classifier = timm_own() if callable(timm_own) else None
    named: list[str] = [name for name, module in network.named_modules() if module is classifier]
    linear: list[str] = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return (named or linear or [""])[-1]


def _entry(state: Mapping[str, Tensor], name: str) -> Tensor | None:
    """An entry of a state dict, whose names may all have a prefix."""
    return next((state[prefix + name] for prefix in PREFIXES if prefix + name in state), None)


def _width(state: Mapping[str, Tensor], layer: str) -> int | None:
    """How many outputs a layer has, going by its weight."""
    weight = _entry(state, f"{layer}.weight")
    return None if weight is None else len(weight)


def _has_small_stem(state: Mapping[str, Tensor], network: nn.Module) -> bool:
    """Whether the weights' first convolution is 3 × 3 where the network's is larger."""
    stem, weight = getattr(network, "conv1", None), _entry(state, "conv1.weight")
    return isinstance(stem, nn.Conv2d) and weight is not None and weight.shape[-1] == 3 < stem.kernel_size[-1]
