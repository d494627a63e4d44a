"""outfield benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outfield.cli.app import Device, command
from outfield.cli.interrupts import going_on_from
from outfield.cli.places import Output, check_places
from outfield.cli.results import RUN, check_folder, write_results
from outfield.cli.sources import DATA_FOLDER, Download, backbone_file
from outfield.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from outfield.benchmark.protocol import Protocol


@command(
    "outfield benchmark cifar10 --data data --backbone a.safetensors --backbone b.safetensors --seeds 3",
    "outfield benchmark cifar10 --data data --backbone a.safetensors --detector SSD --detector KNN --ood far=noise",
)
def benchmark(
    protocol: Annotated[str, typer.Argument(help="cifar10 or cifar100: the ID set, and with it the paper's OOD sets.")],
    data: Annotated[Path, typer.Option(help=DATA_FOLDER)],
    backbone: Annotated[
        list[str], typer.Option(help="A file of outfield train, or timm:NAME@WEIGHTS.safetensors; any number of times.")
    ],
    download: Download = False,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for results and what is kept; benchmark-PROTOCOL if absent."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the detectors that are trained.")] = 3,
    detector: Annotated[
        list[str] | None,
        typer.Option(help="Only these detectors, any number of times; without it, those of the paper."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A detector's setting, such as KNN.k=20 or EBM.training.epochs=5."),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="One more OOD set, LEVEL=NAME with LEVEL near, mid or far; any number of times."),
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
    from outfield.benchmark import detectors_from_text, run_benchmark
    from outfield.benchmark.saved import save_run

    plan = _plan(protocol, ood or [])
    chosen = detectors_from_text(plan, detector, _settings_by_detector(setting or []))
    folder = Path(f"benchmark-{protocol}") if output is None else output
    inputs = [place for each in backbone for place in backbone_file(each)]
    if with_report:
        check_folder(inputs, folder)
    check_places(inputs, [Output("--out", folder / RUN, (".safetensors",), "runs", makes_folder=True)])
    with going_on_from(folder):
        run = run_benchmark(
            plan,
            data,
            backbone,
            folder,
            detectors=chosen,
            seeds=seeds,
            device=device,
            allow_missing=allow_missing,
            download=download,
        )
        save_run(run, folder / RUN)
    if with_report:
        write_results(run, folder)


def _plan(protocol: str, ood: list[str]) -> Protocol:
    """The protocol of that name, with the user's OOD sets."""
    from outfield.benchmark.protocol import PROTOCOLS

    if protocol not in PROTOCOLS:
        raise UnknownNameError(f"there is no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    plan = PROTOCOLS[protocol]
    for item in ood:
        level, equals, name = item.partition("=")
        if not equals:
            raise InputError(f"--ood {item}: write LEVEL=NAME, such as far=noise")
        plan = plan.with_ood(level, name)
    return plan


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
