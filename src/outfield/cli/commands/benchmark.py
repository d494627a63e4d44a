"""outfield benchmark, of a published protocol or of one's own folders and files, and outfield report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import Device, command, going_on_from, write_results
from outfield.cli.options import File, Number, Text, Texts
from outfield.errors import InputError, UnknownNameError, as_ours
from outfield.files import make_folder

if TYPE_CHECKING:
    from outfield.benchmark import Protocol
    from outfield.images import ImageSource

TAKEN = ("near", "mid", "far", "average")  # columns of the tables, after which no set can be called
OWN = "Sets of your own"  # where help lists the options that make a protocol of one's own
Ood = Annotated[Texts, Option(help="An OOD set at this distance, NAME=FOLDER or NAME=FILE.", rich_help_panel=OWN)]


@command(
    "outfield benchmark cifar10 --data data --backbone a.safetensors --backbone b.safetensors --seeds 3",
    "outfield benchmark cifar10 --data data --backbone a.safetensors --detector SSD --detector KNN --ood far=noise",
    "outfield benchmark cats --id-train train --id-test test --near dogs=dogs --far cars=cars --backbone a.safetensors",
)
def benchmark(
    protocol: Annotated[str, Argument(help="A published protocol, such as cifar10; or a name for your own.")],
    backbone: Annotated[
        Texts, Option(help="A file of outfield train, or timm:NAME@WEIGHTS; several may be given.")
    ] = None,
    data: opt.DataFolder = None,
    download: opt.Download = False,
    output: Annotated[File, Option("--out", "-o", help="Folder of results. Default: benchmark-PROTOCOL.")] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds of the detectors that are trained.")] = 3,
    detector: Annotated[Texts, Option(help="Detectors to use, or all. Default: Auto and those of the paper.")] = None,
    setting: Annotated[Texts, Option("--set", "-s", help="A detector's setting, such as KNN.k=20.")] = None,
    ood: Annotated[Texts, Option(help="One more OOD set, LEVEL=NAME with LEVEL near, mid or far.")] = None,
    id_train: Annotated[Text, Option(help="ID training images, a folder or .npz.", rich_help_panel=OWN)] = None,
    id_test: Annotated[Text, Option(help="ID test images.", rich_help_panel=OWN)] = None,
    near: Ood = None,
    mid: Ood = None,
    far: Ood = None,
    features: Annotated[bool, Option("--features", help="Sets are files of features.", rich_help_panel=OWN)] = False,
    fraction: Annotated[Text, Option(help="Fit also on these fractions of the training rows.", metavar="F,F,…")] = None,
    views: opt.AutoViews = None,
    held_out: Annotated[
        Number, Option(min=0, help="ID test images to calibrate with. Default: a tenth, at most 1,000.")
    ] = None,
    allow_missing: Annotated[bool, Option("--allow-missing", help="Go on without missing OOD sets.")] = False,
    with_report: Annotated[bool, Option("--report/--no-report", help="Write tables, figures and page.")] = True,
    device: Device = "auto",
) -> None:
    """From images to the paper's tables: extract, fit, evaluate. Run again, it goes on where it stopped."""
    from outfield.benchmark import benchmark_features, detectors_from_text, run_benchmark, save_run

    levels = {"near": near or [], "mid": mid or [], "far": far or []}
    places: dict[str, str] = {}
    if id_train is None and id_test is None and not any(levels.values()) and not features:
        plan = _published(protocol, ood or [])
    else:
        plan, places = _own_sets(protocol, id_train, id_test, levels, data, features)
        if ood:
            raise InputError("--ood adds to a published protocol; use --near, --mid or --far NAME=FOLDER")
    if features and (views is not None or backbone):
        raise InputError("--features are a network's already, views too; leave out --backbone and --views")
    if not features and not backbone:
        raise InputError("--backbone is missing: a file of outfield train, or timm:NAME; any number of times")
    fractions = _fractions(fraction)
    chosen = detectors_from_text(plan, detector, _settings_by_detector(setting or []))
    folder = Path(f"benchmark-{protocol}") if output is None else output
    inputs: list[opt.Input] = [*(("the backbone", each) for each in backbone or []), *places.items()]
    if not places and data is None:
        raise InputError(f"--data is missing: the folder in which {', '.join((plan.id, *plan.ood))} lie")
    if with_report:
        opt.check_report(inputs, folder)
    opt.check_places(inputs, [opt.Output("--out", folder / opt.RUN, (".safetensors",), makes_folder=True)])
    shared: dict[str, Any] = {"detectors": chosen, "seeds": seeds, "fractions": fractions, "held_out": held_out}
    with going_on_from(folder):
        if features:
            make_folder(folder)  # which the stages of a run from images do
            run = benchmark_features(plan, {"features": opt.opened(places)}, device=device, **shared)
        else:
            shared |= {"allow_missing": allow_missing, "download": download, "views": views}
            images = _images(places, data, download) if places else data or ""
            run = run_benchmark(plan, images, backbone or [], folder, device=device, **shared)
        save_run(run, folder / opt.RUN)
    if with_report:
        write_results(run, folder)


