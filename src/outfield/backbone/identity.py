"""Which network a backbone has: the module itself, the device that it is on, and the digest of what decides its outputs."""

from __future__ import annotations

import hashlib
import re

import torch
from torch import Tensor, nn

from outfield.backbone.preprocessing import TENSOR, Preprocessing
from outfield.errors import InputError
from outfield.files import storage

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where in memory a thing lies, as ``repr`` of a function has it: another place in each process."""


def unwrapped(network: nn.Module) -> nn.Module:
    """The network itself, out of what compiles or parallelises it: neither calls its layers' hooks."""
    while True:
        if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
            network = network.module
        elif isinstance(getattr(network, "_orig_mod", None), nn.Module):
            network = network._orig_mod  # type: ignore[assignment]
        else:
            return network


def device_of(network: nn.Module, name: str) -> torch.device:
    """Where the parameters and buffers of a network are.

    Args:
        network: any module.
        name: what errors call it.

    Raises:
        InputError: on several devices, or nowhere.
    """
    places = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    if len(places) > 1 or torch.device("meta") in places:
        shown = ", ".join(sorted(str(place) for place in places))
        raise InputError(f"the network of {name} is on {shown}; put it on one device: network.to('cpu')")
    return places.pop() if places else torch.device("cpu")


def fingerprint(network: nn.Module, preprocessing: Preprocessing, head: str | None) -> str:
    """SHA-256 of weights, layers and their settings (as ``repr(network)`` shows them), preprocessing and head."""
    kinds = [(name, type(module).__name__) for name, module in network.named_modules()]
    layers = ADDRESS.sub("", repr(network))
    state = {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    expects = preprocessing.input
    numbers = [float(value) for value in (*expects.size, *expects.mean, *expects.std)]
    settings = f"{kinds}|{layers}|{numbers}|{head}|"
    if preprocessing.interpolation != TENSOR:  # else size, mean and std say it all, and older fingerprints stay
        settings += f"{preprocessing!r}|"
    return hashlib.sha256((settings + storage.fingerprint(state)).encode()).hexdigest()
