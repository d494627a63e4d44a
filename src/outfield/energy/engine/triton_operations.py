"""The pieces of a fused step as Triton kernels: tiles, launches, Adam's state. Needs the package ``triton``."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from outfield.energy.chains import Projection, relu_sphere, sphere
from outfield.energy.engine.kernels import (
    backward_kernel,
    bias_kernel,
    descend_kernel,
    forward_kernel,
    head_kernel,
    move_kernel,
    posterior_kernel,
    weights_kernel,
)
from outfield.energy.engine.torch_operations import Positions
from outfield.energy.network import CorrectedEnergy, Layers, layers_of
from outfield.energy.priors import MixturePrior
from outfield.energy.training_step import MOMENTS, Training
from outfield.errors import OutfieldWarning

# classes whose posteriors one program computes; PyTorch's product is faster beyond (2.9 against 7.2 ms a step with
# 1,000 classes of 2,048 features on an H200)
MOST_CLASSES = 512


@dataclass(frozen=True)
class Tile:
    """What one program of a product computes: (M, N) sums, K at a time, with a number of warps and of pipeline stages."""

    M: int
    N: int
    K: int
    warps: int
    stages: int


# from large to small; the depths and stages are those that were fastest on an H200 where each tile is chosen
TILES = (Tile(128, 128, 64, 8, 3), Tile(64, 128, 128, 4, 3), Tile(64, 64, 128, 4, 3), Tile(64, 32, 64, 4, 5))


def tile_for(
    rows: int, columns: int, inner: int, seeds: int, size: int, processors: int, memory: int, least: int = 0
) -> Tile:
    """The largest tile that gives nearly every multiprocessor one, with as many stages as its shared memory (bytes) holds."""
    for tile in TILES:
        depth = max(16, min(tile.K * 2 // size, triton.next_power_of_2(inner)))
        stage = (tile.M + tile.N) * max(depth, least) * size
        enough = triton.cdiv(rows, tile.M) * triton.cdiv(columns, tile.N) * seeds >= 0.9 * processors
        if enough and stage <= memory:
            break
    return replace(tile, K=depth, stages=max(1, min(tile.stages, memory // stage)))


@functools.cache
def works(device: torch.device) -> bool:
    """Whether kernels can be compiled and run there (Triton also needs a C compiler)."""
    x = torch.ones(1, 16, 16, dtype=torch.float32, device=device)
    out, row = torch.zeros_like(x), torch.zeros(1, 16, dtype=torch.float32, device=device)
    flags = {"M": 16, "N": 16, "K": 16, "PRECISION": "ieee", "EVEN": True, "LAST": False, "CHAINED": False}
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            forward_kernel[(1, 1, 1)](x, x, row, row, out, 16, 16, 16, 0.2, 1.0, **flags)
            return bool((out == 16).all())
    except Exception as error:  # whatever a compiler, a driver or a library may raise
        warnings.warn(
            f"Triton does not work here ({error}); training goes on without it, slower", OutfieldWarning, stacklevel=2
        )
        return False


class TritonOperations:
    """What :class:`~outfield.energy.engine.torch_operations.TorchOperations` does, for S networks of one shape and one prior."""

    def __init__(self, models: Sequence[CorrectedEnergy], training: Training, project: Projection, batch: int) -> None:
        model, layers = models[0], [cast(Layers, layers_of(one.network)) for one in models]
        self.slope, self.temperature, self.training = layers[0].slope, model.temperature, training
        self.rounded = training.precision == "bfloat16"
        self.how = "tf32" if training.precision == "tf32" else "ieee"
        self.projection, self.relu, self.unit = project, project is relu_sphere, project in (relu_sphere, sphere)
        same = list(zip(*(one.linears for one in layers), strict=True))
        self.weights = [_stack([layer.weight for layer in group]) for group in same]
        self.biases = [_stack([layer.bias for layer in group]) for group in same]
        self.firsts, self.seconds = ([torch.zeros_like(p) for p in self._parameters()] for _ in range(2))
        device = self.weights[0].device
        self.steps = torch.zeros((), dtype=torch.float64, device=device)
        self.betas = torch.tensor(training.betas, dtype=torch.float64, device=device)
        self.corrections = torch.ones(2, dtype=torch.float32, device=device)
        self.copies = [w.to(torch.bfloat16) if self.rounded else w for w in self.weights]
        on_gpu = device.type == "cuda"
        properties = torch.cuda.get_device_properties(device) if on_gpu else None
        self.processors: int = getattr(properties, "multi_processor_count", 1)
        self.memory: int = getattr(properties, "shared_memory_per_block_optin", 96 * 2**10) - 2**11
        self.mixture = None
        if model.prior is not None:
            self.mixture = _Mixture(model, self.weights[0], training.precision, len(layers) * batch, self.memory)
        hopper = on_gpu and torch.cuda.get_device_capability(device) >= (9, 0)
        self.chained = hopper and hasattr(tl.extra.cuda, "gdc_wait")

    def _parameters(self) -> list[Tensor]:
        """In the order of ``network.parameters()``."""
        return [p for pair in zip(self.weights, self.biases, strict=True) for p in pair]

    def _launch(self, kernel: Any, rows: int, columns: int, inner: int, *arguments: Any, **flags: Any) -> None:
        seeds = len(self.weights[0])
        deepest = (2 if flags.get("SPLIT") else 1) * flags.get("D", 0)
        size = self.copies[0].element_size()
        tile = tile_for(rows, columns, inner, seeds, size, self.processors, self.memory, deepest)
        if kernel is weights_kernel:  # Adam's traffic wants many programs at once
            tile = replace(tile, M=64, N=64, K=min(tile.K, 64), warps=4, stages=min(tile.stages, 3))
        even = rows % tile.M == columns % tile.N == inner % tile.K == columns % flags.get("D", 1) == 0
        grid = (triton.cdiv(rows, tile.M), triton.cdiv(columns, tile.N), seeds)
        kernel[grid](
            *arguments, M=tile.M, N=tile.N, K=tile.K, PRECISION=self.how, EVEN=even,
            num_warps=tile.warps, num_stages=tile.stages, **flags,
        )  # fmt: skip

    def _chained(self) -> dict[str, bool]:
        """On Hopper the next kernel of a chain is set up while this one ends; it waits itself before it reads."""
        return {"CHAINED": True, "launch_pdl": True} if self.chained else {"CHAINED": False}

    def _forward(self, layer: int, x: Tensor, out: Tensor, last: bool) -> Tensor:
        rows, columns, inner = x.shape[1], out.shape[2], x.shape[2]
        self._launch(
            forward_kernel, rows, columns, inner, x, self.copies[layer], self.biases[layer], self.weights[-1], out,
            rows, columns, inner, self.slope, 1 / self.temperature, LAST=last, **self._chained(),
        )  # fmt: skip
        return out

    def forward(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        return self._forward(layer, x, out, last=False)

    def turn(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        return self._forward(layer, x, out, last=True)

    def backward(self, layer: int, g: Tensor, below: Tensor, out: Tensor) -> Tensor:
        rows, columns, inner = g.shape[1], out.shape[2], g.shape[2]
        self._launch(
            backward_kernel, rows, columns, inner, g, self.copies[layer], below, out,
            rows, columns, inner, self.slope, **self._chained(),
        )  # fmt: skip
        return out

    def prepare(self, z: Positions) -> None:
        if self.mixture is not None:
            self.mixture.weigh(z)

    def descend(self, g: Tensor, z: Positions, out: Tensor) -> Tensor:
        rows, columns, inner = g.shape[1], out.shape[2], g.shape[2]
        terms: tuple[Tensor, ...] = (g,) * 6
        classes, flags = 0, {"MIXTURE": False, "SPLIT": False, "EXACT": self.how, "D": 16, "C": 16}
        if self.mixture is not None:
            terms, classes, flags = self.mixture.terms(), self.mixture.padded, self.mixture.flags()
        self._launch(
            descend_kernel, rows, columns, inner, g, self.copies[0], z.copy, z.rest, *terms, out,
            rows, columns, inner, classes, **flags, **self._chained(),
        )  # fmt: skip
        return out

    def head(self, h: Tensor, energy: Tensor, pull: Tensor, g: Tensor) -> None:
        self.steps += 1  # of Adam, which begins here
        one, two = 1 - self.betas**self.steps
        self.corrections.copy_(torch.stack([one, two.sqrt()]))
        seeds, rows, columns = h.shape
        head_kernel[(rows, seeds)](
            h, self.weights[-1], self.biases[-1], energy, pull, g, rows, rows // 2, columns,
            self.slope, self.temperature, self.training.l2, N=triton.next_power_of_2(columns),
        )  # fmt: skip

    def learn(self, layer: int, g: Tensor, x: Tensor) -> None:
        seeds, inner, rows = g.shape
        columns, training = x.shape[2], self.training
        optimiser = (*map(float, (training.learning_rate, *training.betas)), 1e-8)
        first = training.betas[0] != 0
        firsts, seconds = self.firsts[2 * layer : 2 * layer + 2], self.seconds[2 * layer : 2 * layer + 2]
        self._launch(
            weights_kernel, rows, columns, inner, g, x, self.weights[layer], self.copies[layer],
            firsts[0], seconds[0], self.corrections, rows, columns, inner, *optimiser, FIRST=first, COPY=self.rounded,
        )  # fmt: skip
        bias_kernel[(triton.cdiv(rows, 16), seeds)](
            g, self.biases[layer], firsts[1], seconds[1], self.corrections, rows, inner, *optimiser,
            N=16, K=256, FIRST=first,
        )  # fmt: skip

    def finish(self) -> None:
        """Nothing: :meth:`learn` has changed the weights."""

    def move(self, z: Positions, grad: Tensor, noise: Tensor, sizes: tuple[float, float]) -> None:
        seeds, rows, columns = z.exact.shape
        move_kernel[(rows, seeds)](
            z.exact, grad, noise, z.copy, z.rest, rows, columns, noise.stride(0), *sizes,
            N=triton.next_power_of_2(columns), RELU=self.relu, UNIT=self.unit, COPY=self.rounded,
        )  # fmt: skip

    def project(self, z: Tensor) -> None:
        z.copy_(self.projection(z))

    def state(self) -> list[dict[str, Tensor]]:
        moments = list(enumerate(zip(self.firsts, self.seconds, strict=True)))
        return [
            {f"adam.{index}.{name}": pair[i][seed] for index, pair in moments for i, name in enumerate(MOMENTS)}
            | {f"adam.{index}.step": self.steps.float() for index, _ in moments}
            for seed in range(len(self.weights[0]))
        ]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        for mine, given in zip(self.state(), states, strict=True):
            for name, tensor in mine.items():
                tensor.copy_(given[name])
        self.steps.copy_(states[0]["adam.0.step"])
        for weight, copy in zip(self.weights, self.copies, strict=True):
            copy.copy_(weight)


class _Mixture:
    """What the kernels need for the gradient of a mixture's energy over its temperature.

    With A = Σ⁻¹ it is A (z − m) − Σ_c p_c A (μ_c − m), p the softmax of z·A (μ_c − m) + a constant for each class. Directions
    of small variance magnify rounding, so bfloat16 alone will not do: there z, A and A (μ_c − m) are sums of two bfloat16, and
    three products replace one (what is left out is 2⁻¹⁷ of the whole).
    """

    def __init__(self, model: CorrectedEnergy, like: Tensor, precision: str, rows: int, memory: int) -> None:
        self.memory = memory
        self.split = precision == "bfloat16"
        self.how = "tf32x3" if precision == "tf32" else "ieee"
        p = cast(MixturePrior, model.prior).parameters_
        whitening = p.eigenvectors * p.eigenvalues.rsqrt()
        inverse = whitening @ whitening.T
        factors = (p.means - p.mean) @ inverse
        offsets = p.log_weights - 0.5 * ((p.means + p.mean) * factors).sum(1)
        self.padded = max(16, triton.next_power_of_2(len(factors)))
        padding = self.padded - len(factors)
        self.offsets = functional.pad(offsets, (0, padding), value=-torch.inf).to(like)
        factors = functional.pad(factors, (0, 0, 0, padding))
        self.exact_factors, self.factors = factors.to(like), self._parts(factors, like)
        temperature = model.prior_temperature
        self.matrix, self.pulls = self._parts(inverse / temperature, like), self._parts(-factors / temperature, like)
        self.constant = (-p.mean @ inverse / temperature).to(like)
        self.posterior = torch.empty(rows, self.padded, dtype=self.factors[0].dtype, device=like.device)

    def _parts(self, exact: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """A float64 matrix as the products take it: rounded, and what rounding left."""
        if not self.split:
            return exact.to(like).contiguous(), like
        rounded = exact.to(like.device, torch.bfloat16)
        return rounded, (exact.to(like.device) - rounded.double()).bfloat16()

    def weigh(self, z: Positions) -> None:
        """The posteriors at z (S, B, D)."""
        rows, columns = len(self.posterior), z.exact.shape[-1]
        if self.padded > MOST_CLASSES:
            logits = torch.addmm(self.offsets, z.exact.view(rows, columns), self.exact_factors.T)
            self.posterior.copy_(logits.softmax(1))
            return
        deep = max(16, min(128 if self.split else 32, 8192 // self.padded))
        posterior_kernel[(triton.cdiv(rows, 16),)](
            z.copy, z.rest, *self.factors, self.offsets, self.posterior, rows, columns,
            M=16, N=self.padded, K=deep, PRECISION=self.how, EVEN=rows % 16 == columns % deep == 0, SPLIT=self.split,
            num_warps=2 if self.padded < 128 else 4 if self.padded < 512 else 8,
            num_stages=max(1, min(3, self.memory // (4 * deep * (16 + self.padded)))),
        )  # fmt: skip

    def terms(self) -> tuple[Tensor, ...]:
        """The arguments of ``descend_kernel`` that the prior adds."""
        return (*self.matrix, self.posterior, *self.pulls, self.constant)

    def flags(self) -> dict[str, Any]:
        depth = 128 if self.split else 32
        return {"MIXTURE": True, "SPLIT": self.split, "EXACT": self.how, "D": depth, "C": min(self.padded, 64)}


def _stack(parameters: Sequence[Any]) -> Tensor:
    """The parameters of S networks as one tensor (S, …), of which each becomes a view."""
    stacked = torch.stack([p.detach() for p in parameters])
    for parameter, view in zip(parameters, stacked, strict=True):
        parameter.data = view
    return stacked
