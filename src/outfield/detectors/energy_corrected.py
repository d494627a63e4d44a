"""EnergyCorrected: a prior whose energy a network corrects."""

from __future__ import annotations

from typing import Self, cast

from torch import Tensor, nn

from outfield.config import arguments, construct, require, require_number
from outfield.detectors.distance.ssd_mixture_rmds import statistics_of
from outfield.detectors.ebm import LearnedEnergy
from outfield.detectors.registry import register
from outfield.energy import MLP, CorrectedEnergy, Langevin, MixturePrior, Network, Prior, Rows, Sampler, Training
from outfield.errors import InputError
from outfield.features import FeatureSource
from outfield.files import tensors_under


@register
class EnergyCorrected(LearnedEnergy):
    """A prior whose energy a network corrects, the paper's method (Lafon, Rambour & Thome 2022).

    score = E_θ(z) + E_prior(z) / T_prior, with E_θ = network / T trained by maximum likelihood, chains starting from the prior.
    The defaults are the paper's.

    Args:
        prior: what is corrected; a fresh copy of it is fitted.
        prior_temperature: T_prior. The paper's T_G = 1000 is stated for an energy without the factor ½: 500 here.
        network: recipe of the network.
        temperature: T in E_θ = network / T.
        sampler: how chains move.
        training: optimiser, loss and where chains start.
        projection: where chains live: "relu_sphere", "sphere", "none", or "auto" for the first unless features are negative.
        seed: of weights, batches and chains.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        prior_: the fitted prior.
    """

    fit_needs = ("labels",)

    def __init__(
        self,
        prior: Prior = MixturePrior(),
        prior_temperature: float = 500.0,
        network: Network = MLP(),
        temperature: float = 1.0,
        sampler: Sampler = Langevin(),
        training: Training = Training(),
        projection: str = "auto",
        seed: int = 0,
        field: str = "features",
    ) -> None:
        self.prior, self.prior_temperature, self.network = prior, prior_temperature, network
        self.temperature, self.sampler, self.training = temperature, sampler, training
        self.projection, self.seed, self.field = projection, seed, field

    @classmethod
    def paper(cls, prior_temperature: float = 500.0, seed: int = 0) -> Self:
        """With the paper's settings, which are the defaults.

        Args:
            prior_temperature: 500 is T_G = 1000 as the paper's text defines the energy, without the factor ½; the authors'
                later code divides the energy with its ½ by 1000, which is 1000 here.
            seed: of weights, batches and chains.
        """
        return cls(prior_temperature=prior_temperature, seed=seed)

    @classmethod
    def quick(cls, prior_temperature: float = 2000.0, seed: int = 0) -> Self:
        """A fiftieth of the paper's network, taught by rows between classes: less than a minute on a CPU for 50,000 rows.

        Chains begin between two real rows (``start="mixed"``), because samples of the mixture lie on the other side of the data
        than OOD rows do, and make one move as long as the paper's twenty together. Start, temperature and epochs were chosen by
        the rows that a classifier gets wrong on its own test data (``docs/correction.md``). With fewer than some 5,000 rows the
        network hardly learns anything, and the score is the mixture's.

        Args:
            prior_temperature: how much the residual counts; the one number worth choosing for a network, by stand-ins.
            seed: of weights, batches and chains.
        """
        return cls(
            MixturePrior(floor=1e-6),
            prior_temperature,
            MLP(hidden=128, depth=2, slope=0.2),
            1.0,
            Langevin(steps=1, step_size=(1.1e-5, 1.1e-5), noise_std=(2.75e-3, 2.75e-3)),
            Training(epochs=5, learning_rate=3e-4, start="mixed", average=2),
            seed=seed,
        )

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        return ("labels",) if self.prior.needs_labels else ()

    @property
    def prior_(self) -> Prior:
        return cast(Prior, self.model_.prior)

    def _check_settings(self) -> None:
        super()._check_settings()
        require(isinstance(self.prior, Prior), "prior", self.prior, "an outfield.Prior")
        require_number("prior_temperature", self.prior_temperature, above=0)

    def _fresh_prior(self) -> Prior:
        prior: Prior = construct(type(self.prior), arguments(self.prior))
        return prior

    def _fit_prior(self, data: FeatureSource, z: Rows) -> Prior:
        prior = self._fresh_prior()
        if isinstance(z, Tensor):
            return prior.fit(z, data.in_memory().labels)
        if not isinstance(prior, MixturePrior):
            raise InputError(f"{type(prior).__name__} cannot be fitted in pieces; load the features first, in_memory()")
        return prior.merge(statistics_of(data, self.device))

    def _assemble(self, network: nn.Module, prior: Prior | None) -> CorrectedEnergy:
        return CorrectedEnergy(network, float(self.temperature), prior, float(self.prior_temperature))

    def _state(self) -> dict[str, Tensor]:
        return super()._state() | {f"prior.{name}": value for name, value in self.prior_.state().items()}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        prior = self._fresh_prior().load_state(tensors_under(state, "prior."))
        self.model_ = self._finish(self._assemble(self._load_network(state), prior))
