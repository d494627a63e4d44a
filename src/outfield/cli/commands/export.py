"""outfield export."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli.app import command, log
from outfield.cli.options import Output, Text, check_places
from outfield.errors import InputError
from outfield.extras import check_installed
from outfield.progress import bar

BY_ENDING = {".onnx": "onnx", ".pt2": "pt2"}
FORMATS = ("onnx", "pt2", "triton", "triton-ensemble", "mlflow")


@command(
    "outfield export my.guard -o guard.onnx",
    "outfield export my.guard -o detector.onnx --features-only",
    "outfield export my.guard --format triton -o models",
    "outfield export my.guard --format triton-ensemble -o models",
)
def export(
    guard: Annotated[Path, Argument(help="A guard of images, as outfield guard build wrote it.")],
    output: Annotated[Path, Option("--out", "-o", help="A file (.onnx, .pt2), or a folder (triton, mlflow).")],
    kind: Annotated[Text, Option("--format", help=f"{', '.join(FORMATS)}. Default: by the ending of --out.")] = None,
    features_only: Annotated[bool, Option("--features-only", help="The detector alone: features go in.")] = False,
    float_input: Annotated[bool, Option("--float-input", help="Normalised float32 images go in, not bytes.")] = False,
) -> None:
    """Write a guard for other programs: image in, score, p-value, verdict and class out, in one graph."""
    chosen = kind or BY_ENDING.get(output.suffix)
    if chosen not in FORMATS:
        told = f"--format is {kind!r}" if kind else f"--out is {str(output)!r}, whose ending says no format"
        raise InputError(f"{told}; end --out in .onnx or .pt2, or give --format {', '.join(FORMATS)}")
    if features_only and float_input:
        raise InputError("--features-only takes no images, so --float-input says nothing; give one of them")
    if chosen == "triton-ensemble" and features_only:
        raise InputError("an ensemble is network and detector; with --features-only use --format triton")
    if chosen == "mlflow" and (features_only or float_input):
        raise InputError("an MLflow model takes images as they are; leave out --features-only and --float-input")
    if chosen in BY_ENDING.values():
        check_places([("the guard", guard)], [Output("--out", output, (f".{chosen}",))])
    takes = "features" if features_only else "normalised" if float_input else "pixels"
    began = time.monotonic()
    with bar("exporting the guard"):
        log.info("%s", _write(guard, output, chosen, takes))
    log.info("exported in %.1f s → %s", time.monotonic() - began, output)


def _write(guard: Path, output: Path, kind: str, takes: str) -> object:
    from outfield.files import kind_of

    if (found := kind_of(guard)) and found.startswith("guard of "):
        place = "/v1/check" if found.endswith("boxes") else f"/v2/models/{guard.stem}/infer"
        raise InputError(
            f"{guard} is a {found}, of which no graph can be exported; other programs ask it by outfield serve {guard} "
            f"(POST {place}), and Python reads it by outfield.Guard.load"
        )
    from outfield import adapters

    if kind == "mlflow":
        return adapters.to_mlflow(guard, output)
    if kind != "pt2":
        check_installed("onnx", "onnx", "onnxscript", "onnxruntime")

    from outfield.guard import Guard

    made = Guard.load(guard, "cpu")
    if kind == "pt2":
        return adapters.to_pt2(made, output, takes=takes)
    if kind == "onnx":
        return adapters.to_onnx(made, output, takes=takes)
    write = adapters.to_triton if kind == "triton" else adapters.to_triton_ensemble
    return write(made, output, guard.stem, takes=takes)