def _fractions(text: str | None) -> list[float]:
    """0.01,0.1,1 as numbers."""
    from outfield.benchmark import checked_fractions

    told = f"--fraction {text}: write numbers above 0 and at most 1, such as 0.01,0.1,1"
    with as_ours(told, InputError, ValueError, InputError):
        return [] if text is None else checked_fractions(float(part) for part in text.split(","))


def _settings_by_detector(items: list[str]) -> dict[str, dict[str, str]]:
    """KNN.k=20 → {"KNN": {"k": "20"}}."""
    found: dict[str, dict[str, str]] = {}
    for item in items:
        path, equals, value = item.partition("=")
        detector, dot, name = path.partition(".")
        if not equals or not dot:
            raise InputError(f"--set {item}: write DETECTOR.NAME=VALUE, such as KNN.k=20")
        found.setdefault(detector, {})[name] = value
    return found


def _own_sets(
    name: str,
    id_train: str | None,
    id_test: str | None,
    levels: Mapping[str, Sequence[str]],
    data: Path | None,
    features: bool,
) -> tuple[Protocol, dict[str, str]]:
    """A protocol of one's own, and the place of each of its sets; none for a published set, which lies in ``data``."""
    from outfield.benchmark import PROTOCOLS, Protocol

    if id_train is None or id_test is None:
        lacks = [option for option, value in (("--id-train", id_train), ("--id-test", id_test)) if value is None]
        what = (
            f"{' and '.join(lacks)} missing: --near, --mid, --far and --features are for sets of your own, which need"
        )
        raise InputError(f"{what} both --id-train and --id-test; to a published protocol, --ood LEVEL=NAME adds a set")
    if name in PROTOCOLS:
        raise InputError(f"{name} is a published protocol; with --id-train choose another name")
    if not name or {*name} & {"/", "\\", "\0"}:
        raise InputError(f"the protocol is called {name!r}; a name of your own has letters, and no slash")
    if not any(levels.values()):
        raise InputError("there is no OOD set; name at least one, such as --near NAME=FOLDER")
    named = {level: [_named(level, item, data, features) for item in items] for level, items in levels.items()}
    near, mid, far = (tuple(one for one, _ in named[level]) for level in ("near", "mid", "far"))
    ood = {one: place for those in named.values() for one, place in those}
    return Protocol(name, near, mid, far), {"train": id_train, "test": id_test} | ood


def _named(level: str, item: str, data: Path | None, features: bool) -> tuple[str, str]:
    """NAME=PLACE, or the name of a published set in the folder ``data``, as a name and a place."""
    name, equals, place = item.partition("=")
    by_name = not equals and data is not None and not features
    if not name or not (place or by_name):
        example = "FILE, such as cats=cats.npz" if features else "FOLDER, such as cats=photos/cats"
        raise InputError(f"--{level} {item}: write NAME={example}; a set that is known by name needs --data")
    if name in TAKEN:
        raise InputError(f"--{level} {item}: {name} is a column of the tables; call the set something else")
    return name, place


def _images(places: Mapping[str, str], data: Path | None, download: bool) -> dict[str, ImageSource]:
    from outfield.images import find, open_images

    found = {part: open_images(place) for part, place in places.items() if place}
    return found | {part: find(part, "test", data or "", download) for part, place in places.items() if not place}


def _published(name: str, ood: Sequence[str]) -> Protocol:
    """The protocol of that name, with more OOD sets, each LEVEL=NAME."""
    from outfield.benchmark import PROTOCOLS

    if name not in PROTOCOLS:
        what = f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}"
        raise UnknownNameError(f"{what}, and your own with --id-train, --id-test and --near, --mid or --far")
    plan = PROTOCOLS[name]
    for item in ood:
        level, equals, added = item.partition("=")
        if not equals:
            raise InputError(f"--ood {item}: write LEVEL=NAME, such as far=noise")
        plan = plan.with_ood(level, added)
    return plan


@command("outfield report benchmark-cifar10/run.safetensors --out elsewhere")
def report(
    run: Annotated[Path, Argument(help="A benchmark's folder, or its run.safetensors.")],
    output: Annotated[File, Option("--out", "-o", help="Folder of the report. Default: the file's own.")] = None,
) -> None:
    """Tables, figures and the page of a benchmark once more, from the results it kept."""
    run = run / opt.RUN if os.path.isdir(run) else run
    folder = run.parent if output is None else output
    opt.check_report([("the run", run)], folder)

    from outfield.benchmark import load_run

    write_results(load_run(run), folder)
