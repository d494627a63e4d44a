"""Which recipe trains the better classifier, judged on training images that are held out: no test image is opened.

    python benchmarks/recipes.py cifar100 --data FOLDER --out recipes.json --recipe steps= --recipe cosine=schedule:cosine \\
        --recipe "gentle=schedule:cosine,augmentation.scale:[0.4,1.0]"
    python benchmarks/recipes.py cifar100 --data FOLDER --out recipes.json --recipe … --at-once 3
    python benchmarks/recipes.py cifar100 --show recipes.json another.json

A recipe is NAME=KEY:VALUE,KEY:VALUE,…, with the settings of ``outfield train --set``; what is not said is as by default.
Every training is written to the JSON file when it is done, and is not repeated when the program is started again. With
``--at-once`` several run side by side as processes of their own: the seconds are then not those of a GPU alone.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import outfield as of
from outfield.benchmark.provenance import about_this_run
from outfield.classifier import Recipe
from outfield.config import construct_from_text, to_plain
from outfield.errors import InputError
from outfield.files import write_bytes
from outfield.images import find

Trial = dict[str, Any]
"""One training: recipe (its name), settings, seed, held_out (share, images, accuracy), train_accuracy, seconds."""


def read_recipe(text: str) -> tuple[str, Recipe]:
    """``NAME=KEY:VALUE,KEY:VALUE`` as a name and a recipe. A comma within brackets belongs to the value.

    >>> read_recipe("short=epochs:10,milestones:[0.5,0.9]")[1].milestones
    (0.5, 0.9)
    """
    name, equals, settings = text.partition("=")
    if not name or not equals:
        raise InputError(f"--recipe is {text!r}; it must be NAME=KEY:VALUE,KEY:VALUE")
    given: dict[str, str] = {}
    for part in split_at_commas(settings):
        key, colon, value = part.partition(":")
        if not key or not colon:
            raise InputError(f"--recipe {name} has the setting {part!r}; it must be KEY:VALUE")
        given[key.strip()] = value.strip()
    return name, construct_from_text(Recipe, given)


def split_at_commas(text: str) -> list[str]:
    """The parts of a text between the commas that lie in no bracket; none for an empty text."""
    parts, depth = [""] if text else [], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def train(options: argparse.Namespace, name: str, recipe: Recipe, seed: int) -> Trial:
    """One training, told on one line."""
    images = find(options.images, "train", options.data)
    classifier, pixels = of.classifier_for(images, options.architecture)
    done = of.train_classifier(
        pixels, None, classifier, recipe, seed=seed, device=options.device, hold_out=options.hold_out
    )
    if done.held_out is None:
        raise AssertionError("images were held out")
    print(f"{name}, seed {seed}: {done.curve.last()}, {done.held_out}, {sum(done.curve.seconds):.0f} s", flush=True)
    return {
        "recipe": name,
        "settings": to_plain(recipe),
        "images": options.images,
        "architecture": options.architecture,
        "seed": seed,
        "held_out": vars(done.held_out),
        "train_accuracy": done.curve.train_accuracy[-1],
        "seconds": sum(done.curve.seconds),
    }


def key(trial: Trial, seed: bool = True) -> str:
    """What tells a training, or all seeds of one, from another; not what it is called."""
    share = trial["held_out"]["share"]
    return json.dumps(
        [trial["settings"], trial["images"], trial["architecture"], share, trial["seed"] if seed else None]
    )


def is_kept(trials: Sequence[Trial], options: argparse.Namespace, recipe: Recipe, seed: int) -> bool:
    """Whether the training that is asked for is among these."""
    wanted = {
        "settings": to_plain(recipe),
        "images": options.images,
        "architecture": options.architecture,
        "seed": seed,
    }
    return key(wanted | {"held_out": {"share": options.hold_out}}) in map(key, trials)


def summary(trials: Sequence[Trial]) -> list[tuple[str, int, float, float, float, float]]:
    """Best first: recipe, trainings, mean held-out accuracy, its standard error, mean training accuracy, mean seconds.

    The standard error is that of a mean of independent draws of images, √(p (1 − p) / n); seeds share their images, so that
    more of them do not make it smaller.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in {key(trial): trial for trial in trials}.values():
        groups.setdefault(key(trial, seed=False), []).append(trial)
    rows = []
    for own in groups.values():
        p = mean([trial["held_out"]["accuracy"] for trial in own])
        error = math.sqrt(p * (1 - p) / own[0]["held_out"]["images"])
        fitted, seconds = (mean([trial[what] for trial in own]) for what in ("train_accuracy", "seconds"))
        rows.append((str(own[0]["recipe"]), len(own), p, error, fitted, seconds))
    return sorted(rows, key=lambda row: -row[2])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def show(trials: Sequence[Trial]) -> None:
    """The table as Markdown."""
    for images in dict.fromkeys(trial["images"] for trial in trials):
        own = [trial for trial in trials if trial["images"] == images]
        print(f"\n| {images} | seeds | held-out accuracy | training accuracy | seconds |\n|---|---|---|---|---|")
        for name, seeds, accuracy, error, fitted, seconds in summary(own):
            accuracies = f"{100 * accuracy:.2f} ± {100 * error:.2f} %"
            print(f"| {name} | {seeds} | {accuracies} | {100 * fitted:.2f} % | {seconds:.0f} |")


