"""The energy-based model without a prior."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from outfield.config import require
from outfield.detectors.registry import register
from outfield.detectors.trained.learned_energy import LearnedEnergy
from outfield.energy import MLP, CorrectedEnergy, Langevin, Network, Prior, Sampler, Training


@register
class EBM(LearnedEnergy):
    """An energy-based model on its own (Lafon, Rambour & Thome 2022, "ours without mixture").

    score = E_θ(z) = network(z) / T, trained by maximum likelihood with chains that start from N(0, I).
    The defaults are the paper's. 200 steps a batch make it ten times as costly as the correction.

    Args:
        network: recipe of the network.
        temperature: T.
        sampler: how chains move.
        training: optimiser, loss and where chains start.
        projection: where chains live: "relu_sphere", "sphere", "none", or "auto" for the first unless features are negative.
        seed: of weights, batches and chains.
        on: the field that it works on: "features", or a stage of the network such as "stage2".
    """

    def __init__(
        self,
        network: Network = MLP(),
        temperature: float = 1e-2,
        sampler: Sampler = Langevin(steps=200, step_size=(1e-2, 1e-3), noise_std=(1e-2, 1e-3)),
        training: Training = Training(learning_rate=5e-5, l2=0.1),
        projection: str = "auto",
        seed: int = 0,
        on: str = "features",
    ) -> None:
        self.network = network
        self.temperature = temperature
        self.sampler = sampler
        self.training = training
        self.projection = projection
        self.seed = seed
        self.on = on

    @classmethod
    def paper(cls, seed: int = 0) -> Self:
        """With the paper's settings, whatever the defaults are; ``seed`` is that of weights, batches and chains."""
        return cls(
            MLP(hidden=1024, depth=4, slope=0.2),
            1e-2,
            Langevin(steps=200, step_size=(1e-2, 1e-3), noise_std=(1e-2, 1e-3)),
            Training(epochs=20, batch_size=256, learning_rate=5e-5, betas=(0.0, 0.999), l2=0.1, input_noise=1e-3),
            seed=seed,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        start = self.training.start
        require(
            start != "prior",
            "training.start",
            start,
            "auto, normal, uniform, data, mixed or replay: there is no prior here",
        )

    def _assemble(self, network: nn.Module, prior: Prior | None) -> CorrectedEnergy:
        return CorrectedEnergy(network, float(self.temperature))

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.model_ = self._finish(self._assemble(self._load_network(state), None))
