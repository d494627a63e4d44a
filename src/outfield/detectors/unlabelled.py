"""Classes for rows that have none: clusters, as many as make unseen ID rows most likely."""

from __future__ import annotations

import torch

from outfield.energy.priors.mixture import MixturePrior
from outfield.energy.projection import normalise
from outfield.features.clusters import clustered
from outfield.features.part import Part
from outfield.features.set import FeatureSet, FeatureSource

COUNTS = (1, 2, 5, 10, 20)
"""Numbers of clusters that are compared."""
FEWEST = 10
"""Rows for each cluster, on average, at least."""
MOST = 50_000
"""Rows that are clustered, drawn from more: a covariance hardly becomes better by others."""
UNSEEN = 5
"""One row in so many tells how likely the others make it."""
WIDEST = 2048
"""Columns of the rows whose likelihoods are compared; wider rows are projected on so many random directions."""
ROWS_AT_ONCE = 8192


def is_one_class(train: FeatureSource) -> bool:
    """Whether nothing tells classes apart: there are no logits, and no labels or a single one."""
    if "logits" in train.shapes:
        return False
    if "labels" not in train.shapes:
        return True
    seen: set[int] = set()
    for piece in train.batches(ROWS_AT_ONCE, ["labels"]):
        seen.update(piece["labels"].unique().tolist())
        if len(seen) > 1:
            return False
    return True


def with_clusters(train: FeatureSource, seed: int) -> FeatureSet:
    """Rows, 50,000 at most, with their cluster as label (:func:`outfield.clustered`); no OOD data takes part.

    How many clusters there are is chosen by the rows: a fifth of them is left out, the mixture of Gaussians with one covariance
    (:class:`~outfield.energy.priors.mixture.MixturePrior`) is fitted to the clusters of the others for 1, 2, 5, 10 and 20 of
    them, as far as each has ten rows on average, and the number with the largest mean log-density of what was left out is taken;
    of equal ones the smallest.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(train), dtype=torch.bool)
    chosen[torch.randperm(len(train), generator=generator)[:MOST]] = True
    names = [name for name in train.row_fields if name != "labels"]
    pieces = [*Part(train, chosen).batches(ROWS_AT_ONCE, names)]  # other rows are read, and not kept
    rows = FeatureSet(**{name: torch.cat([piece[name] for piece in pieces]) for name in names}, about=train.about)
    return clustered(rows, _count(rows, generator, seed), seed=seed)


def _count(rows: FeatureSet, generator: torch.Generator, seed: int) -> int:
    order = torch.randperm(len(rows), generator=generator)
    left_out, own = order[: len(rows) // UNSEEN], order[len(rows) // UNSEEN :]
    z, part = normalise(rows.features.double()), FeatureSet(rows.features[own])
    if z.shape[1] > WIDEST:
        z = z @ torch.randn(z.shape[1], WIDEST, generator=generator, dtype=z.dtype) / WIDEST**0.5
    best, likeliest = COUNTS[0], -float("inf")
    for count in COUNTS:
        if count > 1 and len(own) < FEWEST * count:
            break
        mixture = MixturePrior().fit(z[own], clustered(part, count, seed=seed).labels)
        likely = float(mixture.log_prob(z[left_out]).mean())
        if likely > likeliest:
            best, likeliest = count, likely
    return best
