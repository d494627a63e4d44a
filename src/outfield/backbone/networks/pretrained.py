"""Networks with trained weights: of a file that Outfield wrote, of a plain state dict, or as timm and torchvision publish them.

The libraries would unpickle what lies in their caches, which can run any code. Here the network is built by the library and
the weights are read by us: safetensors where they are published so (nearly all of timm's). Where they only exist as a pickle
(torchvision's), the file must first have the checksum that its published name carries, and is then read by PyTorch's restricted
loader, which builds tensors and refuses everything else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from outfield.backbone.networks.architectures import (
    PREFIXES,
    SMALL,
    create,
    load_classifier,
    load_weights,
    split_name,
    use_small_stem,
)
from outfield.backbone.networks.origin import Origin, Trained
from outfield.backbone.preprocessing.preprocessing import TENSOR, Preprocessing
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError
from outfield.extras import library
from outfield.files import HEADER_NAME, PathLike, find_tensors, make_folder, open_to_read, read_tensors, sha256_of
from outfield.files import download_file as download
from outfield.modes import building

# Endings of files that are unpickled when they are read, which may run any code
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
Weights = PathLike | Mapping[str, Tensor]
HASH_IN_NAME = re.compile(
    r"[-_]([0-9a-f]{8,64})\.\w+$"
)  # Where a published file's name carries the beginning of its SHA-256
# What a file of weights on the hub is called as safetensors
HUB_NAMES = {
    "pytorch_model.bin": "model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_model.safetensors",
}

State = Mapping[str, Tensor]


def from_our_file(path: PathLike, **asked: Any) -> Trained:
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
        state, source, name = read_tensors(weights)[1], str(weights), Path(weights).stem
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


def library_preprocessing(architecture: str, network: nn.Module) -> Preprocessing:
    """How the library prepares images for a network of its own."""
    owner, name = split_name(architecture)
    if owner == "timm":
        return Preprocessing.of_timm(network)
    models = library("torchvision.models", extra="images")
    return Preprocessing.of_torchvision(models.get_model_weights(name).DEFAULT.transforms())


def _is_ours(path: PathLike) -> bool:
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
    return HEADER_NAME in find_tensors(path).metadata


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


# Weights that libraries publish


def timm_pretrained(name: str) -> nn.Module:
    """A network of timm with its published weights.

    Raises:
        FileFormatError: They are not what was published, or exist only as a pickle without a checksum.
        StorageError: They cannot be had.
    """
    timm = library("timm", extra="images")
    config = timm.get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url):
        raise InputError(f"timm publishes no weights of {name}; pass your own: timm:{name}@WEIGHTS.safetensors")
    state = _from_hub(config) if config.hf_hub_id else _from_url(config.url, f"timm's {name}")
    # timm itself then renames entries and leaves out a background class, as it does with weights that it reads.
    overlay = {"state_dict": state, "source": None, "file": None}
    try:
        network: nn.Module = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"the published weights of {name} do not fit it: {_first_line(error)}") from error
    config_of_network: Any = getattr(network, "pretrained_cfg", {})
    config_of_network.pop("state_dict", None)  # which would keep all weights in memory twice
    return network


def torchvision_pretrained(name: str) -> nn.Module:
    """A classifier of torchvision with its published weights.

    Raises:
        FileFormatError: What lies in the cache, or came, is not what was published.
        StorageError: They cannot be had.
    """
    models = library("torchvision.models", extra="images")
    # A quantized network is built as torchvision builds it by default: not yet quantized, with the ordinary weights.
    published = models.get_model_weights(name.removeprefix("quantized_")).DEFAULT
    state = _from_url(published.url, f"torchvision's {name}")
    # The builder asks its weights for their tensors; a copy of the entry gives those that are already read. Others do not see it.
    given = object.__new__(type(published))
    given.__dict__.update(published.__dict__, get_state_dict=lambda *_, **__: state)
    try:
        network: nn.Module = models.get_model(name, weights=given)
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"the published weights of {name} do not fit it: {_first_line(error)}") from error
    return network


def _from_hub(config: Any) -> State:
    """The safetensors of a model on the Hugging Face hub, out of its cache or from the network."""
    hub = library("huggingface_hub", extra="images")
    errors = library("huggingface_hub.errors", extra="images")
    repository, _, revision = config.hf_hub_id.partition("@")
    wanted = config.hf_hub_filename or "pytorch_model.bin"
    file = HUB_NAMES.get(wanted, str(PurePosixPath(wanted).with_suffix(".safetensors")))
    try:
        # Without a look at the network, which takes half a minute to fail where there is none.
        path = hub.try_to_load_from_cache(repository, file, revision=revision or None)
        if path is None:
            path = hub.hf_hub_download(repository, file, revision=revision or None)
    except (OSError, ValueError, RuntimeError) as error:
        # Of the hub's "not found" one kind says that the network failed, and is also one of the other.
        if not isinstance(error, errors.EntryNotFoundError) or isinstance(error, errors.LocalEntryNotFoundError):
            raise StorageError(f"the weights {repository}/{file} cannot be had: {_first_line(error)}") from error
        path = None
    if isinstance(path, str):
        return read_tensors(path)[1]
    if config.url and HASH_IN_NAME.search(config.url):
        return _from_url(config.url, repository)
    raise FileFormatError(
        f"{repository} publishes its weights only as a pickle, which can run any code; convert it once, where you trust it, and "
        "pass the result: timm:NAME@WEIGHTS.safetensors"
    )


def _from_url(url: str, what: str) -> State:
    """A pickled state dict, out of PyTorch's cache or from the network, by its checksum and without its code.

    Args:
        url: Where it is published; its name carries the beginning of its SHA-256.
        what: It is, for messages.
    """
    name = PurePosixPath(urlsplit(url).path).name
    found = HASH_IN_NAME.search(name)
    if found is None:
        raise FileFormatError(
            f"the weights of {what} are published as a pickle without a checksum, {url}; convert them once, where you trust "
            "them, and pass the result: NAME@WEIGHTS.safetensors"
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if not os.path.lexists(path):
        make_folder(path.parent)
        download(url, path, found[1])
    digest = sha256_of(path)
    if not digest.startswith(found[1]):
        raise FileFormatError(
            f"{path} is not the file of that name that {what} is published in: its SHA-256 is {digest}; remove it, and it is "
            "downloaded again"
        )
    return read_restricted(path)


def read_restricted(path: Path) -> State:
    """A state dict out of a pickle, by PyTorch's restricted loader: tensors and containers of them, and nothing that runs.

    Raises:
        FileFormatError: It holds anything else.
        StorageError: It cannot be read.
    """
    try:
        with open_to_read(path) as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except OutfieldError:
        raise
    except Exception as error:  # a damaged pickle fails anywhere
        raise FileFormatError(f"{path} is truncated, or holds more than tensors: {_first_line(error)}") from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise FileFormatError(f"{path} does not hold a state dict, tensors by name")
    return content


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
