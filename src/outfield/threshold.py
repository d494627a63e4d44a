"""From scores to decisions: a threshold chosen on held-out ID scores, and a p-value for each sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from outfield import storage
from outfield.errors import FileFormatError, InputError, TooFewSamplesError
from outfield.scores import as_scores


@dataclass(frozen=True, eq=False)
class Threshold:
    """A score above which a sample is called OOD, with how it was chosen.

    With the n held-out ID scores sorted, s_(1) ≤ … ≤ s_(n), the value is s_(r) with r = ⌈keep · (n + 1)⌉: a new ID sample
    then lies at or below it with probability at least ``keep``, whatever the distribution of the scores
    (split conformal prediction).

    Attributes:
        value: a sample is OOD when its score is larger.
        keep: share of ID samples that was to be kept.
        reference: the held-out scores, sorted (n,), float64.
    """

    value: float
    keep: float
    reference: Tensor

    @classmethod
    def fit(cls, held_out: Any, keep: float = 0.95) -> Threshold:
        """Choose the threshold on scores of ID samples that no detector was fitted on.

        Raises:
            InputError: ``keep`` is not between 0 and 1, or the scores are not a vector of finite numbers.
            TooFewSamplesError: no threshold can promise ``keep`` from so few samples (19 are needed for 0.95).
        """
        if not 0 < keep < 1:
            raise InputError(f"keep is {keep}; it is the share of ID samples to accept and must lie between 0 and 1")
        scores = np.sort(as_scores("held_out", held_out))
        if np.isinf(scores).any():
            raise InputError("held_out has infinite scores; a threshold needs finite ones")
        n = len(scores)
        rank = math.ceil(keep * (n + 1) - 1e-9)
        if rank > n:
            need = math.ceil(keep / (1 - keep) - 1e-9)
            raise TooFewSamplesError(
                f"{n} held-out scores are too few to keep {keep:.4g} of ID samples; pass at least {need}"
            )
        return cls(value=float(scores[rank - 1]), keep=float(keep), reference=torch.from_numpy(scores))

    def is_ood(self, scores: Any) -> Tensor:
        """True where the score is larger than the threshold (N,); the same as ``p_value(scores) <= 1 - keep``."""
        return torch.from_numpy(as_scores("scores", scores) > self.value)

    def p_value(self, scores: Any) -> Tensor:
        """Share of ID samples expected to score at least as high (N,): (1 + #{i : s_i ≥ s}) / (n + 1)."""
        reference = self.reference.numpy()
        at_least = len(reference) - np.searchsorted(reference, as_scores("scores", scores), side="left")
        return torch.from_numpy((1 + at_least) / (len(reference) + 1))

    def kept_interval(self, confidence: float = 0.9) -> tuple[float, float]:
        """Where the share of new ID samples that will be kept lies, given how many samples chose the threshold.

        The kept share follows Beta(r, n + 1 − r) for continuous scores; the interval is its central ``confidence`` part.
        """
        n = len(self.reference)
        rank = math.ceil(self.keep * (n + 1) - 1e-9)
        tail = (1 - confidence) / 2
        return float(betaincinv(rank, n + 1 - rank, tail)), float(betaincinv(rank, n + 1 - rank, 1 - tail))

    def __repr__(self) -> str:
        low, high = self.kept_interval()
        return (
            f"Threshold({self.value:.6g}: keeps {self.keep:.4g} of ID, chosen on {len(self.reference):,} held-out scores; "
            f"90 % interval of the kept share {low:.3f} to {high:.3f})"
        )

    def save(self, path: storage.PathLike) -> None:
        """Write the value, how it was chosen and the held-out scores (``.safetensors``), atomically."""
        header = {"value": self.value, "keep": self.keep, "n": len(self.reference), "rule": "conformal quantile"}
        storage.write(path, "Threshold", header, {"reference": self.reference})

    @classmethod
    def load(cls, path: storage.PathLike) -> Threshold:
        """Read what :meth:`save` wrote."""
        header, tensors = storage.read(path, "Threshold")
        try:
            return cls(value=header["value"], keep=header["keep"], reference=tensors["reference"])
        except KeyError as error:
            raise FileFormatError(f"{path} is not a complete Threshold: {error} is missing") from error
