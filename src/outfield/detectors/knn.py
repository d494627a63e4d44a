"""Distance to the k-th nearest training feature (Sun et al. 2022)."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, Detector
from outfield.detectors.registry import register
from outfield.energy.projection import normalise
from outfield.errors import OutfieldWarning, TooFewSamplesError
from outfield.features.set import FeatureSource

TABLE_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Size of the largest table of distances held at once without faiss."""
BANK_ROWS = 2**16
"""Rows of the bank looked at together without faiss."""


@register
class KNN(Detector):
    """Distance to the k-th nearest training feature (Sun et al. 2022).

    score = ‖z − z_(k)‖, Euclidean, both normalised.

    The neighbour is found with faiss where it is installed (CPU), else with an exact search in PyTorch; the distance to it
    is then taken from the difference itself, so that a training point scores exactly 0 at k = 1.

    Args:
        k: which neighbour. The paper's 50 and 200 are for 5,000 and 500 samples a class; a k above the smallest class's
            size looks into other classes, and fit warns.

    Attributes:
        bank_: normalised training features (N, D), float32.
    """

    fits_in_pieces = True

    def __init__(self, k: int = 50) -> None:
        self.k = k
        self._index: Any = None
        self._offsets: Tensor | None = None

    def _check_settings(self) -> None:
        require_number("k", self.k, least=1, whole=True)

    def _fit(self, train: FeatureSource) -> None:
        if self.k > len(train):
            raise TooFewSamplesError(f"k is {self.k} but there are only {len(train)} training samples; lower k")
        names = [name for name in ("features", "labels") if name in train.shapes]
        bank = torch.empty(train.shapes["features"], dtype=torch.float32, device=self.device)
        labels, done = [], 0
        for piece in train.batches(self.rows_at_once, names):
            rows = normalise(piece["features"].to(self.device))
            bank[done : done + len(rows)] = rows
            done += len(rows)
            labels.append(piece.get("labels", torch.empty(0)))
        if "labels" in names:
            self._compare_with_classes(torch.cat(labels))
        self.bank_ = bank
        self._moved()

    def _compare_with_classes(self, labels: Tensor) -> None:
        smallest = int(torch.unique(labels, return_counts=True)[1].min())
        if self.k > smallest:
            warnings.warn(
                f"k = {self.k} exceeds the smallest class ({smallest} samples): its k-th neighbour lies in another class; "
                f"lower k to at most {smallest}",
                OutfieldWarning,
                stacklevel=4,
            )

    def _moved(self) -> None:
        self._index = self._offsets = None
        if hasattr(self, "bank_"):
            self.bank_ = self.bank_.to(self.device)

    def _rows(self) -> int:
        if self._use_faiss():
            return self.rows_at_once
        table = TABLE_BYTES.get(self.bank_.device.type, 2**28)
        return max(1, min(self.rows_at_once, table // (4 * min(len(self.bank_), BANK_ROWS))))

    def _use_faiss(self) -> bool:
        return self.bank_.device.type == "cpu" and importlib.util.find_spec("faiss") is not None

    def _score(self, batch: Batch) -> Tensor:
        z = normalise(batch["features"])
        nearest = self._search_faiss(z) if self._use_faiss() else self._search(z)
        return (z - self.bank_[nearest]).square().sum(1).sqrt()

    def _search(self, z: Tensor) -> Tensor:
        if self._offsets is None:
            self._offsets = half_norms(self.bank_)
        return kth_nearest(z, self.bank_, int(self.k), self._offsets)

    def _search_faiss(self, z: Tensor) -> Tensor:
        if self._index is None:
            import faiss

            self._index = faiss.IndexFlatL2(self.bank_.shape[1])
            self._index.add(self.bank_.numpy())
        _, index = self._index.search(z.numpy(), int(self.k))
        return torch.from_numpy(np.ascontiguousarray(index[:, -1]))

    def _state(self) -> dict[str, Tensor]:
        return {"bank": self.bank_}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.bank_ = state["bank"].float()
        self._moved()


def kth_nearest(z: Tensor, bank: Tensor, k: int, offsets: Tensor | None = None) -> Tensor:
    """Index (N,) of the k-th nearest row of ``bank`` (M, D) to each row of z (N, D).

    The nearest rows b have the largest z·b − ½ ‖b‖². The bank is looked at piece by piece and the k best so far are kept, all
    on the device of z.

    Args:
        z: (N, D).
        bank: (M, D), M ≥ k.
        k: counted from 1.
        offsets: −½ ‖b‖² (M,), if known.
    """
    if offsets is None:
        offsets = half_norms(bank)
    best = z.new_empty(len(z), 0)
    found = torch.empty(len(z), 0, dtype=torch.int64, device=z.device)
    for start in range(0, len(bank), BANK_ROWS):
        piece = slice(start, start + BANK_ROWS)
        closeness = torch.addmm(offsets[piece], z, bank[piece].T)
        values, index = closeness.topk(min(k, closeness.shape[1]), dim=1, sorted=False)
        best, found = torch.cat([best, values], 1), torch.cat([found, index + start], 1)
        if best.shape[1] > k:
            best, chosen = best.topk(k, dim=1, sorted=False)
            found = found.gather(1, chosen)
    return found.gather(1, best.argmin(1, keepdim=True))[:, 0]


def half_norms(bank: Tensor) -> Tensor:
    """−½ ‖b‖² (M,) of each row, in pieces."""
    return torch.cat([-0.5 * piece.square().sum(1) for piece in bank.split(BANK_ROWS)])
