"""Choosing the members of a fused detector without OOD data: by how well they tell ID rows from stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.detectors.base import Detector, lacking, smallest_class
from outfield.detectors.combined.fused import Calibration, Calibrations, Fused, apart, halves
from outfield.detectors.combined.members import names_of
from outfield.detectors.combined.weights import KEPT, Kind, Terms, best_setting, by_level, left_out, loss, weight_path
from outfield.detectors.distance.cosine_mean_she import CosineMean
from outfield.detectors.distance.kde_nnguide_relation import KDE, NNGuide
from outfield.detectors.distance.knn import KNN
from outfield.detectors.distance.ssd_mixture_rmds import RMDS, SSD
from outfield.detectors.ebm_energy_corrected import EnergyCorrected
from outfield.detectors.head.gradnorm_nci_fdbd import fDBD
from outfield.detectors.head.vim import ViM
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import GEN, EnergyLogits, MaxLogit
from outfield.errors import DivergenceError, InputError, as_ours
from outfield.features import FIELDS, FeatureSource, Part, feature_stand_ins
from outfield.partners import LEVELS, StandIns
from outfield.progress import bar

SPLIT = 0.1  # share of the training rows that is held out where no held-out rows are given
FOLDS = 10  # parts of the ID rows, of which all but one calibrate: see folded
AUTO = "auto"  # what a user says instead of views to have them chosen
CHOICES = ("one", "flip", "six")  # views that are tried: they cost 1, 2 and 6 passes
# detectors that learn in seconds and look at different things
CANDIDATES = (
    *(EnergyLogits(), MaxLogit(), GEN(), KNN(k=1), KNN(k=5), KNN(k=50), SSD(), SSD(ridge=0.3), SSD(ridge=1.0)),
    *(CosineMean(), KDE(), RMDS(), ViM(), fDBD(), NNGuide()),
)
# of the prior that a network corrects: how much the network counts is the one number of it worth choosing
TEMPERATURES = (1000.0, 8000.0)
ROWS_TO_LEARN = 5000  # with fewer the network hardly learns anything


@dataclass(frozen=True)
class Trial:
    """One detector, or a weighted sum of several, and how it told ID rows from stand-ins.

    Attributes:
        weights: how much each member counts, by its name; the heaviest 1.
        fpr95: the share of each stand-in set that is accepted where 95 % of the ID rows are, by the set's name.
        near: mean over the sets that stand for near OOD.
        far: mean over those that stand for far OOD.
        loss: the mean share accepted where 90, 93, 95 and 97 % of the ID rows are; near and far count equally, however many sets
            stand for each.
        left_out: the same of sums with so many members, each on a kind of stand-in that took no part in the fit of its weights;
            None where no kind can be left out, and of single candidates.
        real: as ``fpr95``, of real OOD sets, which were looked at after the choice; empty where there were none.
    """

    weights: Mapping[str, float]
    fpr95: Mapping[str, float]
    near: float
    far: float
    loss: float
    left_out: float | None
    real: Mapping[str, float]

    @property
    def members(self) -> tuple[str, ...]:
        """The detectors, in words."""
        return tuple(self.weights)

    @property
    def mean(self) -> float:
        """Mean FPR95, near and far counted equally."""
        return (self.near + self.far) / 2


@dataclass(frozen=True)
class Choice:
    """What :func:`choose` found.

    Attributes:
        detector: the chosen detector, fitted.
        chosen: how it told ID rows from stand-ins.
        trials: the sum that was fitted with each number of members, the fewest first; the chosen one is among them.
        singles: every candidate alone, the best first.
        l2: λ of the chosen weights.
        skipped: candidates that could not be fitted, and why.
    """

    detector: Fused
    chosen: Trial
    trials: Sequence[Trial]
    singles: Sequence[Trial]
    l2: float
    skipped: Mapping[str, str]

    @property
    def weights(self) -> Mapping[str, float]:
        """How much each member of the chosen detector counts; the heaviest 1."""
        return self.chosen.weights


def choose(
    train: FeatureSource,
    held_out: FeatureSource | None = None,
    stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]] | None = None,
    candidates: Sequence[Detector] | None = None,
    *,
    most_members: int = 8,
    real: Mapping[str, FeatureSource] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Choice:
    """The fused detector that tells held-out ID rows best from stand-ins for OOD data; no OOD data is used.

    Every candidate is fitted once. One half of the held-out rows calibrates the candidates and chooses: the weights of the sum
    are those of a logistic regression of these rows against stand-ins (:mod:`outfield.detectors.combined.weights`). How many
    members it has and how strongly weights are drawn to 0 is decided by leaving out one kind of stand-in after the other:
    eight members and λ = 0.01, unless others are clearly better. The other half of the rows only calibrates the sum, so that
    its p-values are valid.

    Args:
        train: ID training rows.
        held_out: ID rows that were not trained on: they calibrate, and are what stand-ins are told from. A tenth of the
            training rows, which are then not trained on, if None.
        stand_ins: rows that stand for OOD data, ``{"near": {name: rows}, "far": {name: rows}}`` with at least one level, or
            :func:`outfield.stand_ins` of held-out images with ``map(backbone.extract)``. Made of the held-out rows if None,
            which tell much less (:func:`outfield.feature_stand_ins`).
        candidates: the detectors to choose from; :func:`outfield.detectors.combined.choice.default_candidates` if None.
        most_members: how many detectors the sum may have.
        real: real OOD sets by name, looked at after the choice, to compare: they decide nothing.
        seed: of the split of held-out rows.
        device: where to fit and score.

    Raises:
        InputError: no stand-ins, no candidates, or held-out rows that are training rows.
        TooFewSamplesError: too few held-out rows.
    """
    require_number("most_members", most_members, least=1, whole=True)
    require_number("seed", seed, least=0, whole=True)
    most_members, seed = int(most_members), int(seed)
    train, held_out = apart(train, held_out, SPLIT, seed)
    chooses = halves(len(held_out), seed)[0]
    mask = torch.zeros(len(held_out), dtype=torch.bool).index_fill(0, chooses, True)
    named = _checked_stand_ins(feature_stand_ins(Part(held_out, mask), seed=seed) if stand_ins is None else stand_ins)
    wanted = default_candidates(train) if candidates is None else candidates
    good = isinstance(wanted, Sequence) and bool(wanted) and all(isinstance(one, Detector) for one in wanted)
    require(good, "candidates", candidates, "a list of detectors, at least one")
    sets = isinstance(real, Mapping | None) and all(isinstance(one, FeatureSource) for one in (real or {}).values())
    require(sets, "real", real, 'OOD sets by name, such as {"svhn": rows}')
    fitted, skipped = _fitted(wanted, train, device)
    if not fitted:
        raise InputError("no candidate could be fitted: " + "; ".join(map(": ".join, skipped.items())))
    names = names_of(fitted)
    rows = {("", ""): held_out, **named, **{("real", name): data for name, data in (real or {}).items()}}
    scores = _scores(fitted, rows)
    terms = folded(scores.pop(("", ""))[chooses], scores)
    with bar("leaving out kinds of stand-ins"):
        losses = left_out(terms, most_members)
    l2, count = best_setting(losses, most_members)
    path = weight_path(terms, l2, most_members)
    unseen = {size: sum(by_level(losses[l2, size])) / 2 for size in path if losses}
    trials = {size: _trial(names, terms, path[size], unseen.get(size)) for size in sorted(path)}
    taken = max(size for size in path if size <= count)
    members = path[taken].nonzero().flatten().tolist()
    weights = None if len(members) == 1 else [float(path[taken][i]) for i in members]
    detector = Fused.of_fitted([fitted[i] for i in members], held_out, seed=seed, weights=weights)
    each = torch.eye(len(names), dtype=torch.float64)
    singles = sorted((_trial(names, terms, one, None) for one in each), key=lambda trial: trial.loss)
    return Choice(detector, trials[taken], [*trials.values()], singles, l2, skipped)


def _checked_stand_ins(
    stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]],
) -> dict[Kind, FeatureSource]:
    if isinstance(stand_ins, StandIns):
        stand_ins = stand_ins.by_level()
    good = isinstance(stand_ins, Mapping) and set(stand_ins) <= set(LEVELS)
    good = good and all(isinstance(sets, Mapping) for sets in stand_ins.values()) and any(stand_ins.values())
    shown = list(stand_ins) if isinstance(stand_ins, Mapping) else stand_ins
    right = 'sets of rows by level, such as {"near": {"turned": rows}, "far": {"blocks": rows}}'
    require(good, "stand_ins", shown, right)
    return {(level, name): rows for level, sets in stand_ins.items() for name, rows in sets.items()}


def _fitted(candidates: Sequence[Detector], train: FeatureSource, device: str) -> tuple[list[Detector], dict[str, str]]:
    """Fitted copies of the candidates, and those that cannot be fitted on this data with the reason."""
    fitted, skipped = [], {}
    for candidate in candidates:
        with as_ours(f"{candidate!r:.100} cannot be fitted", InputError, InputError):
            candidate.check_settings()
    with bar("fitting candidates", len(candidates), "detectors") as advance:
        for i, candidate in enumerate(candidates):
            try:
                fitted.append(candidate.fresh().to(device).fit(train))
            except (InputError, DivergenceError) as error:
                skipped[repr(candidate)] = str(error)
            advance(i + 1)
    return fitted, skipped


def _scores(fitted: Sequence[Detector], rows: Mapping[Kind, FeatureSource]) -> dict[Kind, Tensor]:
    """The candidates' scores of each set (n, M), float64."""
    columns: dict[Kind, list[Tensor]] = {kind: [] for kind in rows}
    with bar("scoring candidates", len(fitted), "detectors") as advance:
        for i, detector in enumerate(fitted):
            for kind, data in rows.items():
                columns[kind].append(detector.score(data).double())
            advance(i + 1)
    return {kind: torch.stack(found, dim=1) for kind, found in columns.items()}


