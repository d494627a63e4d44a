"""How a classifier is trained: what is made small, and the paper's recipe, as settings.

A loss is called with the network's outputs (B, K) and labels (B,), and gives the mean loss and how many rows were right. One
with ``views`` of 2 is given the outputs of two augmented copies of every image, (2 B, K), the first copies first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from outfield.classifier.augmentation import Augmentation, PadAndShift, Recoloured
from outfield.config import configurable, require, require_choice, require_number

Judged = tuple[Tensor, Tensor]  # Mean loss and number of rows that are right, both of no dimension


class _OfLabels:
    views: ClassVar[int] = 1
    supervised: ClassVar[bool] = True
    counts: ClassVar[str] = "training accuracy"


@configurable
@dataclass(frozen=True)
class CrossEntropy(_OfLabels):
    """−log softmax(l)_y, with a share ``smoothing`` of the label spread evenly over all classes (Szegedy et al. 2016)."""

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_number("smoothing", self.smoothing, least=0)
        require(self.smoothing < 1, "smoothing", self.smoothing, "a share below 1")

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        loss = functional.cross_entropy(outputs, labels, label_smoothing=float(self.smoothing))
        return loss, (outputs.argmax(1) == labels).sum()


@configurable
@dataclass(frozen=True)
class LogitNorm(_OfLabels):
    """Cross-entropy of l / (τ ‖l‖): confidence cannot be had by longer logits (Wei et al. 2022, LogitNorm).

    The network's logits are used as they are afterwards; only the training sees them normalised. τ is ``temperature``, the
    authors' 0.04 for CIFAR-10.
    """

    temperature: float = 0.04

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, above=0)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        length = outputs.norm(dim=1, keepdim=True) + 1e-7
        loss = functional.cross_entropy(outputs / (length * self.temperature), labels)
        return loss, (outputs.argmax(1) == labels).sum()


@configurable
@dataclass(frozen=True)
class SimCLR:
    """Of two augmented copies of an image, each must find the other among all copies in the batch (Chen et al. 2020).

    −log( e^{zᵢ·zⱼ/τ} / Σ_{k≠i} e^{zᵢ·z_k/τ} ) with z the outputs, normalised, and j the other copy of i's image. No label is
    read. The network's last layer is the projection, a linear one of ``width`` outputs; features are its input, as ever.
    """

    views: ClassVar[int] = 2
    supervised: ClassVar[bool] = False
    counts: ClassVar[str] = "pairs found"
    temperature: float = 0.5
    width: int = 128

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, above=0)
        require_number("width", self.width, least=2, whole=True)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        z = functional.normalize(outputs, dim=1)
        n = len(z)
        itself = torch.eye(n, dtype=torch.bool, device=z.device)
        near = (z @ z.T / self.temperature).masked_fill(itself, float("-inf"))
        other = torch.arange(n, device=z.device).roll(n // 2)
        # Two right copies are one image that was recognised.
        return functional.cross_entropy(near, other), (near.argmax(1) == other).sum() / self.views


Loss = CrossEntropy | LogitNorm | SimCLR

# What ``outfield train --loss NAME`` stands for: settings of the recipe
LOSSES: dict[str, dict[str, str]] = {
    "cross-entropy": {},
    "smoothing": {"loss": '{"type": "CrossEntropy", "smoothing": 0.1}'},
    "logitnorm": {"loss": "LogitNorm"},
    "simclr": {"loss": "SimCLR", "augmentation": "Recoloured"},
}
# What ``outfield train --augment NAME`` stands for
AUGMENTATIONS: dict[str, dict[str, str]] = {
    "crops": {"augmentation": "Augmentation"},
    "shift": {"augmentation": "PadAndShift"},
    "recoloured": {"augmentation": "Recoloured"},
}


@configurable
@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a learning rate that falls; defaults as in the paper, which gives no batch size.

    A large batch is faster, and imitates batches of ``small_batch`` images: batch normalisation takes its statistics over equal
    parts of the batch, none smaller than that, and the rate is multiplied by the number of parts, after a warm-up. Where the
    batch cannot be cut so (it is too small, it is a prime, the network has no batch normalisation), it is taken as it is.

    Args:
        epochs: passes over the training images.
        batch_size: images of a step; the last images of an epoch that do not fill a batch are left out of it.
        small_batch: images of the batch that a larger one imitates; 0 to take ``batch_size`` as it is.
        learning_rate: of a batch that imitates none.
        warm_up: share of the training, rounded up to epochs, over which a multiplied rate, or AdamW's, climbs from a tenth of its
            height; smaller than the first milestone, where there are milestones.
        momentum: of Nesterov; AdamW has its own.
        weight_decay: on every parameter.
        milestones: shares of the training after which the rate is divided by ten; only of the schedule "steps".
        augmentation: of the training images: :class:`~outfield.classifier.augmentation.Augmentation` (crops),
            :class:`~outfield.classifier.augmentation.PadAndShift`, or :class:`~outfield.classifier.augmentation.Recoloured`.
        precision: "float32", "bfloat16", or "auto": bfloat16 on a GPU that has it.
        compile: pass the network through torch.compile; "auto" does so on a GPU where the run is long enough to pay for it.
        schedule: how the rate falls after the warm-up: "steps", at the milestones, or "cosine", from its height towards 0
            along half a cosine, a little after each epoch.
        loss: what is made small: :class:`~outfield.classifier.recipe.CrossEntropy`,
            :class:`~outfield.classifier.recipe.LogitNorm`, or :class:`~outfield.classifier.recipe.SimCLR`, which reads no label.
        optimiser: "sgd", or "adamw", which transformers need: with a rate of about 0.001 and a decay of about 0.05.
    """

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"schedule": "steps", "loss": CrossEntropy(), "optimiser": "sgd"}
    )

    epochs: int = 200
    batch_size: int = 512
    small_batch: int = 128
    learning_rate: float = 0.1
    warm_up: float = 0.025
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[float, ...] = (0.5, 0.75)
    augmentation: Augmentation | PadAndShift | Recoloured = Augmentation()
    precision: str = "auto"
    compile: str | bool = "auto"
    schedule: str = "steps"
    loss: Loss = CrossEntropy()
    optimiser: str = "sgd"

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 2), ("small_batch", 0)):
            require_number(name, getattr(self, name), least=least, whole=True)
        require(self.small_batch != 1, "small_batch", 1, "at least 2, or 0 for the batch as it is")
        require_number("learning_rate", self.learning_rate, above=0)
        for name, most in (("warm_up", math.inf), ("momentum", 1), ("weight_decay", math.inf)):
            require_number(name, getattr(self, name), least=0, most=most)
        many = isinstance(self.milestones, tuple | list)
        require(many, "milestones", self.milestones, "a list of shares of the training")
        for share in self.milestones:
            require_number("milestones", share, above=0, most=1)
        ascending = list(self.milestones) == sorted(self.milestones)
        require(ascending, "milestones", self.milestones, "shares of the training, ascending")
        require_choice("schedule", self.schedule, ("steps", "cosine"))
        limit = "1" if self.schedule == "cosine" else f"the first milestone, {self._first_fall:g}"
        require(self.warm_up < self._first_fall, "warm_up", self.warm_up, f"a share of the training below {limit}")
        made = self.augmentation
        augments = callable(made) and not isinstance(made, type)
        require(augments, "augmentation", made, "one of Augmentation, PadAndShift, Recoloured")
        require_choice("precision", self.precision, ("auto", "float32", "bfloat16"))
        require_choice("optimiser", self.optimiser, ("sgd", "adamw"))
        good = isinstance(self.loss, CrossEntropy | LogitNorm | SimCLR)
        require(good, "loss", self.loss, "one of CrossEntropy, LogitNorm, SimCLR")
        said = isinstance(self.compile, bool) or (isinstance(self.compile, str) and self.compile == "auto")
        require(said, "compile", self.compile, "true, false or auto")

    @property
    def _first_fall(self) -> float:
        """Share of the training by which the warm-up must be over."""
        return 1.0 if self.schedule == "cosine" else min(self.milestones, default=1.0)

    @property
    def parts(self) -> int:
        """Into how many equal parts batch normalisation cuts a batch.

        >>> [Recipe(batch_size=size).parts for size in (64, 128, 300, 509, 512)]
        [1, 1, 2, 1, 4]
        """
        most = self.batch_size // self.small_batch if self.small_batch else 1
        return max((parts for parts in range(1, most + 1) if self.batch_size % parts == 0), default=1)

    @property
    def height(self) -> float:
        """The learning rate after the warm-up."""
        return self.learning_rate * self.parts

    @property
    def climb(self) -> int:
        """Epochs of warm-up: none of SGD without a multiplied rate, none in a training so short that the rate already falls."""
        climbs = self.parts > 1 or self.optimiser == "adamw"
        epochs = math.ceil(self.warm_up * self.epochs) if climbs else 0
        return epochs if epochs < self._first_fall * self.epochs else 0

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        With the schedule "cosine" it is height · ½ (1 + cos(π (epoch − climb) / (epochs − climb))) after the warm-up.

        >>> [round(Recipe().rate(epoch), 4) for epoch in (0, 5, 99, 100, 150)]
        [0.04, 0.4, 0.4, 0.04, 0.004]
        >>> [round(Recipe(batch_size=128, schedule="cosine").rate(epoch), 4) for epoch in (0, 50, 100, 150, 199)]
        [0.1, 0.0854, 0.05, 0.0146, 0.0]
        """
        if epoch < self.climb:
            return self.height * (0.1 + 0.9 * epoch / self.climb)
        if self.schedule == "cosine":
            return self.height * 0.5 * (1 + math.cos(math.pi * (epoch - self.climb) / (self.epochs - self.climb)))
        return self.height * 0.1 ** sum(epoch >= share * self.epochs for share in self.milestones)
