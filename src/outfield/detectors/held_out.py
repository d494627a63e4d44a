"""ID rows that no detector was fitted on: split off from the training rows, or given and found to be others."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from outfield.errors import InputError, TooFewSamplesError
from outfield.features.part import Part
from outfield.features.set import FeatureSource

ROWS_AT_ONCE = 8192
MOST_SHARED = 0.1
"""Share of the held-out rows that may be training rows too: sets of images hold some twice."""


def split_off(train: FeatureSource, share: float, seed: int, least: int) -> tuple[FeatureSource, FeatureSource]:
    """Training rows without a random share of them, and that share.

    Every class keeps at least one training row.

    Args:
        train: the rows.
        share: of the rows that is split off.
        seed: of the choice.
        least: how many rows must be split off at least.

    Raises:
        TooFewSamplesError: they cannot be.
    """
    count = max(least, round(share * len(train)))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    order = order[_not_first_of_class(_labels(train)[order])] if "labels" in train.shapes else order[1:]
    if len(order) < count or 2 * count > len(train):
        raise TooFewSamplesError(
            f"{len(train)} training rows are too few to keep {count} of them for calibration; give held-out rows, or more "
            "training rows"
        )
    mask = torch.zeros(len(train), dtype=torch.bool)
    mask[order[:count]] = True
    return Part(train, ~mask), Part(train, mask)


def _labels(train: FeatureSource) -> Tensor:
    return torch.cat([piece["labels"] for piece in train.batches(ROWS_AT_ONCE, ["labels"])])


def _not_first_of_class(labels: Tensor) -> Tensor:
    """Which entries (N,) have an equal one before them."""
    by_class = labels.sort(stable=True)
    again = torch.zeros(len(labels), dtype=torch.bool)
    again[by_class.indices[1:]] = by_class.values.diff() == 0
    return again


def check_apart(train: FeatureSource, held_out: FeatureSource) -> None:
    """Refuse held-out rows that are training rows: a detector's scores of those say nothing about other rows.

    Raises:
        InputError: more of them than :data:`MOST_SHARED` are.
    """
    if train.shapes["features"][1:] != held_out.shapes["features"][1:]:
        return  # another error, which names both widths, follows
    known = _row_digests(held_out)
    there = _row_digests(train)
    shared = sum(digest in there for digest in known) / len(known)
    if shared > MOST_SHARED:
        raise InputError(
            f"{100 * shared:.0f} % of the held-out rows are training rows; held-out rows must be ID rows that were not trained on"
        )


def _row_digests(source: FeatureSource) -> set[bytes]:
    found = set()
    for piece in source.batches(ROWS_AT_ONCE, ["features"]):
        rows = piece["features"].float().contiguous().numpy()
        found |= {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}
    return found
