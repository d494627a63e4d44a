"""Auto: the detector that chooses, fits and fuses several by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Detector, labels_of
from outfield.detectors.combined.choice import choose, default_members
from outfield.detectors.combined.fused import Summed, apart
from outfield.detectors.registry import register
from outfield.energy import MixturePrior
from outfield.features import HEAD_FIELDS, FeatureSet, FeatureSource, Part, clustered, normalise, spaces
from outfield.partners import StandIns

COUNTS = (1, 2, 5, 10, 20)  # numbers of clusters that are compared
FEWEST = 10  # rows for each cluster, on average, at least
MOST = 50_000  # rows that are clustered, drawn from more: a covariance hardly becomes better by others
UNSEEN = 5  # one row in so many tells how likely the others make it
# columns of the rows whose likelihoods are compared; wider rows are projected on so many random directions
WIDEST = 2048


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
        most_members: how many detectors the sum may have.
        held_out: share of the training rows that is kept for calibration where fit is given no held-out rows.
        seed: of the split of rows.

    Attributes:
        members_: the fitted members.
        weights_: how much each member counts; None where all count the same.
        choice_: what was chosen, and from what, or None where there were no stand-ins; not part of a saved detector.
    """

    uses: ClassVar[tuple[str, ...]] = ("labels", "logits", *HEAD_FIELDS, *spaces()[1:])
    uses_stand_ins = True

    def __init__(self, most_members: int = 8, held_out: float = 0.1, seed: int = 0) -> None:
        self.most_members, self.held_out, self.seed = most_members, held_out, seed

    def _check_settings(self) -> None:
        super()._check_settings()
        require_number("most_members", self.most_members, least=1, whole=True)

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        return super().needs_to_score or ("features",)

    def _recipe(self) -> Sequence[Detector]:
        return ()

    def _weights(self) -> Sequence[float] | None:
        return self.weights_

    def _fit(
        self,
        train: FeatureSource,
        held_out: FeatureSource | None = None,
        stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]] | None = None,
    ) -> None:
        train, held_out = apart(train, held_out, float(self.held_out), int(self.seed))
        self.choice_ = self.weights_ = None
        if stand_ins is None:
            known = with_clusters(train, int(self.seed)) if is_one_class(train) else train
            members = [member.fresh().to(self._device) for member in default_members(train, known)]
            self.members_ = tuple(one.fit(known if "labels" in one.needs_to_fit else train) for one in members)
            self._calibrate(held_out)
        else:
            most, seed = int(self.most_members), int(self.seed)
            self.choice_ = choose(train, held_out, stand_ins, most_members=most, seed=seed, device=self._device)
            chosen = self.choice_.detector
            self.members_, self.calibrations_, self.sum_ = chosen.members_, chosen.calibrations_, chosen.sum_
            self.weights_ = None if chosen.weights is None else tuple(chosen.weights)
            self._moved()

    def _notes(self) -> dict[str, Any]:
        return super()._notes() | ({} if self.weights_ is None else {"weights": list(self.weights_)})

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.weights_ = tuple(self._told["weights"]) if "weights" in self._told else None
        super()._load_state(state)


def is_one_class(train: FeatureSource) -> bool:
    """Whether nothing tells classes apart: there are no logits, and no labels or a single one."""
    return "logits" not in train.shapes and ("labels" not in train.shapes or len(labels_of(train).unique()) == 1)


def with_clusters(train: FeatureSource, seed: int) -> FeatureSet:
    """Rows, 50,000 at most, with their cluster as label: of 1 to 20 clusters those that make rows left out most likely."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(train), dtype=torch.bool)
    chosen[torch.randperm(len(train), generator=generator)[:MOST]] = True
    names = [name for name in train.row_fields if name != "labels"]
    pieces = [*Part(train, chosen).batches(Detector.rows_at_once, names)]  # other rows are read, and not kept
    rows = FeatureSet(**{name: torch.cat([piece[name] for piece in pieces]) for name in names}, about=train.about)
    return clustered(rows, _count(rows, generator, seed), seed=seed)


def _count(rows: FeatureSet, generator: torch.Generator, seed: int) -> int:
    order = torch.randperm(len(rows), generator=generator)
    left_out, own = order[: len(rows) // UNSEEN], order[len(rows) // UNSEEN :]
    z, part = normalise(rows.features.double()), FeatureSet(rows.features[own])
    if z.shape[1] > WIDEST:
        z = z @ torch.randn(z.shape[1], WIDEST, generator=generator, dtype=z.dtype) / WIDEST**0.5

    def likelihood(count: int) -> float:
        mixture = MixturePrior().fit(z[own], clustered(part, count, seed=seed).labels)
        return float(mixture.log_prob(z[left_out]).mean())

    return max((count for count in COUNTS if count == 1 or len(own) >= FEWEST * count), key=likelihood)
