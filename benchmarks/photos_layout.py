"""Lay out the folders of photographs that benchmarks/photos.py reads; no image comes with this project.

    python benchmarks/photos_layout.py photos --imagenette IMAGENETTE --caltech CALTECH --flowers FLOWERS --packs PACKS

Each source is a folder, or a git repository (a clone, or its .git) whose newest commit is taken:

* IMAGENETTE holds train/WNID and val/WNID: github.com/thunderInfy/imagenette, 9,469 + 3,925 photographs of ten ImageNet
  classes, 224 × 224 (cut or squashed by whoever put them there).
* CALTECH holds 101_ObjectCategories/CLASS: github.com/MachineLearning2020/Homework2-Caltech101, 9,144 photographs of about
  300 × 200 in 102 folders.
* FLOWERS holds flowers/CLASS: github.com/martinwestin/flower_classification, 4,317 photographs of 128 × 128, five classes.
* PACKS holds NAME.npz with images, uint8 (N, 32, 32, 3): the OOD sets of the CIFAR benchmarks (docs/reproduce.md).

What is written, with every image as it was: photos/imagenette/train/WNID, photos/imagenette/val/WNID, photos/caltech101/CLASS,
photos/flowers/CLASS, photos/NAME.npz (of each pack 2,000 images chosen by a seed, or all if there are fewer), and
photos/layout.json: how many images of each set, and which classes were removed, and why.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np

from outfield.images import IMAGE_ENDINGS as ENDINGS

ID_CLASSES = {
    "n01440764": ("tench", 0),
    "n02102040": ("English springer", 217),
    "n02979186": ("cassette player", 482),
    "n03000684": ("chain saw", 491),
    "n03028079": ("church", 497),
    "n03394916": ("French horn", 566),
    "n03417042": ("garbage truck", 569),
    "n03425413": ("gas pump", 571),
    "n03445777": ("golf ball", 574),
    "n03888257": ("parachute", 701),
}
"""Imagenette's ten classes: WordNet's number, name, and number among ImageNet's 1,000 classes."""
REMOVED = {
    "caltech101": {
        "BACKGROUND_Google": "found by searching for random words: anything may be on them, Imagenette's classes too",
        "Faces_easy": "the photographs of Faces again, cut to the face",
    },
    "flowers": {},
}
"""Classes that are left out. None of the others is one of Imagenette's ten."""
KEPT_ALTHOUGH = {
    "caltech101": {
        "bass": "fish, as tench is; another one",
        "dalmatian": "dogs, as English springers are; another breed",
        "euphonium": "brass instruments, as French horns are; another one",
        "minaret": "towers of mosques, as some churches have towers",
        "pagoda": "houses of worship, as churches are; others",
        "soccer_ball": "balls, as golf balls are; others",
    },
    "flowers": {},
    "places365": {
        "(no labels)": "scenes of 100 kinds, of which some may show a church or a gas pump: it is not known which images",
    },
    "tinyimagenet": {"(no labels)": "none of its 200 classes is one of the ten; springers' relatives are there"},
}
"""Classes that are like one of the ten, and stay: to tell such is what near OOD is about."""
PACKS = ("tinyimagenet", "cifar100", "places365", "lsun", "textures", "svhn")
MOST, SEED = 2000, 0
"""Images of a pack, and of the choice of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path)
    for name in ("imagenette", "caltech", "flowers", "packs"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    sources = (
        ("imagenette/train", options.imagenette, "train"),
        ("imagenette/val", options.imagenette, "val"),
        ("caltech101", options.caltech, "101_ObjectCategories"),
        ("flowers", options.flowers, "flowers"),
    )
    counts = {}
    for name, source, inner in sources:
        counts[name] = lay_out(source, inner, options.to / name, set(REMOVED.get(name, {})))
        print(f"{name}: {sum(counts[name].values()):,} images of {len(counts[name])} classes")
    if set(counts["imagenette/train"]) != set(ID_CLASSES) or set(counts["imagenette/val"]) != set(ID_CLASSES):
        raise SystemExit(f"{options.imagenette} must hold the ten classes {', '.join(ID_CLASSES)}")
    total = {name: sum(one.values()) for name, one in counts.items()}
    total |= {name: lay_out_pack(options.packs, name, options.to / f"{name}.npz") for name in PACKS}
    body = {
        "images": total,
        "id_classes": {wnid: {"name": name, "imagenet": number} for wnid, (name, number) in ID_CLASSES.items()},
        "removed": REMOVED,
        "kept_although_alike": KEPT_ALTHOUGH,
        "classes": {name: sorted(one) for name, one in counts.items()},
    }
    (options.to / "layout.json").write_text(json.dumps(body, indent=1) + "\n")


def lay_out(source: Path, inner: str, to: Path, removed: set[str]) -> dict[str, int]:
    """Copy the images of each class that stays (``removed`` are names, or patterns as "Apple*"), and count them."""
    if to.exists():
        raise SystemExit(f"{to} is there already; remove it, or give another folder")
    if (source / inner).is_dir():
        shutil.copytree(source / inner, to, ignore=shutil.ignore_patterns(*removed))
    else:
        from_git(source, inner, to, removed)
    for path in sorted(to.rglob("*")):
        if path.is_file() and not path.name.lower().endswith(ENDINGS):
            path.unlink()
    return {folder.name: len(list(folder.iterdir())) for folder in sorted(to.iterdir())}


def from_git(repository: Path, inner: str, to: Path, removed: set[str]) -> None:
    """A folder of the newest commit of a repository."""
    folder = repository / ".git" if (repository / ".git").is_dir() else repository
    command = [
        "git",
        f"--git-dir={folder}",
        "archive",
        f"HEAD:{inner}",
        ".",
        *(f":(exclude){name}" for name in removed),
    ]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{repository} is neither a folder with {inner}/ nor a git repository that has it")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as members:
        for member in members:
            place = to / member.name
            file = members.extractfile(member) if member.isfile() else None
            if file is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read())


def lay_out_pack(folder: Path, name: str, to: Path) -> int:
    """Some images of a pack, chosen by the seed, in the order in which they lie there."""
    found = next((path for path in (folder / f"{name}.npz", folder / f"{name}_test.npz") if path.exists()), None)
    if found is None:
        raise SystemExit(f"there is neither {name}.npz nor {name}_test.npz in {folder}")
    with np.load(found) as arrays:
        images = arrays["images"]
    chosen = np.sort(np.random.default_rng(SEED).permutation(len(images))[:MOST])
    np.savez(to, images=images[chosen])
    print(f"{name}: {len(chosen):,} of {len(images):,} images")
    return len(chosen)


if __name__ == "__main__":
    main()
