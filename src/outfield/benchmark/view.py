"""Features of several sets in two dimensions, for the eye: t-SNE (van der Maaten & Hinton 2008)."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from outfield.energy.projection import normalise
from outfield.extras import library
from outfield.features.set import FeatureSource

POINTS = 2000
"""Points in all: t-SNE takes seconds for these and minutes for ten times as many."""
FIRST = 600
"""Of which so many at most are the first set's."""
WIDTH = 50
"""Principal components that t-SNE gets to see; those beyond hold little but noise, and cost time."""

THREADS = min(4, max(1, (os.cpu_count() or 1) // 2))
"""t-SNE's threads wait for each other thousands of times, spinning: where they share cores with anything else, all of them take
several times as long as half of them."""


def lay_out(sets: Mapping[str, FeatureSource], seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Some rows of each set by t-SNE of their normalised features, begun from the principal components.

    The first set gets up to 600 of 2,000 points, the others equal shares of the rest, chosen at random.

    Args:
        sets: by name.
        seed: of the choice and of t-SNE; the global random state stays as it was.

    Returns:
        Points (n, 2), float32, set by set; and which rows of each set they are.
    """
    chosen = choose(sets, seed)
    rows = [normalise(sets[name].rows(index, ["features"])["features"]).numpy() for name, index in chosen.items()]
    return embed(np.concatenate(rows), seed), chosen


def choose(sets: Mapping[str, FeatureSource], seed: int) -> dict[str, np.ndarray]:
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
