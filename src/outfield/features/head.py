"""The last layer of a classifier, logits = W z + b: as the backbone gave it, or recovered from features and logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outfield.errors import InputError, MissingFieldError, TooFewSamplesError
from outfield.features.set import FeatureSource

ROWS_AT_ONCE = 8192
# what a detector that learns the last layer names among its needs: the fields below, or logits to recover them from
HEAD = "head"
HEAD_FIELDS = ("head_weight", "head_bias")
# share of the logits' variance that a layer may leave unexplained; half precision leaves about 1e-6
MOST_UNEXPLAINED = 1e-2


@dataclass(frozen=True)
class Head:
    """The last layer of a classifier: W (K, D) and b (K,), float64."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """W z + b (N, K) of features (N, D), in float64."""
        return features.double() @ self.weight.T.to(features.device) + self.bias.to(features.device)


def has_head(source: FeatureSource) -> bool:
    """Whether :func:`head_of` finds what it needs: the layer itself, or logits."""
    return "head_weight" in source.shapes or "logits" in source.shapes


def head_of(source: FeatureSource) -> Head:
    """The last layer of the network that made ``source``.

    Where the source does not hold it, it is the least-squares solution of logits = W z + b over its rows, the one of the
    smallest norm where rows do not determine it; directions in which no row extends get weight 0.
    """
    weight, bias = source.constant("head_weight"), source.constant("head_bias")
    if weight is not None:
        weight = weight.double().cpu()
        return Head(weight, weight.new_zeros(len(weight)) if bias is None else bias.double().cpu())
    if not has_head(source):
        what = "the classifier's last layer is needed: give head_weight and head_bias, or logits to recover it from, as"
        raise MissingFieldError(f"{what} FeatureSet(features, logits=...) or open_features(path, logits='logits.npy')")
    return _recovered(source)


def _recovered(source: FeatureSource) -> Head:
    n, width, classes = len(source), source.shapes["features"][1], source.shapes["logits"][1]
    if n < 2:
        raise TooFewSamplesError("the classifier's last layer is recovered from two rows at least; there is one row")
    both = ("features", "logits")
    mean_z, mean_l = (torch.zeros(size, dtype=torch.float64, device="cpu") for size in (width, classes))
    for piece in source.batches(ROWS_AT_ONCE, both):
        mean_z += piece["features"].double().sum(0)
        mean_l += piece["logits"].double().sum(0)
    mean_z, mean_l = mean_z / n, mean_l / n
    zz = mean_z.new_zeros(width, width)
    zl, total = zz.new_zeros(width, classes), 0.0
    for piece in source.batches(ROWS_AT_ONCE, both):
        z, logits = piece["features"].double() - mean_z, piece["logits"].double() - mean_l
        zz += z.T @ z
        zl += z.T @ logits
        total += float(logits.square().sum())
    values, vectors = torch.linalg.eigh(zz)
    kept = values > values[-1].clamp_min(0) * max(n, width) * torch.finfo(torch.float64).eps
    basis = vectors[:, kept]
    weight = (basis @ ((basis.T @ zl) / values[kept, None])).T
    unexplained = total - float((weight.T * zl).sum())
    if unexplained > MOST_UNEXPLAINED * total:
        raise InputError(
            f"the logits are no linear function of the features ({100 * unexplained / total:.1f} % of their variance is left), "
            "so they are not what the classifier's last layer saw; extract them again, or give head_weight and head_bias"
        )
    return Head(weight, mean_l - weight @ mean_z)
