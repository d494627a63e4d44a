"""The fast training step: chains, both passes of the loss and Adam as one fixed sequence of operations on fixed buffers.

What makes it fast, compared with :class:`outfield.energy.training.step.EagerStep`:

- The network's input gradient is written out instead of recorded by autograd. For layers h_l = φ(h_{l−1} W_lᵀ + b_l), φ a
  LeakyReLU, and E = (v·h_L + c) / T:  g_L = (v / T) φ'(h_L),  g_{l−1} = (g_l W_l) φ'(h_{l−1}),  ∇E = g_1 W_1. The energy itself
  is never needed in a chain, and φ' is read off the sign of h.
- On a GPU each layer is one kernel (``kernels.py``: product, bias, activation, and in the weights' kernel Adam),
  S fits share every launch, what the prior's gradient needs is made beside the network's, and the whole step is recorded once in
  a CUDA graph and replayed.
- On a CPU the same sequence runs in PyTorch, with weights packed once a step, so that little but matrix products is left.

Random numbers are drawn in the same order from the same generators as in the eager step: with one seed and precision both take
the same path up to rounding.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from outfield.energy import projection
from outfield.energy.chains import Sampler, Start
from outfield.energy.engine.fused_step import FusedStep
from outfield.energy.engine.torch_operations import TorchOperations
from outfield.energy.network import CorrectedEnergy, layers_of
from outfield.energy.priors.mixture import MixturePrior
from outfield.energy.projection import Projection
from outfield.energy.samplers import Langevin
from outfield.energy.training import Training
from outfield.energy.training.step import EagerStep, InTurn, Step
from outfield.errors import InputError

PROJECTIONS = (projection.identity, projection.sphere, projection.relu_sphere)


def make_step(
    models: Sequence[CorrectedEnergy],
    z: Tensor,
    batch_size: int,
    training: Training,
    sampler: Sampler,
    project: Projection,
    starts: Sequence[Start],
    generators: Sequence[torch.Generator],
) -> Step:
    """The fastest step that can train these models on batches of rows like z (N, D).

    Raises:
        InputError: the engine or the precision that was asked for cannot be had.
    """
    reason = obstacle(models[0], sampler, project, z)
    if training.engine == "fused" and reason is not None:
        raise InputError(f"engine is 'fused', but {reason}; it must be auto or eager here")
    fused = training.engine != "eager" and reason is None
    training = replace(training, precision=_precision(training.precision, z.device, fused))
    rows = list(zip(models, starts, generators, strict=True))
    if not fused:
        return InTurn([EagerStep(m, training, sampler, project, start, g) for m, start, g in rows])
    if has_triton(z.device):
        from outfield.energy.engine.triton_operations import TritonOperations

        kernels = TritonOperations(models, training, project, batch_size)
        return FusedStep(rows, kernels, training, cast(Langevin, sampler), batch_size)
    return InTurn(
        [
            FusedStep([row], TorchOperations(row[0], training, project), training, cast(Langevin, sampler), batch_size)
            for row in rows
        ]
    )


def _precision(asked: str, device: torch.device, fused: bool) -> str:
    """The precision to train in; see :class:`outfield.energy.training.Training`."""
    if asked == "auto":
        return "bfloat16" if fused and device.type == "cuda" and has_bfloat16(device) else "float32"
    if asked == "bfloat16" and not has_bfloat16(device):
        raise InputError("precision is 'bfloat16', but this device has no units for it and would crawl; use float32")
    return asked


def obstacle(model: CorrectedEnergy, sampler: Sampler, project: Projection, z: Tensor) -> str | None:
    """Why the fused engine cannot train this model, or None if it can."""
    if layers_of(model.network) is None:
        return "the network is not a chain of float32 Linear layers with LeakyReLU (of one positive slope) between them"
    if type(sampler) is not Langevin:
        return f"the sampler is {type(sampler).__name__}, not Langevin"
    if project not in PROJECTIONS:
        return "the projection is not one of Outfield's own"
    if not (model.prior is None or type(model.prior) is MixturePrior):
        return f"the prior is {type(model.prior).__name__}, not MixturePrior"
    if z.dtype != torch.float32:
        return f"the rows are {z.dtype}, not float32"
    if model.prior is not None and not model.prior.well_scaled(z):
        return "the mixture is nearly singular and its distances need the refined formula"
    return None


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has units for bfloat16 products; without them a CPU is a hundred times slower than in float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a build without oneDNN
        return False


def has_triton(device: torch.device) -> bool:
    """Whether the kernels of :mod:`outfield.energy.engine.kernels` can run there."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    from outfield.energy.engine import triton_operations

    return triton_operations.works(device)
