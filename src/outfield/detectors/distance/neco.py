"""The share of a feature that lies in the leading principal components, times the largest logit."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, Detector
from outfield.detectors.head.last_layer import lengths, total, within_range
from outfield.detectors.registry import register
from outfield.errors import InputError
from outfield.features import FeatureSource
from outfield.modes import on_one_core

TINY = torch.finfo(torch.float64).tiny


@register
class NECO(Detector):
    """Share of the standardised feature in the leading principal components, times the largest logit (Ammar et al. 2024).

    score = −‖V z‖ / ‖z‖ · max_c l_c, with z = (f − μ) / σ, column by column, and the rows of V the leading principal components
    of z over the training rows. Where a network's features have collapsed to their class means, those of ID rows lie in as many
    dimensions as there are classes, and those of OOD rows are orthogonal to these. A feature that is μ itself has the share 0.

    Features are taken as they come. The authors choose the dimension for each network; their code leaves the largest logit out
    for ResNets, and does not standardise where classes are well apart.

    Args:
        dimension: How many components are leading; 0 for the number of classes, at most half of the columns.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        mean_: μ (D,), float64, as all that follow.
        scale_: σ (D,), 1 where it is 0.
        axes_: V (dimension, D).

    >>> import outfield as of
    >>> train = of.FeatureSet([[1.0, 1.0], [2.0, 2.1], [3.0, 2.9]], logits=[[5.0, 0.0]] * 3)
    >>> along_and_across = of.FeatureSet([[4.0, 4.0], [4.0, 0.0]], logits=[[5.0, 0.0]] * 2)
    >>> of.NECO(dimension=1).fit(train).score(along_and_across).round().tolist()
    [-5.0, -0.0]
    """

    fit_needs = ("logits",)
    score_needs = ("features", "logits")
    fits_in_pieces = True
    learned = ("mean float64 D", "scale float64+ D", "axes float64 A D")

    def __init__(self, dimension: int = 0, field: str = "features") -> None:
        self.dimension, self.field = dimension, field

    def _check_settings(self) -> None:
        require_number("dimension", self.dimension, least=0, whole=True)

    def _fit(self, train: FeatureSource) -> None:
        rows, width = train.shapes["features"]
        count = int(self.dimension) or max(1, min(train.shapes["logits"][1], width // 2))
        if count > width:
            raise InputError(f"dimension is {count}; it must be at most {width}, the columns of the features")
        self.mean_ = total(within_range(features).sum(0) for (features,) in self._read(train, "features")) / rows
        away = (within_range(features) - self.mean_ for (features,) in self._read(train, "features"))
        products = total(one.T @ one for one in away)
        spread = (products.diagonal() / rows).sqrt()
        self.scale_ = torch.where(spread > 0, spread, 1.0)
        correlations = products / self.scale_ / self.scale_[:, None]
        vectors = on_one_core(lambda: torch.linalg.eigh(correlations).eigenvectors)
        self.axes_ = vectors[:, width - count :].T.contiguous()

    def _score(self, batch: Batch) -> Tensor:
        z = (within_range(batch["features"]) - self.mean_) / self.scale_
        share = lengths(z @ self.axes_.T) / lengths(z).clamp_min(TINY)
        return -share * batch["logits"].double().amax(1)
