"""From images to the features of a backbone's sets, each extracted once and kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, NamedTuple
from typing import Protocol as Interface

import numpy as np
from torch import Tensor

from outfield.backbone.backbone import Backbone, Odin
from outfield.backbone.views import Views
from outfield.benchmark.fitting import TEST, TRAIN, Say, Sets
from outfield.benchmark.held_out import HELD_OUT
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import without_paths
from outfield.benchmark.stages import Stage, Stages
from outfield.config import to_plain
from outfield.detectors.base import Detector
from outfield.errors import FileFormatError, InputError, MissingFieldError, StorageError, UnknownNameError
from outfield.features.about import checked_about
from outfield.features.clusters import clustered
from outfield.features.fields import FIELDS, made_by
from outfield.features.set import FeatureSet
from outfield.files import atomic, storage
from outfield.images import finding
from outfield.images.source import ImageSource

KINDS = {"features": "FeatureSet", "blocks": "stages of a network", "odin": "odin logits"}
"""Of the files that extraction leaves, by kind of stage: all but the first are asked for by few detectors."""

OF_LOGITS = ("logits", "odin_logits", "head")
"""What detectors ask for that only a network with classes has."""


class Extractor(Interface):
    """What a benchmark asks of a backbone: :class:`outfield.backbone.backbone.Backbone`, or anything that can do the same."""

    name: str

    def fingerprint(self) -> str:
        """Different for different weights or preparation of images."""
        ...

    def extract(
        self,
        images: ImageSource,
        *,
        odin: Odin | None = None,
        labels: bool = True,
        stages: bool = False,
        views: Views | None = None,
    ) -> FeatureSet:
        """Features of every image, in order; ``stages`` and ``views`` are given only where they are asked for."""
        ...


def fields_needed(detectors: Iterable[Detector]) -> frozenset[str]:
    """The fields that any of the detectors fits on or scores."""
    return frozenset(
        name
        for detector in detectors
        for name in (detector.on, *detector.needs_to_fit, *detector.needs_to_score, *detector.uses)
    )


class ExtractedSets(Sets):
    """Features of every set of images; those of a set are extracted, or read, when first asked for.

    Args:
        name: of the backbone.
        backbone: the backbone.
        images: "train", "test" and the OOD sets.
        checksums: of the images of each set.
        odin: ODIN's perturbation, for the sets that are scored; None does without.
        stages: keeps them.
        say: told what is being done.
        fields: that detectors need; stages of the network are extracted where one is among them.
        views: of each image, over which its features are averaged; None is the image alone.
        stand_ins: the level of each of the sets that stands for OOD data, by its name.
    """

    def __init__(
        self,
        name: str,
        backbone: Extractor,
        images: Mapping[str, ImageSource],
        checksums: Mapping[str, str],
        odin: Odin | None,
        stages: Stages,
        say: Say,
        fields: Collection[str] = (),
        views: Views | None = None,
        stand_ins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name, self.backbone, self.images, self.stages, self.say = name, backbone, images, stages, say
        self.odin = odin
        self.views = views if views is not None and len(views) > 1 else None
        # The image alone is not mentioned: what earlier versions kept is found.
        averaged = {} if self.views is None else {"views": to_plain(self.views)}
        self.has_held_out, self.stand_ins = HELD_OUT in images, stand_ins
        self.ood = tuple(part for part in images if part not in (TRAIN, TEST, HELD_OUT, *stand_ins))
        weights, blocks = backbone.fingerprint(), not set(fields).isdisjoint(made_by("blocks"))

        def stage(what: str, part: str, **more: Any) -> Stage:
            depends = {"images": checksums[part], "backbone": weights, **averaged, **more}
            return Stage(what, {"backbone": self.name, "set": part}, depends)

        # The classes of OOD images are none of the backbone's.
        self.without_labels = bool(getattr(backbone, "projects", False))
        labels = {part: part not in self.ood for part in images} | ({TRAIN: "clusters"} if self.without_labels else {})
        self._kept = {part: {"features": stage("features", part, labels=labels[part])} for part in images}
        # Stages of their own, so that they come and go without the others; nothing is fitted on perturbed images.
        for part, kept in self._kept.items():
            if blocks:
                kept["blocks"] = stage("blocks", part)
            if odin is not None and part != TRAIN and part not in stand_ins:
                kept["odin"] = stage("odin", part, odin=to_plain(odin))
        self._held: dict[str, FeatureSet] = {}

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        kept = self._kept[name].items()
        used = [one for kind, one in kept if kind == "features" or not set(fields).isdisjoint(made_by(kind))]
        return " ".join(stage.digest for stage in used)

    def __getitem__(self, name: str) -> FeatureSet:
        if name not in self._held:
            self._extract_missing()
            self._hold(name)
        return self._held[name]

    def _extract_missing(self) -> None:
        """All sets that no earlier run left, so that an image that cannot be read is found before the first long fit."""
        for part, kept in self._kept.items():
            paths = [self.stages.path(stage) for stage in kept.values()]
            if not all(path is not None and path.exists() for path in paths):
                self._hold(part)

    def _hold(self, part: str) -> None:
        if part in self._held:
            return
        kept = self._kept[part]
        found = {kind: self.stages.find(stage, partial(self._load, part, kind)) for kind, stage in kept.items()}
        lacks = [kind for kind, one in found.items() if one is None]
        if lacks:
            begin = time.perf_counter()
            made = _by_kind(self._extract(part, lacks))
            seconds: float | None = time.perf_counter() - begin
            for kind in lacks:
                found[kind] = made[kind]
                self.stages.keep(kept[kind], made[kind], partial(_save, kind), seconds)
                seconds = None  # what came in the same pass has no time of its own
        pieces = [one for one in found.values() if one is not None]
        tensors = {name: value for one in pieces for name, value in one.tensors.items()}
        self._held[part] = FeatureSet(
            **tensors, about={name: text for one in pieces for name, text in one.about.items()}
        )

    def _extract(self, part: str, kinds: Collection[str]) -> FeatureSet:
        images = self.images[part]
        which = f" ({part.replace('_', ' ')})" if part in (TRAIN, TEST, HELD_OUT) else ""
        self.say(f"{self.name}: extracting features of {len(images):,} images of {images.name}{which}")
        odin = self.odin if "odin" in kinds else None
        labels = images.labels is not None and part not in self.ood and not self.without_labels
        asked: dict[str, Any] = {"stages": True} if "blocks" in kinds else {}
        asked |= {} if self.views is None else {"views": self.views}
        found = self.backbone.extract(images, odin=odin, labels=labels, **asked)
        # A network that was trained without labels is judged without them: clusters take their place.
        return clustered(found) if self.without_labels and part == TRAIN else found

    def _load(self, part: str, kind: str, path: Path) -> _Piece:
        header, tensors = storage.read(path, KINDS[kind])
        for name, value in tensors.items():
            if (name not in FIELDS or FIELDS[name].per_row) and len(value) != len(self.images[part]):
                raise FileFormatError(f"{path} has {len(value)} rows, but there are {len(self.images[part])} images")
        return _Piece(tensors, checked_about(header.get("about")))


class _Piece(NamedTuple):
    """What one file of a set holds."""

    tensors: dict[str, Tensor]
    about: dict[str, str]


def _by_kind(found: FeatureSet) -> dict[str, _Piece]:
    """The fields of a set and what it says of them, by the kind of stage that keeps them."""
    homes = {name: kind for kind in KINDS for name in made_by(kind)}
    pieces = {kind: _Piece({}, {}) for kind in KINDS}
    for name, value in found.tensors().items():
        pieces[homes.get(name, "features")].tensors[name] = value
    for name, text in found.about.items():
        pieces[homes.get(name, "features")].about[name] = text
    return pieces


def _save(kind: str, piece: _Piece, path: Path) -> None:
    storage.write(path, KINDS[kind], {"about": piece.about} if piece.about else {}, piece.tensors)


def find_images(
    protocol: Protocol, data: atomic.PathLike | Mapping[str, ImageSource], download: bool = False
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """Images of every set that is there, and what is wrong with each that is not; for the arguments see run_benchmark."""
    wanted = {TRAIN: (protocol.id, "train"), TEST: (protocol.id, "test")} | {ood: (ood, "test") for ood in protocol.ood}
    if isinstance(data, Mapping):
        unknown = [part for part in data if part not in wanted]
        if unknown:
            raise InputError(
                f"data has {', '.join(unknown)}, but the protocol of {protocol.id} has {', '.join(wanted)}; with_ood adds one"
            )
        return {part: data[part] for part in wanted if part in data}, {
            part: part for part in wanted if part not in data
        }
    images: dict[str, ImageSource] = {}
    problems: dict[str, str] = {}
    for part, (name, split) in wanted.items():
        try:
            images[part] = finding.find(name, split, data, download)
        except (StorageError, UnknownNameError) as error:
            problems[part] = f"{name} ({split}): {error}"
    return images, problems


def check_images(images: Mapping[str, ImageSource]) -> None:
    """Refuse, before any work, training images without labels, and ID images that stand for another set as well."""
    if images[TRAIN].labels is None:
        raise InputError(f"the training images of {images[TRAIN].name} have no labels; detectors learn from them")
    ood = [part for part in images if part not in (TRAIN, TEST)]
    for part, known in [(TEST, TRAIN), *((part, known) for part in ood for known in (TRAIN, TEST))]:
        if _equal(images[part], images[known]):
            raise InputError(f"{part} and the {known} set of {images[known].name} are the same images, one by one")


def _equal(one: ImageSource, other: ImageSource) -> bool:
    """Whether the pixels are; labels may differ. The first pair that differs ends it, mostly the very first."""
    if len(one) != len(other):
        return False
    return all(np.array_equal(one[index], other[index]) for index in range(len(one)))


def open_backbones(backbones: Sequence[str | Extractor], device: str) -> dict[str, Extractor]:
    """Every backbone by a short name; all are opened before any work, so that a wrong name costs no time."""
    if not backbones or isinstance(backbones, str):
        raise InputError(f"backbones is {backbones!r}; it must be a list of at least one")
    opened: dict[str, Extractor] = {}
    for name, backbone in zip(backbone_names(backbones), backbones, strict=True):
        opened[name] = Backbone.open(backbone, device) if isinstance(backbone, str) else backbone
    prints: dict[str, str] = {}
    for name, backbone in opened.items():
        twin = prints.setdefault(backbone.fingerprint(), name)
        if twin != name:
            raise InputError(f"{twin} and {name} are the same backbone; a spread over backbones needs different ones")
    return opened


def check_logits(backbones: Mapping[str, Extractor], detectors: Mapping[str, Detector]) -> None:
    """Refuse, before any work, detectors of logits on a network that was trained without labels.

    Raises:
        MissingFieldError: such a network gives features alone.
    """
    needing = [
        name
        for name, detector in detectors.items()
        if not {*detector.needs_to_fit, *detector.needs_to_score}.isdisjoint(OF_LOGITS)
    ]
    for name, backbone in backbones.items():
        if needing and getattr(backbone, "projects", False):
            raise MissingFieldError(
                f"{name} was trained without labels: it gives features and no logits, which {', '.join(needing)} need; name "
                "detectors of features alone, such as --detector KNN --detector SSD"
            )


def backbone_names(backbones: Sequence[str | Extractor]) -> list[str]:
    """Short names that differ: of a file its own, with as many of its folders as it takes.

    >>> backbone_names(["a/resnet.safetensors", "b/resnet.safetensors", "timm:vgg11"])
    ['a/resnet', 'b/resnet', 'vgg11']
    """
    given = [backbone if isinstance(backbone, str) else backbone.name for backbone in backbones]
    files = [re.sub(r"^(timm|torchvision):(.*@)?", "", name).removesuffix(".safetensors") for name in given]
    parts = [PurePath(file).parts for file in files]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part.strip("/\\") for part in path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise InputError(f"the backbones are {', '.join(given)}; each must be given once")


def notes_of(backbone: str | Extractor) -> dict[str, Any]:
    """What the file of a backbone that Outfield trained tells of it (recipe, accuracy), without paths."""
    if not isinstance(backbone, str) or not os.path.isfile(backbone):
        return {}
    header, _ = storage.read(backbone, "classifier")
    found: dict[str, Any] = without_paths({name: header[name] for name in ("classifier", "notes") if header.get(name)})
    return found
