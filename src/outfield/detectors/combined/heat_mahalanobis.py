"""Detectors whose standardised scores are combined: HEAT and Mahalanobis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from outfield.config import arguments, require, require_number
from outfield.detectors.base import Batch, Detector
from outfield.detectors.combined.members import CombinedDetector, check_members
from outfield.detectors.distance.ssd_mixture_rmds import SSD
from outfield.detectors.ebm_energy_corrected import EnergyCorrected
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import EnergyLogits
from outfield.detectors.registry import register
from outfield.energy import Langevin, MixturePrior, Training
from outfield.features import FeatureSource, spaces

STEP_SIZE, NOISE = (1e-4, 1e-5), (5e-3, 5e-4)
# how the authors train, but for their schedule: they divide the learning rate by ten after half of the epochs
AUTHORS = Training(epochs=20, batch_size=1024, learning_rate=1e-5, l2=10.0, input_noise=1e-4)
EQUAL = "equal"


class ComposedDetector(CombinedDetector):
    """Several detectors whose standardised scores t_m = (s_m − mean_m) / std_m are combined.

    Mean and standard deviation (1 where it is 0) are over the training rows: ``means_`` and ``scales_`` (M,), float64.
    """

    learned = ("means float64 M", "scales float64+ M")

    @abstractmethod
    def _combine(self, terms: Tensor) -> Tensor:
        """Scores (n,) from the members' standardised scores (n, M), float64."""

    def _fit(self, train: FeatureSource) -> None:
        self.members_ = tuple(member.to(self._device).fit(train) for member in self._recipe())
        scores = torch.stack([member.score(train).double() for member in self.members_], dim=1)
        spread = scores.std(dim=0, correction=0)
        self.means_, self.scales_ = scores.mean(0), torch.where(spread > 0, spread, 1.0)
        self._moved()

    def _score(self, batch: Batch) -> Tensor:
        return self._combine((self._member_scores(batch) - self.means_) / self.scales_)


@register
class HEAT(ComposedDetector):
    """Corrected energies of several priors, composed (Lafon et al. 2023).

    score = (1 / β) log( (1 / M) Σ_m exp(β t_m) ), and at β = 0 its limit, the mean of t_m; t_m is the energy of member m,
    standardised on the training rows. The authors' own sum is M times the latter, and for β > 0 they leave out 1 / M: their
    scores rank rows as these do. The larger β, the more the largest term decides.

    Members are by default a mixture of the features and a mixture of the spread (std pooling), each corrected by a network with
    the authors' settings for CIFAR-10 (theirs have 40 chain steps on the features and one on the spread, here decayed linearly,
    there quadratically), and the energy of the logits. The authors correct that one too, by a network on features that are not
    normalised; corrections here live on normalised features, which have lost the length that logits depend on, so that it
    enters as it is.

    Args:
        members: the detectors; copies of them are fitted. Small networks and few epochs make it quick.
        beta: β.
        seed: of every member that has a seed, in the place of its own.
    """

    def __init__(
        self,
        members: Sequence[Detector] = (
            EnergyCorrected(prior_temperature=1000.0, sampler=Langevin(40, STEP_SIZE, NOISE), training=AUTHORS),
            EnergyCorrected(
                prior_temperature=1000.0, sampler=Langevin(1, STEP_SIZE, NOISE), training=AUTHORS, field="spread"
            ),
            EnergyLogits(),
        ),
        beta: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.members, self.beta, self.seed = members, beta, seed

    def _check_settings(self) -> None:
        check_members(self.members)
        require_number("beta", self.beta, least=0)
        require_number("seed", self.seed, least=0, whole=True)

    def _recipe(self) -> Sequence[Detector]:
        seeded = [{"seed": self.seed} if "seed" in arguments(one) else {} for one in self.members]
        return tuple(one.fresh(**own) for one, own in zip(self.members, seeded, strict=True))

    def _combine(self, terms: Tensor) -> Tensor:
        beta, largest = float(self.beta), terms.amax(1)
        if beta == 0:
            return terms.mean(1)
        below = torch.expm1(beta * (terms - largest[:, None]))  # −1 to 0: precise for any β
        return largest + torch.log1p(below.mean(1)) / beta


@register
class Mahalanobis(ComposedDetector):
    """Mahalanobis distances of several layers, added up (Lee et al. 2018).

    score = Σ_l w_l t_l, where t_l is min_c (z_l − μ_lc)ᵀ Σ_l⁻¹ (z_l − μ_lc) for the rows z_l of layer l, with class means and one
    covariance for each layer (:class:`outfield.SSD`), less its mean and over its standard deviation on the training rows.

    Lee et al. learn w_l by logistic regression on OOD or adversarial samples. There are only ID rows here, so that every layer
    counts the same unless weights are given. Rows are normalised to length 1, as SSD does and Lee et al. do not. Their input
    perturbation belongs to the extraction of features: :class:`outfield.Perturb`.

    Args:
        layers: the fields, "features" and stages such as "stage2"; by default the blocks of a ResNet.
        weights: w_l, one number from 0 on for each layer, or "equal" for 1 each.
        floor: see :class:`outfield.energy.priors.MixturePrior`.
        ridge: see there too.
    """

    def __init__(
        self,
        layers: Sequence[str] = ("features", "stage1", "stage2", "stage3"),
        weights: str | Sequence[float] = EQUAL,
        floor: float = 1e-6,
        ridge: float = 0.0,
    ) -> None:
        self.layers, self.weights = layers, weights
        self.floor, self.ridge = floor, ridge

    def _check_settings(self) -> None:
        names = self.layers if isinstance(self.layers, tuple | list) else ()
        known = all(isinstance(one, str) and one in spaces() for one in names)
        good = known and 0 < len(names) == len({*map(str, names)})
        require(good, "layers", self.layers, f"a list of different fields among {', '.join(spaces())}")
        if not self._is_equal():
            numbers = isinstance(self.weights, tuple | list) and len(self.weights) == len(names)
            require(numbers, "weights", self.weights, f"{EQUAL!r} or a list of {len(names)} numbers, one a layer")
            for weight in self.weights:
                require_number("weights", weight, least=0)
        MixturePrior(self.floor, self.ridge)  # which says what they must be

    def _is_equal(self) -> bool:
        return isinstance(self.weights, str) and self.weights == EQUAL

    def _recipe(self) -> Sequence[Detector]:
        return tuple(SSD(self.floor, field=name, ridge=self.ridge) for name in self.layers)

    def _combine(self, terms: Tensor) -> Tensor:
        if self._is_equal():
            return terms.sum(1)
        weights = [float(weight) for weight in self.weights]
        return terms @ torch.tensor(weights, dtype=terms.dtype, device=terms.device)
