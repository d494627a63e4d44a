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
TABLE = 2**24  # numbers of a float32 table of cosines that are held at once, where a bank has more than BANK_ROWS rows
SPARE = 10  # how many rows more than k are looked at closely: as many may lie within rounding of the k-th
NUMBERS = 2**22  # numbers of rows that are looked at closely at once
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


def largest_weighted(features: Tensor, bank: Tensor, weights: Tensor, k: int) -> Tensor:
    """The k largest w_i cos(z, b_i) of each row z of features (n, D) over a bank (M, D) → (n, k), float64, descending.

    On a CPU a product in float32 finds k + 10 rows of the bank, and float64 decides between those. Rounding moves a product of
    two rows by (D + 8) u at most, u the unit roundoff, and each of their lengths by half of that: where the last of the rows that
    were found is not farther than twice that below the k-th, others might be as large, and all are looked at in float64.
    """
    count = k + SPARE
    if bank.device.type != "cpu" or count >= len(bank):
        return _largest_of_all(features, bank, weights, k)
    z = normalise(features)
    values, index = merged(_in_float32(z, bank, weights.float(), count), count)
    found = _looked_at_closely(directions(z), bank, weights, index).topk(k, dim=1).values
    error = 2 * (bank.shape[1] + 8) * (torch.finfo(torch.float32).eps / 2) * weights.abs().amax()
    # Unsure also where a weight is too large for float32.
    unsure = ~(values[:, k - 1].double() - values[:, -1].double() > 2 * error)
    if bool(unsure.any()):
        found[unsure] = _largest_of_all(features[unsure], bank, weights, k)
    return found


def _largest_of_all(features: Tensor, bank: Tensor, weights: Tensor, k: int) -> Tensor:
    tables = (table * weights[part] for part, table in cosines(features, bank))
    return merged((table.topk(min(k, table.shape[1]), dim=1) for table in tables), k)[0]


def _in_float32(z: Tensor, bank: Tensor, weights: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The largest w_i z·b_i as float32 gives them, and their rows, of some rows at a time."""
    size = max(BANK_ROWS, TABLE // len(z))
    for start in range(0, len(bank), size):
        table = (z @ bank[start : start + size].T).mul_(weights[start : start + size])
        values, index = table.topk(min(count, table.shape[1]), dim=1)
        yield values, index + start


def _looked_at_closely(z: Tensor, bank: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """w_i cos(z, b_i) of each direction z (n, D) and some rows of the bank, index (n, c) → (n, c), float64."""
    at_once = max(1, NUMBERS // (index.shape[1] * z.shape[1]))
    parts = zip(z.split(at_once), index.split(at_once), strict=True)
    return torch.cat([(directions(bank[i]) @ some[:, :, None])[:, :, 0] * weights[i] for some, i in parts])


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
        best = largest_weighted(batch["features"], self.bank_, self.energies_, int(self.k))
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
