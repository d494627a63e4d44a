"""A mixture fitted on rows that no machine holds, from statistics of shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from outfield.detectors import MixtureDetector
from outfield.energy import ClassStatistics
from outfield.errors import InputError, OutfieldError, StorageError, as_ours
from outfield.progress import bar
from outfield.scale.catalog import Part, catalog
from outfield.scale.cluster import connected, error_text, mapped, worker_count
from outfield.scale.storage import Place

PART_ROWS = 16_384  # of which a worker that fits a mixture holds one part at a time
SHARES = 64  # of the parts, at most, for any number of workers: the order of additions depends on the source alone
FIELDS = ("classes", "counts", "means", "scatter")


def fit_mixture(detector: MixtureDetector, source: str, *, workers: int | None = None, address: str = "local") -> int:
    """Fit a detector of the mixture on Parquet files with the workers of a Ray cluster; returns the number of rows.

    Every worker sees its rows once. Counts, means and scatter are merged in float64, pairwise by neighbours (Chan et al. 1979),
    so that the mixture is that of one machine up to rounding, and the same bits for any number of workers.
    """
    if not isinstance(detector, MixtureDetector):
        name = type(detector).__name__
        raise InputError(f"{name} is not a mixture; only those are fitted in shares: SSD, GaussianMixture")
    detector.check_settings()
    rows = catalog(source)
    if not rows.tables or Place.of(source).in_own_memory:
        raise InputError(f"{source} must be Parquet of features and labels that all workers can read")
    parts = [part.to_text() for part in rows.parts(PART_ROWS)]
    shares = np.array_split(np.array(parts, object), min(SHARES, len(parts)))  # which lie side by side
    items = [{"number": number, "parts": "\n".join(share)} for number, share in enumerate(shares)]
    found: dict[int, ClassStatistics] = {}
    with (
        connected(address, workers) as ray,
        bar(f"fitting {type(detector).__name__}", len(shares), "shares") as advance,
        as_ours("workers died or failed", StorageError, ray.exceptions.RayError),
    ):
        for row in mapped(Gatherer, (detector,), items, worker_count(ray, workers)):
            found[int(row["number"])] = ClassStatistics(**load(row["statistics"]))
            advance(len(found))
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
            parts = map(Part.of_text, str(texts).splitlines())
            found = self.detector.statistics(part.features((self.detector.field, "labels")) for part in parts)
            content = save({name: getattr(found, name).cpu().contiguous() for name in FIELDS})
        except OutfieldError as problem:
            error = error_text(problem)
        return {"number": [int(number)], "statistics": [content], "error": [error]}
