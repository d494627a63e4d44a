"""Weights that timm and torchvision publish, read by us into networks that the libraries build: these would unpickle them.

They are safetensors where these are published (nearly all of timm's). A pickle (torchvision's) must have the checksum that its
published name carries, and is read by PyTorch's restricted loader, which builds tensors and refuses all else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from outfield.errors import FileFormatError, InputError, StorageError, as_ours, reason
from outfield.extras import library
from outfield.files import PathLike, make_folder, open_to_read, read_tensors, sha256_of
from outfield.files import download_file as download

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")  # Endings of files that run code when they are read
# What a file of weights on the hub is called as safetensors
HUB_NAMES = {"pytorch_model.bin": "model.safetensors", "open_clip_pytorch_model.bin": "open_clip_model.safetensors"}
HASH_IN_NAME = re.compile(r"[-_]([0-9a-f]{8,64})\.\w+$")  # The beginning of a published file's SHA-256
State = Mapping[str, Tensor]
Weights = PathLike | State


def timm_pretrained(name: str) -> nn.Module:
    """A network of timm with its published weights."""
    timm = library("timm", extra="images")
    config = timm.get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url):
        raise InputError(f"timm publishes no weights of {name}; pass your own: timm:{name}@WEIGHTS.safetensors")
    state = _from_hub(config) if config.hf_hub_id else _from_url(config.url, f"timm's {name}")
    # timm itself then renames entries and leaves out a background class, as it does with weights that it reads.
    overlay = {"state_dict": state, "source": None, "file": None}
    network: nn.Module
    with as_ours(f"the published weights of {name} do not fit it"):
        network = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    cast(dict[str, Any], network.pretrained_cfg).pop("state_dict", None)  # which would keep all weights in memory twice
    return network


def torchvision_pretrained(name: str) -> nn.Module:
    """A classifier of torchvision with its published weights."""
    models = library("torchvision.models", extra="images")
    # A quantized network is built as torchvision builds it by default: not yet quantized, with the ordinary weights.
    published = models.get_model_weights(name.removeprefix("quantized_")).DEFAULT
    state = _from_url(published.url, f"torchvision's {name}")
    # The builder asks its weights for their tensors; a copy of the entry gives those that are already read. Others do not see it.
    given = object.__new__(type(published))
    given.__dict__.update(published.__dict__, get_state_dict=lambda *_, **__: state)
    with as_ours(f"the published weights of {name} do not fit it"):
        network: nn.Module = models.get_model(name, weights=given)
    return network


def _from_hub(config: Any) -> State:
    """The safetensors of a model on the Hugging Face hub, out of its cache or from the network."""
    hub = library("huggingface_hub", extra="images")
    errors = library("huggingface_hub.errors", extra="images")
    repository, _, revision = config.hf_hub_id.partition("@")
    wanted = config.hf_hub_filename or "pytorch_model.bin"
    file = HUB_NAMES.get(wanted, str(PurePosixPath(wanted).with_suffix(".safetensors")))
    level = (log := logging.getLogger("huggingface_hub")).level
    try:
        log.setLevel(logging.ERROR)  # it tells of every attempt
        # Without a look at the network, which takes half a minute to fail where there is none.
        path = hub.try_to_load_from_cache(repository, file, revision=revision or None)
        if path is None:
            path = hub.hf_hub_download(repository, file, revision=revision or None)
    except (OSError, ValueError, RuntimeError) as error:
        # Of the hub's "not found" one kind says that the network failed, and is also one of the other.
        if not isinstance(error, errors.EntryNotFoundError) or isinstance(error, errors.LocalEntryNotFoundError):
            what = f"the weights {repository}/{file} cannot be downloaded: {reason(error).rstrip('.')}"
            raise StorageError(f"{what}; or give a file: timm:{config.architecture}@FILE.safetensors") from error
        path = None
    finally:
        log.setLevel(level)
    if isinstance(path, str):
        return read_tensors(path)[1]
    if config.url and HASH_IN_NAME.search(config.url):
        return _from_url(config.url, repository)
    what = f"{repository} publishes its weights only as a pickle, which can run any code"
    raise FileFormatError(f"{what}; where you trust it, convert it once: timm:NAME@WEIGHTS.safetensors")


def _from_url(url: str, what: str) -> State:
    """A pickled state dict, out of PyTorch's cache or from the network, by its checksum and without its code."""
    name = PurePosixPath(urlsplit(url).path).name
    found = HASH_IN_NAME.search(name)
    if found is None:
        what = f"the weights of {what} are published as a pickle without a checksum, {url}"
        raise FileFormatError(f"{what}; where you trust it, convert it once: NAME@WEIGHTS.safetensors")
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if not os.path.lexists(path):
        make_folder(path.parent)
        download(url, path, found[1])
    digest = sha256_of(path)
    if not digest.startswith(found[1]):
        said = f"{path} is not the file of that name that {what} is published in: its SHA-256 is {digest}"
        raise FileFormatError(f"{said}; remove it, and it is downloaded again")
    with open_to_read(path) as file, as_ours(f"{path} is truncated, or holds more than tensors"):
        content: State = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise FileFormatError(f"{path} does not hold a state dict, tensors by name")
    return content
