"""The pieces of a fused step in PyTorch: on a CPU, and recorded on a GPU without Triton.

On a CPU the weights are packed: laid out for oneDNN once a step and multiplied with many times. An ordinary product rearranges
its right operand in every call, a tenth to a fifth of the time for a batch of 256 rows. The operations used for that are those
that PyTorch's own compiler emits for frozen weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from outfield.energy.chains import Projection, identity, relu_sphere
from outfield.energy.network import CorrectedEnergy, Layers, layers_of
from outfield.energy.priors import MixturePrior
from outfield.energy.training_step import Training, adam_settings, adam_state, load_adam_state
from outfield.modes import rounded_products

SMALLEST = 2**16  # entries from which a matrix is worth packing


class Positions(NamedTuple):
    """Where chains are (S, B, D): exact, as the products take it, and what rounding left (all one tensor in float32)."""

    exact: Tensor
    copy: Tensor
    rest: Tensor


class TorchOperations:
    """The pieces in PyTorch, for one fit; few passes over memory beside the products.

    All tensors have a leading axis of fits, here of one; ``layer`` counts from 0; results are in ``out`` or in a new tensor.
    """

    def __init__(self, model: CorrectedEnergy, training: Training, project: Projection) -> None:
        layers = cast(Layers, layers_of(model.network))
        self.linears, self.slope = layers.linears, layers.slope
        self.model, self.training, self.projection, self.temperature = model, training, project, model.temperature
        self.products = torch.bfloat16 if training.precision == "bfloat16" else torch.float32
        parameters = [p for layer in self.linears for p in (layer.weight, layer.bias)]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        on_gpu = parameters[0].is_cuda
        self.optimiser = torch.optim.Adam(parameters, **adam_settings(training), fused=not on_gpu, capturable=on_gpu)
        # In float32 these are the parameters themselves, not copies.
        self.weights = [layer.weight.detach().to(self.products) for layer in self.linears]
        self.biases = [layer.bias.detach().to(self.products) for layer in self.linears]
        self.packed: list[tuple[Packed | None, Packed | None]] = [(None, None)] * len(self.linears)
        self._refresh()  # packs the first weights

    def _refresh(self) -> None:
        for index, layer in enumerate(self.linears):
            if self.products != torch.float32:
                self.weights[index].copy_(layer.weight)
                self.biases[index].copy_(layer.bias)
            if index < len(self.linears) - 1:
                weight = self.weights[index]
                self.packed[index] = pack(weight), pack(weight.T)

    def _linear(self, layer: int, x: Tensor, out: Tensor, activation: str) -> Tensor:
        there = self.packed[layer][0]
        if there is not None:
            return there(x[0], self.biases[layer], activation, self.slope)[None]
        torch.addmm(self.biases[layer], x[0], self.weights[layer].T, out=out[0])
        return functional.leaky_relu_(out, self.slope) if activation == "leaky_relu" else out

    def forward(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        """φ(x Wᵀ + b)."""
        return self._linear(layer, x, out, "leaky_relu")

    def turn(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        """(v / T) φ'(x Wᵀ + b): the top layer forward and the beginning of the way back in one."""
        h = self._linear(layer, x, out, "none")
        top = (self.linears[-1].weight.detach() / self.temperature).to(h.dtype)
        return cast(Tensor, torch.ops.aten.leaky_relu_backward(top.expand_as(h), h, self.slope, True))

    def _product(self, layer: int, g: Tensor, out: Tensor) -> Tensor:
        """g W."""
        back = self.packed[layer][1]
        if back is not None:
            return back(g[0], None, "none", 0.0)[None]
        return g @ self.weights[layer] if out.dtype != g.dtype else torch.matmul(g, self.weights[layer], out=out)

    def backward(self, layer: int, g: Tensor, below: Tensor, out: Tensor) -> Tensor:
        """(g W) φ'(below)."""
        return self._slope(self._product(layer, g, out), below)

    def prepare(self, z: Positions) -> None:
        """What :meth:`descend` needs of the prior, made while the network is busy: nothing here."""

    def descend(self, g: Tensor, z: Positions, out: Tensor) -> Tensor:
        """g W_0 + ∇E_prior(z) / T_prior."""
        gradient = self._product(0, g, out).float()
        if self.model.prior is not None:
            of_prior = cast(MixturePrior, self.model.prior).gradient(z.exact[0])
            gradient[0].add_(of_prior, alpha=1 / self.model.prior_temperature)
        return gradient

    def _slope(self, g: Tensor, h: Tensor) -> Tensor:
        """g φ'(h), in place."""
        torch.ops.aten.leaky_relu_backward.grad_input(g, h, self.slope, True, grad_input=g)
        return g

    def head(self, h: Tensor, energy: Tensor, pull: Tensor, g: Tensor) -> None:
        """E = (h·v + c) / T, pull = ∂L/∂(T E), g = pull · v · φ'(h); the first half of the rows is real."""
        last = self.linears[-1]
        torch.addmm(last.bias, h[0].float(), last.weight.T, out=energy[0]).div_(self.temperature)
        batch = h.shape[1] // 2
        force = 2 * self.training.l2 * energy
        force[:, :batch] += 1
        force[:, batch:] -= 1
        force /= batch * self.temperature
        pull.copy_(force)
        g.copy_(force * last.weight.detach())
        self._slope(g, h)

    def learn(self, layer: int, g: Tensor, x: Tensor) -> None:
        """Adam on one layer: W with gᵀ x, b with the sum of g. Layers may be learned at the same time."""
        linear_ = self.linears[layer]
        weight, bias = cast(Tensor, linear_.weight.grad), cast(Tensor, linear_.bias.grad)
        if g.dtype == weight.dtype:
            torch.mm(g[0].T, x[0], out=weight)
        else:
            weight.copy_(g[0].T @ x[0])
        torch.sum(g[0], dim=0, dtype=torch.float32, out=bias)

    def finish(self) -> None:
        """End a step of Adam, when every layer's gradient is there."""
        self.optimiser.step()
        self._refresh()

    def move(self, z: Positions, grad: Tensor, noise: Tensor, sizes: tuple[float, float]) -> None:
        """z ← P(z − α grad + σ noise) in place, with (α, σ) = ``sizes``."""
        z.exact.sub_(grad, alpha=sizes[0]).add_(noise, alpha=sizes[1])
        self.project(z.exact)
        if z.copy is not z.exact:
            z.copy.copy_(z.exact)

    def project(self, z: Tensor) -> None:
        """z ← P(z) in place."""
        if self.projection is relu_sphere:
            z.relu_()
        if self.projection is not identity:
            z.div_(z.norm(dim=-1, keepdim=True).clamp_min_(1e-12))

    def state(self) -> list[dict[str, Tensor]]:
        return [adam_state(self.optimiser)]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        load_adam_state(self.optimiser, states[0])
        self._refresh()


