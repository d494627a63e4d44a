"""How a training went: what each epoch gave."""

from __future__ import annotations

from dataclasses import dataclass, field

from outfield.percent import percent


@dataclass
class Curve:
    """What each epoch gave: mean loss and accuracy on the augmented training images, accuracy on the test images, seconds.

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

    def last(self) -> str:
        """The last epoch in words."""
        if not len(self):
            return "no epoch yet"
        tested = self.test_accuracy[-1]
        said = f"loss {self.loss[-1]:.4f}, training accuracy {percent(self.train_accuracy[-1], 2)}"
        return said if tested is None else f"{said}, test accuracy {percent(tested, 2)}"
