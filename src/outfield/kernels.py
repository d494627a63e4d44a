"""Triton kernels of the training engine: a layer forward, a layer backward, a layer's weights, the head, a chain's move.

Every tensor has a leading axis of seeds: S independent networks, each with its own rows, in one launch. A product is taken in
the type of its operands (bfloat16, or float32 with ``PRECISION`` "ieee" or "tf32") and summed in float32; what follows it (bias
and LeakyReLU, the activation's slope, Adam) is done on the sums before they leave the registers.

The module needs the package ``triton``; :mod:`outfield.engine` imports it only where there is a GPU. With TRITON_INTERPRET=1
the kernels also run on a CPU, slowly, which is how they are tested.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from outfield.energy import CorrectedEnergy, Layers
from outfield.errors import OutfieldWarning
from outfield.gaussian import MixturePrior
from outfield.projection import Projection, relu_sphere, sphere
from outfield.steps import Positions, Training, part


@triton.jit
def _product(
    total, a, b, rows, columns, inner, i, j,
    a_row, a_inner, b_inner, b_column,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """total + tile (i, j) of A (rows, inner) · B (inner, columns); EVEN: no edge needs a mask."""
    m = i * M + tl.arange(0, M)
    n = j * N + tl.arange(0, N)
    k = tl.arange(0, K)
    a += m[:, None] * a_row + k[None, :] * a_inner
    b += k[:, None] * b_inner + n[None, :] * b_column
    for start in range(0, inner, K):
        if EVEN:
            left, right = tl.load(a), tl.load(b)
        else:
            inside = start + k < inner
            left = tl.load(a, mask=(m < rows)[:, None] & inside[None, :], other=0.0)
            right = tl.load(b, mask=inside[:, None] & (n < columns)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        a += K * a_inner
        b += K * b_inner
    return total


@triton.jit
def _split_product(
    total, a, a_rest, b, b_rest, rows, columns, inner, i, j,
    a_row, a_inner, b_inner, b_column,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The same for A + A_rest and B + B_rest, without A_rest · B_rest; WHOLE: A has no rest."""
    m = i * M + tl.arange(0, M)
    n = j * N + tl.arange(0, N)
    k = tl.arange(0, K)
    a_at = m[:, None] * a_row + k[None, :] * a_inner
    b_at = k[:, None] * b_inner + n[None, :] * b_column
    for start in range(0, inner, K):
        if EVEN:
            left, right, right_rest = tl.load(a + a_at), tl.load(b + b_at), tl.load(b_rest + b_at)
            if not WHOLE:
                left_rest = tl.load(a_rest + a_at)
        else:
            on_left = (m < rows)[:, None] & (start + k < inner)[None, :]
            on_right = (start + k < inner)[:, None] & (n < columns)[None, :]
            left = tl.load(a + a_at, mask=on_left, other=0.0)
            right = tl.load(b + b_at, mask=on_right, other=0.0)
            right_rest = tl.load(b_rest + b_at, mask=on_right, other=0.0)
            if not WHOLE:
                left_rest = tl.load(a_rest + a_at, mask=on_left, other=0.0)
        total = tl.dot(left, right, total)
        total = tl.dot(left, right_rest, total)
        if not WHOLE:
            total = tl.dot(left_rest, right, total)
        a_at += K * a_inner
        b_at += K * b_inner
    return total


