"""One network under training: a step of SGD, an epoch, an accuracy. On a GPU the step is recorded."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from outfield.backbone import Classifier
from outfield.classifier.outliers import joined, parted
from outfield.classifier.pixels import Pixels
from outfield.classifier.recipe import Recipe
from outfield.errors import OutfieldWarning
from outfield.extras import library
from outfield.modes import FASTEST_CONVOLUTIONS, Seeded

CHUNK_BYTES = 2**29  # Size of the augmented images that are made ahead of the steps that use them
PAYS_FROM = 5000  # Steps of a run from which compiling the network is worth its minute
WARM_UP = 4  # Steps taken before one is recorded, in which libraries choose their algorithms
TEST_BATCH = 2000
TEST_BYTES = 2**28  # Test images together: so many, or what fits this size as floats
# What an optimiser keeps for each parameter, and what it is called in a checkpoint
REMEMBERED = {"momentum_buffer": "momentum", "exp_avg": "mean", "exp_avg_sq": "square", "step": "step"}


class Learner:
    """A network, its optimiser and the step that both take; ``steps`` tells whether compiling pays."""

    def __init__(self, classifier: Classifier, recipe: Recipe, seed: int, device: torch.device, steps: int) -> None:
        self.network: nn.Module = classifier.build(seed).to(device)
        if recipe.parts > 1 and not can_be_split(self.network):
            recipe = replace(recipe, small_batch=0)  # it cannot imitate small batches
        self.classifier, self.recipe, self.seed, self.device = classifier, recipe, seed, device
        self.outliers = recipe.outliers
        self.made = 0 if recipe.outliers is None else recipe.outliers.count(recipe.batch_size, recipe.parts)
        if recipe.parts > 1:
            split_batch_norms(self.network, recipe.parts)
        on_gpu = device.type == "cuda"
        if on_gpu:
            self.network.to(memory_format=torch.channels_last)
        self.optimiser = _optimiser(self.network, recipe, on_gpu)
        auto = recipe.precision == "auto" and on_gpu and torch.cuda.is_bf16_supported()
        self.half = auto or recipe.precision == "bfloat16"
        compiles = on_gpu and steps >= PAYS_FROM if recipe.compile == "auto" else bool(recipe.compile)
        self.forward: Any = torch.compile(self.network) if compiles else self.network
        self.graph: Any = None
        self.record = on_gpu
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)
        pair = (classifier.mean, classifier.std)
        self.mean, self.std = (torch.tensor(one, device=device, dtype=torch.float32).view(3, 1, 1) for one in pair)
        self.draws = not on_gpu

    def epoch(self, data: Pixels, epoch: int, rate: float) -> tuple[float, float]:
        """One pass over the training images; mean loss and accuracy."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.network.train()
        self.totals.zero_()
        random = Seeded(self._seed(epoch))  # of layers that draw, such as dropout
        steps = 0
        for images, labels in self._batches(data, epoch):
            with random if self.draws else nullcontext():
                self._step(images, labels)
            self.draws = self.draws and random.drew
            steps += 1
        loss, right = self.totals.tolist()
        return loss / steps, right / (steps * self.recipe.batch_size)

    def _seed(self, epoch: int) -> int:
        return (self.seed * 1_000_003 + epoch) % 2**63

    def _batches(self, data: Pixels, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented, normalised batches in the epoch's order, made many at a time."""
        generator = torch.Generator(self.device).manual_seed(self._seed(epoch))
        order = torch.randperm(len(data), generator=generator, device=self.device).to(data.images.device)
        size, batch = self.classifier.size, self.recipe.batch_size
        steps = len(data) // batch
        largest = max(size[0] * size[1], data.images.shape[2] * data.images.shape[3])
        at_once = max(1, CHUNK_BYTES // (batch * 12 * largest))
        for first in range(0, steps, at_once):
            chosen = order[first * batch : min(steps, first + at_once) * batch]
            images = data.images[chosen].to(self.device, torch.float32)
            labels = data.labels[chosen].to(self.device)
            augment, views = self.recipe.augmentation, self.recipe.loss.views
            copies = [augment(images, size, generator).split(batch) for _ in range(views)]
            for *same, known in zip(*copies, labels.split(batch), strict=True):
                whole = torch.cat(same)
                if self.outliers is not None:
                    made = self.outliers.made(whole, known, self.made, generator)
                    whole = joined(whole, made, self.recipe.parts)
                yield self.normalise(whole).contiguous(memory_format=torch.channels_last), known

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes as floats (N, 3, H, W) to what the network reads, in its precision."""
        normal = (images / 255 - self.mean) / self.std
        return normal.to(torch.bfloat16) if self.half else normal

    def _step(self, images: Tensor, labels: Tensor) -> None:
        if self.record and self.graph is None:
            self._try_recording(images, labels)
        if self.graph is None:
            self._gradients(images, labels)
        else:
            self.images.copy_(images)
            self.labels.copy_(labels)
            self.graph.replay()
        self.optimiser.step()

    def _try_recording(self, images: Tensor, labels: Tensor) -> None:
        """Record; else without torch.compile; else take every step as it is written."""
        try:
            self._begin_recording(images, labels)
        except (RuntimeError, ImportError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.graph = None
            what = "compiled" if self.forward is not self.network else "recorded as a CUDA graph"
            told = f"this network cannot be {what}; training goes on without ({error})"
            warnings.warn(told, OutfieldWarning, stacklevel=2)
            if self.forward is self.network:
                self.record = False
            else:
                self.forward = self.network
                self._try_recording(images, labels)

    def _gradients(self, images: Tensor, labels: Tensor) -> None:
        """Fill the parameters' gradients and add to the totals."""
        self.optimiser.zero_grad()
        with self._precision():
            logits = logits_of(self.forward(images)).float()
        if self.outliers is None:
            loss, right = self.recipe.loss(logits, labels)
        else:
            logits, made = parted(logits, self.made, self.recipe.parts)
            loss, right = self.recipe.loss(logits, labels)
            loss = loss + self.outliers.loss(logits, made)
        loss.backward()
        with torch.no_grad():
            self.totals += torch.stack([loss.double(), right.double()])

    def _precision(self) -> Any:
        # Without the cache of casts, which must not outlive a recording.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if self.half else nullcontext()

    def _begin_recording(self, images: Tensor, labels: Tensor) -> None:
        """Record forward and backward pass; the network is afterwards as it was."""
        self.images, self.labels = images.clone(), labels.clone()
        before = {name: value.clone() for name, value in self.network.state_dict().items()}
        totals = self.totals.clone()
        try:
            with FASTEST_CONVOLUTIONS.held():
                stream = torch.cuda.Stream(self.device)
                stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        self._gradients(self.images, self.labels)
                torch.cuda.current_stream(self.device).wait_stream(stream)
                self.optimiser.zero_grad()
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self._gradients(self.images, self.labels)
        finally:
            with torch.no_grad():
                for name, value in self.network.state_dict().items():
                    value.copy_(before[name])
                self.totals.copy_(totals)

    @torch.no_grad()
    def accuracy(self, data: Pixels) -> float:
        """Share of images, of the network's own size, that it classifies rightly."""
        self.network.eval()
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        rows = max(1, min(TEST_BATCH, TEST_BYTES // (4 * data.images[0].numel())))
        for images, labels in zip(data.images.split(rows), data.labels.split(rows), strict=True):
            with self._precision():
                logits = logits_of(self.network(self.normalise(images.to(self.device, torch.float32))))
            right += (logits.argmax(1) == labels.to(self.device)).sum()
        return int(right) / len(data)

    def finish(self) -> nn.Module:
        """The network as it is meant to be used: in evaluation mode, with ordinary layers."""
        join_batch_norms(self.network)
        return self.network.eval()

    def state(self) -> dict[str, Tensor]:
        """Weights and what the optimiser remembers of each."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            kept = self.optimiser.state.get(parameter, {})
            tensors |= {f"{said}.{name}": kept[key] for key, said in REMEMBERED.items() if kept.get(key) is not None}
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """What :meth:`state` gave."""
        own = {n.removeprefix("network."): v for n, v in tensors.items() if n.startswith("network.")}
        self.network.load_state_dict(own)
        for name, parameter in self.network.named_parameters():
            for key, said in REMEMBERED.items():
                value = tensors.get(f"{said}.{name}")
                if value is not None:
                    like = parameter if said != "step" else value.new_zeros((), device=parameter.device)
                    self.optimiser.state[parameter][key] = torch.empty_like(like).copy_(value)


def _optimiser(network: nn.Module, recipe: Recipe, on_gpu: bool) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"weight_decay": recipe.weight_decay, "fused": on_gpu or None}
    if recipe.optimiser == "adamw":
        return torch.optim.AdamW(network.parameters(), recipe.learning_rate, **settings)
    settings |= {"momentum": recipe.momentum, "nesterov": recipe.momentum > 0}
    return torch.optim.SGD(network.parameters(), recipe.learning_rate, **settings)


def logits_of(output: Any) -> Tensor:
    """The logits (N, K) of what a network gives; some also give those of auxiliary heads while they are trained."""
    logits: Tensor = output[0] if isinstance(output, tuple) else output
    return logits


# Batch normalisation over parts of a batch


class Split:
    """Makes a batch normalisation take its statistics in training over ``parts`` equal parts of the batch.

    The running statistics move towards the mean of the parts'. In evaluation it is the ordinary layer.
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
