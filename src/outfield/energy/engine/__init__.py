"""The fast training step: chains, both passes of the loss and Adam as one fixed sequence of operations on fixed buffers.

What makes it fast, compared with :class:`outfield.energy.training_step.EagerStep`:

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

import contextlib
import gc
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from outfield.energy.chains import PROJECTIONS, Langevin, Projection, Sampler, linear, moves_at_once
from outfield.energy.engine.torch_operations import Positions, TorchOperations
from outfield.energy.network import CorrectedEnergy, Layers, layers_of
from outfield.energy.priors import MixturePrior
from outfield.energy.training_step import EagerStep, Fit, InTurn, Training
from outfield.errors import InputError
from outfield.modes import products

if TYPE_CHECKING:
    from outfield.energy.engine.triton_operations import TritonOperations

LANES = 4  # parallel branches of a recording


def make_step(
    fits: Sequence[Fit], z: Tensor, batch_size: int, training: Training, sampler: Sampler, project: Projection
) -> FusedStep | InTurn:
    """The fastest step that can train these models on batches of rows like z (N, D)."""
    models = [model for model, _, _ in fits]
    reason = obstacle(models[0], sampler, project, z)
    if training.engine == "fused" and reason is not None:
        raise InputError(f"engine is 'fused', but {reason}; it must be auto or eager here")
    fused = training.engine != "eager" and reason is None
    training = replace(training, precision=_precision(training.precision, z.device, fused))
    if not fused:
        return InTurn([EagerStep(fit, training, sampler, project) for fit in fits])
    langevin = cast(Langevin, sampler)
    if has_triton(z.device):
        from outfield.energy.engine.triton_operations import TritonOperations

        return FusedStep(fits, TritonOperations(models, training, project, batch_size), langevin, batch_size)
    pieces = [TorchOperations(model, training, project) for model in models]
    return InTurn([FusedStep([fit], piece, langevin, batch_size) for fit, piece in zip(fits, pieces, strict=True)])


def _precision(asked: str, device: torch.device, fused: bool) -> str:
    """The precision to train in; see :class:`outfield.energy.training_step.Training`."""
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
    if project not in PROJECTIONS.values():
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


class FusedStep:
    """The order of a step's pieces, and their buffers, for S fits of one shape; ``operations`` update the parameters in place."""

    def __init__(
        self, fits: Sequence[Fit], operations: TorchOperations | TritonOperations, sampler: Langevin, batch_size: int
    ) -> None:
        models, self.starts, self.generators = zip(*fits, strict=True)
        # Starts that remember nothing are part of the recorded sequence; others look at their memory before it.
        self.remembers = any(start.remembers for start in self.starts)
        layers = cast(Layers, layers_of(models[0].network))
        self.training, self.sampler, self.operations = operations.training, sampler, operations
        first = layers.linears[0]
        device, seeds = first.weight.device, len(models)
        operands = torch.bfloat16 if self.training.precision == "bfloat16" else torch.float32
        widths = [linear_.out_features for linear_ in layers.linears[:-1]]

        def buffers(rows: int, dtype: torch.dtype, *columns: int) -> list[Tensor]:
            return [torch.empty(seeds, rows, n, dtype=dtype, device=device) for n in columns]

        d = first.in_features
        self.real, z, self.grad = buffers(batch_size, torch.float32, d, d, d)
        at_once = moves_at_once(sampler.steps, batch_size * d)
        self.noise = torch.empty(seeds, at_once, batch_size, d, dtype=torch.float32, device=device)
        self.input_noise = torch.empty(seeds, 2, batch_size, d, dtype=torch.float32, device=device)
        self.z = Positions(z, z, z) if operands == torch.float32 else Positions(z, *buffers(batch_size, operands, d, d))
        self.below, self.back = buffers(batch_size, operands, *widths[:-1]), buffers(batch_size, operands, *widths)
        self.inputs = buffers(2 * batch_size, operands, d, *widths)
        self.gradients = buffers(2 * batch_size, operands, *widths, 1)
        self.energy = buffers(2 * batch_size, torch.float32, 1)[0]
        self.result = torch.empty(seeds, 5, dtype=torch.float32, device=device)
        self.recorder = Recorder(device, self.generators)

    def run(self, real: Tensor) -> Tensor:
        with self.recorder.on_device(), torch.no_grad(), products(real.device, self.training.precision):
            self.real.copy_(real)
            if self.remembers:
                self._begin()
            self.recorder.run(self._body)
            for start, ends in zip(self.starts, self.z.exact, strict=True):
                start.end(ends)
        return self.result

    def _begin(self) -> None:
        for index, (start, generator) in enumerate(zip(self.starts, self.generators, strict=True)):
            with self.recorder.beside(index):
                self.z.exact[index].copy_(start.begin(self.real[index], generator))
        self.recorder.join()
        self.operations.project(self.z.exact)

    def _body(self) -> None:
        if not self.remembers:
            self._begin()
        if self.z.copy is not self.z.exact:
            self.z.copy.copy_(self.z.exact)
            self.z.rest.copy_(self.z.exact - self.z.copy)
        for t in range(self.sampler.steps):
            self._langevin(t)
        self._loss()

    def _langevin(self, t: int) -> None:
        steps, at_once = self.sampler.steps, self.noise.shape[1]
        if t % at_once == 0:
            self._draw(self.noise[:, : min(at_once, steps - t)])
        with self.recorder.beside():
            self.operations.prepare(self.z)
        grad = self._input_gradient()
        sizes = linear(self.sampler.step_size, t, steps), linear(self.sampler.noise_std, t, steps)
        self.operations.move(self.z, grad, self.noise[:, t % at_once], sizes)

    def _input_gradient(self) -> Tensor:
        """∇E at the chains' positions (S, B, D)."""
        ops, top, h = self.operations, len(self.back) - 1, [self.z.copy]
        for layer, out in enumerate(self.below):
            h.append(ops.forward(layer, h[layer], out))
        g = ops.turn(top, h[top], self.back[top])
        for layer in range(top, 0, -1):
            g = ops.backward(layer, g, h[layer], self.back[layer - 1])
        self.recorder.join()
        return ops.descend(g, self.z, self.grad)

    def _loss(self) -> None:
        ops, batch = self.operations, self.real.shape[1]
        self._draw(self.input_noise)
        for index, rows in enumerate((self.real, self.z.exact)):
            into = self.inputs[0][:, index * batch : (index + 1) * batch]
            torch.add(rows, self.input_noise[:, index], alpha=self.training.input_noise, out=into)
        inputs = [self.inputs[0]]
        for layer, out in enumerate(self.inputs[1:]):
            inputs.append(ops.forward(layer, inputs[layer], out))
        top = len(inputs) - 1
        pull, g = self.gradients[top], self.gradients[top - 1]
        ops.head(inputs[top], self.energy, pull, g)
        with self.recorder.beside(top):
            ops.learn(top, pull, inputs[top])
        for layer in range(top - 1, -1, -1):
            below = ops.backward(layer, g, inputs[layer], self.gradients[layer - 1]) if layer else g
            with self.recorder.beside(layer):  # its weights are not needed any more
                ops.learn(layer, g, inputs[layer])
            g = below
        self._record()
        self.recorder.join()
        ops.finish()

    def _draw(self, out: Tensor) -> None:
        for index, generator in enumerate(self.generators):
            with self.recorder.beside(index):
                out[index].normal_(generator=generator)
        self.recorder.join()

    def _record(self) -> None:
        halves = self.energy.view(len(self.energy), 2, -1)
        mean, square = halves.mean(2), halves.square().mean(2)
        loss = mean[:, 0] - mean[:, 1] + self.training.l2 * square.sum(1)
        torch.cat([loss[:, None], mean, halves.abs().mean(2)], dim=1, out=self.result)

    def state(self) -> list[dict[str, Tensor]]:
        return [adam | start.state() for adam, start in zip(self.operations.state(), self.starts, strict=True)]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        self.operations.load_state(states)
        for start, state in zip(self.starts, states, strict=True):
            start.load_state(state)


