"""Distance to the k-th nearest training feature (Sun et al. 2022)."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outfield.config import require_choice, require_number
from outfield.detectors.base import Batch, smallest_class
from outfield.detectors.distance.neighbours import INDEXES, ApproximateNeighbours, BankDetector, Neighbours
from outfield.detectors.registry import register
from outfield.errors import InputError, OutfieldWarning
from outfield.extras import check_installed
from outfield.features import FeatureSource, normalise
from outfield.modes import own_modes, products


@register
class KNN(BankDetector):
    """Distance to the k-th nearest training feature (Sun et al. 2022).

    score = ‖z − z_(k)‖, Euclidean, both normalised.

    The distance is exact: what all differences in float64 would give, whatever offset the features share, so that a training
    point scores 0 at k = 1 (:class:`outfield.detectors.Neighbours`). The search uses faiss where it is installed (CPU). Nothing
    of the size of bank × rows is ever held.

    With ``index="ivf"`` or ``"hnsw"`` only a part of the bank is looked at, by faiss, on the CPU: the distance is that to the
    k-th nearest of the rows that were found, and :meth:`recall` says how many of the nearest those are. The index is built when
    the first row is scored, also after loading.

    Args:
        k: which neighbour. The paper's 50 and 200 are for 5,000 and 500 samples a class; a k above the smallest class's
            size looks into other classes, and fit warns. A guard or adapter that is given the name "KNN" takes a hundredth of the
            smallest class, from 1 to 50.
        field: the one that it works on: "features", or a stage of the network such as "stage2".
        index: "exact", or how faiss finds most neighbours without looking at all rows: "ivf" (lists of near rows) or "hnsw" (a
            graph of near rows).
        probes: How many lists, or rows on the way through the graph, are looked at; 0 for a sixteenth of the lists, or twice
            as many rows as are asked for. An exact search looks at all rows.
    """

    added_settings: ClassVar[Mapping[str, Any]] = {"on": "features", "index": "exact", "probes": 0}

    def __init__(self, k: int = 50, field: str = "features", index: str = "exact", probes: int = 0) -> None:
        self.k, self.field = k, field
        self.index, self.probes = index, probes

    @classmethod
    def suited(cls, smallest: int) -> Self:
        return cls(k=max(1, min(50, smallest // 100)))

    def _check_settings(self) -> None:
        super()._check_settings()
        require_choice("index", self.index, ("exact", *INDEXES))
        require_number("probes", self.probes, least=0, whole=True)
        if self.index != "exact":
            check_installed("faiss", "faiss")
        elif self.probes:
            raise InputError(f"probes is {self.probes}, but an exact index looks at all rows; it must be 0")

    def _fit(self, train: FeatureSource) -> None:
        super()._fit(train)
        smallest = smallest_class(train)
        if self.k > smallest:
            what = f"k = {self.k} exceeds the smallest class ({smallest} samples): its k-th neighbour lies in another class"
            warnings.warn(f"{what}; lower k to at most {smallest}", OutfieldWarning, stacklevel=3)

    def _score(self, batch: Batch) -> Tensor:
        return self._neighbours.kth_distance(normalise(batch["features"]), int(self.k))

    @functools.cached_property
    def _neighbours(self) -> Neighbours | ApproximateNeighbours:
        if self.index != "exact":
            return ApproximateNeighbours(self.bank_, self.index, int(self.probes))
        return Neighbours(self.bank_, faiss=self.bank_.device.type == "cpu" and _has_faiss())

    def recall(self, test: FeatureSource) -> float:
        """Share of the k nearest training rows that are found, over the rows of ``test``: 1 of an exact search.

        Every row is also compared with the whole bank, which takes as long as an exact search does.

        Raises:
            NotFittedError: fit was not called.
            InputError: features of another width than those it was fitted on.
        """
        self._check_to_score(test)
        known, k, found = self._neighbours, int(self.k), 0
        if isinstance(known, Neighbours):
            return 1.0
        with own_modes(known.all.rows.device), products(known.all.rows.device), torch.no_grad():
            for batch in test.on(self.field).batches(self.rows_at_once, ("features",)):
                z = normalise(batch["features"])
                nearest = known.distances(z, k)[:, :k].float()
                found += int((nearest <= known.all.kth_distance(z, k)[:, None]).sum())
        return found / (k * len(test))


def _has_faiss() -> bool:
    return importlib.util.find_spec("faiss") is not None
