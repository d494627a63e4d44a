"""Detectors over rows that no machine holds: the mixture from statistics of shares, and KNN with a bank in shares.

Distances that workers answer with are taken from differences in float64 (:class:`outfield.detectors.Neighbours`), so that the
k-th smallest of all answers is the number that a single bank gives, ties included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from outfield.config import require, require_number
from outfield.detectors import KNN, MixtureDetector, Neighbours
from outfield.energy import ClassStatistics
from outfield.errors import InputError, OutfieldError, StorageError, TooFewSamplesError
from outfield.features import FeatureSource, normalise
from outfield.progress import bar
from outfield.scale.catalog import Catalog, Part, catalog
from outfield.scale.cluster import RETRIES, connected, error_of, error_text, mapped, worker_count
from outfield.scale.storage import Place
from outfield.scores import marked

PART_ROWS = 16_384
"""Rows of a part, which a worker that fits a mixture holds at a time."""
SHARES = 64
"""Shares of the parts, at most, for any number of workers: the order of additions depends on the source alone."""
FIELDS = ("classes", "counts", "means", "scatter")
ROWS = 1024
"""Points that are sent to the workers of a bank together."""
AHEAD = 3
"""Questions that are under way at a time."""


def _tables(source: str, what: str) -> Catalog:
    """Parquet files that workers can read."""
    found = catalog(source)
    if not found.tables or Place.of(source).in_own_memory:
        raise InputError(f"{source} must be Parquet of {what} that all workers can read")
    return found


def _shares(parts: Sequence[Part], count: int) -> list[list[str]]:
    """Parts as text, in at most ``count`` shares that lie side by side."""
    cut = np.array_split(np.arange(len(parts)), min(count, len(parts)))
    return [[parts[i].to_text() for i in some] for some in cut]


def fit_mixture(
    detector: MixtureDetector,
    source: str,
    *,
    workers: int | None = None,
    address: str = "local",
    part_rows: int = PART_ROWS,
) -> int:
    """Fit a detector of the mixture on Parquet files with the workers of a Ray cluster; returns the number of rows.

    Every worker sees its rows once. Counts, means and scatter are merged in float64, pairwise by neighbours (Chan et al. 1979),
    so that the mixture is that of one machine up to rounding, and the same bits for any number of workers.
    """
    if not isinstance(detector, MixtureDetector):
        name = type(detector).__name__
        raise InputError(f"{name} is not a mixture; only those are fitted in shares: SSD, GaussianMixture")
    detector.check_settings()
    rows = _tables(source, "features and labels")
    shares = _shares(rows.parts(part_rows), SHARES)
    items = [{"number": number, "parts": "\n".join(parts)} for number, parts in enumerate(shares)]
    found: dict[int, ClassStatistics] = {}
    with (
        connected(address, workers) as ray,
        bar(f"fitting {type(detector).__name__}", len(shares), "shares") as advance,
    ):
        try:
            for row in mapped(ray, Gatherer, (detector,), items, workers=worker_count(ray, workers)):
                found[int(row["number"])] = ClassStatistics(**load(row["statistics"]))
                advance(len(found))
        except ray.exceptions.RayError as error:
            raise StorageError(f"workers died or failed: {error!s:.500}") from error
    detector.fit_statistics(merged([found[number] for number in range(len(shares))]))
    return len(rows)


def merged(statistics: Sequence[ClassStatistics]) -> ClassStatistics:
    """Those of all data, merged pairwise by neighbours: rounding grows with the logarithm of their number."""
    while len(statistics) > 1:
        pairs = [statistics[i : i + 2] for i in range(0, len(statistics), 2)]
        statistics = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return statistics[0]


class Gatherer:
    """What a worker of Ray Data does to fit a mixture: the statistics of a share of the parts."""

    def __init__(self, detector: MixtureDetector) -> None:
        torch.set_num_threads(1)  # the process is the worker's own
        self.detector = detector

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """Statistics of one share as bytes, or an error as text."""
        (number,), (texts,) = batch["number"], batch["parts"]
        content, error = b"", ""
        try:
            found = self.detector.statistics(self._rows(str(texts)))
            content = save({name: getattr(found, name).cpu().contiguous() for name in FIELDS})
        except OutfieldError as problem:
            error = error_text(problem)
        return {"number": [int(number)], "statistics": [content], "error": [error]}

    def _rows(self, texts: str) -> Iterator[Any]:
        for text in texts.splitlines():
            yield Part.of_text(text).features((self.detector.field, "labels"))


class ShardedBank:
    """A KNN detector whose bank lies in the memory of several workers; scores equal those of a single bank to the bit.

    Made by :meth:`of_detector` or :meth:`of_source`, while connected to a cluster; its workers end with this object.
    """

    def __init__(self, ray: Any, shards: Sequence[Any], k: int, field: str, source: str | None = None) -> None:
        self.ray, self.shards, self.k, self.field, self.source = ray, [*shards], int(k), field, source
        self.kept: list[Any] = []
        about = self._answers([shard.about.remote() for shard in self.shards])
        for _, _, error in about:
            if error:
                raise error_of(error)
        self.rows, widths = sum(rows for rows, _, _ in about), {width for _, width, _ in about}
        if len(widths) > 1:
            raise InputError(f"rows of {min(widths)} and of {max(widths)} numbers cannot be in one bank")
        self.width = widths.pop()
        if self.k > self.rows:
            raise TooFewSamplesError(f"k is {self.k} but there are only {self.rows} training samples; lower k")

    @classmethod
    def of_detector(cls, ray: Any, detector: KNN, workers: int | None = None) -> ShardedBank:
        """The bank of a fitted detector, an exact KNN, in equal shares."""
        exact = isinstance(detector, KNN) and detector.index == "exact"
        require(exact, "detector", detector, 'an outfield.KNN(index="exact")')
        source = detector.fingerprint()
        count = min(worker_count(ray, workers), len(detector.bank_))
        pieces = [piece.contiguous().numpy() for piece in detector.bank_.cpu().tensor_split(count)]
        kept = [ray.put(piece) for piece in pieces]  # for a worker that has to be started again
        made = cls(ray, [_worker(ray).remote(piece) for piece in kept], detector.k, detector.field, source)
        made.kept = kept
        return made

    @classmethod
    def of_source(
        cls, ray: Any, source: str, k: int = 50, *, field: str = "features", workers: int | None = None
    ) -> ShardedBank:
        """A bank of Parquet files. Each worker reads its own share, so no machine ever holds all of it."""
        require_number("k", k, least=1, whole=True)
        found, count = _tables(source, "features"), worker_count(ray, workers)
        shares = _shares(found.parts(-(-len(found) // count)), count)
        return cls(ray, [_worker(ray).remote(None, share, field) for share in shares], k, field)

    def score(self, test: FeatureSource) -> Tensor:
        """One float32 score per row (N,), as :meth:`outfield.KNN.score` of a single bank gives it."""
        rows = test.on(self.field)
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


class Shard:
    """Some rows of a bank, in a worker of Ray: normalised rows (M, D), float32, or those of parts that it reads itself."""

    def __init__(self, rows: np.ndarray | None, parts: Sequence[str] = (), field: str = "features") -> None:
        torch.set_num_threads(1)  # the process is the worker's own
        self.error, self.neighbours = "", None
        try:
            found = torch.cat([*_normalised(parts, field)]) if rows is None else torch.from_numpy(rows.copy())
            self.neighbours = Neighbours(found)
        except OutfieldError as error:
            self.error = error_text(error)

    def about(self) -> tuple[int, int, str]:
        """How many rows of how many numbers there are, or why there are none."""
        rows, width = (0, 0) if self.neighbours is None else tuple(self.neighbours.rows.shape)
        return rows, width, self.error

    def nearest(self, points: np.ndarray, k: int) -> np.ndarray:
        """The k smallest squared distances of normalised points (N, D) to its rows (N, at most k), float64."""
        assert self.neighbours is not None  # or nobody would ask
        squares: np.ndarray = self.neighbours.smallest_squares(torch.from_numpy(points.copy()), k).numpy()
        return squares


def _normalised(parts: Sequence[str], field: str) -> Iterator[Tensor]:
    for part in map(Part.of_text, parts):
        yield normalise(part.features((field,)).on(field).in_memory().features)


def _worker(ray: Any) -> Any:
    return ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=RETRIES)(Shard)
