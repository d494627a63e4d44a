"""Weights averaged over the last epochs, which vary less from fit to fit than the last weights do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from outfield.energy.settings import Training


class Averages:
    """The mean of each network's weights at the ends of the last epochs.

    Args:
        networks: whose weights.
        training: says over how many epochs.
    """

    def __init__(self, networks: Sequence[nn.Module], training: Training) -> None:
        self.networks = networks
        self.first = max(1, training.epochs - training.average + 1)
        """The first epoch, counted from 1, whose end counts."""
        self.means: list[dict[str, Tensor]] = (
            [{name: torch.zeros_like(value) for name, value in _weights(one)} for one in networks]
            if training.average > 1
            else [{} for _ in networks]
        )

    def after_epoch(self, epoch: int) -> None:
        """Take the weights at the end of an epoch, counted from 1, into the mean."""
        count = epoch - self.first + 1
        if count < 1:
            return
        for network, means in zip(self.networks, self.means, strict=True):
            for name, value in _weights(network):
                if name in means:
                    means[name] += (value - means[name]) / count

    def put_in_place(self) -> None:
        """Give the networks their mean weights."""
        for network, means in zip(self.networks, self.means, strict=True):
            for name, value in _weights(network):
                if name in means:
                    value.copy_(means[name])

    def state(self, index: int) -> dict[str, Tensor]:
        """What a checkpoint keeps of one network."""
        return {f"average.{name}": value for name, value in self.means[index].items()}

    def load_state(self, index: int, state: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""
        for name, value in self.means[index].items():
            value.copy_(state[f"average.{name}"])


def _weights(network: nn.Module) -> list[tuple[str, Tensor]]:
    """The floating tensors of a network, by name, as they are trained: what is written to them is in the network."""
    return [(name, value) for name, value in network.state_dict().items() if value.is_floating_point()]
