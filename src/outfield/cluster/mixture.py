"""The mixture fitted in shares: each worker gathers the statistics of some rows, and merged they are those of all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from outfield.cluster.connection import connected, workers_of
from outfield.cluster.listing import listing
from outfield.cluster.parquet import feature_rows
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.cluster.pool import mapped, told
from outfield.detectors.mixture import MixtureDetector
from outfield.energy.priors.moments import ClassStatistics
from outfield.errors import InputError, OutfieldError
from outfield.progress import bar

ROWS = 16_384
"""Rows of a part, which a worker holds at a time."""
SHARES = 64
"""Into so many shares the parts are put, at most, whoever gathers them: the order of additions is that of the source alone."""
FIELDS = ("classes", "counts", "means", "scatter")


def fit_mixture(
    detector: MixtureDetector, source: str, *, workers: int | None = None, address: str = "local", part_rows: int = ROWS
) -> int:
    """Fit a detector of the mixture on Parquet files with the workers of a Ray cluster; returns the number of rows.

    Every worker sees its rows once. Counts, means and scatter are merged in float64, pairwise by neighbours (Chan et al. 1979),
    so that the mixture is that of one machine up to rounding, and the same bits for any number of workers.

    Args:
        detector: such as :class:`outfield.SSD`; it is fitted in place.
        source: a Parquet file, a folder of them, or a pattern; a path or an address.
        workers: how many; as many as there are cores, if None.
        address: of the cluster, see :func:`outfield.cluster.connection.connected`.
        part_rows: rows that a worker holds at a time, at most.

    Raises:
        InputError: another kind of detector or source, or rows that cannot be.
        StorageError: a file cannot be read, or workers die again and again.
    """
    if not isinstance(detector, MixtureDetector):
        raise InputError(
            f"{type(detector).__name__} is not a mixture; only those are fitted in shares: SSD, GaussianMixture"
        )
    detector.check_settings()
    found = listing(source)
    if not found.tables or Place.of(source).in_own_memory:
        raise InputError(f"{source} must be Parquet of features and labels that all workers can read")
    parts = found.parts(part_rows)
    cut = np.array_split(np.arange(len(parts)), min(SHARES, len(parts)))
    shares = [[parts[i] for i in some] for some in cut]
    with (
        connected(address, workers) as ray,
        bar(f"fitting {type(detector).__name__}", len(shares), "shares") as advance,
    ):
        count = workers_of(ray, workers, 1)
        gathered = [*_gathered(ray, detector, shares, count, advance)]
    detector.fit_statistics(merged(gathered))
    return len(found)


def merged(statistics: Sequence[ClassStatistics]) -> ClassStatistics:
    """Those of all data, merged pairwise by neighbours: rounding grows with the logarithm of their number."""
    while len(statistics) > 1:
        pairs = [statistics[i : i + 2] for i in range(0, len(statistics), 2)]
        statistics = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return statistics[0]


class Gatherer:
    """What a worker of Ray Data does: the statistics of a share of the parts.

    Args:
        detector: whose statistics.
    """

    def __init__(self, detector: MixtureDetector) -> None:
        torch.set_num_threads(1)  # the process is the worker's own
        self.detector = detector

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """Statistics as bytes; an error that is meant for people comes back as text."""
        found: dict[str, list[Any]] = {"number": [], "statistics": [], "error": []}
        for number, text in zip(batch["number"], batch["parts"], strict=True):
            content, error = b"", ""
            try:
                content = as_bytes(self.detector.statistics(self._rows(str(text))))
            except OutfieldError as problem:
                error = told(problem)
            for name, value in (("number", int(number)), ("statistics", content), ("error", error)):
                found[name].append(value)
        return found

    def _rows(self, texts: str) -> Iterator[Any]:
        for text in texts.splitlines():
            part = Part.of_text(text)
            yield feature_rows(part.place(), part.start, part.stop, (self.detector.on, "labels"))


def _gathered(
    ray: Any, detector: MixtureDetector, shares: Sequence[Sequence[Part]], workers: int, advance: Any
) -> Iterator[ClassStatistics]:
    """The statistics of each share, in their order."""
    items = [
        {"number": number, "parts": "\n".join(part.to_text() for part in parts)} for number, parts in enumerate(shares)
    ]
    found: dict[int, ClassStatistics] = {}
    for row in mapped(ray, Gatherer, (detector,), items, workers=workers):
        found[int(row["number"])] = of_bytes(row["statistics"])
        advance(len(found))
    yield from (found[number] for number in range(len(shares)))


def as_bytes(statistics: ClassStatistics) -> bytes:
    """Statistics on their way from a worker."""
    content: bytes = save({name: getattr(statistics, name).cpu().contiguous() for name in FIELDS})
    return content


def of_bytes(content: bytes) -> ClassStatistics:
    """What :func:`as_bytes` wrote."""
    tensors: dict[str, Tensor] = load(content)
    return ClassStatistics(**tensors)
