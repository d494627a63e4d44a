"""Distance to the k-th nearest training feature (Sun et al. 2022)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, Detector
from outfield.detectors.neighbours import Neighbours
from outfield.detectors.registry import register
from outfield.detectors.state import take
from outfield.energy.projection import normalise
from outfield.errors import FileFormatError, OutfieldWarning, TooFewSamplesError
from outfield.features.set import FeatureSource


@register
class KNN(Detector):
    """Distance to the k-th nearest training feature (Sun et al. 2022).

    score = ‖z − z_(k)‖, Euclidean, both normalised.

    The distance is exact: what all differences in float64 would give, whatever offset the features share, so that a training
    point scores 0 at k = 1 (:mod:`outfield.detectors.neighbours`). The search uses faiss where it is installed (CPU).

    Args:
        k: which neighbour. The paper's 50 and 200 are for 5,000 and 500 samples a class; a k above the smallest class's
            size looks into other classes, and fit warns.
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
    """

    fits_in_pieces = True

    _neighbours: Neighbours | None = None
    """Made when it is first needed, on the device."""

    def __init__(self, k: int = 50, on: str = "features") -> None:
        self.k = k
        self.on = on

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
        self._neighbours = None
        if hasattr(self, "bank_"):
            self.bank_ = self.bank_.to(self.device)

    def _score(self, batch: Batch) -> Tensor:
        found = self._neighbours
        if found is None:
            found = self._neighbours = Neighbours(self.bank_, faiss=self.bank_.device.type == "cpu" and _has_faiss())
        return found.kth_distance(normalise(batch["features"]), int(self.k))

    def _state(self) -> dict[str, Tensor]:
        return {"bank": self.bank_}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.bank_ = take(state, "bank", (None, self._width))
        if self.k > len(self.bank_):
            raise FileFormatError(f"k is {self.k}, but bank has {len(self.bank_)} rows")
        self._moved()


def _has_faiss() -> bool:
    """Whether the library is installed and can be imported."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True
