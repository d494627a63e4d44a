"""How a classifier is trained: the paper's recipe as settings."""

from __future__ import annotations

from dataclasses import dataclass

from outfield.augment import Augmentation, are_numbers
from outfield.config import configurable, require, require_number

PRECISIONS = ("auto", "float32", "bfloat16")


@configurable
@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a learning rate that falls in steps. The defaults are the paper's; it gives no batch size.

    Args:
        epochs: passes over the training images.
        batch_size: images of a step; the last images of an epoch that do not fill a batch are left out of it.
        norm_batch: images over which batch normalisation takes its statistics, a divisor of ``batch_size``; 0 for all of them.
        learning_rate: at the start, or after ``warm_up``.
        warm_up: epochs over which the rate climbs to ``learning_rate`` from a tenth of it; for large rates.
        momentum: of Nesterov.
        weight_decay: on every parameter.
        milestones: shares of the training after which the rate is divided by ten.
        augmentation: of the training images.
        precision: "float32", "bfloat16", or "auto": bfloat16 on a GPU that has it.
        compile: pass the network through torch.compile; "auto" does so on a GPU where the run is long enough to pay for it.
    """

    epochs: int = 200
    batch_size: int = 512
    norm_batch: int = 0
    learning_rate: float = 0.1
    warm_up: int = 0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[float, ...] = (0.5, 0.75)
    augmentation: Augmentation = Augmentation()
    precision: str = "auto"
    compile: str | bool = "auto"

    def __post_init__(self) -> None:
        require_number("epochs", self.epochs, least=1, whole=True)
        require_number("batch_size", self.batch_size, least=2, whole=True)
        require_number("norm_batch", self.norm_batch, least=0, whole=True)
        divides = self.norm_batch == 0 or self.batch_size % self.norm_batch == 0
        require(divides, "norm_batch", self.norm_batch, f"a divisor of batch_size ({self.batch_size}), or 0")
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("warm_up", self.warm_up, least=0, whole=True)
        require_number("momentum", self.momentum, least=0, most=1)
        require_number("weight_decay", self.weight_decay, least=0)
        require(are_numbers(self.milestones), "milestones", self.milestones, "a list of shares of the training")
        good = all(0 < share <= 1 for share in self.milestones) and list(self.milestones) == sorted(self.milestones)
        require(good, "milestones", self.milestones, "shares of the training in (0, 1], ascending")
        require(callable(self.augmentation), "augmentation", self.augmentation, "an outfield.augment.Augmentation")
        require(self.precision in PRECISIONS, "precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        require(self.compile in ("auto", True, False), "compile", self.compile, "true, false or auto")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(Recipe().rate(epoch), 4) for epoch in (0, 99, 100, 150)]
        [0.1, 0.1, 0.01, 0.001]
        """
        if epoch < self.warm_up:
            return self.learning_rate * (0.1 + 0.9 * epoch / self.warm_up)
        return self.learning_rate * 0.1 ** sum(epoch >= share * self.epochs for share in self.milestones)
