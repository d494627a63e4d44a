"""Splitting rows: a random share is held out, every class keeps a training row, and equal rows stay on one side."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from outfield.errors import TooFewSamplesError
from outfield.features.source import FeatureSource

Vector: TypeAlias = Tensor | np.ndarray
ROWS_AT_ONCE = 8192


def split_rows(
    count: int, share: float, *, seed: int, least: int, labels: Vector | None = None, copies: Vector | None = None
) -> Tensor:
    """Which rows are held out (count,), bool: a random share of them, and at least ``least`` of which no two are copies.

    Every class of ``labels`` (count,) keeps a training row. Rows with the same number in ``copies`` (count,) stay on one side.

    >>> split_rows(6, 0.5, seed=0, least=1, copies=np.array([0, 0, 1, 1, 2, 2])).tolist()
    [True, True, False, False, True, True]
    """
    wanted = max(least, round(share * count))
    chosen = _lowest(_places(count, seed, labels), wanted, least, copies)
    if int(chosen.sum()) < wanted or 2 * wanted > count:
        raise TooFewSamplesError(f"{count} training rows are too few to keep {wanted} for calibration; give more rows")
    return torch.from_numpy(chosen)


def stratified_rows(
    count: int, wanted: int, *, seed: int, labels: Vector | None = None, copies: Vector | None = None
) -> Tensor:
    """Which rows to take (count,), bool: ``wanted`` rows, of each class in proportion, and never all of one class.

    Within a class of n rows the j-th in a random order has the place (j + u) / n, with u in [0, 1) of its own; the rows with the
    lowest places are taken.
    """
    return torch.from_numpy(_lowest(_places_by_class(count, seed, labels), wanted, 0, copies))


def copies_of(*sources: FeatureSource) -> Tensor:
    """For each row of the sources, one after the other, the number of the first row with equal features (N,), int64."""
    first: dict[bytes, int] = {}
    numbers: list[int] = []
    for source in sources:
        for piece in source.batches(ROWS_AT_ONCE, ["features"]):
            for row in piece["features"].float().contiguous().numpy():
                digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
                numbers.append(first.setdefault(digest, len(numbers)))
    return torch.tensor(numbers)


def _places(count: int, seed: int, labels: Vector | None) -> np.ndarray:
    """Place of each row in a random order (count,); infinite for the first row of each class, which is not held out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    places = np.empty(count)
    places[order] = np.arange(count)
    classes = np.zeros(count) if labels is None else np.asarray(labels)[order]
    places[order[np.unique(classes, return_index=True)[1]]] = np.inf
    return places


def _places_by_class(count: int, seed: int, labels: Vector | None) -> np.ndarray:
    """Place of each row within its class (count,), see :func:`stratified_rows`; infinite for the last of each class."""
    rng = np.random.default_rng(seed)
    classes = np.zeros(count, np.int64) if labels is None else np.asarray(labels)
    order = rng.permutation(count)
    by_class = order[np.argsort(classes[order], kind="stable")]
    sizes = np.unique(classes, return_counts=True)[1]
    first, size = np.repeat(np.cumsum(sizes) - sizes, sizes), np.repeat(sizes, sizes)
    rank = np.arange(count) - first
    places = np.empty(count)
    places[by_class] = np.where(rank == size - 1, np.inf, (rank + rng.random(count)) / size)
    return places


def _lowest(places: np.ndarray, wanted: int, least: int, copies: Vector | None) -> np.ndarray:
    """Which rows to take (N,): those with the lowest places that are finite, each with its copies."""
    groups = np.arange(len(places)) if copies is None else np.unique(np.asarray(copies), return_inverse=True)[1]
    sizes = np.bincount(groups)
    place = np.full(len(sizes), np.inf)
    np.minimum.at(place, groups, places)
    place[groups[np.isinf(places)]] = np.inf  # a class needs a row of this group
    place[sizes > max(wanted, 1)] = np.inf
    order = np.argsort(place, kind="stable")[: int(np.isfinite(place).sum())]
    before = np.cumsum(sizes[order]) - sizes[order]
    taken = np.zeros(len(sizes), dtype=bool)
    taken[order[(before < wanted) | (np.arange(len(order)) < least)]] = True
    return taken[groups]