def folded(ids: Tensor, others: Mapping[Kind, Tensor]) -> Terms:
    """The terms, as in Fused, of scores of ID rows in random order (n, M) and of other sets.

    Each tenth of a set is calibrated on the ID rows that are not in the same tenth of these. So the calibration of an ID row does
    not know it, and treats ID rows and others alike: where all scores are equal, the terms are, too.
    """
    terms = Terms(torch.empty_like(ids), {kind: torch.empty_like(rows) for kind, rows in others.items()})
    for i in range(FOLDS):
        kept = torch.arange(len(ids)) % FOLDS != i
        calibrations = Calibrations([Calibration.of(column) for column in ids[kept].unbind(1)])
        for scores, found in ((ids, terms.ids), *((others[kind], terms.others[kind]) for kind in others)):
            found[i::FOLDS] = calibrations.surprise(scores[i::FOLDS])
    return terms


def _trial(names: Sequence[str], terms: Terms, weights: Tensor, unseen: float | None) -> Trial:
    accepted = {kind: shares[0] for kind, shares in terms.accepted(weights[:, None]).items()}
    fpr95 = {kind: float(shares[KEPT.index(0.95)]) for kind, shares in accepted.items()}
    near, far = by_level(fpr95)
    return Trial(
        {name: weight for name, weight in zip(names, weights.tolist(), strict=True) if weight},
        {name: value for (level, name), value in fpr95.items() if level in LEVELS}, near, far, loss(accepted), unseen,
        {name: value for (level, name), value in fpr95.items() if level == "real"},
    )  # fmt: skip


