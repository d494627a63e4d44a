"""From images to the features of a backbone's sets, each extracted once and kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any
from typing import Protocol as Interface

from outfield import datasets, storage
from outfield.backbone import Backbone, Odin
from outfield.benchmark.one_backbone import TEST, TRAIN, Say, Sets
from outfield.benchmark.stages import Stage, Stages
from outfield.config import to_plain
from outfield.datasets import Protocol
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError
from outfield.features import FeatureSet
from outfield.images import ImageSource
from outfield.provenance import without_paths


class Extractor(Interface):
    """What a benchmark asks of a backbone: :class:`outfield.backbone.Backbone`, or anything that can do the same."""

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
        self.ood = tuple(part for part in images if part not in (TRAIN, TEST))
        # Nothing is fitted on perturbed images, and the classes of OOD images are none of the backbone's.
        self._how: dict[str, dict[str, Any]] = {
            part: {"odin": None if part == TRAIN else odin, "labels": part not in self.ood} for part in images
        }
        weights = backbone.fingerprint()
        self._stages = {
            part: Stage(
                "features",
                {"backbone": name, "set": part},
                {
                    "images": checksums[part],
                    "backbone": weights,
                    **{key: to_plain(value) for key, value in how.items()},
                },
            )
            for part, how in self._how.items()
        }
        self._held: dict[str, FeatureSet] = {}

    def identity(self, name: str) -> str:
        return self._stages[name].digest

    def __getitem__(self, name: str) -> FeatureSet:
        if name not in self._held:
            self._extract_missing()
            self._hold(name)
        return self._held[name]

    def _extract_missing(self) -> None:
        """All sets that no earlier run left, so that an image that cannot be read is found before the first long fit."""
        for part, stage in self._stages.items():
            path = self.stages.path(stage)
            if path is None or not path.exists():
                self._hold(part)

    def _hold(self, part: str) -> None:
        if part not in self._held:
            stage = self._stages[part]
            self._held[part] = self.stages.run(stage, lambda: self._extract(part), _save, lambda p: self._load(part, p))

    def _extract(self, part: str) -> FeatureSet:
        images = self.images[part]
        which = f" ({part})" if part in (TRAIN, TEST) else ""
        self.say(f"{self.name}: extracting features of {len(images):,} images of {images.name}{which}")
        return self.backbone.extract(images, **self._how[part])

    def _load(self, part: str, path: Path) -> FeatureSet:
        data, images = FeatureSet.load(path), len(self.images[part])
        if len(data) != images:
            raise FileFormatError(f"{path} has {len(data)} rows, but there are {images} images")
        return data


def _save(data: FeatureSet, path: Path) -> None:
    data.save(path)


def find_images(
    protocol: Protocol, data: storage.PathLike | Mapping[str, ImageSource], download: bool = False
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """Images of every set that is there, and what is wrong with each that is not; for the arguments see run_benchmark."""
    wanted = {TRAIN: (protocol.id, "train"), TEST: (protocol.id, "test")} | {ood: (ood, "test") for ood in protocol.ood}
    if isinstance(data, Mapping):
        return {part: data[part] for part in wanted if part in data}, {
            part: part for part in wanted if part not in data
        }
    images: dict[str, ImageSource] = {}
    problems: dict[str, str] = {}
    for part, (name, split) in wanted.items():
        try:
            images[part] = datasets.find(name, split, data, download)
        except (StorageError, UnknownNameError) as error:
            problems[part] = f"{name} ({split}): {error}"
    return images, problems


def check_labels(images: Mapping[str, ImageSource]) -> None:
    """Refuse, before any work, training images without labels."""
    if images[TRAIN].labels is None:
        raise InputError(f"the training images of {images[TRAIN].name} have no labels; detectors learn from them")


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
    if not isinstance(backbone, str) or not Path(backbone).is_file():
        return {}
    header, _ = storage.read(backbone, "classifier")
    found: dict[str, Any] = without_paths({name: header[name] for name in ("classifier", "notes") if header.get(name)})
    return found
