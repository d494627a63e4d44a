"""What a guard decides beyond OOD or not: a limit for each predicted class, and which answers are accepted as probably right."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.detectors import DETECTORS, Detector
from outfield.errors import InputError, OutfieldError
from outfield.features import FeatureSet, stratified_rows
from outfield.files import Record
from outfield.guard.verdict import UNKNOWN, UNSURE
from outfield.percent import percent
from outfield.scores import Acceptance, ClassThresholds, Threshold, aurc, fewest

log = logging.getLogger(__name__)
GLOBAL, PER_CLASS = "global", "per class"
"""What a threshold may be."""
RANKERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("MSP", {}), ("MaxLogit", {}), ("GEN", {}), ("SIRC", {"second": "norm1"}), ("SIRC", {"second": "residual"}),
)  # fmt: skip
"""Detectors that may rank answers by how likely they are wrong; all are small in a file."""


@dataclass(frozen=True)
class Decision:
    """Limits for each predicted class, and a rule that accepts answers; either may be missing.

    Attributes:
        per_class: held-out scores by predicted class.
        ranker: a detector whose score is the higher, the more likely the predicted class is wrong.
        acceptance: which of its scores are accepted.
    """

    per_class: ClassThresholds | None = None
    ranker: Detector | None = None
    acceptance: Acceptance | None = None

    def __post_init__(self) -> None:
        if (self.ranker is None) != (self.acceptance is None):
            raise InputError("an acceptance goes with the detector whose scores it limits")
        if self.acceptance is not None and self.acceptance.source != self.ranker.fingerprint():  # type: ignore[union-attr]
            raise InputError(f"the acceptance was chosen for {self.acceptance.source}, not for this detector")

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of rows that it looks at."""
        return () if self.ranker is None else self.ranker.needs_to_score

    def known(self, scores: Tensor, classes: Tensor | None, threshold: Threshold) -> tuple[Tensor, Tensor]:
        """p-values and which rows are OOD, by the class of each or by one threshold."""
        if self.per_class is None:
            return threshold.p_value(scores), threshold.is_ood(scores)
        if classes is None:
            raise InputError("thresholds for each class need the logits of the rows")
        numbers = classes.numpy()
        return self.per_class.p_value(scores, numbers), self.per_class.is_ood(scores, numbers)

    def more(
        self, features: FeatureSet, classes: Sequence[int | None], is_ood: Tensor, names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """What verdicts on rows have beside that."""
        found: list[dict[str, Any]] = [{} for _ in classes]
        if self.per_class is not None:
            for one, index in zip(found, classes, strict=True):
                one["group"] = self.per_class.group(index or 0, names)
        if self.ranker is not None and self.acceptance is not None:
            scores = self.ranker.score(features)
            accepted, chances = self.acceptance.accepts(scores) & ~is_ood, self.acceptance.p_right(scores)
            for one, accept, chance, ood in zip(
                found, accepted.tolist(), chances.tolist(), is_ood.tolist(), strict=True
            ):
                one |= {"accept": accept, "p_right": chance, "why_not": None if accept else UNKNOWN if ood else UNSURE}
        return found

    def recalibrated(
        self, model: Detector, threshold: Threshold, limits: FeatureSet, tests: FeatureSet | None
    ) -> Decision:
        """The same decision on other held-out rows: pools of classes and the ranking of answers stay, since others chose them."""
        made = Decision()
        if (own := self.per_class) is not None:
            # How many rows come in each pool is told by those that set the limits until now, and not by these.
            pools = own.pool_of.numpy()[_classes(limits)]
            inner = ClassThresholds.fit(model.score(limits), pools, [len(one) for one in own.references], own.keep)
            made = Decision(ClassThresholds(own.keep, inner.pool_of[own.pool_of], inner.references))
        if self.ranker is None or self.acceptance is None or tests is None:
            return made
        first, second = (
            (part, made.known(model.score(part), predicted(part), threshold)[1]) for part in (limits, tests)
        )
        return Decision(made.per_class, self.ranker, tested(self.ranker, first, second, self.acceptance.accuracy))

    def record(self) -> Record:
        """What a file holds of it."""
        parts = {"per_class": self.per_class, "ranker": self.ranker, "acceptance": self.acceptance}
        return Record.of({}, **{name: one.record() for name, one in parts.items() if one is not None})

    @classmethod
    def from_record(cls, record: Record, device: str) -> Decision:
        """What :meth:`record` gave."""
        kinds: dict[str, Any] = {"per_class": ClassThresholds, "ranker": Detector, "acceptance": Acceptance}
        found = {name: kinds[name].from_record(record.part(name)) for name in record.header}
        if "ranker" in found:
            found["ranker"].to(device)
        return cls(**found)

    def lines(self, unit: str, names: Sequence[str] = ()) -> dict[str, str]:
        """What ``outfield guard show`` says of it."""
        told = {}
        if (own := self.per_class) is not None:
            counts = own.pool_of.bincount()
            alone = int((counts == 1).sum())
            shared = [names[i] if names else str(i) for i in range(len(own.pool_of)) if counts[own.pool_of[i]] > 1]
            rest = f"; share one threshold: {', '.join(shared[:12])}{', …' * (len(shared) > 12)}" if shared else ""
            told["per class"] = f"{alone:,} classes have thresholds of their own{rest}"
        if (rule := self.acceptance) is not None:
            total, accepted, wrong = rule.tested
            told["accepts"] = (
                f"answers of which at least {100 * rule.accuracy:.4g} % are right, with a confidence of {rule.confidence:g}, "
                f"ranked by {self.ranker!r}: {percent(accepted / total)} of {total:,} held-out {unit}, {wrong:,} of these wrong"
            )
        return told


def thresholds_per_class(train: FeatureSet, held_out: FeatureSet, scores: Tensor, keep: float) -> ClassThresholds:
    """A threshold for each class that the network predicts; training rows say which are rare."""
    if train.logits is None or held_out.logits is None:
        raise InputError("threshold is 'per class', but the rows have no logits, which say the predicted class")
    counts = train.logits.argmax(1).bincount(minlength=train.logits.shape[1])
    return ClassThresholds.fit(scores, held_out.logits.argmax(1).numpy(), counts, keep)


def acceptance_of(
    train: FeatureSet,
    first: tuple[FeatureSet, Tensor],
    second: tuple[FeatureSet, Tensor],
    accuracy: float,
    kept: Callable[[Detector], Detector],
    device: str | torch.device,
) -> tuple[Detector, Acceptance]:
    """The detector that ranks answers best, and the limit on its scores.

    Args:
        train: rows that detectors are fitted on.
        first: labelled rows that choose the detector and order the limits, and which of these are OOD.
        second: labelled rows that nothing else saw, which test the limits, and which of these are OOD.
        accuracy: share of right answers among accepted ones.
        kept: a detector as a file will have it.
        device: where it runs.
    """
    ranked: list[tuple[float, int, Detector]] = []
    for place, (name, settings) in enumerate(RANKERS):
        with contextlib.suppress(OutfieldError):  # of a network without what this detector needs
            ranker = kept(DETECTORS[name](**settings).to(device).fit(train))
            rows = first[0][~first[1]]
            ranked.append((aurc(ranker.score(rows), _wrong(rows)), place, ranker))
    if not ranked:
        raise InputError("accuracy needs the logits of the rows, and there are none")
    area, _, ranker = min(ranked)
    log.info("%r ranks answers best: area under risk and coverage %.4f", ranker, area)
    return ranker, tested(ranker, first, second, accuracy)


def divided(rows: FeatureSet, keep: float, accuracy: float | None, seed: int) -> tuple[FeatureSet, FeatureSet | None]:
    """Held-out rows that set thresholds, and those that test an accuracy, if there is one."""
    if accuracy is None:
        return rows, None
    count = max(fewest(keep), len(rows) // 3)
    chosen = stratified_rows(len(rows), count, seed=seed, labels=rows.labels)
    return rows[chosen], rows[~chosen]


def tested(
    ranker: Detector, first: tuple[FeatureSet, Tensor], second: tuple[FeatureSet, Tensor], accuracy: float
) -> Acceptance:
    """The limit on a ranking of answers: the first rows order the limits, the second test them."""
    scores = [np.where(ood, np.inf, ranker.score(rows).double()) for rows, ood in (first, second)]
    given = scores[1], _wrong(second[0]), scores[0], _wrong(first[0])
    return Acceptance.fit(*given, accuracy, source=ranker.fingerprint())


def predicted(rows: FeatureSet) -> Tensor | None:
    """The class that the network puts each row in; None where there are no logits."""
    return None if rows.logits is None else rows.logits.argmax(1)


def _classes(rows: FeatureSet) -> np.ndarray:
    if (found := predicted(rows)) is None:
        raise InputError("thresholds for each class need the logits of the rows")
    return found.numpy()


def _wrong(rows: FeatureSet) -> Tensor:
    """Whether the network puts each labelled row in another class."""
    if rows.logits is None or rows.labels is None:
        raise InputError("accuracy needs rows with logits and with labels")
    return torch.ne(rows.logits.argmax(1), rows.labels)
