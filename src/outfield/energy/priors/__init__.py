"""Priors, which a network corrects: densities known up to a constant that can be evaluated and differentiated.

The mixture of Gaussians (:class:`outfield.MixturePrior`) is the one the paper uses. To add another, subclass
:class:`Prior`, mark it with :func:`outfield.config.configurable`, and pass an instance to ``EnergyCorrected(prior=...)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from outfield.config import arguments
from outfield.errors import InputError


class Prior(ABC):
    """A density q(z) ∝ exp(−E(z)). Constructor arguments are settings; what is learned ends in ``_``."""

    needs_labels: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in arguments(self).items())})"

    @abstractmethod
    def fit(self, z: Tensor, labels: Tensor | None) -> Self:
        """Learn from rows z (N, D) and, where they are used, labels (N,)."""

    @abstractmethod
    def energy(self, z: Tensor) -> Tensor:
        """−log q up to a constant (N,), differentiable in z (N, D), computed in z's type on z's device."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n points drawn from q (n, D), on the generator's device. Priors without this start chains from data."""
        raise InputError(f"{type(self).__name__} cannot be sampled; start its chains from data (start='data')")

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What was learned, as tensors."""

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> Self:
        """Take back what :meth:`state` gave."""
