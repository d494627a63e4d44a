"""How far features lie outside the principal space of the training features: Residual and ViM."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.head.last_layer import HeadDetector, lengths, total
from outfield.detectors.registry import register
from outfield.errors import FileFormatError, InputError, TooFewSamplesError
from outfield.features import FeatureSource
from outfield.modes import on_one_core

SMALLEST_SHARE = 1e-9  # share of the features' length that must lie outside the principal space; less is rounding


def principal_dimension(width: int) -> int:
    """The dimension of the principal space that ViM's authors take; narrower features than theirs have half of their columns."""
    if width > 1500:
        return 1000
    return 512 if width >= 768 else width // 2


class PrincipalSpace(HeadDetector):
    """Base of the detectors that measure the part of a feature outside the principal space of the training features.

    The origin is u = −W⁺ b, where every logit is 0 (or as near to it as can be); the principal space is spanned by the
    eigenvectors of Σ (f − u)(f − u)ᵀ with the largest eigenvalues. Data on disk is read in pieces.

    Args:
        dimension: Dimension of the principal space, less than the columns of the features and the training rows; 0 for that
            of the authors: 1000 above 1500 columns, 512 below, and half of the columns where there are less than 768.

    Attributes:
        origin_: u (D,), float64.
        basis_: an orthonormal basis of what is orthogonal to the principal space (D, D − dimension), float64.
    """

    learned = (*HeadDetector.learned, "origin float64 D", "basis float64 D O")

    def __init__(self, dimension: int = 0) -> None:
        self.dimension = dimension

    def _check_settings(self) -> None:
        require_number("dimension", self.dimension, least=0, whole=True)

    def _outside(self) -> int:
        """How many dimensions are orthogonal to the principal space."""
        width = self.weight_.shape[1]
        outside = width - (int(self.dimension) or principal_dimension(width))
        if outside < 1:
            raise InputError(f"dimension is {self.dimension}; it must be less than {width}, the features' columns")
        return outside

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        if self.basis_.shape[1] != self._outside():
            raise FileFormatError(f"basis has {self.basis_.shape[1]} columns; it must have {self._outside()}")

    def _learn(self, train: FeatureSource) -> None:
        width, outside = self.weight_.shape[1], self._outside()
        if len(train) <= width - outside:
            what = f"there are {len(train)} training samples for a principal space of {width - outside} dimensions"
            raise TooFewSamplesError(f"{what}; there must be more, or lower dimension")
        # LAPACK gains little from more cores, and waits long for them on a busy machine.
        self.origin_ = -on_one_core(lambda: torch.linalg.pinv(self.weight_)) @ self.bias_
        away = (features - self.origin_ for features in self._pieces(train))
        products = total(rows.T @ rows for rows in away)
        vectors = on_one_core(lambda: torch.linalg.eigh(products).eigenvectors)
        self.basis_ = vectors[:, :outside].contiguous()

    def _residual(self, features: Tensor) -> Tensor:
        """‖P⊥ (f − u)‖ (n,)."""
        return lengths((features - self.origin_) @ self.basis_)


@register
class Residual(PrincipalSpace):
    """Length of the feature outside the principal space of the training features (Wang et al. 2022).

    score = ‖P⊥ (f − u)‖, u = −W⁺ b, with P⊥ the projection onto what is orthogonal to the principal space.
    """

    def _score_features(self, features: Tensor) -> Tensor:
        return self._residual(features)


@register
class ViM(PrincipalSpace):
    """Virtual-logit matching: the residual as one more logit (Wang et al. 2022).

    score = α ‖P⊥ (f − u)‖ − log Σ_c exp(l_c), with l = W f + b and α = |mean of max_c l_c| / mean of ‖P⊥ (f − u)‖ over the
    training rows. (The absolute value, where the authors have none, matters only for logits that are negative on average.)
    """

    learned = (*PrincipalSpace.learned, "alpha float64 1")
    alpha_: Tensor

    def _learn(self, train: FeatureSource) -> None:
        super()._learn(train)
        logits, residuals, whole = torch.zeros(3, dtype=torch.float64, device=self.device)
        for features in self._pieces(train):
            logits += self._logits(features).amax(1).sum()
            residuals += self._residual(features).sum()
            whole += lengths(features - self.origin_).sum()
        if float(residuals) <= SMALLEST_SHARE * float(whole):
            what = "the training features lie in their principal space: ViM has nothing to match the logits with"
            raise InputError(f"{what}; lower dimension, or give more training samples")
        self.alpha_ = (logits.abs() / residuals).reshape(1)

    def _score_features(self, features: Tensor) -> Tensor:
        return self.alpha_ * self._residual(features) - self._logits(features).logsumexp(1)
