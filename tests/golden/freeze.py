"""What must not change by a rearrangement: scores of every detector, files of every kind and what commands print.

``python -m tests.golden.freeze FOLDER`` writes them with the package that Python finds; two versions are compared by writing
two folders. ``kept/`` beside this file was written so by version 0.1.0 and is compared by test_golden.py.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from tests.helpers.guards import labelled, noise, trained
from tests.helpers.networks import Plain, seeded
from tests.helpers.samples import QUICK, make_set, quick

import outfield as of

FILES = ("KNN", "SSD", "EnergyCorrected", "HEAT", "RMDS", "ViM", "OpenMax")
"""Detectors of which a file is kept."""


def sets() -> dict[str, tuple[of.FeatureSet, of.FeatureSet]]:
    """Training and test rows by name."""
    double = make_set(150, 6, 3, seed=5)
    return {
        "small": (make_set(), make_set(n=80, seed=1, shift=0.3)),
        "wide": (make_set(400, 32, 5, seed=3), make_set(60, 32, 5, seed=4, shift=0.4)),
        "double": (
            of.FeatureSet(**{**double.tensors(), "features": double.features.double()}),
            make_set(60, 6, 3, seed=6, shift=0.5),
        ),
    }  # fmt: skip


def detectors() -> dict[str, of.Detector]:
    """Every detector but Auto, whose choice may change, and some with other settings."""
    found = {name: quick(name) for name in of.DETECTORS if name != "Auto"}
    found["Fused"] = of.Fused([of.KNN(k=5), of.SSD(), of.EnergyLogits()])
    found["KNN-1"] = of.KNN(k=1)
    found["Mahalanobis-stages"] = of.Mahalanobis(layers=("features", "spread"))
    return found


def scores() -> dict[str, np.ndarray]:
    """Scores of every detector on every set, by ``set/detector``."""
    found = {}
    for title, (train, test) in sets().items():
        for name, detector in detectors().items():
            with contextlib.suppress(of.InputError):
                found[f"{title}/{name}"] = detector.fit(train).score(test).numpy()
    return found


def onnx_backbone(folder: Path) -> of.Backbone:
    torch.onnx.export(
        seeded(Plain).eval(), (torch.rand(2, 3, 16, 16),), f"{folder}/net.onnx", input_names=["images"], output_names=["logits"],
        dynamic_axes={"images": {0: "n"}, "logits": {0: "n"}}, dynamo=False,
    )  # fmt: skip
    return of.Backbone.open(f"{folder}/net.onnx", device="cpu", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def people(rows: int, seed: int):
    import pandas as pd

    rng = np.random.default_rng(seed)
    town = rng.choice(["Bonn", "Kiel", "Ulm"], rows)
    size = rng.standard_normal(rows) + (town == "Ulm")
    return pd.DataFrame(
        {"size": size, "weight": 2 * size + rng.normal(0, 0.3, rows), "town": town, "group": rng.integers(1, 3, rows)}
    )


def write_files(folder: Path) -> None:
    """Files of every kind."""
    train, _ = sets()["small"]
    for name in FILES:
        quick(name).fit(train).save(folder / f"{name}.safetensors")
    of.Fused([of.KNN(k=5), of.SSD(), of.EnergyLogits()]).fit(train).save(folder / "Fused.safetensors")
    train.save(folder / "rows.safetensors")
    train.save(folder / "rows.npz")
    of.Threshold.fit(torch.linspace(0, 1, 200)).save(folder / "threshold.safetensors")
    with tempfile.TemporaryDirectory() as place:
        images, held = labelled(200, 1), labelled(160, 2)
        of.Guard.build(onnx_backbone(Path(place)), images, held, detector=of.SSD(), device="cpu").save(
            folder / "onnx.guard"
        )
    of.RowGuard.build(people(400, 0), label="group", detector=of.SSD()).save(folder / "table.guard")
    of.RowGuard.build(make_set(300), detector=of.KNN(k=5)).save(folder / "features.guard")


def judged(folder: Path) -> dict[str, np.ndarray]:
    """What the files of a folder say of new data, by name."""
    _, test = sets()["small"]
    found = {name: of.load(folder / f"{name}.safetensors").score(test).numpy() for name in (*FILES, "Fused")}
    for ending in ("safetensors", "npz"):
        found[f"rows.{ending}"] = of.FeatureSet.load(folder / f"rows.{ending}").features.numpy()
    found["threshold"] = of.Threshold.load(folder / "threshold.safetensors").p_value(torch.linspace(-1, 2, 50)).numpy()
    images = of.ImageArray(np.concatenate([labelled(20, 3).images, noise(20)]))
    given = {"onnx": images, "table": people(40, 7), "features": make_set(40, seed=8)}
    for name, data in given.items():
        guard = of.open_guard(folder / f"{name}.guard")
        verdicts = guard(data) if name != "features" else guard.judge(data)
        found[f"{name}.guard"] = np.stack(
            [np.asarray([v.score for v in verdicts]), np.asarray([v.p_value for v in verdicts])]
        )
    return found


COMMANDS = """
--help
detectors
detectors KNN
fit --help
fit SSD train.npz -o ssd.safetensors --held-out test.npz --threshold-out t.safetensors
fit KNN train.npz -o knn.safetensors --set k=5
fit KNN train.npz -o knn.safetensors --set k=0
fit KNN train.npz -o knn.safetensors --set wrong=1
fit Nobody train.npz -o x.safetensors
fit SSD missing.npz -o x.safetensors
score ssd.safetensors test.npz --threshold t.safetensors --out scores.csv
score ssd.safetensors test.npz --out scores.xyz
score missing.safetensors test.npz --out scores.csv
evaluate ssd.safetensors knn.safetensors --id test.npz --ood far=ood.npz --csv r.csv
evaluate ssd.safetensors --id missing.npz --ood ood.npz
choose train.npz --help
guard --help
guard build --help
guard check --help
guard rows people.csv --label group -o people.guard --detector SSD
guard show people.guard
guard check people.guard others.csv
guard check people.guard others.csv --why
guard check people.guard missing.csv
guard check train.npz others.csv
guard build net.safetensors images -o net.guard --detector KNN --device cpu
guard show net.guard
guard check net.guard images --device cpu
guard check net.guard broken.png --device cpu
stand-ins --help
stand-ins images -o made --kind turned90
extract net.safetensors images -o extracted.safetensors --device cpu
drift --help
benchmark --help
benchmark --features features --protocol missing
report --help
report missing.safetensors
train --help
serve --help
serve missing.guard
export --help
toy --help
demo --help
"""


def transcripts(folder: Path) -> str:
    """What each command prints and its exit code."""
    from tests.helpers.guards import write_folder

    make_set().save(folder / "train.npz")
    make_set(n=50, seed=1).save(folder / "test.npz")
    make_set(n=60, seed=2, shift=1.0).save(folder / "ood.npz")
    people(300, 0).to_csv(folder / "people.csv", index=False)
    people(20, 1).to_csv(folder / "others.csv", index=False)
    trained(folder / "net.safetensors")
    write_folder(folder / "images", labelled(80, 1))
    (folder / "broken.png").write_bytes(b"\x89PNG broken")
    text = []
    for line in COMMANDS.strip().splitlines():
        environment = {
            **os.environ,
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "outfield", *line.split()], cwd=folder, capture_output=True, text=True, timeout=300,
            env=environment,
        )  # fmt: skip
        said = re.sub(r"\d+(\.\d+)? (ms|s)\b", "T", done.stdout + "--\n" + done.stderr).replace(str(folder), "FOLDER")
        text.append(f"$ outfield {line}\n{said}exit {done.returncode}\n")
    return "\n".join(text)


def main() -> None:
    """Write scores, files, what they say, and transcripts to a folder."""
    folder = Path(sys.argv[1])
    (folder / "files").mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    np.savez_compressed(folder / "scores.npz", **scores())
    write_files(folder / "files")
    np.savez_compressed(folder / "judged.npz", **judged(folder / "files"))
    with tempfile.TemporaryDirectory() as place:
        (folder / "transcripts.txt").write_text(transcripts(Path(place)))
    (folder / "about.json").write_text(json.dumps({"torch": torch.__version__, "quick": sorted(QUICK)}))


if __name__ == "__main__":
    main()
