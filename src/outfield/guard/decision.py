"""What a guard decides beyond OOD or not: a limit for each predicted class, and which answers are accepted as probably right."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from outfield.backbone import match_labels
from outfield.detectors import DETECTORS, Detector
from outfield.errors import InputError, OutfieldError, TooFewSamplesError
from outfield.features import FeatureSet, stratified_rows
from outfield.files import Record
from outfield.guard.verdict import DECIDED, UNKNOWN, UNSURE
from outfield.images import open_images
from outfield.percent import percent
from outfield.scores import Acceptance, ClassThresholds, RiskCoverage, Threshold, aurc, fewest

if TYPE_CHECKING:
    from outfield.guard.guard import Guard

log = logging.getLogger(__name__)
GLOBAL, PER_CLASS = "global", "per class"  # what a threshold may be
# Detectors that may rank answers by how likely they are wrong, and whether the chance to be wrong, of which SIRC's score is the
# logarithm, is divided by the p-value; all are small in a file. Those that look at more of a row stand further down.
RANKERS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("MSP", {}, False), ("MaxLogit", {}, False), ("GEN", {}, False),
    ("SIRC", {"second": "norm1"}, False), ("SIRC", {"second": "residual"}, False), ("RMDS", {}, False),
    ("SIRC", {"second": "norm1"}, True), ("SIRC", {"second": "residual"}, True),
)  # fmt: skip
RESAMPLES = 100
SHOWN = 12  # pools of classes that are told
Fitted: TypeAlias = Callable[[Detector], Detector]
Judged: TypeAlias = tuple[FeatureSet, Tensor, Tensor]  # rows, their p-values, and which are OOD


@dataclass(frozen=True)
class Decision:
    """Limits for each predicted class, and a rule that accepts answers; either may be missing.

    Attributes:
        per_class: held-out scores by predicted class.
        ranker: a detector whose score is the higher, the more likely the predicted class is wrong.
        acceptance: which of its scores are accepted.
        by_p_value: whether −log p, p the p-value, is added to that score: what is less known is accepted later.
    """

    per_class: ClassThresholds | None = None
    ranker: Detector | None = None
    acceptance: Acceptance | None = None
    by_p_value: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of rows that it looks at."""
        return () if self.ranker is None else self.ranker.needs_to_score

    @property
    def columns(self) -> tuple[str, ...]:
        """What verdicts have besides those of guards without a decision."""
        return (*(("group",) if self.per_class is not None else ()), *(DECIDED if self.ranker is not None else ()))

    def known(self, scores: Tensor, rows: FeatureSet, threshold: Threshold) -> tuple[Tensor, Tensor]:
        """p-values and which rows are OOD, by the predicted class of each or by one threshold."""
        if self.per_class is None:
            return threshold.p_value(scores), threshold.is_ood(scores)
        numbers = _classes(rows).numpy()
        return self.per_class.p_value(scores, numbers), self.per_class.is_ood(scores, numbers)

    def judged(self, model: Detector, threshold: Threshold, *parts: FeatureSet) -> list[Judged]:
        """Rows with what is known of them."""
        return [(rows, *self.known(model.score(rows), rows, threshold)) for rows in parts]

    def more(self, rows: FeatureSet, known: tuple[Tensor, Tensor], names: Sequence[str]) -> list[dict[str, Any]]:
        """What verdicts on rows have beside what :meth:`known` gave."""
        found: list[dict[str, Any]] = [{} for _ in range(len(rows))]
        if self.per_class is not None:
            classes = _classes(rows).tolist()
            groups = {index: self.per_class.group(index, names) for index in {*classes}}
            found = [{"group": groups[index]} for index in classes]
        if self.ranker is not None and self.acceptance is not None:
            p_values, is_ood = known
            scores = ranks(self.ranker, self.by_p_value, rows, p_values)
            told = (self.acceptance.accepts(scores) & ~is_ood, self.acceptance.p_right(scores), is_ood)
            for one, accept, chance, ood in zip(found, *(column.tolist() for column in told), strict=True):
                one |= {"accept": accept, "p_right": chance, "why_not": None if accept else UNKNOWN if ood else UNSURE}
        return found

    def recalibrated(self, model: Detector, threshold: Threshold, limits: FeatureSet, tests: Any) -> Decision:
        """The same decision on other held-out rows: pools of classes and the ranking of answers stay, since others chose them."""
        made = Decision()
        if (own := self.per_class) is not None:
            # How many rows come in each pool is told by those that set the limits until now, and not by these.
            pools = own.pool_of[_classes(limits)]
            inner = ClassThresholds.fit(model.score(limits), pools, [len(one) for one in own.references], own.keep)
            made = Decision(ClassThresholds(own.keep, inner.pool_of[own.pool_of], inner.references))
        if self.ranker is None or self.acceptance is None or tests is None:
            return made
        first, second = made.judged(model, threshold, limits, tests)
        rule = tested(self.ranker, self.by_p_value, first, second, self.acceptance.accuracy)
        return Decision(made.per_class, self.ranker, rule, self.by_p_value)

    def record(self) -> Record:
        """What a file holds of it."""
        parts = {"per_class": self.per_class, "ranker": self.ranker, "acceptance": self.acceptance}
        inner = {name: one.record() for name, one in parts.items() if one is not None}
        return Record.of({"by_p_value": self.by_p_value}, **inner)

    @classmethod
    def from_record(cls, record: Record, device: str) -> Decision:
        """What :meth:`record` gave."""
        kinds: dict[str, Any] = {"per_class": ClassThresholds, "ranker": Detector, "acceptance": Acceptance}
        found = {name: kind.from_record(record.part(name)) for name, kind in kinds.items() if name in record.header}
        if "ranker" in found:
            found["ranker"].to(device)
        return cls(**found, by_p_value=record.header.get("by_p_value", False))

    def lines(self, unit: str, names: Sequence[str] = ()) -> dict[str, str]:
        """What ``outfield guard show`` says of it."""
        told = {}
        if (own := self.per_class) is not None:
            counts = own.pool_of.bincount()
            alone, several = int((counts == 1).sum()), torch.where(counts > 1)[0]
            shared = [own.group(int((own.pool_of == pool).int().argmax()), names) for pool in several]
            rest = f"; these share one: {'; '.join(shared[:SHOWN])}{'; …' * (len(shared) > SHOWN)}" if shared else ""
            few = f"{alone or 'no'} class has a threshold of its own"
            told["per class"] = (few if alone < 2 else f"{alone:,} classes have thresholds of their own") + rest
        if (rule := self.acceptance) is not None:
            total, accepted, wrong = rule.tested
            promise = f"at least {100 * rule.accuracy:.4g} % are right, with a confidence of {rule.confidence:g}"
            ranking = f"ranked by {self.ranker!r}{' and the p-value' * self.by_p_value}"
            found = f"{percent(accepted / total)} of {total:,} held-out {unit}, {wrong:,} of these wrong"
            told["accepts"] = f"answers of which {promise}, {ranking}: {found}"
        return told


