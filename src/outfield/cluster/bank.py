"""KNN with a bank in shares: each worker holds some training rows and answers with its nearest; together they are those of all.

Distances that workers answer with are taken from differences in float64 (:mod:`outfield.detectors.neighbours`), so that the k-th
smallest of all answers is the number that a single bank gives, ties included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.cluster.connection import workers_of
from outfield.cluster.listing import listing
from outfield.cluster.parquet import feature_rows
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.cluster.pool import raised, told
from outfield.config import require, require_number
from outfield.detectors.knn import KNN
from outfield.detectors.neighbours import Neighbours
from outfield.energy.projection import normalise
from outfield.errors import InputError, OutfieldError, StorageError, TooFewSamplesError
from outfield.features.set import FeatureSource
from outfield.scores.vectors import marked

ROWS = 1024
"""Points that are asked for together."""
AHEAD = 3
"""Questions that are under way at a time."""
RETRIES = 4
"""How often a question is asked again of a worker that died and was started again."""


class Shard:
    """Some rows of a bank, in a worker of Ray.

    Args:
        rows: normalised (M, D), float32; None to read them.
        parts: of Parquet files, as text, that are read.
        on: the field that is the features.
    """

    def __init__(self, rows: np.ndarray | None, parts: Sequence[str] = (), on: str = "features") -> None:
        torch.set_num_threads(1)  # the process is the worker's own
        self.error, self.neighbours = "", None
        try:
            found = self._read(parts, on) if rows is None else torch.from_numpy(rows.copy())
            self.neighbours = Neighbours(found)
        except OutfieldError as error:
            self.error = told(error)

    def _read(self, parts: Sequence[str], on: str) -> Tensor:
        pieces = []
        for part in map(Part.of_text, parts):
            found = feature_rows(part.place(), part.start, part.stop, (on,))
            pieces.append(normalise(found.on(on).in_memory().features))
        return torch.cat(pieces)

    def about(self) -> tuple[int, int, str]:
        """How many rows of how many numbers there are, or why there are none."""
        shape = (0, 0) if self.neighbours is None else tuple(self.neighbours.rows.shape)
        return shape[0], shape[1], self.error

    def nearest(self, points: np.ndarray, k: int) -> np.ndarray:
        """The k smallest squared distances of normalised points (N, D) to its rows (N, at most k), float64."""
        assert self.neighbours is not None  # or nobody would ask
        squares: np.ndarray = self.neighbours.smallest_squares(torch.from_numpy(points.copy()), k).numpy()
        return squares


class ShardedBank:
    """A KNN detector whose bank lies in the memory of several workers; scores equal those of a single bank to the bit.

    Made by :meth:`of_detector` or :meth:`of_source`, while connected to a cluster; its workers end with this object.

    Attributes:
        k: which neighbour.
        rows: of all shards.
        width: numbers of a row.
    """

    def __init__(self, ray: Any, shards: Sequence[Any], k: int, on: str, source: str | None = None) -> None:
        self.ray, self.shards, self.k, self.on, self.source = ray, [*shards], int(k), on, source
        self.kept: list[Any] = []
        about = self._answers([shard.about.remote() for shard in self.shards])
        for _, _, error in about:
            if error:
                raise raised(error)
        self.rows, widths = sum(rows for rows, _, _ in about), {width for _, width, _ in about}
        if len(widths) > 1:
            raise InputError(f"rows of {min(widths)} and of {max(widths)} numbers cannot be in one bank")
        self.width = widths.pop()
        if self.k > self.rows:
            raise TooFewSamplesError(f"k is {self.k} but there are only {self.rows} training samples; lower k")

    @classmethod
    def of_detector(cls, ray: Any, detector: KNN, workers: int | None = None) -> ShardedBank:
        """The bank of a fitted detector in equal shares.

        Raises:
            NotFittedError: it is not fitted.
            InputError: it is no exact KNN.
        """
        exact = isinstance(detector, KNN) and detector.index == "exact"
        require(exact, "detector", detector, 'an outfield.KNN(index="exact")')
        source = detector.fingerprint()
        count = min(workers_of(ray, workers, 1), len(detector.bank_))
        pieces = [piece.contiguous().numpy() for piece in detector.bank_.cpu().tensor_split(count)]
        kept = [ray.put(piece) for piece in pieces]  # for a worker that has to be started again
        made = cls(ray, [_worker(ray).remote(piece) for piece in kept], detector.k, detector.on, source)
        made.kept = kept
        return made

    @classmethod
    def of_source(
        cls, ray: Any, source: str, k: int = 50, *, on: str = "features", workers: int | None = None
    ) -> ShardedBank:
        """A bank of Parquet files, of which each worker reads its own share: no machine ever holds all of it.

        Raises:
            InputError: they are no Parquet files, or rows that cannot be.
            TooFewSamplesError: there are fewer rows than k.
        """
        require_number("k", k, least=1, whole=True)
        found = listing(source)
        if not found.tables or Place.of(source).in_own_memory:
            raise InputError(f"{source} must be Parquet of features that all workers can read")
        count = workers_of(ray, workers, 1)
        size = -(-len(found) // count)
        parts = found.parts(size)
        cut = np.array_split(np.arange(len(parts)), min(count, len(parts)))
        return cls(ray, [_worker(ray).remote(None, [parts[i].to_text() for i in some], on) for some in cut], k, on)

    def score(self, test: FeatureSource) -> Tensor:
        """One float32 score per row (N,), as :meth:`outfield.KNN.score` of a single bank gives it.

        Raises:
            InputError: rows of another width.
            StorageError: workers died again and again.
        """
        rows = test.on(self.on)
        if rows.shapes["features"][1] != self.width:
            raise InputError(f"rows have {rows.shapes['features'][1]} columns, but those of the bank {self.width}")
        scores, waiting = [], deque[list[Any]]()
        for batch in rows.batches(ROWS, ("features",)):
            points = self.ray.put(normalise(batch["features"]).numpy())
            waiting.append([shard.nearest.remote(points, self.k) for shard in self.shards])
            if len(waiting) > AHEAD:
                scores.append(self._kth(waiting.popleft()))
        scores += [self._kth(answers) for answers in waiting]
        found = torch.cat(scores)
        return found if self.source is None else marked(found, self.source)

    def _kth(self, answers: list[Any]) -> Tensor:
        squares = torch.from_numpy(np.concatenate(self._answers(answers), axis=1))
        return squares.sort(1).values[:, self.k - 1].sqrt().float()

    def _answers(self, waiting: list[Any]) -> list[Any]:
        try:
            answers: list[Any] = self.ray.get(waiting)
        except self.ray.exceptions.RayError as error:
            raise StorageError(f"workers that hold the bank died or failed: {error!s:.500}") from error
        return answers


def _worker(ray: Any) -> Any:
    return ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=RETRIES)(Shard)
