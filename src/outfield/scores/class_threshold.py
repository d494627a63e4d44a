"""A threshold for each predicted class, so that rare and difficult classes keep what was promised, too (Mondrian conformal).

A p-value compares a score with held-out scores of the same predicted class alone. Classes that are too rare for a threshold of
their own share one with others whose scores are alike. Other rows decide which do, so that p-values stay valid: among new ID
samples of a pool, P(p ≤ α) ≤ α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError
from outfield.files import Record
from outfield.percent import counted
from outfield.scores.threshold import check_keep, fewest, p_values
from outfield.scores.vectors import as_scores, rank

TOLD = 4  # names of a pool
AMPLE = 2  # times as many held-out rows of a class are expected as its own threshold needs, at least; few classes then have fewer


@dataclass(frozen=True, eq=False)
class ClassThresholds:
    """Held-out scores by pools of predicted classes, with the limit of each pool.

    Attributes:
        keep: share of ID samples of each pool that is to be kept.
        pool_of: the pool of each class (K,), int64; pools are numbered from 0.
        references: held-out scores of each pool, sorted, float64.

    >>> scores, classes = np.arange(200.0), np.arange(200) % 2
    >>> rule = ClassThresholds.fit(scores + 1000 * classes, classes, [50, 50])
    >>> rule.is_ood([195.0, 195.0], [0, 1]).tolist(), rule.limits.tolist()
    ([True, False], [190.0, 1191.0])
    """

    keep: float
    pool_of: Tensor
    references: tuple[Tensor, ...]

    @classmethod
    def fit(cls, scores: Any, classes: Any, counts: Any, keep: float = 0.95, levels: Any = None) -> ClassThresholds:
        """Sort held-out scores by predicted class.

        Args:
            scores: of ID samples that no detector was fitted on (n,).
            classes: the class that the network puts each in (n,).
            counts: how many of other ID samples it puts in each class (K,): who shares a pool follows from these.
            keep: share of ID samples of each class to accept.
            levels: how high these others score in each class (K,); rare classes of like levels share a pool. All do if None.
        """
        check_keep(keep)
        found, others = as_scores("scores", scores), as_scores("counts", counts)
        if not np.isfinite(found).all():
            raise InputError("scores has infinite ones; a threshold needs finite ones")
        if (others < 0).any() or not 0 < others.sum() < np.inf:
            raise InputError("counts must be how many samples each class has, and not all may be 0")
        order = None if levels is None else as_scores("levels", levels)
        if order is not None and len(order) != len(others):
            raise InputError(f"levels must be a number for each of the {len(others)} classes")
        pool_of = _pools(others / others.sum() * len(found), AMPLE * fewest(keep), order)
        pools = pool_of[_as_classes(classes, len(found), len(others))]
        references = tuple(torch.from_numpy(np.sort(found[pools == pool])) for pool in range(int(pool_of.max()) + 1))
        return cls(float(keep), torch.from_numpy(pool_of), references)

    @property
    def limits(self) -> Tensor:
        """Of each pool the score above which a sample is OOD (P,); +inf where too few held-out rows came to promise ``keep``."""
        ranks = [(reference, rank(self.keep, len(reference) + 1)) for reference in self.references]
        found = [float(one[r - 1]) if r <= len(one) else torch.inf for one, r in ranks]
        return torch.tensor(found, dtype=torch.float64)

    def is_ood(self, scores: Any, classes: Any) -> Tensor:
        """True where the score is above the limit of the class (N,)."""
        found = as_scores("scores", scores)
        return torch.from_numpy(found) > self.limits[self._pools(classes, len(found))]

    def p_value(self, scores: Any, classes: Any) -> Tensor:
        """Share of ID samples of that pool expected to score at least as high (N,): (1 + #{i : s_i ≥ s}) / (n + 1)."""
        found = as_scores("scores", scores)
        pools, p = self._pools(classes, len(found)), np.empty(len(found))
        for pool in np.unique(pools):
            own = pools == pool
            p[own] = p_values(self.references[pool], found[own])
        return torch.from_numpy(p)

    def group(self, index: int, names: Sequence[str] = ()) -> str:
        """The pool of a class in words: the class itself, or those that share it."""
        members = torch.where(self.pool_of == self.pool_of[index])[0].tolist()
        if len(members) == len(self.pool_of) > 1:
            return f"all {len(members):,} classes"
        told = [names[i] if names else f"class {i}" for i in members]
        return ", ".join(told) if len(told) <= TOLD else f"{', '.join(told[:TOLD])} and {len(told) - TOLD:,} more"

    def record(self) -> Record:
        """What a file holds of it."""
        header = {"keep": self.keep, "sizes": [len(one) for one in self.references]}
        return Record(header, {"pool_of": self.pool_of, "scores": torch.cat(self.references)})

    @classmethod
    def from_record(cls, record: Record) -> ClassThresholds:
        """What :meth:`record` gave."""
        header, tensors = record
        return cls(header["keep"], tensors["pool_of"], tensors["scores"].split(header["sizes"]))

    def _pools(self, classes: Any, count: int) -> np.ndarray:
        found: np.ndarray = self.pool_of.numpy()[_as_classes(classes, count, len(self.pool_of))]
        return found

    def __repr__(self) -> str:
        counts = self.pool_of.bincount()
        shared, pools = int(counts[counts > 1].sum()), int((counts > 1).sum())
        together = f", {shared} of them in {counted(pools, 'pool')}" if shared else ""
        return f"ClassThresholds(keeps {self.keep:.4g} of each of {counted(len(self.pool_of), 'class')}{together})"


def _as_classes(classes: Any, count: int, total: int) -> np.ndarray:
    found = np.asarray(classes)
    if found.shape != (count,) or found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= total:
        raise InputError(f"classes must be the predicted class of each of the {count} scores, from 0 to {total - 1}")
    return found


def _pools(expected: np.ndarray, least: int, levels: np.ndarray | None) -> np.ndarray:
    """The pool of each class: its own where enough rows come, else one with others; the rarest of the rest joins if need be.

    Rare classes in the order of their levels fill pools until enough rows are expected in each; the last one takes what is left.
    """
    order = np.argsort(expected, kind="stable")
    shared = int(np.count_nonzero(expected < least))
    while 0 < shared < len(order) and expected[order[:shared]].sum() < least:
        shared += 1
    alone = np.sort(order[shared:])
    pool_of = np.full(len(expected), len(alone), dtype=np.int64)
    pool_of[alone] = np.arange(len(alone))
    if levels is not None:
        rare = sorted(order[:shared].tolist(), key=lambda index: (levels[index], index))
        pool, inside, left = len(alone), 0.0, float(expected[rare].sum())
        for index in rare:
            pool_of[index] = pool
            inside, left = inside + expected[index], left - expected[index]
            if inside >= least and left >= least:
                pool, inside = pool + 1, 0.0
    return pool_of
