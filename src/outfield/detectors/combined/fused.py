"""Several detectors as one: each is calibrated on held-out ID rows, and what they find unusual is added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from outfield.config import require_choice, require_number
from outfield.detectors.base import Detector
from outfield.detectors.combined.members import check_members
from outfield.detectors.combined.sum import RULES, Summed, apart, check_count, check_weights
from outfield.detectors.distance.knn import KNN
from outfield.detectors.distance.ssd import SSD
from outfield.detectors.logits.msp_odin_energy import EnergyLogits
from outfield.detectors.registry import register
from outfield.errors import NotFittedError
from outfield.features import FeatureSource


@register
class Fused(Summed):
    """Several detectors as one, each calibrated on held-out ID rows (Fisher 1925).

    score = Σ_m w_m t_m(s_m(x)), where s_m is a member's score and t_m says how unusual it is among the scores of ID rows that no
    member was fitted on: −log p with a tail that goes on growing ("fisher"), or standard deviations from the mean ("z"); see
    :class:`outfield.detectors.combined.calibration.Calibration`. Half of the held-out rows calibrate the members, the other half
    their sum, so that :meth:`p_values` are valid.

    Args:
        members: the detectors; copies of them are fitted.
        rule: how terms are made, "fisher" or "z".
        held_out: share of the training rows that is kept for calibration where fit is given no held-out rows. A network knows
            its training images better than others: rows that it has not seen calibrate better.
        seed: of the split of rows.
        weights: how much each member counts, w_m; None for 1 each.

    Attributes:
        members_: the fitted members.
        calibrations_: of each member.
        sum_: the calibration of the sum.
    """

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"weights": None})

    def __init__(
        self,
        members: Sequence[Detector] = (EnergyLogits(), KNN(k=5), SSD()),
        rule: str = "fisher",
        held_out: float = 0.1,
        seed: int = 0,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.members = members
        self.rule = rule
        self.held_out = held_out
        self.seed = seed
        self.weights = weights

    def _check_settings(self) -> None:
        check_members(self.members)
        check_weights(self.weights, len(self.members))
        require_choice("rule", self.rule, RULES)
        require_number("held_out", self.held_out, above=0, most=0.5)
        require_number("seed", self.seed, least=0, whole=True)

    def _recipe(self) -> Sequence[Detector]:
        return self.members

    def _weights(self) -> Sequence[float] | None:
        return self.weights

    def _fit(self, train: FeatureSource, held_out: FeatureSource | None = None) -> None:
        train, held_out = apart(train, held_out, float(self.held_out), int(self.seed))
        self.members_ = tuple(member.fresh().to(self._device).fit(train) for member in self.members)
        self._calibrate(held_out)

    @classmethod
    def of_fitted(
        cls,
        members: Sequence[Detector],
        held_out: FeatureSource,
        rule: str = "fisher",
        seed: int = 0,
        weights: Sequence[float] | None = None,
    ) -> Self:
        """Of members that are fitted already, calibrated on ID rows that they were not fitted on.

        Args:
            members: fitted detectors; they become this detector's own.
            held_out: ID rows.
            rule: see the class.
            seed: see the class.
            weights: see the class.

        Raises:
            InputError: a setting of a wrong type or value.
            NotFittedError: a member is not fitted.
            TooFewSamplesError: too few rows to calibrate.
        """
        made = cls(tuple(members), rule, seed=seed, weights=weights)
        with made._fitting(held_out, "of_fitted", made.needs_to_score):
            for member in members:
                if not member._fitted:
                    raise NotFittedError(f"{member!r:.100} is not fitted; of_fitted takes fitted detectors")
            check_count(held_out)
            made.members_ = tuple(members)
            made._calibrate(held_out)
        return made
