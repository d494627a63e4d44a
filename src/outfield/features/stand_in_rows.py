"""Stand-ins for OOD data where there are features and no images: mixed rows, and rows with coordinates of others.

They tell much less than stand-ins made of images (``docs/stand-ins.md``): use those where there are images.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outfield.config import require_number
from outfield.errors import InputError, OutfieldError
from outfield.features.fields import FIELDS
from outfield.features.head import Head, head_of
from outfield.features.set import FeatureSet, FeatureSource
from outfield.partners import Partners, StandIns, chosen_kinds

SWAPPED = 0.3  # the share of coordinates that come from another row


def mixed(rows: Tensor, partners: Tensor, rng: np.random.Generator) -> Tensor:
    """(z + z′) / 2."""
    return (rows + partners) / 2


def swapped(rows: Tensor, partners: Tensor, rng: np.random.Generator) -> Tensor:
    """z with 30 % of its coordinates, drawn for each row, from z′; at least one."""
    count = max(1, round(SWAPPED * rows.shape[1]))
    order = torch.from_numpy(rng.random(tuple(rows.shape))).argsort(1)
    return torch.where(order < count, partners, rows)


class Kind(NamedTuple):
    """A kind of stand-in: its name, "near" or "far", what is done to a row, and the function that does it."""

    name: str
    level: str
    meaning: str
    change: Callable[[Tensor, Tensor, np.random.Generator], Tensor]


# Every kind of stand-in made of features, by name
KINDS = {
    "mixed": Kind("mixed", "near", "The mean of two rows of different classes.", mixed),
    "swapped": Kind("swapped", "far", "Three of ten coordinates are those of a row of another class.", swapped),
}


def feature_stand_ins(
    features: FeatureSource, kinds: Iterable[str] | None = None, seed: int = 0
) -> StandIns[FeatureSet]:
    """Rows that stand for OOD data, made of ID rows, by the name of their kind.

    Partners are rows of another class: by labels, else by the largest logit, else any other row. Spread and stages are changed
    as the features are. The logits are those that the classifier's last layer makes of the new features; where it is not known
    and cannot be recovered, there are none. Labels and ODIN's logits are left out.

    Args:
        features: ID rows that no detector was fitted on.
        kinds: Which kinds; all of :data:`KINDS` if None.
        seed: Another seed mixes other rows.

    Raises:
        UnknownNameError: There is no such kind.
        InputError: It is no set of features, or there is one row only.

    >>> rows = FeatureSet(np.eye(4), labels=[0, 0, 1, 1])
    >>> feature_stand_ins(rows, kinds=["mixed"])["mixed"].features.sum(1).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if not isinstance(features, FeatureSource):
        raise InputError(f"features is a {type(features).__name__}; it must be a FeatureSet or a FeatureStream")
    chosen = chosen_kinds(kinds, KINDS)
    require_number("seed", seed, least=0, most=2**63 - 1, whole=True)
    if len(features) < 2:
        raise InputError("there is one row of features; rows are mixed, and at least two are needed")
    rows = features.in_memory()
    partners, head = Partners(len(rows), _classes(rows)), _head(rows)
    made = {name: _made(rows, kind, int(seed), partners, head) for name, kind in chosen.items()}
    return StandIns(made, {name: kind.level for name, kind in chosen.items()})


def _made(rows: FeatureSet, kind: Kind, seed: int, partners: Partners, head: Head | None) -> FeatureSet:
    rng = np.random.default_rng([seed, zlib.crc32(kind.name.encode())])
    everyone = np.arange(len(rows))
    others = torch.from_numpy(partners.of(everyone, rng.integers(partners.choices(everyone))))
    fields = {}
    for name, value in rows.tensors().items():
        if FIELDS[name].is_space:
            fields[name] = kind.change(value, value[others], rng)
        elif not FIELDS[name].per_row:
            fields[name] = value
    if head is not None:
        fields["logits"] = head.logits(fields["features"]).to(fields["features"].dtype)
    return FeatureSet(**fields, about=rows.about)


def _classes(rows: FeatureSet) -> np.ndarray | None:
    if rows.labels is not None:
        return rows.labels.numpy()
    return None if rows.logits is None else rows.logits.argmax(1).numpy()


def _head(rows: FeatureSet) -> Head | None:
    try:
        return head_of(rows)
    except OutfieldError:  # there are no logits, or they are no linear function of the features
        return None
