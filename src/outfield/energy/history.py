"""What a training remembers of its epochs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from outfield.energy.checkpoints import finite_numbers


@dataclass
class History:
    """Means over each epoch's steps: loss, residual energy of real rows, residual energy of chain ends."""

    loss: list[float] = field(default_factory=list)
    real_energy: list[float] = field(default_factory=list)
    negative_energy: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)

    @classmethod
    def of(cls, entry: Any, epochs: int | None = None) -> History:
        """A history from its plain form in a file; ``epochs`` is how long it must be, if that is known.

        Raises:
            ValueError: it is not one.
        """
        names = [one.name for one in fields(cls)]
        if not isinstance(entry, dict) or sorted(entry) != sorted(names) or not isinstance(entry["loss"], list):
            raise ValueError(f"a history must have {', '.join(names)}")
        count = len(entry["loss"]) if epochs is None else epochs
        return cls(**{name: finite_numbers(entry[name], count, name) for name in names})
