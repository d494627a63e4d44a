"""Detectors of one mixture of Gaussians: SSD, GaussianMixture and RMDS."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outfield.detectors.base import Batch, Detector, accept, take
from outfield.detectors.registry import register
from outfield.energy import ClassStatistics, MixturePrior, piece_rows, workers_for
from outfield.features import FeatureSource, normalise
from outfield.modes import own_modes, products
from outfield.progress import Advance, bar


class MixtureDetector(Detector):
    """Base of the detectors that need only the mixture.

    Args:
        floor: see :class:`outfield.energy.priors.MixturePrior`.
        ridge: see there too.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        mixture_: the fitted mixture of the L2-normalised features.
    """

    mixture_: MixturePrior

    fit_needs = ("labels",)
    fits_in_pieces = True

    added_settings: ClassVar[Mapping[str, Any]] = {"on": "features", "ridge": 0.0}

    def __init__(self, floor: float = 1e-6, field: str = "features", ridge: float = 0.0) -> None:
        self.floor, self.field, self.ridge = floor, field, ridge

    def _check_settings(self) -> None:
        MixturePrior(self.floor, self.ridge)  # which says what they must be

    def partial_fit(self, batch: FeatureSource) -> Self:
        """Learn from one more batch, or file, of ID training data; for features that come by and by."""
        with self._fitting(batch, "partial_fit") as data:
            self._check_rows(batch)
            self.mixture_ = copy.copy(self.mixture_) if self._fitted else MixturePrior(self.floor, self.ridge)
            self._learn(data)
        return self

    def statistics(self, parts: Iterable[FeatureSource]) -> ClassStatistics:
        """What a fit needs to know of data, in one pass over parts of it; nothing is learned yet.

        Statistics of different parts merge (:meth:`outfield.ClassStatistics.merge`), wherever they were gathered, and
        :meth:`fit_statistics` learns from them what ``fit`` would learn from all of the data, up to rounding.

        Args:
            parts: at least one, each read once and then let go.

        Raises:
            InputError: there is no part, or a setting or row that cannot be.
            MissingFieldError: a part lacks labels, or the field.
        """
        self.check_settings()

        def pieces() -> Iterator[tuple[Tensor, Tensor]]:
            for part in parts:
                accept(type(self).__name__, part, (self.field, *self.needs_to_fit), "statistics")
                data = part.on(self.field)
                size = piece_rows(data.shapes["features"][1], self.device)
                for piece in data.batches(size, ("features", "labels")):
                    yield piece["features"], piece["labels"]

        with own_modes(self.device), products(self.device):
            return ClassStatistics.over(pieces(), prepare=lambda z: normalise(z.to(self.device)))

    def fit_statistics(self, statistics: ClassStatistics) -> Self:
        """Learn from what :meth:`statistics` gathered; returns self.

        Raises:
            InputError: they are something else, or a setting that cannot be.
        """
        self.check_settings()
        self.mixture_ = MixturePrior(self.floor, self.ridge).merge(statistics)
        self._moved()
        self._width, self._about = statistics.means.shape[1], {}
        self._fitted, self._fingerprint = True, None
        return self

    def _fit(self, train: FeatureSource) -> None:
        self.mixture_ = MixturePrior(self.floor, self.ridge)
        self._learn(train)

    def _learn(self, data: FeatureSource) -> None:
        with bar(f"fitting {type(self).__name__}", len(data), "samples") as advance:
            self.mixture_.merge(statistics_of(data, self.device, advance=advance))
        self._moved()

    def _state(self) -> dict[str, Tensor]:
        return self.mixture_.state()

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.mixture_ = MixturePrior(self.floor, self.ridge).load_state(state)
        take(state, "mean", (self._width,), torch.float64)


def statistics_of(
    data: FeatureSource, device: torch.device, labelled: bool = True, advance: Advance = lambda done: None
) -> ClassStatistics:
    """Statistics of the normalised features by class, or of one class, in one pass."""
    rows, width = data.shapes["features"]
    size, names = piece_rows(width, device), ("features", "labels") if labelled else ("features",)

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        for i, piece in enumerate(data.batches(size, names)):
            features = piece["features"]
            yield features, piece["labels"] if labelled else torch.zeros(len(features), dtype=torch.int64, device="cpu")
            advance(min(rows, (i + 1) * size))

    return ClassStatistics.over(pieces(), workers_for(rows, width, device), lambda z: normalise(z.to(device)))


@register
class SSD(MixtureDetector):
    """Mahalanobis distance on normalised features (Lee et al. 2018, Sehwag et al. 2021).

    score = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c).
    """

    def _score(self, batch: Batch) -> Tensor:
        z = normalise(batch["features"])
        return self.mixture_.prepared(z).mahalanobis_sq(z).amin(1)


@register
class GaussianMixture(MixtureDetector):
    """Energy of the mixture of Gaussians (Lafon, Rambour & Thome 2022, "ours without energy").

    score = −log Σ_c π_c exp(−½ (z − μ_c)ᵀ Σ⁻¹ (z − μ_c)).
    """

    def _score(self, batch: Batch) -> Tensor:
        return self.mixture_.energy(normalise(batch["features"]))


@register
class RMDS(MixtureDetector):
    """Mahalanobis distance to the nearest class less that to the whole (Ren et al. 2021).

    score = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) − (z − μ)ᵀ S⁻¹ (z − μ), with z normalised, Σ the covariance within classes, and
    μ and S mean and covariance of all rows together: S = Σ + Σ_c π_c (μ_c − μ)(μ_c − μ)ᵀ. What all training rows share, and
    what none of them has, counts in both and cancels.

    Args:
        floor: Eigenvalues of Σ, and then of S, below ``floor`` times the largest are raised to that
            (:class:`outfield.energy.priors.MixturePrior`).
        ridge: Added to Σ, as a multiple of its mean eigenvalue, and with it to S.
        field: the one that it works on: "features", or a stage of the network such as "stage2".
    """

    def _moved(self) -> None:
        super()._moved()
        self.__dict__.pop("_whole", None)

    def _score(self, batch: Batch) -> Tensor:
        z = normalise(batch["features"]).double()  # two large distances may differ by little
        near, far = self.mixture_.prepared(z), self._whole.prepared(z)
        return near.mahalanobis_sq(z).amin(1) - far.mahalanobis_sq(z)[:, 0]

    @functools.cached_property
    def _whole(self) -> MixturePrior:
        """The Gaussian that has the mixture's mean and covariance."""
        known = self.mixture_.parameters_
        away = (known.means - known.mean) * known.log_weights.exp().sqrt()[:, None]
        covariance = (known.eigenvectors * known.eigenvalues) @ known.eigenvectors.T + away.T @ away
        one = torch.ones(1, dtype=torch.float64, device=known.mean.device)
        return MixturePrior(self.floor).merge(ClassStatistics(0 * one.long(), one, known.mean[None], covariance))
