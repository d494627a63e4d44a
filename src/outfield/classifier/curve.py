"""How a training went: what each epoch gave."""

from __future__ import annotations

from dataclasses import dataclass, field

from outfield.percent import percent


@dataclass
class Curve:
    """What each epoch gave: mean loss and accuracy on the augmented training images, accuracy on the test images, seconds.

    Of a training without labels ``train_accuracy`` is the share of copies whose nearest in the batch is the other copy of their
    image (:class:`~outfield.classifier.losses.SimCLR`), which says nothing about classes.
    The test accuracy is None in epochs after which it was not looked at.
    """

    loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)

    def check(self, epochs: int) -> None:
        """Raise a ValueError where this is not the curve of at most so many epochs."""
        lists = {name: value for name, value in vars(self).items() if isinstance(value, list)}
        if len(lists) < 4 or len({len(value) for value in lists.values()}) > 1 or len(self) > epochs:
            raise ValueError(f"its curve is not that of at most {epochs} epochs")
        for name, value in lists.items():
            if not all(isinstance(x, float | int) or (x is None and name == "test_accuracy") for x in value):
                raise ValueError(f"its {name} holds something else than numbers")

    def last(self, counts: str = "training accuracy") -> str:
        """The last epoch in words.

        Args:
            counts: What the share of the training images is called; a loss says it of itself.
        """
        if not len(self):
            return "no epoch yet"
        tested = self.test_accuracy[-1]
        said = f"loss {self.loss[-1]:.4f}, {counts} {percent(self.train_accuracy[-1], 2)}"
        return said if tested is None else f"{said}, test accuracy {percent(tested, 2)}"
