"""Training of energies by maximum likelihood: its settings and what it remembers of its epochs.

One step and its loss are in :mod:`~outfield.energy.training.step`, the loop over epochs in :mod:`~outfield.energy.training.loop`,
the rows it reads in :mod:`~outfield.energy.training.batches`, what survives an interrupt in
:mod:`~outfield.energy.training.checkpoints`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar

from outfield.config import configurable, require, require_number
from outfield.energy.chains import STARTS

ENGINES = ("auto", "fused", "eager")
PRECISIONS = ("auto", "float32", "tf32", "bfloat16")
MOST = 10**9
LARGEST = 1e30
"""Numbers above this leave what float32 can hold when they are squared or multiplied."""


@configurable
@dataclass(frozen=True)
class Training:
    """How an energy is trained. The defaults are the paper's for the correction; ``EBM().training`` has those for the EBM.

    To change one of them: ``dataclasses.replace(EBM().training, epochs=5)``.

    Args:
        epochs: Passes over the training features.
        batch_size: Real rows, and chains, in a step; a rest smaller than a batch waits for the next epoch's shuffle.
        learning_rate: Learning rate of Adam.
        betas: Decay rates of Adam's two moments.
        l2: α, weight of the squared energies.
        input_noise: Standard deviation of the noise on real rows and chain ends in the loss.
        start: Where chains begin: "prior", "normal", "uniform", "data", "mixed", "replay", or "auto": the prior where there
            is one, else normal (:func:`outfield.energy.chains.make_start`).
        replay_size: Number of chain ends that "replay" keeps.
        replay_fresh: Share of chains that "replay" begins anew.
        energy_limit: Mean absolute energy above which training counts as diverged.
        engine: "fused" (:mod:`outfield.energy.engine`), "eager" (plain PyTorch), or "auto": fused wherever it can run.
        precision: Precision of the network's matrix products while training: "float32", "tf32", "bfloat16", or "auto":
            bfloat16 in the fused engine on a GPU that has units for it, else float32. Weights, chains and sums are float32 in
            any case; the prior's products keep at least TF32's precision. On a CPU "tf32" is float32.
        average: The result has the mean of the weights at the ends of this many last epochs; with 0 or 1, the last weights.
    """

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"average": 0})

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 5e-6
    betas: tuple[float, float] = (0.0, 0.999)
    l2: float = 10.0
    input_noise: float = 1e-3
    start: str = "auto"
    replay_size: int = 10_000
    replay_fresh: float = 0.05
    energy_limit: float = 1e4
    engine: str = "auto"
    precision: str = "auto"
    average: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "replay_size"):
            require_number(name, getattr(self, name), least=1, most=MOST, whole=True)
        for name in ("l2", "input_noise"):
            require_number(name, getattr(self, name), least=0, most=LARGEST)
        for name in ("learning_rate", "energy_limit"):
            require_number(name, getattr(self, name), above=0, most=LARGEST)
        require_number("average", self.average, least=0, most=MOST, whole=True)
        require_number("replay_fresh", self.replay_fresh, least=0, most=1)
        for name, known in (("start", STARTS), ("engine", ENGINES), ("precision", PRECISIONS)):
            value = getattr(self, name)
            require(isinstance(value, str) and value in known, name, value, f"one of {', '.join(known)}")
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        require(pair, "betas", self.betas, "a pair of numbers from 0 to below 1")
        for beta in self.betas:
            require_number("betas", beta, least=0, most=1)
            require(beta < 1, "betas", self.betas, "a pair of numbers from 0 to below 1")


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
        for name, values in entry.items():
            good = isinstance(values, list) and len(values) == count
            if not good or not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
                raise ValueError(f"{name} is not a list of {count} finite numbers")
        return cls(**entry)
