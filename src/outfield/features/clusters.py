"""Labels for rows that have none: the cluster each row's direction belongs to.

Detectors that want classes (a mixture of Gaussians, one for each) then work on the features of a network that was trained without
labels. With one cluster the mixture is one Gaussian.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import require, require_number
from outfield.errors import InputError
from outfield.features.set import FeatureSet
from outfield.percent import counted

ROUNDS = 50  # most rounds of moving the centres
ROWS_AT_ONCE = 65_536


def clustered(
    features: FeatureSet, clusters: int = 10, *, field: str = "features", seed: int = 0, on: str | None = None
) -> FeatureSet:
    """The same rows with the number of their cluster as label, instead of labels they may have.

    Spherical k-means (Dhillon & Modha 2001): a row belongs to the centre c with the largest cosine z·c, a centre is the direction
    of the mean of its rows' directions; first centres as in k-means++ (Arthur & Vassilvitskii 2007). A cluster that loses all
    rows takes the row that is worst served. Clusters are numbered by size, the largest first.

    Args:
        features: rows.
        clusters: how many; at most the number of rows.
        field: whose rows are clustered.
        seed: of the first centres.
        on: ``field`` as version 0.1 called it.

    Raises:
        InputError: there is no such field, or fewer rows than clusters.

    >>> two = FeatureSet([[1.0, 0.0], [0.9, 0.1], [1.0, 0.2], [0.0, 1.0]])
    >>> clustered(two, 2).labels.tolist()
    [0, 0, 0, 1]
    """
    require(isinstance(features, FeatureSet), "features", features, "a FeatureSet")
    require_number("clusters", clusters, least=1, whole=True)
    require_number("seed", seed, least=0, whole=True)
    if on is not None:
        warnings.warn("on= is now field=", DeprecationWarning, stacklevel=2)
        field = on
    rows = features.tensors().get(field)
    if rows is None or rows.dim() != 2:
        raise InputError(f"there are no rows of numbers called {field}; there are {', '.join(features.shapes)}")
    if clusters > len(rows):
        raise InputError(f"clusters is {clusters}, but the data has only {counted(len(rows), 'row')}")
    z = functional.normalize(rows.float(), dim=1)
    generator = torch.Generator().manual_seed(int(seed))
    centres = _first(z, int(clusters), generator)
    labels = torch.full((len(z),), -1)
    for _ in range(ROUNDS):
        found, nearness = _nearest(z, centres)
        if torch.equal(found, labels):
            break
        labels, centres = found, _moved(z, found, nearness, centres)
    order = torch.bincount(labels, minlength=int(clusters)).argsort(descending=True, stable=True)
    own = {**features.tensors(), "labels": order.argsort()[labels]}
    return FeatureSet(**own, about=dict(features.about), names=features.names)


def _first(z: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Rows drawn one after the other with a probability that grows with the squared distance to those drawn before."""
    chosen = [int(torch.randint(len(z), (1,), generator=generator))]
    distance = torch.full((len(z),), float("inf"), dtype=torch.float64)
    for _ in range(1, clusters):
        distance = torch.minimum(distance, (2 - 2 * (z @ z[chosen[-1]])).clamp(min=0).double())
        total = float(distance.sum())
        weights = distance if total > 0 else torch.ones_like(distance)
        # By the running sum: torch.multinomial takes at most 2²⁴ rows.
        draw = torch.rand((), generator=generator, dtype=torch.float64) * weights.sum()
        chosen.append(min(len(z) - 1, int(torch.searchsorted(weights.cumsum(0), draw, right=True))))
    return z[chosen].clone()


def _nearest(z: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The centre with the largest cosine to each row, and that cosine."""
    pieces = [(piece @ centres.T).max(1) for piece in z.split(ROWS_AT_ONCE)]
    return torch.cat([piece.indices for piece in pieces]), torch.cat([piece.values for piece in pieces])


def _moved(z: Tensor, labels: Tensor, nearness: Tensor, centres: Tensor) -> Tensor:
    """The direction of the mean of each cluster's rows; an empty one gets the row with the smallest cosine."""
    sums = torch.zeros(centres.shape, dtype=torch.float64).index_add_(0, labels, z.double())
    empty = torch.bincount(labels, minlength=len(centres)) == 0
    worst = nearness.argsort()[: int(empty.sum())]
    sums[empty] = z[worst].double()
    return functional.normalize(sums, dim=1).to(z.dtype)
