"""Annotated boxes: those of Pascal VOC and COCO, and the guard that is built on the boxes that match them."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError, StorageError, TooFewSamplesError, as_ours
from outfield.features import FeatureSet
from outfield.files import PathLike, as_path, open_to_read
from outfield.guard.boxes import Boxes, floats
from outfield.guard.build import ImagePlan
from outfield.guard.guard import Guard
from outfield.guard.inputs import as_given
from outfield.percent import counted

log = logging.getLogger(__name__)
Annotated = tuple[Any, Any, Any]  # an image, boxes (n, 4) in it, and the label or name of each
# Overlap (intersection over union) with an annotated box of its class from which on a box counts as found
MATCHED = 0.5
ENDS = ("xmin", "ymin", "xmax", "ymax")


def annotated_images(given: PathLike | Iterable[Annotated]) -> Iterable[Annotated]:
    """Images with their boxes: triples as they are, or of a file or folder of Pascal VOC or COCO."""
    if not isinstance(given, str | os.PathLike):
        return given
    if not (path := as_path(given, "annotated images")).exists():
        raise StorageError(f"cannot read {path}: there is no such file or folder")
    return (_coco if path.suffix == ".json" else _voc)(path)


def are_annotated(path: Path) -> bool:
    """Whether it is what :func:`annotated_images` reads, and no folder of images alone."""
    return path.suffix in (".json", ".txt") or (path / "Annotations").is_dir()


def _voc(path: Path) -> Iterator[Annotated]:
    """A folder with Annotations/ and JPEGImages/, or a list of names in its ImageSets/Main/."""
    root = path if path.is_dir() else path.parent.parent.parent
    names = [one.stem for one in sorted((root / "Annotations").glob("*.xml"))]
    if root != path:
        names = [line.split()[0] for line in path.read_text("utf-8").splitlines() if line.strip()]
    if not names:
        what = f"{path} has no annotated images: Annotations/*.xml of Pascal VOC"
        raise StorageError(f"{what}, or give a JSON file of COCO")
    images = {one.stem: one for one in sorted((root / "JPEGImages").glob("*"))}
    for name in names:
        file = root / "Annotations" / f"{name}.xml"
        with as_ours(f"{file} is no annotation of Pascal VOC", FileFormatError, ElementTree.ParseError, ValueError):
            with open_to_read(file) as opened:
                objects = [*ElementTree.parse(opened).iter("object")]
            boxes = [[float(one.findtext(f"bndbox/{end}", "")) for end in ENDS] for one in objects]
        file = images.get(name, root / "JPEGImages" / f"{name}.jpg")
        yield file, boxes, [one.findtext("name", "") for one in objects]


def _coco(path: Path) -> Iterator[Annotated]:
    """A JSON file of COCO; images lie beside it or in images/."""
    with as_ours(f"{path} is no file of COCO's annotations", FileFormatError, ValueError, KeyError, TypeError):
        with open_to_read(path) as opened:
            said = json.loads(opened.read())
        names = {one["id"]: one["name"] for one in said["categories"]}
        of: dict[Any, list[tuple[list[float], str]]] = {one["id"]: [] for one in said["images"]}
        for one in said["annotations"]:
            left, top, width, height = map(float, one["bbox"])
            if not one.get("iscrowd"):
                of[one["image_id"]].append(([left, top, left + width, top + height], names[one["category_id"]]))
        files = {one["id"]: Path(one["file_name"]) for one in said["images"]}
    for number, file in files.items():
        beside = path.parent / file
        found = beside if beside.exists() else path.parent / "images" / file
        yield found, [box for box, _ in of[number]], [name for _, name in of[number]]


@dataclass(frozen=True)
class BoxPlan(ImagePlan):
    """Settings of a guard of boxes, see :meth:`outfield.Guard.build`; of those of images only ``on_error``."""

    unit, units, refused = "box", "boxes", ("threshold", "accuracy", "views", "precision", "float16")

    def build(self, backbone: Any, images: Any, held_out: Any = None) -> Guard:
        """A guard on the boxes that match annotated ones; those of one image stay on one side of every split."""
        train, reader = self.rows(backbone, images), copy.copy(backbone)
        if held_out is None:
            train, held = self.split(train, train.labels, np.array(train.names))
        else:
            held = self.rows(backbone, held_out)
        choose, calibrate = self.to_choose(held, copies=np.array(held.names))
        made = self.fit(reader, self.to_train(train), choose, calibrate)
        order = np.random.default_rng(self.seed).permutation(len(calibrate))
        drawn = order[np.unique(np.array(calibrate.names, int)[order], return_index=True)[1]]
        scores = made.detector.score(calibrate[drawn]).double()
        made.provenance |= {"split_off": held_out is None, "one_an_image": scores.sort()[0].tolist()}
        return made

    def rows(self, boxes: Boxes, images: PathLike | Iterable[Annotated]) -> FeatureSet:
        """The rows of the boxes that match annotated ones of their class, each with the number of its image as its name."""
        parts: list[FeatureSet] = []
        names: list[str] = []
        total = wanted = 0
        for number, (image, corners, labels) in enumerate(annotated_images(images)):
            try:
                found = boxes.find(floats(as_given(image).images[0]))
            except (StorageError, FileFormatError) as error:
                if self.on_error == "fail":
                    raise
                log.warning("left out: %s", error)
                continue
            annotated, classes = _known(boxes, corners, labels)
            right = ((overlaps(found.boxes, annotated) >= MATCHED) & (found.classes[:, None] == classes)).any(1)
            total, wanted = total + len(right), wanted + len(classes)
            if found.rows is not None and right.any():
                parts.append(found.rows[right])
                names += [str(number)] * len(parts[-1])
        if not parts:
            known = f"{wanted:,} are annotated with its classes, {', '.join(boxes.names) or 'which have no names'}"
            what = f"none of the {counted(total, 'box')} found matches an annotated one ({known})"
            raise TooFewSamplesError(f"{what}; are names in the order of its labels?")
        log.info("of %s %s match annotated ones, in %s images", counted(total, "box"), f"{len(names):,}", len(parts))
        joined = FeatureSet.join(parts)
        return FeatureSet(**joined.tensors(), about=joined.about, names=names)


def _known(boxes: Boxes, corners: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Annotated boxes of the detector's classes, and the class of each; those of other names are left out."""
    with as_ours(f"boxes of an annotated image are {corners!r:.60}; they must be numbers (n, 4)", InputError):
        found = torch.as_tensor(np.asarray(corners, np.float32)).reshape(-1, 4)
    given = np.asarray(labels).tolist()
    if len(given) != len(found):
        raise InputError(f"an annotated image has {counted(len(found), 'box')} and {counted(len(given), 'label')}")
    if not boxes.names and any(isinstance(one, str) for one in given):
        what = f"annotated boxes have names such as {given[0]!r:.60}"
        raise InputError(f"{what}; say what the labels are: Boxes(…, names=…)")
    place = {name: index for index, name in enumerate(boxes.names)}
    classes = torch.tensor([place.get(one, -1) if isinstance(one, str) else int(one) - boxes.first for one in given])
    return found[classes >= 0], classes[classes >= 0]


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of boxes (n, 4) with others (m, 4), as (n, m).

    >>> overlaps(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0], [2.0, 2.0, 4.0, 4.0]])).tolist()
    [[0.3333333432674408, 0.0]]
    """
    ends, starts = torch.minimum(boxes[:, None, 2:], others[:, 2:]), torch.maximum(boxes[:, None, :2], others[:, :2])
    both = (ends - starts).clamp(min=0).prod(2)
    areas = [(one[:, 2:] - one[:, :2]).prod(1) for one in (boxes, others)]
    return both / (areas[0][:, None] + areas[1] - both).clamp(min=1e-9)