class Rows(NamedTuple):
    """What a choice is made by, all of the same views."""

    train: FeatureSource
    held_out: FeatureSource
    stand_ins: StandIns[Any]


@dataclass(frozen=True)
class ViewsChoice:
    """What :func:`choose_views` found.

    Attributes:
        views: the best ones.
        losses: :attr:`Trial.loss` of the detector that is chosen with each, by the views' name.
    """

    views: str
    losses: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.views} ({', '.join(f'{name} {100 * loss:.1f}' for name, loss in self.losses.items())})"


def choose_views(rows_of: Callable[[str], Rows], device: str = "auto", names: Sequence[str] = CHOICES) -> ViewsChoice:
    """The views whose detector tells held-out ID rows best from stand-ins, those that cost least first; one is read at a time."""
    losses = {}
    for name in names:
        rows = rows_of(name)
        losses[name] = choose(rows.train, rows.held_out, rows.stand_ins, device=device).chosen.loss
    return ViewsChoice(min(losses, key=lambda name: losses[name]), losses)


def default_candidates(train: FeatureSource) -> list[Detector]:
    """Detectors that can be fitted on these rows: of logits, of features, a mixture on each stage, and a corrected one."""
    found: list[Detector] = [*CANDIDATES]
    found += [SSD(field=name) for name in train.shapes if FIELDS[name].is_space and name != "features"]
    if len(train) >= ROWS_TO_LEARN:
        found += [EnergyCorrected.quick(temperature) for temperature in TEMPERATURES]
    most = smallest_class(train)
    return [one for one in found if _can_be_fitted(one, train, most)]


def default_members(train: FeatureSource, labelled: FeatureSource | None = None) -> list[Detector]:
    """What is added up where nothing can choose: a detector each of logits, neighbours, the mixture and an earlier stage."""
    most, known = smallest_class(train), train if labelled is None else labelled
    # a rare class costs neighbours, no member
    wanted = (EnergyLogits(), KNN(k=min(5, most)), SSD(), SSD(field="stage2"))
    return [one for one in wanted if _can_be_fitted(one, known, most)]


def _can_be_fitted(detector: Detector, train: FeatureSource, neighbours: int) -> bool:
    """Whether the rows have what it needs, and its k-th neighbour may lie in the class of the row."""
    if lacking(train, (detector.field, *detector.needs_to_fit, *detector.needs_to_score)):
        return False
    return int(getattr(detector, "k", 1)) <= neighbours
