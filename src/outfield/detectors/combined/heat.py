"""HEAT: corrected energies of several priors, composed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outfield.config import arguments, require_number
from outfield.detectors.base import Detector
from outfield.detectors.combined.members import ComposedDetector, check_members
from outfield.detectors.logits.msp_odin_energy import EnergyLogits
from outfield.detectors.registry import register
from outfield.detectors.trained.energy_corrected import EnergyCorrected
from outfield.energy import Langevin, Training

STEP_SIZE, NOISE = (1e-4, 1e-5), (5e-3, 5e-4)
AUTHORS = Training(epochs=20, batch_size=1024, learning_rate=1e-5, l2=10.0, input_noise=1e-4)
"""How the authors train, but for their schedule: they divide the learning rate by ten after half of the epochs."""


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
                prior_temperature=1000.0, sampler=Langevin(1, STEP_SIZE, NOISE), training=AUTHORS, on="spread"
            ),
            EnergyLogits(),
        ),
        beta: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.members = members
        self.beta = beta
        self.seed = seed

    def _check_settings(self) -> None:
        check_members(self.members)
        require_number("beta", self.beta, least=0)
        require_number("seed", self.seed, least=0, whole=True)

    def _recipe(self) -> Sequence[Detector]:
        return tuple(
            member.fresh(seed=self.seed) if "seed" in arguments(member) else member.fresh() for member in self.members
        )

    def _combine(self, terms: Tensor) -> Tensor:
        beta, largest = float(self.beta), terms.amax(1)
        if beta == 0:
            return terms.mean(1)
        below = torch.expm1(
            beta * (terms - largest[:, None])
        )  # from −1 to 0: neither a large nor a small β loses anything
        return largest + torch.log1p(below.mean(1)) / beta