def thresholds_per_class(model: Detector, train: FeatureSet, rows: FeatureSet, keep: float) -> ClassThresholds:
    """A threshold for each class that the network predicts; training rows say which are rare, and which of these are alike."""
    classes, levels = _classes(train), model.score(train).double().cpu()
    counts = classes.bincount(minlength=train.shapes["logits"][1])
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, classes, levels)
    return ClassThresholds.fit(model.score(rows), _classes(rows).numpy(), counts, keep, sums / counts.clamp_min(1))


def acceptance_of(fitted: Fitted, first: Judged, second: Judged, accuracy: float) -> tuple[Detector, Acceptance, bool]:
    """The detector that ranks answers best by the first rows, the limit that the second test, and whether p-values take part."""
    ranked: list[tuple[np.ndarray, Detector, bool]] = []
    rows, p_values, is_ood = first
    if not len(known := rows[~is_ood]):
        raise TooFewSamplesError("all held-out rows are OOD; accuracy needs some that are not")
    for name, settings, by_p_value in RANKERS:
        with contextlib.suppress(OutfieldError):  # of a network without what this detector needs
            ranker = fitted(DETECTORS[name](**settings))
            ranked.append((ranks(ranker, by_p_value, known, p_values[~is_ood]).numpy(), ranker, by_p_value))
    scores, ranker, by_p_value = ranked[best_ranking([scores for scores, _, _ in ranked], wrong_answers(known))]
    log.info("%r ranks answers: area under risk and coverage %.4f", ranker, aurc(scores, wrong_answers(known)))
    return ranker, tested(ranker, by_p_value, first, second, accuracy), by_p_value


