"""Scores of fitted detectors as functions that ``torch.export`` can trace, for any number of rows.

Most detectors' own ``_score`` is such a function. The others look at a bank in pieces, search in sorted tables or ask faiss;
what stands here in their place gives the same numbers by products, comparisons and ``topk`` over all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outfield.detectors import (
    DETECTORS,
    KDE,
    KNN,
    LARGEST,
    LEAST_SQUARE,
    ODIN,
    Batch,
    Calibration,
    CombinedDetector,
    CombOOD,
    ComposedDetector,
    Detector,
    NNGuide,
    Relation,
    Summed,
    directions,
)
from outfield.energy import normalise
from outfield.errors import InputError

Score = Callable[[Batch], Tensor]
"""From fields by their names, (n, D) each, to scores (n,)."""


def scorer(detector: Detector) -> Score:
    """What gives a fitted detector's scores (n,), float32, of the fields that it needs.

    Raises:
        InputError: the detector cannot be exported.
    """
    if isinstance(detector, ODIN):
        raise InputError(
            f"{type(detector).__name__} cannot be exported: what it scores takes a gradient through the network; these can: "
            f"{', '.join(exportable())}, and Fused, Auto and HEAT of them"
        )
    formula = FORMULAS.get(type(detector)._score)
    inside: Score = detector._score if formula is None else formula(detector)

    def score(fields: Batch) -> Tensor:
        own = {"features" if name == detector.field else name: fields[name] for name in detector.needs_to_score}
        return inside(own).clamp(-LARGEST, LARGEST).float()

    return score


def exportable() -> tuple[str, ...]:
    """Names of the detectors that are exported by themselves."""
    return tuple(
        name for name, cls in DETECTORS.items() if not issubclass(cls, ODIN) and not issubclass(cls, CombinedDetector)
    )


def kth_distance(bank: Tensor, k: int) -> Callable[[Tensor], Tensor]:
    """‖z − b_(k)‖ (n,), float64, of rows z (n, D) to the k-th nearest row of a bank (M, D).

    The nearest rows have the largest z·b − ½ ‖b‖², taken in float64; the distance itself is that of the difference.
    """
    half_squares = bank.double().square().sum(1) / 2

    def distance(z: Tensor) -> Tensor:
        wide = z.double()
        closeness = wide @ bank.double().T - half_squares
        place = closeness.topk(k, dim=1).indices[:, k - 1]
        return (wide - bank[place].double()).square().sum(1).sqrt()

    return distance


def cosines_to(bank: Tensor) -> Callable[[Tensor], Tensor]:
    """Cosines (n, M), float64, of features (n, D) to the rows of a bank (M, D)."""
    lengths = bank.double().square().sum(1).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    return lambda features: directions(normalise(features)) @ bank.double().T / lengths


def _knn(detector: KNN) -> Score:
    distance = kth_distance(detector.bank_, int(detector.k))
    return lambda batch: distance(normalise(batch["features"]))


def _combood(detector: CombOOD) -> Score:
    distance = kth_distance(detector.bank_, int(detector.k))

    def score(batch: Batch) -> Tensor:
        z = normalise(batch["features"])
        squares = distance(z).float().double().square()
        x = detector._transformed((z.double() - detector.centre_) / detector.scale_) - detector.mean_
        mahalanobis_sq = (x @ detector.whitening_.T).square().sum(1)
        return math.sqrt(z.shape[1]) * squares.clamp_min(LEAST_SQUARE).log() + mahalanobis_sq

    return score


def _kde(detector: KDE) -> Score:
    cosines, kappa, rows = cosines_to(detector.bank_), float(detector.kappa), len(detector.bank_)
    return lambda batch: math.log(rows) - (kappa * (cosines(batch["features"]) - 1)).logsumexp(1)


def _nnguide(detector: NNGuide) -> Score:
    cosines, energies, k = cosines_to(detector.bank_), detector.energies_, int(detector.k)

    def score(batch: Batch) -> Tensor:
        guidance = (cosines(batch["features"]) * energies).topk(k, dim=1).values.mean(1)
        return -batch["logits"].double().logsumexp(1) * guidance

    return score


def _relation(detector: Relation) -> Score:
    cosines, least = cosines_to(detector.bank_), float(detector.threshold)

    def score(batch: Batch) -> Tensor:
        p = batch["logits"].double().softmax(1)
        related = cosines(batch["features"]).relu() * (p @ detector.probabilities_.double().T)
        return -torch.where(related > least, related, 0.0).sum(1)

    return score


def _columns(detector: CombinedDetector) -> Score:
    """The members' scores (n, M), float64."""
    members = [scorer(member) for member in detector.members_]
    return lambda batch: torch.stack([member(batch).double() for member in members], dim=1)


def _summed(detector: Summed) -> Score:
    columns = _columns(detector)
    terms = [one.standard if detector.rule == "z" else surprise(one) for one in detector.calibrations_]
    weights = detector._weights() or [1.0] * len(terms)

    def score(batch: Batch) -> Tensor:
        found = zip(weights, terms, columns(batch).unbind(1), strict=True)
        return torch.stack([weight * term(column) for weight, term, column in found], dim=1).sum(1)

    return score


def _composed(detector: ComposedDetector) -> Score:
    columns = _columns(detector)
    return lambda batch: detector._combine((columns(batch) - detector.means_) / detector.scales_)


def surprise(calibration: Calibration) -> Callable[[Tensor], Tensor]:
    """:meth:`Calibration.surprise`, with the places among the held-out scores counted instead of searched."""
    h, n, spread = calibration.scores, len(calibration.scores), calibration.spread

    def found(scores: Tensor) -> Tensor:
        s = scores.double()
        above = (h[None, :] <= s[:, None]).sum(1)
        low, high = h[(above - 1).clamp_min(0)], h[above.clamp_max(n - 1)]
        inside = (above > 0) & (above < n)
        between = torch.where(inside, (s - low) / torch.where(inside, high - low, 1.0), 0.0)
        return -torch.log1p(-(above + between) / (n + 1)) + (s - h[-1]).clamp_min(0.0) / spread

    return found


FORMULAS: dict[Any, Callable[[Any], Score]] = {
    KNN._score: _knn,
    CombOOD._score: _combood,
    KDE._score: _kde,
    NNGuide._score: _nnguide,
    Relation._score: _relation,
    Summed._score: _summed,
    ComposedDetector._score: _composed,
}
"""By the method in whose place it stands, so that a detector which inherits that has it, too, and one with its own has not."""