class Packed:
    """A weight matrix (out, in) in oneDNN's own layout."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = _reorder(weight)

    def __call__(self, x: Tensor, bias: Tensor | None, activation: str, slope: float) -> Tensor:
        """x Wᵀ + b (N, out); with ``activation`` "leaky_relu" followed by one of that slope, with "none" as it is."""
        scalars = [slope] if activation == "leaky_relu" else []
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, activation, scalars, "")
        return out


def pack(weight: Tensor) -> Packed | None:
    """The matrix (out, in) packed, or None where that cannot be done, does not pay, or would round its operands."""
    if rounded_products(weight.device) and weight.dtype == torch.float32:
        return None
    if weight.device.type != "cpu" or weight.numel() < SMALLEST or not _works(weight.dtype):
        return None
    return Packed(weight)


def _reorder(weight: Tensor) -> Tensor:
    weight = weight.contiguous()
    try:
        out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    except NotImplementedError:  # older versions want it in a wrapper
        out = torch.ops.mkldnn._reorder_linear_weight(weight.to_mkldnn())
    return out


@functools.cache
def _works(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch has the operations and they give what an ordinary product gives."""
    generator = torch.Generator("cpu").manual_seed(0)
    x, weight = (torch.randn(4, 16, generator=generator, device="cpu", dtype=torch.float32).to(dtype) for _ in range(2))
    try:
        found = Packed(weight)(x, None, "leaky_relu", 0.25)
    except (RuntimeError, AttributeError, TypeError):
        return False
    expected = functional.leaky_relu(x @ weight.T, 0.25)
    return torch.allclose(found.float(), expected.float(), rtol=0.02, atol=0.02)
