"""Features of several sets in two dimensions, for the eye: t-SNE (van der Maaten & Hinton 2008)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from outfield.energy import normalise
from outfield.extras import library
from outfield.features import FeatureSource
from outfield.files import Record

POINTS = 2000  # in all: t-SNE takes seconds for these and minutes for ten times as many
FIRST = 600  # of which so many at most are the first set's
WIDTH = 50  # principal components that t-SNE gets to see; those beyond hold little but noise, and cost time
# t-SNE's threads wait for each other thousands of times, spinning: where they share cores with anything else, all of them take
# several times as long as half of them.
THREADS = min(4, max(1, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True)
class Layout:
    """Features of some samples of every set of a backbone, laid out in two dimensions.

    Attributes:
        backbone: Whose features.
        points: (n, 2), float32.
        sets: Name of the set that each point is from; the ID test set goes by the protocol's ``id``.
        labels: Class of each point (n,), −1 where it has none.
    """

    backbone: str
    points: np.ndarray
    sets: tuple[str, ...]
    labels: np.ndarray

    def record(self) -> Record:
        """For a file."""
        tensors = {"points": torch.from_numpy(self.points), "labels": torch.from_numpy(self.labels)}
        return Record({"backbone": self.backbone, "sets": list(self.sets)}, tensors)

    @classmethod
    def from_record(cls, record: Record) -> Layout:
        """From what a file holds."""
        points, labels = (record.tensors[name].numpy() for name in ("points", "labels"))
        return cls(record.header["backbone"], points, tuple(record.header["sets"]), labels)


def lay_out(backbone: str, sets: Mapping[str, FeatureSource], seed: int = 0) -> Layout:
    """Some rows of each set by t-SNE of their normalised features, begun from the principal components.

    The first set gets up to 600 of 2,000 points, and its labels are kept; the others get equal shares of the rest, at random.

    Args:
        backbone: Whose features.
        sets: By name, the ID test set first.
        seed: Of the choice and of t-SNE; the global random state stays as it was.
    """
    chosen = choose_rows(sets, seed)
    z = [normalise(sets[name].rows(rows, ["features"])["features"]).numpy() for name, rows in chosen.items()]
    names = tuple(name for name, rows in chosen.items() for _ in rows)
    labels = np.full(len(names), -1, np.int64)
    first, rows = next(iter(chosen.items()))
    if "labels" in sets[first].shapes:
        labels[: len(rows)] = sets[first].rows(rows, ["labels"])["labels"].numpy()
    return Layout(backbone, embed(np.concatenate(z), seed), names, labels)


def choose_rows(sets: Mapping[str, FeatureSource], seed: int) -> dict[str, np.ndarray]:
    """Rows of each set to show, ascending."""
    rng = np.random.default_rng(seed)
    share = (POINTS - FIRST) // max(1, len(sets) - 1)
    most = dict.fromkeys(sets, share) | {next(iter(sets)): FIRST}
    return {
        name: np.sort(rng.choice(len(data), min(len(data), most[name]), replace=False)) for name, data in sets.items()
    }


def embed(z: np.ndarray, seed: int) -> np.ndarray:
    """Rows z (n, D) as points (n, 2); all at the origin where there are too few, or no two that differ."""
    if len(z) < 4 or not np.ptp(z, axis=0).any():
        return np.zeros((len(z), 2), np.float32)
    decomposition, manifold = library("sklearn.decomposition", "report"), library("sklearn.manifold", "report")
    components = decomposition.PCA(min(WIDTH, *z.shape), random_state=seed).fit_transform(z)
    if components.shape[1] == 1:
        components = np.concatenate([components, np.zeros_like(components)], 1)
    tsne = manifold.TSNE(init="pca", random_state=seed, perplexity=min(30.0, (len(z) - 1) / 3))
    # OpenMP's number of threads belongs to the thread that sets it: no other thread sees the change.
    with library("threadpoolctl", "report").threadpool_limits(THREADS, user_api="openmp"):
        return np.asarray(tsne.fit_transform(components), np.float32)
