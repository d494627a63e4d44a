"""Triton kernels of the training engine: a layer forward, a layer backward, a layer's weights, the head, a chain's move.

Every tensor has a leading axis of seeds: S independent networks, each with its own rows, in one launch. A product is taken in
the type of its operands (bfloat16, or float32 with ``PRECISION`` "ieee" or "tf32") and summed in float32; what follows it (bias
and LeakyReLU, the activation's slope, Adam) is done on the sums before they leave the registers.

The module needs the package ``triton``; the engine imports it only where there is a GPU. With TRITON_INTERPRET=1
the kernels also run on a CPU, slowly, which is how they are tested.
"""

from __future__ import annotations

import triton
import triton.language as tl

if hasattr(tl.extra.cuda, "gdc_wait"):

    @triton.jit
    def _wait():
        """Wait until the kernel before this one has ended."""
        tl.extra.cuda.gdc_wait()

    @triton.jit
    def _release():
        """Let the next kernel be set up."""
        tl.extra.cuda.gdc_launch_dependents()

else:  # an older Triton, where kernels are not chained

    @triton.jit
    def _wait():
        """Nothing."""

    @triton.jit
    def _release():
        """Nothing."""


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
        _wait()
    i, j, s = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    x += s * rows * inner
    weight += s * columns * inner
    y = tl.zeros((M, N), dtype=tl.float32)
    y = _product(y, x, weight, rows, columns, inner, i, j, inner, 1, 1, inner, M, N, K, PRECISION, EVEN)
    if CHAINED:
        _release()
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
        _wait()
    i, j, s = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    g += s * rows * inner
    weight += s * columns * inner
    y = tl.zeros((M, N), dtype=tl.float32)
    y = _product(y, g, weight, rows, columns, inner, i, j, inner, 1, columns, 1, M, N, K, PRECISION, EVEN)
    if CHAINED:
        _release()
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
        _wait()
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
        _release()
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
