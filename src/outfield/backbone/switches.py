"""Process-wide settings of a GPU's libraries that some work needs otherwise, and PyTorch offers in no other way.

They are counted: the first work that needs a setting makes it, the last one puts back what was there. Work of ours in other
threads meanwhile finds what it needs. On a CPU nothing is ever changed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

Undo = Callable[[], None]


class Switch:
    """A process-wide setting that several may need at the same time.

    Args:
        change: Makes the setting and returns what puts back the old one.
    """

    def __init__(self, change: Callable[[], Undo]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._holders = 0
        self._undo: Undo | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The setting, while the block runs."""
        with self._lock:
            if not self._holders:
                self._undo = self._change()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders and self._undo is not None:
                    self._undo()


def _turn_off_tf32() -> Undo:
    """Convolutions and matrix products in full float32 on a GPU."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):  # before torch 2.9
        convolutions, products = backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")

        def undo() -> None:
            backends.cudnn.allow_tf32 = convolutions
            torch.set_float32_matmul_precision(products)

        return undo
    cudnn, before = backends.cudnn, []
    # From the general to the special: what is not set reads as what is above it, so only what was set is written to.
    for place in (backends, cudnn, cudnn.conv, cudnn.rnn, backends.cuda.matmul):
        if place.fp32_precision != "ieee":
            before.append((place, place.fp32_precision))
            place.fp32_precision = "ieee"

    def put_back() -> None:
        for place, precision in reversed(before):
            place.fp32_precision = precision

    return put_back


def _try_algorithms() -> Undo:
    """Let cuDNN try its algorithms for a convolution and choose the fastest."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = True

    def put_back() -> None:
        cudnn.benchmark = before

    return put_back


WITHOUT_TF32 = Switch(_turn_off_tf32)
FASTEST_CONVOLUTIONS = Switch(_try_algorithms)
