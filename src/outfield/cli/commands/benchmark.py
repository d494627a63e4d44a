"""outfield benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.app import Device, command
from outfield.cli.interrupts import going_on_from
from outfield.cli.places import Output, check_places
from outfield.cli.protocols import own_sets, published_protocol
from outfield.cli.results import RUN, check_folder, write_results
from outfield.cli.sources import DATA_FOLDER, Download, backbone_file
from outfield.errors import InputError
from outfield.files.paths import make_folder

OWN = "Sets of your own"
"""Where help lists the options that make a protocol of one's own."""
Ood = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=FOLDER (--features: =FILE), an OOD set at this distance; any number of times.", rich_help_panel=OWN
    ),
]


@command(
    "outfield benchmark cifar10 --data data --backbone a.safetensors --backbone b.safetensors --seeds 3",
    "outfield benchmark cifar10 --data data --backbone a.safetensors --detector SSD --detector KNN --ood far=noise",
    "outfield benchmark cats --id-train train --id-test test --near dogs=dogs --far cars=cars --backbone a.safetensors",
)
def benchmark(
    protocol: Annotated[
        str, typer.Argument(help="A published protocol, such as cifar10; or a name for your own (see below).")
    ],
    backbone: Annotated[
        list[str] | None,
        typer.Option(help="A file of outfield train, or timm:NAME@WEIGHTS.safetensors; any number of times."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help=DATA_FOLDER)] = None,
    download: Download = False,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for results and what is kept; benchmark-PROTOCOL if absent."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the detectors that are trained.")] = 3,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these detectors, any number of times, or all; without it, Auto and those of the paper."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A detector's setting, such as KNN.k=20 or EBM.training.epochs=5."),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="One more OOD set, LEVEL=NAME with LEVEL near, mid or far; any number of times."),
    ] = None,
    id_train: Annotated[
        str | None,
        typer.Option(help="ID training images: a folder with one folder a class, or .npz.", rich_help_panel=OWN),
    ] = None,
    id_test: Annotated[str | None, typer.Option(help="ID test images.", rich_help_panel=OWN)] = None,
    near: Ood = None,
    mid: Ood = None,
    far: Ood = None,
    features: Annotated[
        bool, typer.Option("--features", help="These sets are files of features; no --backbone.", rich_help_panel=OWN)
    ] = False,
    fraction: Annotated[
        str | None,
        typer.Option(
            help="Fit every detector also on these fractions of the training rows, such as 0.01,0.1,1.", metavar="F,F,…"
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(
            help="Average features over views of each image; each costs a pass. With auto, stand-ins choose.",
            metavar="flip|six|N|auto",
        ),
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="ID test images that calibrate Auto and Fused and are not judged; a tenth, at most 1,000, if absent.",
        ),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on without OOD sets that are not there; the tables say so.")
    ] = False,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Tables, figures and page; outfield report makes them later.")
    ] = True,
    device: Device = "auto",
) -> None:
    """From images to the paper's tables: extract, fit, evaluate. Run again, it goes on where it stopped."""
    from outfield.benchmark import benchmark_features, detectors_from_text, run_benchmark
    from outfield.benchmark.saved import save_run

    own = own_sets(protocol, id_train, id_test, {"near": near, "mid": mid, "far": far}, data, features)
    if own is not None and ood:
        raise InputError("--ood adds to a published protocol; with --id-train write --near, --mid or --far NAME=FOLDER")
    if features and views is not None:
        raise InputError("--views are views of images; features have theirs already, from outfield extract --views")
    plan = published_protocol(protocol, ood or []) if own is None else own.protocol()
    networks, fractions = _networks(backbone, features), _fractions(fraction)
    chosen = detectors_from_text(plan, detector, _settings_by_detector(setting or []))
    folder = Path(f"benchmark-{protocol}") if output is None else output
    inputs = [place for each in networks for place in backbone_file(each)] + ([] if own is None else own.inputs())
    if own is None and data is None:
        raise InputError(f"--data is missing: the folder in which {', '.join((plan.id, *plan.ood))} lie")
    if with_report:
        check_folder(inputs, folder)
    check_places(inputs, [Output("--out", folder / RUN, (".safetensors",), "runs", makes_folder=True)])
    with going_on_from(folder):
        if own is not None and features:
            make_folder(folder)  # which the stages of a run from images do
            rows = {"features": own.rows()}
            run = benchmark_features(
                plan, rows, detectors=chosen, seeds=seeds, device=device, fractions=fractions, held_out=held_out
            )
        else:
            run = run_benchmark(
                plan,
                (data or "") if own is None else own.images(download),
                networks,
                folder,
                detectors=chosen,
                seeds=seeds,
                device=device,
                allow_missing=allow_missing,
                download=download,
                fractions=fractions,
                views=views,
                held_out=held_out,
            )
        save_run(run, folder / RUN)
    if with_report:
        write_results(run, folder)


def _fractions(text: str | None) -> list[float]:
    """0.01,0.1,1 as numbers."""
    from outfield.benchmark.fractions import checked_fractions

    try:
        return checked_fractions(float(part) for part in text.split(",")) if text is not None else []
    except ValueError as error:
        said = f" ({error})" if isinstance(error, InputError) else ""
        raise InputError(f"--fraction {text}: write numbers above 0 and at most 1, such as 0.01,0.1,1{said}") from error


def _networks(backbone: list[str] | None, features: bool) -> list[str]:
    """The backbones, without which there are only features."""
    if features and backbone:
        raise InputError("--features are a network's already; leave out --backbone")
    if not features and not backbone:
        raise InputError("--backbone is missing: a file of outfield train, or timm:NAME; any number of times")
    return backbone or []


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
