"""The last feature map of a network: which of the tensors that passed by it is, and its spread over positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


def unchanged(tensor: Tensor) -> Tensor:
    """The tensor itself."""
    return tensor


ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (unchanged, functional.relu, functional.silu, functional.gelu)
"""What a network may do, outside of any module, to its last feature map before it is pooled."""


@dataclass(frozen=True)
class FeatureMap:
    """Where the last feature map passes by, and how it is read.

    Attributes:
        module: whose input or output it is.
        is_input: which of the two.
        shape: of one image's map.
        channels: the axis of the D channels; all others but the first are positions.
        skipped: tokens at the beginning that are no positions of the image.
        activation: one of :data:`ACTIVATIONS`.
    """

    module: nn.Module
    is_input: bool
    shape: tuple[int, ...]
    channels: int
    skipped: int = 0
    activation: Callable[[Tensor], Tensor] = unchanged

    def _read(self, tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        values = tensor.detach()[:, self.skipped :] if self.skipped else tensor.detach()
        return self.activation(values.float()), tuple(a for a in range(1, tensor.dim()) if a != self.channels)

    def mean(self, tensor: Tensor) -> Tensor:
        """Mean over positions (N, D)."""
        values, positions = self._read(tensor)
        return values.mean(positions)

    def spread(self, tensor: Tensor) -> Tensor:
        """Standard deviation over positions (N, D), divided by their number (correction 0)."""
        values, positions = self._read(tensor)
        if values.device.type != "cpu":
            return values.std(positions, correction=0)
        away = values.double()  # as std adds up there, which takes ten times as long
        away = away - away.mean(positions, keepdim=True)
        return away.square().mean(positions).sqrt().float()


class Passing(NamedTuple):
    """A tensor that went into or out of a module; ``order`` counts such events."""

    order: int
    module: nn.Module
    is_input: bool
    tensor: Tensor


def find_map(
    passing: Iterable[Passing], features: Tensor, prefix_tokens: int | None
) -> tuple[FeatureMap, Tensor] | None:
    """The latest map whose mean is the features, perhaps after an activation; else the latest as wide as they are."""
    possible = [
        (place, tensor)
        for _, module, is_input, tensor in passing
        for place in _readings(module, is_input, tensor, features, prefix_tokens)
    ]
    for place, tensor in possible:
        for activation in ACTIVATIONS:
            activated = replace(place, activation=activation)
            # Half precision and another order of summation must not hide what is the same.
            if is_close(activated.mean(tensor), features, tolerance(tensor.dtype == torch.float32)):
                return activated, tensor
    return possible[0] if possible else None


def _readings(
    module: nn.Module, is_input: bool, tensor: Tensor, features: Tensor, prefix_tokens: int | None
) -> Iterator[FeatureMap]:
    """The ways to read a tensor as a map of as many channels as there are features: channels first, last, or tokens."""
    rows, width = features.shape
    for channels in (1, 3) if tensor.dim() == 4 else (2,):
        if len(tensor) != rows or tensor.shape[channels] != width:
            continue
        skipped = 0
        if tensor.dim() == 3:
            is_class_token = is_close(tensor[:, 0].detach().float(), features, 1e-3)
            skipped = prefix_tokens if isinstance(prefix_tokens, int) else int(is_class_token)
        if tensor.shape[1] - skipped > 1 or tensor.dim() == 4:
            yield FeatureMap(module, is_input, tuple(tensor.shape[1:]), channels, skipped)


def is_pooled(tensor: Tensor) -> bool:
    """Whether there is one position only: (N, D), (N, D, 1, 1), (N, 1, D) …"""
    return tensor.dim() >= 2 and tensor.numel() == tensor.shape[0] * max(tensor.shape[1:])


def tolerance(exact: bool) -> float:
    """For :func:`is_close`, of what was computed in full precision or not."""
    return 1e-3 if exact else 1e-2


def is_close(a: Tensor, b: Tensor, within: float) -> bool:
    """Whether two tensors have one shape, and their largest difference is small beside the largest entry of the second."""
    return a.shape == b.shape and bool((a - b).abs().max() <= within * b.abs().max())
