"""Batch normalisation over parts of a batch: a large batch then trains as several small ones, as on several devices.

Statistics over fewer images are noisier, and that noise is part of what batch normalisation does for generalisation (Hoffer,
Hubara & Soudry 2017); a batch of 512 that takes them over 128 at a time keeps it, at the speed of 512.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from outfield.extras import library


class Split:
    """What makes a batch normalisation take its statistics in training over ``parts`` equal parts of the batch.

    The running statistics move towards the mean of the parts'. In evaluation it is the ordinary layer. Layers become one
    with :func:`split_batch_norms` and ordinary again with :func:`join_batch_norms`; weights and buffers stay as they are.
    """

    parts: int = 1

    def normalised(self: Any, input: Tensor) -> Tensor:
        """A batch (N, C, H, W) in training, N a multiple of ``parts``."""
        split = input.unflatten(0, (self.parts, -1))  # (P, N / P, C, H, W)
        variance, mean = torch.var_mean(split.float(), dim=(1, 3, 4), correction=0, keepdim=True)  # (P, 1, C, 1, 1)
        self._track(mean, variance, split.shape[1] * split.shape[3] * split.shape[4])
        scale = torch.rsqrt(variance + self.eps) * self.weight[:, None, None]
        result: Tensor = ((split - mean) * scale + self.bias[:, None, None]).flatten(0, 1).to(input.dtype)
        return result

    @torch.no_grad()
    def _track(self: Any, mean: Tensor, variance: Tensor, count: int) -> None:
        for running, value in ((self.running_mean, mean), (self.running_var, variance * (count / max(1, count - 1)))):
            if running is not None:
                running.lerp_(value.mean(0).flatten(), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1


class SplitBatchNorm2d(Split, nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` over parts of the batch."""

    def forward(self, input: Tensor) -> Tensor:
        return self.normalised(input) if self.training else super().forward(input)


@functools.cache
def kinds() -> dict[type[nn.Module], type[nn.Module]]:
    """The layers that can be split, and what they become: PyTorch's, and timm's with an activation behind it."""
    timm_norm: Any = library("timm.layers", extra="images").BatchNormAct2d  # seconds to import

    class SplitBatchNormAct2d(Split, timm_norm):  # type: ignore[misc]  # timm has no types
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.act(self.drop(self.normalised(x))) if self.training else super().forward(x)
            return result

    return {nn.BatchNorm2d: SplitBatchNorm2d, timm_norm: SplitBatchNormAct2d}


def can_be_split(network: nn.Module) -> bool:
    """Whether a network has batch normalisations, and all are of a kind that :func:`split_batch_norms` knows."""
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return bool(norms) and all(type(n) in kinds() and n.affine and n.momentum is not None for n in norms)


def split_batch_norms(network: nn.Module, parts: int) -> None:
    """Let the batch normalisations of a network take their statistics over ``parts`` parts of the batch, in place."""
    for module in network.modules():
        if type(module) in kinds():
            module.__class__ = kinds()[type(module)]
            setattr(module, "parts", parts)  # noqa: B010  # the class has changed, unseen by a type checker


def join_batch_norms(network: nn.Module) -> None:
    """Undo :func:`split_batch_norms`."""
    plain = {split: kind for kind, split in kinds().items()}
    for module in network.modules():
        if isinstance(module, Split):
            module.__class__ = plain[type(module)]  # type: ignore[assignment]
            del module.parts