@triton.jit
def forward_kernel(
    x, weight, bias, head, out, rows, columns, inner, slope, scale,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr,
    LAST: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """out = LeakyReLU(x Wᵀ + b); LAST: out = head · scale · LeakyReLU'(x Wᵀ + b), where the way back begins."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    i, j, s = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    x += s * rows * inner
    weight += s * columns * inner
    y = tl.zeros((M, N), dtype=tl.float32)
    y = _product(y, x, weight, rows, columns, inner, i, j, inner, 1, 1, inner, M, N, K, PRECISION, EVEN)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    m = i * M + tl.arange(0, M)
    n = j * N + tl.arange(0, N)
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    y += tl.load(bias + s * columns + n, mask=n < columns, other=0.0)[None, :]
    if LAST:
        top = tl.load(head + s * columns + n, mask=n < columns, other=0.0)[None, :] * scale
        y = tl.where(y > 0, top, top * slope)
    else:
        y = tl.where(y > 0, y, y * slope)
    tl.store(out + s * rows * columns + m[:, None] * columns + n[None, :], y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    g, weight, below, out, rows, columns, inner, slope,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """out = (g W) · LeakyReLU'(below), below (rows, columns) being the layer's input."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    i, j, s = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    g += s * rows * inner
    weight += s * columns * inner
    y = tl.zeros((M, N), dtype=tl.float32)
    y = _product(y, g, weight, rows, columns, inner, i, j, inner, 1, columns, 1, M, N, K, PRECISION, EVEN)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    m = i * M + tl.arange(0, M)
    n = j * N + tl.arange(0, N)
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    at = s * rows * columns + m[:, None] * columns + n[None, :]
    y = tl.where(tl.load(below + at, mask=inside, other=0.0).to(tl.float32) > 0, y, y * slope)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _adam(
    p, v, parameter, copy, first, second, at, inside, grad, corrections, rate, beta1, beta2, epsilon,
    FIRST: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """One step of Adam on the entries ``at``, whose values p and second moments v are given. FIRST: β₁ is not 0.

    ``corrections`` holds 1 − β₁ᵗ and √(1 − β₂ᵗ).
    """
    m = grad
    if FIRST:
        m = tl.load(first + at, mask=inside, other=0.0)
        m += (1 - beta1) * (grad - m)
        tl.store(first + at, m, mask=inside)
    v = beta2 * v + (1 - beta2) * grad * grad
    p -= rate / tl.load(corrections) * m / (tl.sqrt(v) / tl.load(corrections + 1) + epsilon)
    tl.store(second + at, v, mask=inside)
    tl.store(parameter + at, p, mask=inside)
    if COPY:
        tl.store(copy + at, p.to(copy.dtype.element_ty), mask=inside)


@triton.jit
def weights_kernel(
    g, x, weight, copy, first, second, corrections, rows, columns, inner, rate, beta1, beta2, epsilon,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr,
    FIRST: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Adam on W (rows, columns) with the gradient gᵀ x; g (inner, rows), x (inner, columns)."""
    i, j, s = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    m = i * M + tl.arange(0, M)
    n = j * N + tl.arange(0, N)
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    at = s * rows * columns + m[:, None] * columns + n[None, :]
    # Asked for now, these arrive while the product is taken.
    v = tl.load(second + at, mask=inside, other=0.0)
    p = tl.load(weight + at, mask=inside, other=0.0)
    g += s * inner * rows
    x += s * inner * columns
    grad = tl.zeros((M, N), dtype=tl.float32)
    grad = _product(grad, g, x, rows, columns, inner, i, j, 1, rows, columns, 1, M, N, K, PRECISION, EVEN)
    _adam(p, v, weight, copy, first, second, at, inside, grad, corrections, rate, beta1, beta2, epsilon, FIRST, COPY)


@triton.jit
def bias_kernel(
    g, bias, first, second, corrections, columns, inner, rate, beta1, beta2, epsilon,
    N: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Adam on b (columns,) with the sum over the rows of g (inner, columns)."""
    j, s = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = j * N + tl.arange(0, N)
    k = tl.arange(0, K)
    total = tl.zeros((N,), dtype=tl.float32)
    for start in range(0, inner, K):
        inside = (start + k < inner)[:, None] & (n < columns)[None, :]
        at = s * inner * columns + (start + k)[:, None] * columns + n[None, :]
        total += tl.sum(tl.load(g + at, mask=inside, other=0.0).to(tl.float32), axis=0)
    at = s * columns + n
    there = n < columns
    v = tl.load(second + at, mask=there, other=0.0)
    p = tl.load(bias + at, mask=there, other=0.0)
    _adam(p, v, bias, bias, first, second, at, there, total, corrections, rate, beta1, beta2, epsilon, FIRST, False)


@triton.jit
def posterior_kernel(
    z, rest, factors, factors_rest, offsets, out, rows, inner,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """out (rows, N) = softmax of z·factor_c + offset_c over all N classes; SPLIT: z and factors as sums of two parts."""
    i = tl.program_id(0)
    y = tl.zeros((M, N), dtype=tl.float32)
    if SPLIT:
        y = _split_product(
            y, z, rest, factors, factors_rest, rows, N, inner, i, 0, inner, 1, 1, inner, M, N, K, EVEN, False
        )  # fmt: skip
    else:
        y = _product(y, z, factors, rows, N, inner, i, 0, inner, 1, 1, inner, M, N, K, PRECISION, EVEN)
    n = tl.arange(0, N)
    y += tl.load(offsets + n)[None, :]
    y = tl.exp(y - tl.max(y, axis=1)[:, None])
    y = y / tl.sum(y, axis=1)[:, None]
    m = i * M + tl.arange(0, M)
    tl.store(out + m[:, None] * N + n[None, :], y.to(out.dtype.element_ty), mask=(m < rows)[:, None])


@triton.jit
def descend_kernel(
    g, weight, z, rest, matrix, matrix_rest, posterior, pulls, pulls_rest, constant, out, rows, columns, inner, classes,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    PRECISION: tl.constexpr, EVEN: tl.constexpr,
    EXACT: tl.constexpr, MIXTURE: tl.constexpr, SPLIT: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """out = g W, the network's input gradient; MIXTURE: + z · matrix + posterior · pulls + constant, the prior's.

    SPLIT: z, matrix and pulls are sums of two parts. EXACT: the precision of the prior's products.
    """
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    i, j, s = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    d = columns
    y = tl.zeros((M, N), dtype=tl.float32)
    if MIXTURE:
        z += s * rows * d
        rest += s * rows * d
        posterior += s * rows * classes
        if SPLIT:
            y = _split_product(y, z, rest, matrix, matrix_rest, rows, d, d, i, j, d, 1, 1, d, M, N, D, EVEN, False)
            y = _split_product(
                y, posterior, posterior, pulls, pulls_rest, rows, d, classes, i, j, classes, 1, d, 1, M, N, C, EVEN, True
            )  # fmt: skip
        else:
            y = _product(y, z, matrix, rows, d, d, i, j, d, 1, 1, d, M, N, D, EXACT, EVEN)
            y = _product(y, posterior, pulls, rows, d, classes, i, j, classes, 1, d, 1, M, N, C, EXACT, EVEN)
    g += s * rows * inner
    weight += s * inner * d
    y = _product(y, g, weight, rows, d, inner, i, j, inner, 1, d, 1, M, N, K, PRECISION, EVEN)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    m = i * M + tl.arange(0, M)
    n = j * N + tl.arange(0, N)
    if MIXTURE:
        y += tl.load(constant + n, mask=n < d, other=0.0)[None, :]
    tl.store(out + s * rows * d + m[:, None] * d + n[None, :], y, mask=(m < rows)[:, None] & (n < d)[None, :])


@triton.jit
def head_kernel(
    h, weight, bias, energy, pull, g, rows, batch, columns, slope, temperature, l2,
    N: tl.constexpr,
):  # fmt: skip
    """One row of h: E = (h·w + b) / T, pull = ∂L/∂(h·w + b), g = pull · w · LeakyReLU'(h).

    The first ``batch`` of the rows are real, the others negatives: L = ±mean E + α mean E², each mean over a batch.
    """
    row, s = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    inside = n < columns
    at = (s * rows + row) * columns + n
    x = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + s * columns + n, mask=inside, other=0.0)
    e = (tl.sum(x * w) + tl.load(bias + s)) / temperature
    sign = tl.where(row < batch, 1.0, -1.0)
    force = (sign + 2 * l2 * e) / (batch * temperature)
    tl.store(energy + s * rows + row, e)
    tl.store(pull + s * rows + row, force.to(pull.dtype.element_ty))
    y = force * w
    tl.store(g + at, tl.where(x > 0, y, y * slope).to(g.dtype.element_ty), mask=inside)


@triton.jit
def move_kernel(
    z, grad, noise, copy, rest, rows, columns, noise_stride, step_size, noise_std,
    N: tl.constexpr, RELU: tl.constexpr, UNIT: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """One row: z ← P(z − α ∇E + σ ξ). COPY: also as a sum of two bfloat16, the copy for the products and the rest."""
    row, s = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    inside = n < columns
    at = (s * rows + row) * columns + n
    xi = tl.load(noise + s * noise_stride + row * columns + n, mask=inside, other=0.0)
    y = (
        tl.load(z + at, mask=inside, other=0.0)
        - step_size * tl.load(grad + at, mask=inside, other=0.0)
        + noise_std * xi
    )
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if UNIT:
        y = y / tl.maximum(tl.sqrt(tl.sum(y * y)), 1e-12, propagate_nan=tl.PropagateNan.ALL)
    tl.store(z + at, y, mask=inside)
    if COPY:
        rounded = y.to(copy.dtype.element_ty)
        tl.store(copy + at, rounded, mask=inside)
        tl.store(rest + at, (y - rounded.to(tl.float32)).to(rest.dtype.element_ty), mask=inside)


MOST_CLASSES = 1024
"""Classes whose posteriors one program can hold; beyond that the mixture's gradient is left to PyTorch."""
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Tile:
    """What one program of a product computes: (M, N) sums, K at a time, by so many warps and pipeline stages."""

    M: int
    N: int
    K: int
    warps: int
    stages: int


TILES = (Tile(128, 128, 64, 8, 3), Tile(64, 128, 128, 4, 3), Tile(64, 64, 128, 4, 3), Tile(64, 32, 64, 4, 5))
"""From large to small; the depths and stages are those that were fastest on an H200 where each tile is chosen."""


def tile_for(rows: int, columns: int, inner: int, seeds: int, wide: bool, processors: int) -> Tile:
    """The largest tile that still gives nearly every multiprocessor one; ``wide``: float32 operands, half as deep."""
    for tile in TILES:
        if triton.cdiv(rows, tile.M) * triton.cdiv(columns, tile.N) * seeds >= 0.9 * processors:
            break
    depth = max(16, min(tile.K // 2 if wide else tile.K, triton.next_power_of_2(inner)))
    return replace(tile, K=depth)


def stages_within(stages: int, stage_bytes: int, memory: int) -> int:
    """As many pipeline stages of that size as the shared memory of a multiprocessor holds, at least one."""
    return max(1, min(stages, memory // stage_bytes))


def works(device: torch.device) -> bool:
    """Whether a kernel can be compiled and run there (Triton also needs a C compiler)."""
    z = torch.ones(1, 1, 16, device=device)
    try:
        move_kernel[(1, 1)](z, z, z, z, z, 1, 16, 16, 0.25, 0.0, N=16, RELU=False, UNIT=False, COPY=False)
        return bool((z == 0.75).all())
    except Exception as error:  # whatever a compiler, a driver or a library may raise
        warnings.warn(
            f"Triton does not work here ({error}); training goes on without it, slower", OutfieldWarning, stacklevel=2
        )
        return False


class TritonOperations:
    """The pieces of :class:`outfield.engine.FusedStep` as kernels, for S networks of one shape and one prior."""

    def __init__(
        self, layers: Sequence[Layers], model: CorrectedEnergy, training: Training, project: Projection, batch: int
    ) -> None:
        self.slope, self.temperature, self.training = layers[0].slope, model.temperature, training
        self.rounded = training.precision == "bfloat16"
        self.how = "tf32" if training.precision == "tf32" else "ieee"
        self.relu, self.unit = project is relu_sphere, project in (relu_sphere, sphere)
        same = list(zip(*(one.linears for one in layers), strict=True))
        self.weights = [_stack([layer.weight for layer in group]) for group in same]
        self.biases = [_stack([layer.bias for layer in group]) for group in same]
        self.firsts, self.seconds = ([torch.zeros_like(p) for p in self._parameters()] for _ in range(2))
        device = self.weights[0].device
        self.steps = torch.zeros((), dtype=torch.float64, device=device)
        self.betas = torch.tensor(training.betas, dtype=torch.float64, device=device)
        self.corrections = torch.ones(2, device=device)
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
        tile = tile_for(rows, columns, inner, seeds, not self.rounded, self.processors)
        if kernel is weights_kernel:  # Adam's traffic wants many programs at once
            tile = replace(tile, M=64, N=64, K=min(tile.K, 64), warps=4, stages=3)
        even = rows % tile.M == columns % tile.N == inner % tile.K == columns % flags.get("D", 1) == 0
        depth = max(tile.K, (2 if flags.get("SPLIT") else 1) * flags.get("D", 0))
        stage = (tile.M + tile.N) * depth * self.copies[0].element_size()
        grid = (triton.cdiv(rows, tile.M), triton.cdiv(columns, tile.N), seeds)
        kernel[grid](
            *arguments, M=tile.M, N=tile.N, K=tile.K, PRECISION=self.how, EVEN=even,
            num_warps=tile.warps, num_stages=stages_within(tile.stages, stage, self.memory), **flags,
        )  # fmt: skip

    def _chained(self) -> dict[str, bool]:
        """On Hopper the next kernel of a chain is set up while this one ends; it waits itself before it reads."""
        return {"CHAINED": True, "launch_pdl": True} if self.chained else {"CHAINED": False}

    def _forward(self, layer: int, x: Tensor, out: Tensor, last: bool) -> Tensor:
        rows, columns, inner = x.shape[1], out.shape[2], x.shape[2]
        head = self.weights[-1]
        self._launch(
            forward_kernel, rows, columns, inner, x, self.copies[layer], self.biases[layer], head, out,
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

    def descend(self, g: Tensor, z: Positions, out: Tensor) -> None:
        rows, columns, inner = g.shape[1], out.shape[2], g.shape[2]
        terms: tuple[Tensor, ...] = (g,) * 6
        classes, flags = 0, {"MIXTURE": False, "SPLIT": False, "EXACT": self.how, "D": 16, "C": 16}
        if self.mixture is not None:
            terms, classes, flags = self.mixture.terms(), self.mixture.padded, self.mixture.flags()
        self._launch(
            descend_kernel, rows, columns, inner, g, self.copies[0], z.copy, z.rest, *terms, out,
            rows, columns, inner, classes, **flags, **self._chained(),
        )  # fmt: skip

    def head(self, h: Tensor, energy: Tensor, pull: Tensor, g: Tensor) -> None:
        seeds, rows, columns = h.shape
        head_kernel[(rows, seeds)](
            h, self.weights[-1], self.biases[-1], energy, pull, g, rows, rows // 2, columns,
            self.slope, self.temperature, self.training.l2, N=triton.next_power_of_2(columns),
        )  # fmt: skip

    def advance(self) -> None:
        self.steps += 1
        one, two = 1 - self.betas**self.steps
        self.corrections.copy_(torch.stack([one, two.sqrt()]))

    def learn(self, layer: int, g: Tensor, x: Tensor) -> None:
        seeds, inner, rows = g.shape
        columns, training = x.shape[2], self.training
        optimiser = (training.learning_rate, *training.betas, 1e-8)
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

    def move(self, z: Positions, grad: Tensor, noise: Tensor, sizes: tuple[float, float]) -> None:
        seeds, rows, columns = z.exact.shape
        move_kernel[(rows, seeds)](
            z.exact, grad, noise, z.copy, z.rest, rows, columns, noise.stride(0), *sizes,
            N=triton.next_power_of_2(columns), RELU=self.relu, UNIT=self.unit, COPY=self.rounded,
        )  # fmt: skip

    def state(self) -> list[dict[str, Tensor]]:
        moments = list(enumerate(zip(self.firsts, self.seconds, strict=True)))
        return [
            {f"adam.{index}.{name}": pair[i][seed] for index, pair in moments for i, name in enumerate(MOMENTS)}
            | {f"adam.{index}.step": self.steps.float() for index, _ in moments}
            for seed in range(len(self.weights[0]))
        ]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        for mine, given in zip(self.state(), states, strict=True):
            for name, tensor in part(mine, "adam.").items():
                tensor.copy_(given[name])
        self.steps.copy_(states[0]["0.step"])
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
            num_stages=stages_within(3, 4 * deep * (16 + self.padded), self.memory),
        )  # fmt: skip

    def terms(self) -> tuple[Tensor, ...]:
        """The arguments of ``descend_kernel`` that the prior adds."""
        return (*self.matrix, self.posterior, *self.pulls, self.constant)

    def flags(self) -> dict[str, Any]:
        return {
            "MIXTURE": True,
            "SPLIT": self.split,
            "EXACT": self.how,
            "D": 128 if self.split else 32,
            "C": min(self.padded, 64),
        }


def _stack(parameters: Sequence[Any]) -> Tensor:
    """The parameters of S networks as one tensor (S, …), of which each becomes a view."""
    stacked = torch.stack([p.detach() for p in parameters])
    for parameter, view in zip(parameters, stacked, strict=True):
        parameter.data = view
    return stacked