def kept(path: Path) -> list[Trial]:
    """Trainings in a file, none where there is no file."""
    found: Mapping[str, Any] = json.loads(path.read_text()) if path.exists() else {"trials": []}
    trials: list[Trial] = found["trials"]
    return trials


def keep(path: Path, device: str, trials: Sequence[Trial]) -> None:
    whole = {"about": about_this_run(device), "trials": list(trials)}
    write_bytes(path, (json.dumps(whole, indent=1) + "\n").encode())


def one_after_another(options: argparse.Namespace, recipes: Mapping[str, Recipe]) -> None:
    """Train what is not in the file yet."""
    for seed in range(options.seeds):
        for name, recipe in recipes.items():
            trials = kept(options.out)
            if not is_kept(trials, options, recipe, seed):
                keep(options.out, options.device, [*trials, train(options, name, recipe, seed)])


def side_by_side(options: argparse.Namespace, recipes: Mapping[str, Recipe]) -> None:
    """Every recipe in a process of its own, which writes a file of its own; these are joined at the end."""
    given = dict(zip(recipes, options.recipe, strict=True))
    files = {name: options.out.with_suffix(f".{number}.json") for number, name in enumerate(recipes)}

    def start(name: str) -> int:
        same = ("hold_out", "seeds", "architecture", "device", "data")
        settings = [text for what in same for text in (f"--{what.replace('_', '-')}", str(getattr(options, what)))]
        command = [sys.executable, __file__, options.images, *settings, "--recipe", given[name], "--out", files[name]]
        command.append("--no-table")
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(options.at_once) as pool:
        codes = dict(zip(recipes, pool.map(start, recipes), strict=True))
    whole = [trial for path in (options.out, *files.values()) for trial in kept(path)]
    keep(options.out, options.device, list({key(trial): trial for trial in whole}.values()))
    failed = [name for name, code in codes.items() if code]
    if failed:
        sys.exit(f"not trained to the end: {', '.join(failed)}")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", help="name of the image set, such as cifar100")
    parser.add_argument("--data", type=Path, help="folder of image sets")
    parser.add_argument("--recipe", action="append", default=[], metavar="NAME=KEY:VALUE,…")
    parser.add_argument("--hold-out", type=float, default=0.1, metavar="SHARE")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--architecture", default="resnet34")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="where the trainings are kept (.json)")
    parser.add_argument("--show", type=Path, nargs="+", help="only print the table of these files")
    parser.add_argument("--no-table", action="store_true", help="train and write, without a table at the end")
    options = parser.parse_args(given)
    if options.show:
        show([trial for path in options.show for trial in kept(path)])
        return
    if not options.recipe or options.data is None or options.out is None:
        parser.error("--data, --out and at least one --recipe are needed")
    recipes = dict(read_recipe(text) for text in options.recipe)
    if len(recipes) < len(options.recipe):
        parser.error("two recipes have the same name")
    (side_by_side if options.at_once > 1 else one_after_another)(options, recipes)
    if not options.no_table:
        show(kept(options.out))


if __name__ == "__main__":
    main()
