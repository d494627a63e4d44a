"""How a classifier is trained: the paper's recipe as settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outfield.classifier.augment import Augmentation, are_numbers
from outfield.config import configurable, require, require_number

PRECISIONS = ("auto", "float32", "bfloat16")


@configurable
@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a learning rate that falls in steps; defaults as in the paper, which gives no batch size.

    A large batch is faster, and imitates batches of ``small_batch`` images: batch normalisation takes its statistics over equal
    parts of the batch, none smaller than that, and the rate is multiplied by the number of parts, after a warm-up. Where the
    batch cannot be cut so (it is too small, it is a prime, the network has no batch normalisation), it is taken as it is.

    Args:
        epochs: passes over the training images.
        batch_size: images of a step; the last images of an epoch that do not fill a batch are left out of it.
        small_batch: images of the batch that a larger one imitates; 0 to take ``batch_size`` as it is.
        learning_rate: of a batch that imitates none.
        warm_up: share of the training, rounded up to epochs, over which a multiplied rate climbs from a tenth of its height;
            smaller than the first milestone.
        momentum: of Nesterov.
        weight_decay: on every parameter.
        milestones: shares of the training after which the rate is divided by ten.
        augmentation: of the training images.
        precision: "float32", "bfloat16", or "auto": bfloat16 on a GPU that has it.
        compile: pass the network through torch.compile; "auto" does so on a GPU where the run is long enough to pay for it.
    """

    epochs: int = 200
    batch_size: int = 512
    small_batch: int = 128
    learning_rate: float = 0.1
    warm_up: float = 0.025
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[float, ...] = (0.5, 0.75)
    augmentation: Augmentation = Augmentation()
    precision: str = "auto"
    compile: str | bool = "auto"

    def __post_init__(self) -> None:
        require_number("epochs", self.epochs, least=1, whole=True)
        require_number("batch_size", self.batch_size, least=2, whole=True)
        require_number("small_batch", self.small_batch, least=0, whole=True)
        require(self.small_batch != 1, "small_batch", 1, "at least 2, or 0 for the batch as it is")
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("warm_up", self.warm_up, least=0)
        require_number("momentum", self.momentum, least=0, most=1)
        require_number("weight_decay", self.weight_decay, least=0)
        require(are_numbers(self.milestones), "milestones", self.milestones, "a list of shares of the training")
        good = all(0 < share <= 1 for share in self.milestones) and list(self.milestones) == sorted(self.milestones)
        require(good, "milestones", self.milestones, "shares of the training in (0, 1], ascending")
        first = min(self.milestones, default=1.0)
        require(
            self.warm_up < first,
            "warm_up",
            self.warm_up,
            f"a share of the training below the first milestone, {first:g}",
        )
        require(
            callable(self.augmentation) and not isinstance(self.augmentation, type),
            "augmentation",
            self.augmentation,
            "an outfield.classifier.augment.Augmentation",
        )
        known = isinstance(self.precision, str) and self.precision in PRECISIONS
        require(known, "precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        said = isinstance(self.compile, bool) or (isinstance(self.compile, str) and self.compile == "auto")
        require(said, "compile", self.compile, "true, false or auto")

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
        """Epochs of warm-up: none without a multiplied rate, and none in a training so short that the rate already falls."""
        epochs = math.ceil(self.warm_up * self.epochs) if self.parts > 1 else 0
        return epochs if epochs < min(self.milestones, default=1.0) * self.epochs else 0

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(Recipe().rate(epoch), 4) for epoch in (0, 5, 99, 100, 150)]
        [0.04, 0.4, 0.4, 0.04, 0.004]
        """
        if epoch < self.climb:
            return self.height * (0.1 + 0.9 * epoch / self.climb)
        return self.height * 0.1 ** sum(epoch >= share * self.epochs for share in self.milestones)
