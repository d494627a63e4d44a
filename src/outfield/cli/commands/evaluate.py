"""outfield evaluate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from outfield.cli.app import Device, command, print_table, say
from outfield.cli.options import FEATURES, File, Input, Output, Text, check_places, named_sets, opened
from outfield.errors import InputError
from outfield.extras import check_installed

if TYPE_CHECKING:
    from outfield.detectors import Detector


@command(
    "outfield evaluate ssd.safetensors ours.safetensors --id test.npz --ood svhn.npz --ood places=pack.npz#places --csv "
    "results.csv"
)
def evaluate(
    detector: Annotated[list[Path], Argument(help="One or more fitted detectors.")],
    id_data: Annotated[str, Option("--id", help=f"ID test data, {FEATURES}.")],
    ood: Annotated[list[str], Option(help="OOD data, FILE or NAME=FILE; any number of times.")],
    json_out: Annotated[Text, Option("--json", help="File for fractions as JSON, or - for stdout.")] = None,
    csv_out: Annotated[Text, Option("--csv", help="File for fractions as CSV, or - for stdout.")] = None,
    output: Annotated[
        File, Option("--out", "-o", help="Figure of risk and coverage (.png); the ID data needs labels and logits.")
    ] = None,
    device: Device = "auto",
) -> None:
    """FPR95, AUROC and AUPR of fitted detectors: one ID set against any number of OOD sets.

    Where the ID data has labels and logits, also how well each ranks the classifier's answers, by risk and coverage.
    """
    if json_out == csv_out == "-":
        raise InputError("--json - and --csv - would both go to standard output; name a file for one of them")
    sources = named_sets("--ood", ood)
    inputs: list[Input] = [("the ID data", id_data), *(("the detector", path) for path in detector)]
    inputs += [(f"the OOD set {name}", source) for name, source in sources.items()]
    options = {"--json": json_out, "--csv": csv_out}
    targets = {option: Path(path) for option, path in options.items() if path is not None and path != "-"}
    places = [Output(option, path) for option, path in targets.items()]
    check_places(inputs, [*places, Output("--out", output, (".png",))])
    if output is not None:
        check_installed("report", "matplotlib")

    from outfield.benchmark import RiskCurves
    from outfield.benchmark import evaluate as run_evaluation
    from outfield.features import open_or_read
    from outfield.files import write_bytes
    from outfield.report import full_table, results_csv, results_json, results_table, risk_table

    test = open_or_read(id_data)
    if output is not None and (lacks := {"labels", "logits"} - test.shapes.keys()):
        raise InputError(
            f"--out draws how often answers are wrong, which needs the {' and '.join(sorted(lacks))} of ID data"
        )
    risks: dict[str, RiskCurves] = {}
    results = run_evaluation(_loaded(detector, device), test, opened(sources), risks)
    if output is not None:
        from outfield.report import write_risks

        write_risks(risks, output)
    for option, render in (("--json", results_json), ("--csv", results_csv)):
        if options[option] == "-":
            sys.stdout.write(render(results, risks))
        elif option in targets:
            write_bytes(targets[option], render(results, risks).encode())
    if "-" in options.values():
        return
    print_table(full_table(results))
    if len(sources) > 1:
        say()
        print_table(results_table(results))
    if (answers := risk_table(risks)) is not None:
        say()
        print_table(answers)


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
