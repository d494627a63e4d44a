"""Boxes: an object detector's boxes, one by one, as rows of what its own head pools of each."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from outfield.backbone import evaluation_mode, load_weights
from outfield.config import require_number
from outfield.errors import FileFormatError, InputError, OutfieldError, UnknownNameError, as_ours
from outfield.extras import library
from outfield.features import NETWORK, FeatureSet, network_text, spaces
from outfield.files import PathLike, Record, fingerprint, read_tensors
from outfield.guard.inputs import Given, one_image
from outfield.guard.readers import Batch, Judge, PixelReader, check_network
from outfield.guard.verdict import BOX, BoxVerdict, ImageVerdict, Verdict
from outfield.modes import building
from outfield.percent import counted

Detect = Callable[[list[Tensor]], Sequence[Mapping[str, Any]]]
GIVEN = ("boxes", "labels", "scores", "features")
MORE = ("logits", *spaces()[1:])  # what an object detector gives for an image, and what of it may be there besides
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
PLAIN = (bool, int, float, str, tuple, list)


class Found(NamedTuple):
    """The boxes of an image that are judged: corners (n, 4) in pixels, classes, confidences (n,), and rows or None."""

    boxes: Tensor
    classes: Tensor
    confidences: Tensor
    rows: FeatureSet | None


class Boxes(PixelReader):
    """An object detector as the reader of a guard: every box that it finds is a row.

    Args:
        network: a detection model of torchvision with pooled features (Faster R-CNN, and those made of it), or any callable that
            takes images, a list of tensors (3, H, W) of floats in [0, 1], and gives for each a mapping: ``boxes`` (n, 4), left,
            top, right and bottom in pixels, ``labels`` (n,), ``scores`` (n,), ``features`` (n, D) and, where it has them,
            ``logits`` (n, classes) and an earlier layer's ``stage2`` (n, D2). Or a text, ``torchvision:NAME@FILE.safetensors``.
        names: of the classes. Labels of torchvision's models count them from 1, since 0 is the background, which may be
            named, too; those of a callable count from 0.
        score: boxes of less confidence are left out.
        most: boxes of an image, at most: those of most confidence.
        device: where a network that is named by a text runs.
        settings: what torchvision's function takes beside the weights, such as ``min_size``; of a network named by a text.

    Raises:
        InputError: a setting that cannot be, or a network that pools no features of boxes.

    >>> def blobs(images):
    ...     one = {"boxes": [[1.0, 1.0, 5.0, 5.0]], "labels": [0], "scores": [0.9]}
    ...     return [{**one, "features": image[:, 1:5, 1:5].mean((1, 2))[None]} for image in images]
    >>> Boxes(blobs, ["blob"]).find(torch.ones(3, 8, 8)).boxes.tolist()
    [[1.0, 1.0, 5.0, 5.0]]
    """

    scored, kind = "boxes", "guard of boxes"

    def __init__(
        self,
        network: nn.Module | Detect | str,
        names: Sequence[str] = (),
        *,
        score: float = 0.05,
        most: int = 300,
        device: str | torch.device = "cpu",
        **settings: Any,
    ) -> None:
        require_number("score", score, least=0, most=1)
        require_number("most", most, least=1, whole=True)
        self.origin: dict[str, Any] | None = None
        self.name = getattr(network, "__name__", type(network).__name__)
        if isinstance(network, str):
            self.name, _, file = network.partition("@")
            if not file:
                raise InputError(f"{network!r} names no weights; write torchvision:NAME@WEIGHTS.safetensors")
            plain = json.loads(json.dumps(settings))  # as a file gives them back
            self.origin = {"architecture": self.name.removeprefix("torchvision:"), "settings": plain}
            network = _built(self.origin, read_tensors(file)[1], file).to(device)
        elif settings:
            raise InputError(f"{', '.join(settings)} cannot be given: the network is built already")
        self.network, self.score, self.most, self.detect = network, float(score), int(most), network
        classes, self.first = None, 0
        if isinstance(network, nn.Module) and hasattr(network, "rpn"):
            self.detect, self.first = _Pooled(network), 1
            classes = self.detect.classes
        elif not callable(network) or type(network).__module__.startswith("torchvision.models.detection"):
            what = f"a {type(network).__name__} pools no features of boxes; pass a Faster R-CNN of torchvision"
            raise InputError(f"{what}, or a callable that gives {', '.join(GIVEN)} for each image")
        names = names[1:] if classes is not None and len(names) == classes + 1 else names
        if classes is not None and names and len(names) != classes:
            what = f"there {'is' if len(names) == 1 else 'are'} {counted(len(names), 'name')}"
            raise InputError(f"{what}, but the network has {counted(classes, 'class')}")
        super().__init__(names)
        self.fingerprint = network_fingerprint(network)
        first = next(iter(network.parameters()), None) if isinstance(network, nn.Module) else None
        self.device = torch.device("cpu") if first is None else first.device

    def find(self, image: Tensor) -> Found:
        """The boxes of an image (3, H, W) of floats in [0, 1], within it, those of most confidence first.

        Images are looked at one by one, so that no verdict depends on others.
        """
        network, (height, width) = self.network, image.shape[1:]
        with evaluation_mode(network, gradients=False) if isinstance(network, nn.Module) else torch.no_grad():
            found = self.detect([image.to(self.device)])
        one = found[0] if isinstance(found, list | tuple) and len(found) == 1 else None
        if not isinstance(one, Mapping) or not {*GIVEN} <= {*one}:
            what = f"the object detector gives {found!r:.60} for a list of one image"
            raise InputError(f"{what}; it must give {', '.join(GIVEN)}, as one mapping in a list")
        with as_ours("the object detector gives what is no numbers", InputError, ValueError, TypeError, RuntimeError):
            given = {name: torch.as_tensor(one[name]) for name in (*GIVEN, *MORE) if name in one}
            fields = {name: torch.atleast_1d(value.detach().cpu()) for name, value in given.items()}
        shapes, count = {name: tuple(value.shape) for name, value in fields.items()}, len(fields["boxes"])
        if any(shape[0] != count for shape in shapes.values()) or (count and shapes["boxes"] != (count, 4)):
            raise InputError(f"the object detector gives {shapes} for an image; n boxes are (n, 4), with n of all else")
        boxes, scores = fields["boxes"].float().reshape(-1, 4), fields["scores"].float()
        boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height, width, height]))
        good = (boxes[:, 2:] > boxes[:, :2]).all(1) & (scores >= self.score)  # false where a number is none
        order = scores.masked_fill(~good, -1).argsort(descending=True, stable=True)[: min(int(good.sum()), self.most)]
        boxes, classes, scores = boxes[order], fields["labels"].long()[order] - self.first, scores[order]
        if len(order) and self.names and not 0 <= int(classes.min()) <= int(classes.max()) < len(self.names):
            what = f"the object detector gives the label {int(classes.max()) + self.first}"
            raise InputError(f"{what}; names are {self.names}")
        about = {NETWORK: network_text(self.name, self.fingerprint or "")}
        rows: dict[str, Tensor] = {name: fields[name][order].float() for name in fields if name in ("features", *MORE)}
        return Found(boxes, classes, scores, FeatureSet(**rows, labels=classes, about=about) if len(order) else None)

    # A guard's reader

    def read(self, x: Any, on_error: str, normalised: bool, workers: int | None) -> tuple[bool, Iterator[Batch]]:
        if normalised or isinstance(x, DataLoader):
            what = "a guard of boxes looks at images of any size, which its network resizes"
            raise InputError(f"{what}; pass them as they are")
        return super().read(x, on_error, normalised, workers)

    def prepare(self, x: Any) -> Tensor:
        """One image as bytes (3, H, W)."""
        return torch.from_numpy(np.array(one_image(x))).permute(2, 0, 1)

    def batches(self, given: Given, on_error: str, workers: int | None) -> Iterator[Batch]:
        for place, name in enumerate(given.files):
            try:
                found = self.find(floats(given.images[place]))
            except OutfieldError as error:
                if on_error == "fail":
                    raise
                yield Batch(None, [name], {0: str(error)})
            else:
                yield Batch(found.rows, [name], found=found)

    def verdicts(self, batch: Batch, judged: Judge) -> list[Verdict]:
        [name], found = batch.names, batch.found
        if batch.errors:
            return [ImageVerdict.failed(name, batch.errors[0])]
        rows = [] if found.rows is None else judged(found.rows, [name] * len(found.rows))
        where = torch.cat([found.boxes, found.confidences[:, None]], 1).tolist()
        names, boxes = self.names or dict.fromkeys(found.classes.tolist()), []
        for row, index, corners in zip(rows, found.classes.tolist(), where, strict=True):
            own = {**vars(row), "class_index": index, "class_name": names[index]}
            boxes.append(BoxVerdict(**own, **dict(zip(BOX, corners, strict=True))))
        return [ImageVerdict(name, None, None, None, None, any(one.is_ood for one in boxes), boxes=tuple(boxes))]

    def example(self, count: int) -> Iterator[FeatureSet]:
        self.find(torch.zeros(3, 64, 64))
        yield from super().example(count)

    def record(self) -> Record:
        settings = {"names": list(self.names), "score": self.score, "most": self.most}
        said = {"name": self.name, "origin": self.origin, "fingerprint": self.fingerprint, "widths": self.widths}
        state = {} if self.origin is None else self.network.state_dict()  # type: ignore[union-attr]
        return Record.of(settings, network=Record(said, state))

    @classmethod
    def from_record(cls, path: PathLike, record: Record, device: torch.device, network: Any) -> Boxes:
        said, state = record.part("network")
        if network is None and said["origin"] is None:
            what = f"{path} is the guard of an object detector that was given in Python, {said['name']}, and does not hold it"
            named = "A file holds those that are named, torchvision:NAME@WEIGHTS.safetensors"
            raise InputError(f"{what}; pass it: Guard.load(path, network=…). {named}")
        found = _built(said["origin"], state, str(path)).to(device) if network is None else network
        made = cls(found, record.header["names"], **{name: record.header[name] for name in ("score", "most")})
        check_network(path, made.fingerprint, said["fingerprint"], network)
        made.widths, made.name = said["widths"], said["name"]
        made.origin = said["origin"] if network is None else None
        return made

    def __str__(self) -> str:
        classes = f", {counted(len(self.names), 'class')}" if self.names else ""
        return f"boxes of {self.name}{classes}"


class _Pooled:
    """A detection model of torchvision that also gives what its head made the class of each box of."""

    def __init__(self, network: Any) -> None:
        predictor = getattr(getattr(network, "roi_heads", None), "box_predictor", None)
        layers = (getattr(predictor, name, None) for name in ("cls_score", "bbox_pred"))
        classes, moves = (getattr(layer, "out_features", 0) for layer in layers)
        if not classes or moves != 4 * classes:
            what = f"a {type(network).__name__} has no cls_score in its head, or no bbox_pred of four numbers a class"
            raise InputError(f"{what}; pass a callable that gives {', '.join(GIVEN)} for each image")
        self.network, self.classes = network, int(classes) - 1

    def __call__(self, given: list[Tensor]) -> list[dict[str, Tensor]]:
        [image], network, heads = given, self.network, self.network.roi_heads
        with as_ours(f"the network cannot resize {image.shape[2]} × {image.shape[1]} pixels", InputError, RuntimeError):
            images, _ = network.transform([image])
        maps = network.backbone(images.tensors)
        maps = {"0": maps} if isinstance(maps, Tensor) else maps
        places, sizes = network.rpn(images, maps)[0], images.image_sizes
        pooled = heads.box_roi_pool(maps, places, sizes)
        rows = heads.box_head(pooled)
        logits, moves = heads.box_predictor(rows)
        [boxes], [scores], [labels] = heads.postprocess_detections(logits, moves, places, sizes)
        # Of which place each box is: where its class, moved from there, lies.
        own = labels[:0]
        if len(labels):
            ends = boxes.new_tensor([*sizes[0][::-1]] * 2)
            moved = heads.box_coder.decode(moves, places)[:, labels].clamp(min=0).minimum(ends)
            own = (moved - boxes).abs().sum(2).argmin(0)
        [found] = network.transform.postprocess([{"boxes": boxes}], sizes, [tuple(image.shape[-2:])])
        odds = logits[:, 1:] - logits[:, :1]  # log-odds of each class against the background
        # What the head has seen of a box says more of other kinds than what it makes of it to tell its own apart.
        seen = {"features": rows[own], "logits": odds[own], "stage2": pooled[own].mean((2, 3))}
        return [{"boxes": found["boxes"], "labels": labels, "scores": scores, **seen}]


def _built(origin: Any, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """A detection model of torchvision with these tensors, on the CPU; nothing is downloaded."""
    detection = library("torchvision.models.detection", extra="images")
    models = library("torchvision.models", extra="images")
    name, settings = origin["architecture"], origin["settings"]
    known = [one for one in models.list_models(module=detection) if "rcnn" in one]
    if name not in known:
        what = f"torchvision has no detection model {name!r:.80} with pooled features"
        raise UnknownNameError(f"{what}; it has {', '.join(known)}")
    head = state.get("roi_heads.box_predictor.cls_score.bias")
    if head is None:
        what = f"{source} holds no weights of a {name}"
        raise FileFormatError(f"{what}: there is no roi_heads.box_predictor.cls_score.bias")
    accepted = inspect.signature(detection.FasterRCNN).parameters  # the functions take any others, and say nothing
    if unknown := [one for one in settings if one not in accepted]:
        raise InputError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join([*accepted][2:-1])}")
    with as_ours(f"{name} cannot be built with {settings}", InputError, TypeError, ValueError), building():
        empty = {"weights": None, "weights_backbone": None}
        network: nn.Module = models.get_model(name, **empty, num_classes=len(head), **settings)
    load_weights(network, state, source)
    return network.eval()


def network_fingerprint(network: Any) -> str | None:
    """Of weights, layers and their plain settings; None of a callable that is no network."""
    if not isinstance(network, nn.Module):
        return None
    told = []
    for name, one in network.named_modules():
        plain = sorted((k, v) for k, v in vars(one).items() if isinstance(v, PLAIN) and k != "training")
        told.append((name, type(one).__name__, plain))
    state = {name: value.cpu() for name, value in network.state_dict().items()}
    return hashlib.sha256(f"{ADDRESS.sub('', repr(told))}|{fingerprint(state)}".encode()).hexdigest()


def floats(image: Any) -> Tensor:
    """An image (H, W, 3) of bytes as floats (3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
