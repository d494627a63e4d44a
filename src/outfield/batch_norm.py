"""Batch normalisation over parts of a batch: a large batch then trains as several small ones, as on several devices.

Statistics over fewer images are noisier, and that noise is part of what batch normalisation does for generalisation (Hoffer,
Hubara & Soudry 2017); a batch of 512 that takes them over 128 at a time keeps it, at the speed of 512.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SplitBatchNorm2d(nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` whose statistics in training are those of ``parts`` equal parts of the batch.

    The running statistics move towards the mean of the parts'. In evaluation it is the ordinary layer. Layers become one
    with :func:`split_batch_norms` and ordinary again with :func:`join_batch_norms`; weights and buffers stay as they are.
    """

    parts: int = 1

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        split = input.unflatten(0, (self.parts, -1))  # (P, N / P, C, H, W)
        variance, mean = torch.var_mean(split.float(), dim=(1, 3, 4), correction=0, keepdim=True)  # (P, 1, C, 1, 1)
        self._track(mean, variance, split.shape[1] * split.shape[3] * split.shape[4])
        scale = torch.rsqrt(variance + self.eps) * self.weight[:, None, None]
        result: Tensor = ((split - mean) * scale + self.bias[:, None, None]).flatten(0, 1).to(input.dtype)
        return result

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        momentum = 0.1 if self.momentum is None else self.momentum
        for running, value in ((self.running_mean, mean), (self.running_var, variance * (count / max(1, count - 1)))):
            if running is not None:
                running.lerp_(value.mean(0).flatten(), momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1


def split_batch_norms(network: nn.Module, parts: int) -> None:
    """Let every plain, affine BatchNorm2d of a network take its statistics over ``parts`` parts of the batch, in place."""
    for module in network.modules():
        if type(module) is nn.BatchNorm2d and module.affine:
            module.__class__ = SplitBatchNorm2d
            setattr(module, "parts", parts)  # noqa: B010  # the class has changed, unseen by a type checker


def join_batch_norms(network: nn.Module) -> None:
    """Undo :func:`split_batch_norms`."""
    for module in network.modules():
        if type(module) is SplitBatchNorm2d:
            module.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
            del module.parts
