"""The sets of one backbone, by name: features that are given, or extracted from images once and kept; held-out samples too.

Held-out samples are split off from the ID test set before anything is judged. Detectors that calibrate themselves are given them;
of held-out images, stand-ins for OOD data are made, too, for :class:`outfield.Auto` to choose by. Every detector is judged on the
rest of the test set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.backbone import Backbone, Odin, Views
from outfield.benchmark.cache import Cache, Entry
from outfield.benchmark.plan import SEED
from outfield.benchmark.protocol import HELD_OUT, TEST, TRAIN
from outfield.config import to_plain
from outfield.detectors import Detector
from outfield.features import FeatureSet, FeatureSource, Part, checked_about, clustered, made_by
from outfield.files import Record, read_record, write_record
from outfield.images import ImageSource, part_of, stand_ins
from outfield.partners import StandIns
from outfield.percent import counted
from outfield.scores import rank

Say = Callable[[str], None]  # told what is being done
STAND_IN = "stand-in "  # what the names of stand-ins begin with among a backbone's sets
KINDS = {"features": "FeatureSet", "blocks": "stages of a network", "odin": "odin logits"}
"""Kinds of the files that extraction leaves, by kind of entry: all but the first are asked for by few detectors."""


class Sets:
    """Features of every set of one backbone by name, as given by a user; ``levels`` are those of stand-ins."""

    def __init__(self, sets: Mapping[str, FeatureSource], ood: tuple[str, ...]) -> None:
        self._sets, self.ood, self.has_held_out = sets, ood, HELD_OUT in sets
        self.levels: Mapping[str, str] = {}

    def __getitem__(self, name: str) -> FeatureSource:
        return self._sets[name]

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        """What is different for different features of a set, or of other fields that are used; for the cache."""
        return name

    def stand_ins(self) -> StandIns[FeatureSource]:
        """The stand-ins by kind."""
        levels = {name.removeprefix(STAND_IN): level for name, level in self.levels.items()}
        return StandIns({kind: self[STAND_IN + kind] for kind in levels}, levels)


class FractionOfSets(Sets):
    """The same sets with a fraction of the training rows."""

    def __init__(self, sets: Sets, fraction: float) -> None:
        self._whole, self._fraction = sets, fraction
        self.ood, self.has_held_out, self.levels = sets.ood, sets.has_held_out, sets.levels

    @cached_property
    def _train(self) -> FeatureSource:
        train = self._whole[TRAIN]
        labels = torch.zeros(len(train))  # one class where there are no labels
        if "labels" in train.shapes:
            labels = torch.cat([piece["labels"] for piece in train.batches(8192, ["labels"])])
        return Part(train, rows_of(labels, self._fraction))

    def __getitem__(self, name: str) -> FeatureSource:
        return self._train if name == TRAIN else self._whole[name]

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        whole = self._whole.identity(name, fields)
        return f"{whole} fraction {self._fraction!r} seed {SEED}" if name == TRAIN else whole


def rows_of(labels: Tensor, fraction: float) -> Tensor:
    """Which rows (N,) belong to a fraction: of each class the first ⌈f · n⌉ in an order that is the same for every fraction."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        mine = order[labels[order] == label]
        mask[mine[: rank(fraction, len(mine))]] = True
    return mask


