"""What surrounds a network while it runs: one thread, evaluation mode, no gradients of its parameters, a precision."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from outfield.backbone.switches import WITHOUT_TF32

IN_USE: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
"""A lock for each network: a second thread's modes and hooks must not come in between."""
FIND_LOCK = threading.Lock()


@contextlib.contextmanager
def undisturbed(network: nn.Module, gradients: bool = True) -> Iterator[None]:
    """Evaluation mode without gradients, by one thread at a time; afterwards every module and parameter is as before.

    Modes are set one by one, because ``network.eval()`` may be overridden to do more. Parameters need no gradients here, and
    without them the backward pass of ODIN keeps fewer activations.

    Args:
        network: any.
        gradients: whether any are taken in the block, of the images; else parameters stay as they are, whatever they say.
    """
    with FIND_LOCK:
        lock = IN_USE.setdefault(network, threading.RLock())
    with lock, torch.inference_mode(False), torch.no_grad():
        modules = _modules(network)
        modes = [module for module in modules if module.training]
        own = [parameter for module in modules for parameter in module._parameters.values()] if gradients else []
        learned = [
            parameter for parameter in own if parameter is not None and parameter.requires_grad and parameter.is_leaf
        ]
        try:
            for module in modes:
                module.training = False
            for parameter in learned:
                parameter.requires_grad_(False)
            yield
        finally:
            for module in modes:
                module.training = True
            for parameter in learned:
                parameter.requires_grad_(True)


def _modules(network: nn.Module) -> list[nn.Module]:
    """All modules of a network, each once; ``network.modules()`` would take a tenth of the time of one small image."""
    found = {network: None}
    left = [network]
    while left:
        for child in left.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                left.append(child)
    return [*found]


@contextlib.contextmanager
def arithmetic(device: torch.device, half: torch.dtype | None) -> Iterator[None]:
    """Autocast to ``half``; or, for None, full precision: on a GPU without TF32."""
    full = half is None and device.type == "cuda"
    with (
        WITHOUT_TF32.held() if full else contextlib.nullcontext(),
        torch.autocast(device.type, dtype=half, enabled=half is not None),
    ):
        yield
