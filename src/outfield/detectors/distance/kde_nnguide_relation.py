"""Detectors of cosines to all training rows, a bounded number at a time: KDE, NNGuide and Relation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import require_number
from outfield.detectors.base import Batch
from outfield.detectors.distance.neighbours import BankDetector, merged
from outfield.detectors.registry import register
from outfield.errors import FileFormatError
from outfield.features import FeatureSource, normalise

BANK_ROWS = 4096  # rows of a bank that are looked at together
# numbers of a bank, at most, whose directions are kept: for a single image they would cost more than all else
KEPT = 2**23
# how far the probabilities of a row may sum to something else than 1 in a file: a thousand of them in half precision
MOST_OFF = 2e-2


def directions(rows: Tensor) -> Tensor:
    """Rows (…, D) as float64 of length 1; a zero row stays zero."""
    return functional.normalize(rows.double(), dim=-1, eps=torch.finfo(torch.float64).tiny)


def cosines(features: Tensor, bank: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The cosines of features (n, D) to the rows of a bank (M, D), in pieces of it: which rows, and a table (n, m), float64."""
    z = directions(normalise(features))
    done = 0
    for piece in _directions_of(bank):
        there = piece.to(z.device)
        yield slice(done, done + len(there)), z @ there.T
        done += len(there)


def _directions_of(bank: Tensor) -> Iterable[Tensor]:
    """:func:`directions` of a bank in pieces; those of a small one are computed once and kept with it."""
    pieces = (directions(piece) for piece in bank.split(BANK_ROWS))
    if bank.numel() > KEPT:
        return pieces
    kept: list[Tensor] | None = getattr(bank, "outfield_directions", None)
    if kept is None:
        kept = [*pieces]
        bank.outfield_directions = kept  # type: ignore[attr-defined]
    return kept


@register
class KDE(BankDetector):
    """Kernel density of the directions of features (Hall et al. 1987).

    score = −log mean_i exp(κ (cos(z, z_i) − 1)) over all training features z_i: minus the logarithm of a density on the sphere
    with von Mises–Fisher kernels, up to a constant. It is 0 where all training features have the direction of z.

    Args:
        kappa: κ, the concentration of a kernel; its width is about 1 / √κ.
        field: the one that it works on: "features", or a stage of the network such as "stage2".
    """

    def __init__(self, kappa: float = 100.0, field: str = "features") -> None:
        self.kappa, self.field = kappa, field

    def _check_settings(self) -> None:
        require_number("kappa", self.kappa, above=0)

    def _score(self, batch: Batch) -> Tensor:
        total = torch.full((len(batch["features"]),), -torch.inf, dtype=torch.float64, device=self.device)
        for _, table in cosines(batch["features"], self.bank_):
            total = torch.logaddexp(total, (float(self.kappa) * (table - 1)).logsumexp(1))
        return math.log(len(self.bank_)) - total


@register
class NNGuide(BankDetector):
    """Energy of the logits, guided by nearest neighbours (Park et al. 2023).

    score = −e(l) · mean of the k largest cos(z, z_i) e(l_i) over all training rows i, with e(l) = log Σ_c exp(l_c).

    The authors take k = 100 of a hundredth of the training rows; here all rows are kept, and k is smaller.

    Args:
        k: How many training rows guide a score.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
        energies_: e(l_i) (N,), float64.
        classes_: number of logits (1,), int64.
    """

    fit_needs = ("logits",)
    score_needs = ("features", "logits")
    learned = (*BankDetector.learned, "energies float64 N", "classes int64 1")

    def __init__(self, k: int = 10, field: str = "features") -> None:
        self.k, self.field = k, field

    def _fit(self, train: FeatureSource) -> None:
        super()._fit(train)
        self.energies_ = self._gathered(train, "logits", _energy)
        self.classes_ = torch.tensor([train.shapes["logits"][1]], device=self.device)

    def _widths(self) -> dict[str, int | None]:
        return {**super()._widths(), "logits": int(self.classes_)}

    def _score(self, batch: Batch) -> Tensor:
        k, tables = int(self.k), cosines(batch["features"], self.bank_)
        guided = (table * self.energies_[part] for part, table in tables)
        best = merged((one.topk(min(k, one.shape[1]), dim=1) for one in guided), k)[0]
        return -_energy(batch["logits"]) * best.mean(1)


@register
class Relation(BankDetector):
    """Sum of relations to training rows, by features and predictions (Kim et al. 2023).

    score = −Σ_i s_i over the training rows i with s_i > τ, where s_i = max(cos(z, z_i), 0) · (p · p_i) and p = softmax(l): a row
    is related to those that look alike to the network and that it takes for the same class.

    Args:
        threshold: τ, which leaves out what is hardly related, of which there is much.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
        probabilities_: p_i (N, K), float32.
    """

    fit_needs = ("logits",)
    score_needs = ("features", "logits")
    learned = (*BankDetector.learned, "probabilities float32 N K")

    def __init__(self, threshold: float = 0.03, field: str = "features") -> None:
        self.threshold, self.field = threshold, field

    def _check_settings(self) -> None:
        require_number("threshold", self.threshold, above=0, most=1)

    def _fit(self, train: FeatureSource) -> None:
        super()._fit(train)
        self.probabilities_ = self._gathered(train, "logits", lambda logits: _softmax(logits).float())

    def _widths(self) -> dict[str, int | None]:
        return {**super()._widths(), "logits": self.probabilities_.shape[1]}

    def _score(self, batch: Batch) -> Tensor:
        p = _softmax(batch["logits"])
        total = torch.zeros(len(p), dtype=torch.float64, device=self.device)
        for part, table in cosines(batch["features"], self.bank_):
            related = table.relu() * (p @ self.probabilities_[part].double().T)
            total += torch.where(related > float(self.threshold), related, 0.0).sum(1)
        return -total

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        if not bool(((self.probabilities_.sum(1) - 1).abs() < MOST_OFF).all()):
            raise FileFormatError("probabilities must sum to 1 in each row; that is not so")


def _energy(logits: Tensor) -> Tensor:
    return logits.double().logsumexp(1)


def _softmax(logits: Tensor) -> Tensor:
    return logits.double().softmax(1)
