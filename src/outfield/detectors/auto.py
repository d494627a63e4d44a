"""The detector to use where nobody wants to choose one: it chooses, fits and fuses several by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from outfield.config import require_number
from outfield.detectors.base import Detector
from outfield.detectors.candidates import default_members
from outfield.detectors.choosing import Choice, choose
from outfield.detectors.held_out import split_off
from outfield.detectors.members import fresh
from outfield.detectors.registry import DETECTORS, register
from outfield.detectors.summed import LEAST, Summed, check_weights
from outfield.detectors.unlabelled import is_one_class, with_clusters
from outfield.errors import FileFormatError, InputError
from outfield.features.fields import spaces
from outfield.features.head import HEAD_FIELDS
from outfield.features.set import FeatureSource
from outfield.stand_in import StandIns


@register
class Auto(Summed):
    """The sum of detectors that stand-ins for OOD data choose, with no OOD data at all (Fisher 1925).

    score = Σ_m w_m t_m(s_m(x)) as in :class:`outfield.Fused`; members and weights are picked by :func:`outfield.choose` when it
    is fitted. Without stand-ins, which are made of images, there is nothing to choose by: it adds up the energy of the logits,
    the distance to the fifth neighbour (an earlier one, where a class has fewer than five rows), SSD, and SSD on the network's
    second stage, as far as the training data has what they need. Rows that nothing divides into classes, neither labels nor
    logits, are clustered for SSD, into as many clusters as make rows that were left out most likely. What it needs to score
    depends on its members, and so on the fields that the training data has.

    Args:
        most_members: how many detectors each of the sums that are compared may have.
        held_out: share of the training rows that is kept for calibration where fit is given no held-out rows.
        seed: of the split of rows.

    Attributes:
        members_: the fitted members.
        weights_: how much each member counts; None where all count the same.
        choice_: everything that was tried, or None where there were no stand-ins; not part of a saved detector.
    """

    uses: ClassVar[tuple[str, ...]] = (
        "labels",
        "logits",
        *HEAD_FIELDS,
        *(name for name in spaces() if name != "features"),
    )

    weights_: tuple[float, ...] | None
    choice_: Choice | None

    def __init__(self, most_members: int = 4, held_out: float = 0.1, seed: int = 0) -> None:
        self.most_members = most_members
        self.held_out = held_out
        self.seed = seed

    def _check_settings(self) -> None:
        require_number("most_members", self.most_members, least=1, whole=True)
        require_number("held_out", self.held_out, above=0, most=0.5)
        require_number("seed", self.seed, least=0, whole=True)

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        return super().needs_to_score or ("features",)

    def _all(self) -> Sequence[Detector]:
        return getattr(self, "members_", ())

    def _weights(self) -> Sequence[float] | None:
        return self.weights_

    def fit(
        self,
        train: FeatureSource,
        held_out: FeatureSource | None = None,
        stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]] | None = None,
    ) -> Self:
        """Choose, fit and calibrate; returns self.

        Args:
            train: ID training data.
            held_out: ID rows that neither a detector nor, at best, the network was trained on. Without them, a share of the
                training rows is kept for this.
            stand_ins: what stands for OOD data, as :func:`outfield.choose` takes it. None is chosen without them: those that
                can be made of features (:func:`outfield.feature_stand_ins`) tell too little.

        Raises:
            InputError: a setting of a wrong type or value, no stand-ins, or held-out rows that are training rows.
            TooFewSamplesError: too few rows to calibrate.
        """
        with self._fitting(train, "fit") as data:
            self._fit(data, held_out, stand_ins)
        return self

    def _fit(
        self,
        train: FeatureSource,
        held_out: FeatureSource | None = None,
        stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]] | None = None,
    ) -> None:
        if held_out is None:
            train, held_out = split_off(train, float(self.held_out), int(self.seed), 2 * LEAST)
        else:
            self._check_held_out(train, held_out)
        self.choice_ = None if stand_ins is None else self._choose(train, held_out, stand_ins)
        self.weights_ = None
        if self.choice_ is None:
            known = with_clusters(train, int(self.seed)) if is_one_class(train) else train
            self.members_ = tuple(
                fresh(member, self._device).fit(known if "labels" in member.needs_to_fit else train)
                for member in default_members(train, known)
            )
            self._calibrate(held_out)
        else:
            chosen = self.choice_.detector
            self.members_, self.calibrations_, self.sum_ = chosen.members_, chosen.calibrations_, chosen.sum_
            self.weights_ = None if chosen.weights is None else tuple(chosen.weights)
            self._moved()

    def _choose(
        self,
        train: FeatureSource,
        held_out: FeatureSource,
        stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]],
    ) -> Choice:
        most, seed = int(self.most_members), int(self.seed)
        return choose(train, held_out, stand_ins, most_members=most, seed=seed, device=self._device)

    def _notes(self) -> dict[str, Any]:
        headers = [{"detector": type(member).__name__, **member._header()} for member in self.members_]
        weights = {} if self.weights_ is None else {"weights": list(self.weights_)}
        return {**super()._notes(), "members": headers, **weights}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        super()._load_notes(notes)
        weights = notes.get("weights")
        try:
            check_weights(weights, len(notes["members"]))
        except InputError as error:
            raise FileFormatError(str(error)) from error
        self.weights_ = None if weights is None else tuple(float(weight) for weight in weights)

    def _classes_of(self, headers: Sequence[dict[str, Any]]) -> Sequence[type[Detector]]:
        names = [header.get("detector") for header in headers]
        for name in names:
            if name not in DETECTORS:
                raise FileFormatError(f"one of its members is a {name!r:.50}, which is no detector")
        return [DETECTORS[str(name)] for name in names]
