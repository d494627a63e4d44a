"""Detectors of covariances: PCA, of all features together, and PerClassGaussian, one for each class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, Detector
from outfield.detectors.distance.ssd_mixture_rmds import statistics_of
from outfield.detectors.head.last_layer import lengths
from outfield.detectors.registry import register
from outfield.features import FeatureSet, FeatureSource, normalise
from outfield.modes import on_one_core

HARDLY = 1e-6  # a class whose variance is below this share of the mean one hardly varies
SMALLEST = 1e-12  # the variance where no class varies; rows have length 1


@register
class PCA(Detector):
    """Reconstruction error of the leading principal components (Guan et al. 2023).

    score = ‖U (z − μ)‖, with z normalised, μ the mean of the training features, and the rows of U an orthonormal basis of the
    directions outside the leading components: the fewest that hold ``share`` of the variance. At least one direction is
    outside.

    Args:
        share: Share of the variance that the leading components hold.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        mean_: μ (D,), float64.
        outside_: U (D − m, D), float64.
    """

    fits_in_pieces = True
    learned = ("mean float64 D", "outside float64 O D")

    def __init__(self, share: float = 0.95, field: str = "features") -> None:
        self.share, self.field = share, field

    def _check_settings(self) -> None:
        require_number("share", self.share, above=0, most=1)

    def _fit(self, train: FeatureSource) -> None:
        found, width = statistics_of(train, self.device, labelled=False), train.shapes["features"][1]
        values, vectors = on_one_core(lambda: torch.linalg.eigh((found.scatter + found.scatter.T) / 2))
        self.mean_ = found.means[0]
        self.outside_ = vectors[:, : width - self._components(values)].T.contiguous()

    def _components(self, values: Tensor) -> int:
        """How many of the largest eigenvalues hold the share."""
        held = values.cpu().flip(0).clamp_min(0).cumsum(0)  # on a GPU its sum would depend on chance
        return min(int((held < float(self.share) * held[-1]).sum()) + 1, len(values) - 1)

    def _score(self, batch: Batch) -> Tensor:
        z = normalise(batch["features"]).double() - self.mean_
        return lengths(z @ self.outside_.T)


@register
class PerClassGaussian(Detector):
    """Density of Gaussians with a shrunk covariance for each class (Mukhoti et al. 2023, Ledoit & Wolf 2004).

    score = −log Σ_c π_c N(z; μ_c, Σ_c), with z normalised, π_c the share and μ_c the mean of class c, and

        Σ_c = (1 − ρ_c) S_c + ρ_c (tr S_c / D) I,

    S_c the covariance of its N_c rows and ρ_c the shrinkage that Ledoit and Wolf estimate from them, at least 1 / N_c. A
    class whose rows hardly differ (a single row, for instance) has the classes' mean variance in every direction.

    What it keeps grows with K D²: 10 MB for ten classes of 512 features, 100 MB for a hundred.

    Args:
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        means_: μ_c of every class that was seen (K', D), float64.
        whitening_: L_c⁻¹ with Σ_c = L_c L_cᵀ (K', D, D), float32.
        constants_: log π_c − ½ log det Σ_c − ½ D log 2π (K',), float64.
    """

    fit_needs = ("labels",)
    learned = ("means float64 K D", "whitening float32 K D D", "constants float64 K")
    constants_: Tensor

    def __init__(self, field: str = "features") -> None:
        self.field = field

    def _fit(self, train: FeatureSet) -> None:
        z, labels = normalise(train.features.to(self.device)), train.tensors()["labels"].to(self.device)
        sizes = labels.unique(return_counts=True)[1]
        parts = z[labels.argsort(stable=True)].split(sizes.tolist())
        shares, width = sizes.double() / len(z), z.shape[1]
        variances = torch.stack([part.double().var(0, correction=0).mean() for part in parts])
        typical = max(float(shares @ variances), SMALLEST)
        eye = torch.eye(width, dtype=torch.float64, device=self.device)
        self.means_ = torch.stack([part.double().mean(0) for part in parts])
        self.whitening_ = torch.empty(len(parts), width, width, dtype=torch.float32, device=self.device)
        self.constants_ = shares.log() - 0.5 * width * math.log(2 * math.pi)
        for c, part in enumerate(parts):
            varies = float(variances[c]) >= HARDLY * typical
            factor = torch.linalg.cholesky(shrunk(part.double() - self.means_[c]) if varies else typical * eye)
            self.whitening_[c] = torch.linalg.solve_triangular(factor, eye, upper=False)
            self.constants_[c] -= factor.diagonal().log().sum()

    def _score(self, batch: Batch) -> Tensor:
        z = normalise(batch["features"]).double()
        laws = zip(self.means_, self.whitening_, strict=True)
        squares = [((z - mean) @ whitening.double().T).square().sum(1) for mean, whitening in laws]
        return -(self.constants_ - 0.5 * torch.stack(squares, 1)).logsumexp(1)


def shrunk(rows: Tensor) -> Tensor:
    """The covariance (D, D) of rows (n, D) with mean 0 and different from 0, shrunk as Ledoit and Wolf do.

    With S = (1/n) Σ x xᵀ and m = tr S / D, ρ = (1/n²) Σ ‖x xᵀ − S‖² / ‖S − m I‖², Frobenius norms, between 1/n and 1.
    """
    n, width = rows.shape
    covariance = rows.T @ rows / n
    target = covariance.trace() / width * torch.eye(width, dtype=rows.dtype, device=rows.device)
    noise = (rows.square().sum(1).square().mean() - covariance.square().sum()) / n
    apart = (covariance - target).square().sum()
    share = (noise / apart.clamp_min(torch.finfo(rows.dtype).tiny)).clamp(1 / n, 1)
    return (1 - share) * covariance + share * target