def best_ranking(rankings: Sequence[np.ndarray], wrong: Tensor) -> int:
    """The last ranking whose area under risk and coverage is not clearly larger than the smallest, by a standard error.

    ID rows tell how well wrong answers are found, but not OOD inputs: where they tell no difference, what looks at more is taken.
    The error of a difference is that of a Bayesian bootstrap: rows have exponential weights.
    """
    rng = np.random.default_rng(0)
    weights = [np.ones(len(wrong)), *(rng.exponential(size=len(wrong)) for _ in range(RESAMPLES))]
    areas = np.array([[RiskCoverage(scores, wrong, one).aurc() for one in weights] for scores in rankings])
    worse = areas - areas[np.argmin(areas[:, 0])]
    return int(np.flatnonzero(worse[:, 0] <= worse[:, 1:].std(1))[-1])


def ranks(ranker: Detector, by_p_value: bool, rows: FeatureSet, p_values: Tensor) -> Tensor:
    """By how likely the class of each row is wrong (N,), higher = more likely."""
    scores = ranker.score(rows).double().cpu()
    return scores - p_values.log() if by_p_value else scores


def divided(rows: FeatureSet, keep: float, accuracy: float | None, seed: int) -> tuple[FeatureSet, FeatureSet | None]:
    """Held-out rows that set thresholds, and those that test an accuracy, if there is one."""
    if accuracy is None:
        return rows, None
    count = max(fewest(keep), len(rows) // 3)  # of all classes alike: rare ones must not all lie on one side
    chosen = stratified_rows(len(rows), count, seed=seed)
    return rows[chosen], rows[~chosen]


def tested(ranker: Detector, by_p_value: bool, first: Judged, second: Judged, accuracy: float) -> Acceptance:
    """The limit on a ranking of answers: the first rows order the limits, the second test them."""

    def ranking(rows: FeatureSet, p_values: Tensor, is_ood: Tensor) -> tuple[np.ndarray, Tensor]:
        return np.where(is_ood, np.inf, ranks(ranker, by_p_value, rows, p_values)), wrong_answers(rows)

    return Acceptance.fit(*ranking(*second), *ranking(*first), accuracy, source=ranker.fingerprint())


def true_classes(guard: Guard, path: str, count: int) -> Sequence[int | None]:
    """The class of each of so many images or rows of features of a path; None of each where that is not known."""
    labels: Any = None
    with contextlib.suppress(OutfieldError):
        if guard.takes == "images":
            labels = match_labels(open_images(path), guard.names, guard.widths.get("logits", 0))[0]
        elif guard.table is None:
            labels = getattr(guard.reader, "open", guard.features)(path).labels  # texts need not go through the network
    return [None] * count if labels is None or len(labels) != count else labels.tolist()


def predicted(rows: FeatureSet) -> Tensor | None:
    """The class that the network puts each row in; None where there are no logits."""
    return None if rows.logits is None else rows.logits.argmax(1)


def _classes(rows: FeatureSet) -> Tensor:
    if (found := predicted(rows)) is None:
        raise InputError("thresholds for each class need the logits of the rows, which say the predicted class")
    return found


def wrong_answers(rows: FeatureSet) -> Tensor:
    """Whether the network puts each labelled row in another class."""
    if rows.logits is None or rows.labels is None:
        raise InputError("accuracy needs rows with logits and labels, the network's answers and the right ones")
    return rows.logits.argmax(1) != rows.labels