def split(total: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the samples that are judged and of those that are held out, each in ascending order."""
    order = np.random.default_rng(SEED).permutation(total)
    return np.sort(order[count:]), np.sort(order[:count])


def split_images(
    images: Mapping[str, ImageSource], count: int, detectors: Iterable[Detector], seen: Collection[str] = ()
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """Images with some held out, and the level of each set of stand-ins (but kinds ``seen``), if a detector chooses by them."""
    if not count:
        return dict(images), {}
    judged, held_out = (part_of(images[TEST], rows) for rows in split(len(images[TEST]), count))
    found = {**images, TEST: judged, HELD_OUT: held_out}
    if not any(one.uses_stand_ins for one in detectors):
        return found, {}
    made = stand_ins(held_out, seed=SEED, seen=seen)
    levels = {STAND_IN + name: level for name, level in made.levels.items()}
    return found | {STAND_IN + name: one for name, one in made.items()}, levels


def split_features(sets: Mapping[str, FeatureSource], count: int) -> dict[str, FeatureSource]:
    """Features with some rows of the test set held out, unless held-out rows are there."""
    if HELD_OUT in sets or not count:
        return dict(sets)
    mask = torch.zeros(len(sets[TEST]), dtype=torch.bool)
    mask[torch.from_numpy(split(len(mask), count)[1])] = True
    return {**sets, TEST: Part(sets[TEST], ~mask).in_memory(), HELD_OUT: Part(sets[TEST], mask).in_memory()}


@dataclass
class ExtractedSets(Sets):
    """Features of every set of images, extracted or read when first used; stages and ODIN's logits where ``fields`` need them."""

    name: str
    backbone: Backbone
    images: Mapping[str, ImageSource]
    checksums: Mapping[str, str]
    levels: Mapping[str, str]
    cache: Cache
    say: Say
    odin: Odin | None
    fields: Collection[str]
    views: Views
    _held: dict[str, FeatureSet] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.has_held_out = HELD_OUT in self.images
        self.ood = tuple(part for part in self.images if part not in (TRAIN, TEST, HELD_OUT, *self.levels))
        # A network that was trained without labels is judged without them: clusters take their place.
        self.without_labels = bool(getattr(self.backbone, "projects", False))
        self._entries = {part: self._entries_of(part) for part in self.images}

    def _entries_of(self, part: str) -> dict[str, Entry]:
        """What extraction leaves of a set, by kind: entries of their own, so that they come and go without the others."""
        network = self.backbone.fingerprint()
        shared = {"images": self.checksums[part], "backbone": network, "views": to_plain(self.views)}
        labels = "clusters" if self.without_labels and part == TRAIN else part not in self.ood
        own: dict[str, dict[str, Any]] = {"features": {"labels": labels}}
        if not set(self.fields).isdisjoint(made_by("blocks")):
            own["blocks"] = {}
        if self.odin is not None and part != TRAIN and part not in self.levels:  # nothing is fitted on perturbed images
            own["odin"] = {"odin": to_plain(self.odin)}
        return {kind: Entry(kind, {"backbone": self.name, "set": part}, shared | more) for kind, more in own.items()}

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        kept = self._entries[name].items()
        used = [one for kind, one in kept if kind == "features" or not set(fields).isdisjoint(made_by(kind))]
        return " ".join(entry.digest for entry in used)

    def __getitem__(self, name: str) -> FeatureSet:
        if name not in self._held:
            # All that no earlier run left, so that an image that cannot be read is found before the first long fit.
            for part, entries in self._entries.items():
                if part not in self._held and (part == name or not all(map(self.cache.kept, entries.values()))):
                    self._held[part] = self._hold(part)
        return self._held[name]

    def _hold(self, part: str) -> FeatureSet:
        entries = self._entries[part]
        found = {kind: self.cache.find(one, partial(read_record, kind=KINDS[kind])) for kind, one in entries.items()}
        if lacks := [kind for kind, one in found.items() if one is None]:
            begin = time.perf_counter()
            made = _by_kind(self._extract(part, lacks))
            seconds: float | None = time.perf_counter() - begin
            for kind in lacks:
                found[kind] = made[kind]
                self.cache.keep(entries[kind], made[kind], partial(_save, kind), seconds)
                seconds = None  # what came in the same pass has no time of its own
        pieces = list(filter(None, found.values()))
        tensors = {name: value for one in pieces for name, value in one.tensors.items()}
        about = {name: text for one in pieces for name, text in checked_about(one.header.get("about")).items()}
        return FeatureSet(**tensors, about=about)

    def _extract(self, part: str, kinds: Collection[str]) -> FeatureSet:
        images = self.images[part]
        which = f" ({part.replace('_', ' ')})" if part in (TRAIN, TEST, HELD_OUT) else ""
        self.say(f"{self.name}: extracting features of {counted(len(images), 'image')} of {images.name}{which}")
        # The classes of OOD images are none of the backbone's.
        labels = images.labels is not None and part not in self.ood and not self.without_labels
        asked: dict[str, Any] = {"stages": True} if "blocks" in kinds else {}
        asked |= {"views": self.views} if len(self.views) > 1 else {}
        found = self.backbone.extract(images, odin=self.odin if "odin" in kinds else None, labels=labels, **asked)
        return clustered(found) if self.without_labels and part == TRAIN else found


def _by_kind(found: FeatureSet) -> dict[str, Record]:
    """The fields of a set and what it says of them, by the kind of entry that keeps them."""
    homes = {name: kind for kind in KINDS for name in made_by(kind)}
    made = {kind: Record({}, {}) for kind in KINDS}
    for name, value in found.tensors().items():
        made[homes.get(name, "features")].tensors[name] = value
    for name, text in found.about.items():
        made[homes.get(name, "features")].header.setdefault("about", {})[name] = text
    return made


def _save(kind: str, record: Record, path: Path) -> None:
    write_record(path, KINDS[kind], record)
