"""From images to the features of a backbone's sets, each extracted once and kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from typing import Protocol as Interface

import numpy as np
from torch import Tensor

from outfield.backbone.backbone import Backbone, Odin
from outfield.benchmark.fitting import TEST, TRAIN, Say, Sets
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import without_paths
from outfield.benchmark.stages import Stage, Stages
from outfield.config import to_plain
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError
from outfield.features.fields import made_by
from outfield.features.set import FeatureSet
from outfield.files import atomic, storage
from outfield.images import finding
from outfield.images.source import ImageSource

KINDS = {"features": "FeatureSet", "odin": "odin logits"}
"""Of the files that extraction leaves, by kind of stage."""


class Extractor(Interface):
    """What a benchmark asks of a backbone: :class:`outfield.backbone.backbone.Backbone`, or anything that can do the same."""

    name: str

    def fingerprint(self) -> str:
        """Different for different weights or preparation of images."""
        ...

    def extract(self, images: ImageSource, *, odin: Odin | None = None, labels: bool = True) -> FeatureSet:
        """Features of every image, in order."""
        ...


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
    ) -> None:
        self.name, self.backbone, self.images, self.stages, self.say = name, backbone, images, stages, say
        self.odin = odin
        self.ood = tuple(part for part in images if part not in (TRAIN, TEST))
        weights = backbone.fingerprint()
        # The classes of OOD images are none of the backbone's.
        self._features = {
            part: self._stage("features", part, checksums[part], weights, labels=part not in self.ood)
            for part in images
        }
        # Stages of their own, so that ODIN comes and goes without the others; nothing is fitted on perturbed images.
        self._odin = {
            part: self._stage("odin", part, checksums[part], weights, odin=to_plain(odin))
            for part in images
            if odin is not None and part != TRAIN
        }
        self._held: dict[str, FeatureSet] = {}

    def _stage(self, what: str, part: str, images: str, weights: str, **more: Any) -> Stage:
        return Stage(what, {"backbone": self.name, "set": part}, {"images": images, "backbone": weights, **more})

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        digest = self._features[name].digest
        return f"{digest} {self._odin[name].digest}" if set(fields) & set(made_by("odin")) else digest

    def __getitem__(self, name: str) -> FeatureSet:
        if name not in self._held:
            self._extract_missing()
            self._hold(name)
        return self._held[name]

    def _extract_missing(self) -> None:
        """All sets that no earlier run left, so that an image that cannot be read is found before the first long fit."""
        for part in self.images:
            paths = [self.stages.path(stages[part]) for stages in (self._features, self._odin) if part in stages]
            if not all(path is not None and path.exists() for path in paths):
                self._hold(part)

    def _hold(self, part: str) -> None:
        if part in self._held:
            return
        stages = [self._features[part]] + ([self._odin[part]] if part in self._odin else [])
        found = {stage.what: self.stages.find(stage, partial(self._load, part, stage.what)) for stage in stages}
        lacks = [stage for stage in stages if found[stage.what] is None]
        if lacks:
            begin = time.perf_counter()
            tensors = self._extract(part, self.odin if found.get("odin", {}) is None else None).tensors()
            seconds: float | None = time.perf_counter() - begin
            perturbed = {name: tensors.pop(name) for name in made_by("odin") if name in tensors}
            for stage in lacks:
                found[stage.what] = perturbed if stage.what == "odin" else tensors
                self.stages.keep(stage, found[stage.what], partial(_save, stage.what), seconds)
                seconds = None  # what came in the same pass has no time of its own
        self._held[part] = FeatureSet(
            **{name: value for data in found.values() for name, value in (data or {}).items()}
        )

    def _extract(self, part: str, odin: Odin | None) -> FeatureSet:
        images = self.images[part]
        which = f" ({part})" if part in (TRAIN, TEST) else ""
        self.say(f"{self.name}: extracting features of {len(images):,} images of {images.name}{which}")
        return self.backbone.extract(images, odin=odin, labels=part not in self.ood)

    def _load(self, part: str, what: str, path: Path) -> dict[str, Tensor]:
        _, tensors = storage.read(path, KINDS[what])
        for value in tensors.values():
            if len(value) != len(self.images[part]):
                raise FileFormatError(f"{path} has {len(value)} rows, but there are {len(self.images[part])} images")
        return tensors


def _save(what: str, tensors: Mapping[str, Tensor] | None, path: Path) -> None:
    storage.write(path, KINDS[what], {}, tensors or {})


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