class Recorder:
    """Runs a sequence of operations; on a GPU once as it is, then as a CUDA graph recorded from it."""

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators
        self.device, self.on_gpu = device, device.type == "cuda"
        self.runs = 0
        if self.on_gpu:
            self.main, self.sides = torch.cuda.Stream(device), [torch.cuda.Stream(device) for _ in range(LANES)]
            self.busy: set[torch.cuda.Stream] = set()
            self.graph = torch.cuda.CUDAGraph()

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes this GPU the current one, so that streams and kernels are its own."""
        return torch.cuda.device(self.device) if self.on_gpu else contextlib.nullcontext()

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work``, or replay what it did: it must be the same in every call."""
        if not self.on_gpu:
            work()
        elif self.runs == 0:
            self._first(work)
        else:
            if self.runs == 1:
                self._record(work)
            self.graph.replay()
        self.runs += 1

    def _first(self, work: Callable[[], None]) -> None:
        """The first step also compiles kernels and prepares libraries, which a recording must not contain."""
        self.main.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.main):
            work()
        torch.cuda.current_stream().wait_stream(self.main)

    def _record(self, work: Callable[[], None]) -> None:
        for generator in self.generators:
            self.graph.register_generator_state(generator)
        # A graph or stream that the garbage collector frees meanwhile would spoil the recording.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            # Only this thread's mistakes count: another may be reading the next rows into pinned memory.
            with torch.cuda.graph(self.graph, stream=self.main, capture_error_mode="thread_local"):
                work()
        finally:
            if collecting:
                gc.enable()

    @contextlib.contextmanager
    def beside(self, lane: int = 0) -> Iterator[None]:
        """What happens inside may run at the same time as what follows, or as other lanes, until :meth:`join`."""
        if not self.on_gpu:
            yield
            return
        side = self.sides[lane % len(self.sides)]
        side.wait_stream(torch.cuda.current_stream())
        self.busy.add(side)
        with torch.cuda.stream(side):
            yield

    def join(self) -> None:
        while self.on_gpu and self.busy:
            torch.cuda.current_stream().wait_stream(self.busy.pop())
