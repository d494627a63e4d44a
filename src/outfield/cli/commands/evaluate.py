"""outfield evaluate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outfield.cli.app import Device, command
from outfield.cli.places import Input, Output, check_places
from outfield.cli.sources import FEATURES, feature_file, named
from outfield.cli.tables import print_table, say
from outfield.errors import InputError

if TYPE_CHECKING:
    from outfield.detectors import Detector


@command(
    "outfield evaluate ssd.safetensors ours.safetensors --id test.npz --ood svhn.npz --ood places=pack.npz#places --csv "
    "results.csv"
)
def evaluate(
    detector: Annotated[list[Path], typer.Argument(help="One or more fitted detectors.")],
    id_data: Annotated[str, typer.Option("--id", help=f"ID test data, {FEATURES}.")],
    ood: Annotated[list[str], typer.Option("--ood", help="OOD data, FILE or NAME=FILE; any number of times.")],
    json_out: Annotated[
        str | None, typer.Option("--json", help="Write fractions as JSON to this file, or - for stdout.")
    ] = None,
    csv_out: Annotated[
        str | None, typer.Option("--csv", help="Write fractions as CSV to this file, or - for stdout.")
    ] = None,
    device: Device = "auto",
) -> None:
    """FPR95, AUROC and AUPR of fitted detectors: one ID set against any number of OOD sets."""
    if json_out == csv_out == "-":
        raise InputError("--json - and --csv - would both go to standard output; name a file for one of them")
    sources = dict(named(source) for source in ood)
    if len(sources) < len(ood):
        names = ", ".join(name for name, _ in map(named, ood))
        raise InputError(f"two --ood sets have the same name ({names}); use NAME=FILE")
    inputs = [*feature_file("the ID data", id_data), *(Input("the detector", path) for path in detector)]
    inputs += [place for name, source in sources.items() for place in feature_file(f"the OOD set {name}", source)]
    options = {"--json": json_out, "--csv": csv_out}
    targets = {option: Path(path) for option, path in options.items() if path is not None and path != "-"}
    check_places(inputs, [Output(option, path) for option, path in targets.items()])

    from outfield.benchmark.evaluation import evaluate as run_evaluation
    from outfield.features.stream import open_or_read
    from outfield.files.atomic import write_bytes
    from outfield.report import evaluation as report

    sets = {name: open_or_read(source) for name, source in sources.items()}
    results = run_evaluation(_loaded(detector, device), open_or_read(id_data), sets)
    for option, render in (("--json", report.results_json), ("--csv", report.results_csv)):
        if options[option] == "-":
            sys.stdout.write(render(results))
        elif option in targets:
            write_bytes(targets[option], render(results).encode())
    if "-" in options.values():
        return
    print_table(report.full_table(results))
    if len(sets) > 1:
        say()
        print_table(report.results_table(results))


def _loaded(paths: Sequence[Path], device: str) -> dict[str, Detector]:
    """Detectors by the name of their kind, or of their file where a kind comes twice."""
    from outfield.detectors import load

    models = [(path, load(path).to(device)) for path in paths]
    kinds = [type(model).__name__ for _, model in models]
    loaded: dict[str, Detector] = {}
    for (path, model), kind in zip(models, kinds, strict=True):
        name = kind if kinds.count(kind) == 1 else path.stem
        if name in loaded:
            raise InputError(f"{path} and another detector would both be called {name}; rename one of the files")
        loaded[name] = model
    return loaded
