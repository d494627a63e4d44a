"""Command lines: whatever is asked, the exit code is one of ours, no input is lost and nothing foreign is printed."""

import contextlib
import functools
import io
import os
import random
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from tests.fuzz.values import TEXTS
from tests.helpers.samples import make_set, quick

import outfield as of

CODES = {0, 2, 3, 4}
OUTPUTS = ("--out", "-o", "--csv", "--json", "--threshold-out")
COMMANDS = ("fit", "score", "evaluate", "extract", "train", "benchmark", "report", "toy", "demo", "detectors", "drift")


@functools.cache
def _inputs() -> dict[str, bytes]:
    small = make_set(30, width=3, classes=2)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        small.save(folder / "train.npz")
        small.save(folder / "test.safetensors")
        (folder / "new.csv").write_text("feature_0,feature_1,feature_2\n1,2,3\n4,5,6\n")
        ssd = of.SSD().fit(small)
        ssd.save(folder / "ssd.safetensors")
        quick("MSP").fit(small).save(folder / "msp.safetensors")
        of.Threshold.fit(ssd.score(make_set(40, width=3, classes=2, seed=1))).save(folder / "threshold.safetensors")
        (folder / "[red]odd[.npz").write_bytes((folder / "train.npz").read_bytes())
        (folder / "broken.npz").write_bytes(b"PK\x03\x04nonsense")
        (folder / "empty.csv").write_text("")
        np.save(folder / "wide.npy", np.ones((3, 9), np.float32))
        return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def _line(rng: random.Random) -> list[str]:
    files = list(_inputs())
    good = rng.random() < 0.6
    data = rng.choice(["train.npz", "test.safetensors"] if good else [*files, "none.npz", *TEXTS])
    model = rng.choice(["ssd.safetensors", "msp.safetensors"]) if rng.random() < 0.7 else rng.choice([*files, *TEXTS])
    places = ("o.safetensors", "o.csv", "o.parquet", "o.npz", "o.txt", "no/such/o.csv", data, model, "./" + data)
    out = rng.choice([*places, *TEXTS[:6]])
    threshold = rng.choice(["t.safetensors", out, data])
    detector = rng.choice([*[n for n in of.DETECTORS if n not in ("EBM", "EnergyCorrected")], "nope", ""])
    lines = [
        ["fit", detector, data, "--out", out],
        ["fit", detector, data, "-o", out, "--held-out", data, "--threshold-out", threshold],
        ["fit", "KNN", data, "-o", out, "--set", f"k={rng.choice(TEXTS)}"],
        ["fit", detector, data, "-o", out, "--set", rng.choice(TEXTS)],
        ["fit", detector, data, "-o", out, "--keep", rng.choice(["0.9", "1e-12", "2", "nan", *TEXTS[:6]])],
        ["fit", detector, data, "-o", out, "--device", rng.choice(["cpu", "meta", "cuda:9", "", "x"])],
        ["score", model, data, "--out", out],
        ["score", model, data, "--threshold", rng.choice(["threshold.safetensors", model, data]), "-o", out],
        ["score", model, data],
        ["drift", rng.choice([*files, *TEXTS]), "--threshold", rng.choice(["threshold.safetensors", data])],
        ["drift", "new.csv", "--calibration", rng.choice(TEXTS), "--state", rng.choice(["s.safetensors", model])],
        ["evaluate", model, "--id", data, "--ood", data, "--ood", rng.choice(files), "--csv", out],
        ["evaluate", model, "--id", data, "--ood", data, "--json", out, "--csv", rng.choice([out, "r.csv", model])],
        ["detectors", rng.choice([*of.DETECTORS, *TEXTS])],
        ["detectors"],
        [rng.choice(TEXTS)],
        ["--help"],
        [rng.choice(COMMANDS), rng.choice(["--help", "-h", "--nope"])],
    ]
    line = rng.choice(lines)
    if rng.random() < 0.15:
        line.insert(rng.randrange(len(line) + 1), rng.choice(TEXTS))
    if rng.random() < 0.1 and len(line) > 2:  # a lone word may be a command that works for minutes
        del line[rng.randrange(len(line))]
    return [word.replace("\x00", "?") for word in line]  # no shell can pass a NUL


def command(rng: random.Random, folder: Path) -> None:
    """A command line in a folder of good and bad files."""
    for name, content in _inputs().items():
        (folder / name).write_bytes(content)
    line = _line(rng)
    code, said = run(line, folder)
    assert code in CODES, f"exit code {code} of {line}: {said[-800:]}"
    assert "Traceback" not in said, said[-800:]
    if code:
        assert said.strip(), f"{line} failed and said nothing"
    for name, content in _inputs().items():
        assert (folder / name).exists(), f"{line} removed {name}"
        if name not in _only_written(line):
            assert (folder / name).read_bytes() == content, f"{line} changed its input {name}"


def _only_written(line: list[str]) -> set[str]:
    """The files that a command line names as outputs and nowhere else: what was in them may go."""
    outputs = {i for i, word in enumerate(line) if i and line[i - 1] in OUTPUTS}
    read = {os.path.normpath(word) for i, word in enumerate(line) if i not in outputs}
    return {os.path.normpath(line[i]) for i in outputs} - read


def run(line: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of a command line, run in this process."""
    from outfield.cli import main

    said, before = io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.object(sys, "argv", ["outfield", *line]),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    finally:
        os.chdir(before)
    return code, said.getvalue()


SURFACES = {f.__name__: f for f in (command,)}
