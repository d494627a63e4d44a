"""outfield choose: what it writes and says, and what it refuses."""

from __future__ import annotations

import csv

import pytest
import torch
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, data in {
        "train": make_set(n=200),
        "val": make_set(n=80, seed=7),
        "turned": make_set(n=60, seed=2, shift=0.1),
        "blocks": make_set(n=50, seed=3, shift=0.4),
        "svhn": make_set(n=40, seed=4, shift=0.3),
    }.items():
        data.save(folder / f"{name}.npz")
    return folder


def choose(files, *more, out="d.safetensors"):
    given = ("--held-out", files / "val.npz", "-o", files / out, "--most-members", 2, "--no-progress")
    return outfield("choose", files / "train.npz", *given, *more)


def test_it_chooses_writes_and_tells(files):
    done = choose(
        files, "--near", files / "turned.npz", "--far", f"far={files}/blocks.npz", "--real", files / "svhn.npz",
        "--csv", files / "trials.csv", "--plot", files / "choice.png", "--seed", 3,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = {name: of.FeatureSet.load(files / f"{name}.npz") for name in ("train", "val", "turned", "blocks", "svhn")}
    stand_ins = {"near": {"turned": data["turned"]}, "far": {"far": data["blocks"]}}
    expected = of.choose(data["train"], data["val"], stand_ins, most_members=2, seed=3, real={"svhn": data["svhn"]})
    found = of.load(files / "d.safetensors")
    assert found.names == expected.best.members
    assert torch.allclose(found.score(data["svhn"]), expected.detector.score(data["svhn"]), rtol=1e-5)
    first = done.stdout.splitlines()
    assert first[0] == "FPR95 on stand-ins (%), the chosen one first"
    assert first[1].split()[:2] == ["members", "near-like"]
    assert first[2].startswith(" + ".join(expected.best.members))
    rows = list(csv.DictReader((files / "trials.csv").open()))
    assert len(rows) == len(expected.trials)
    assert rows[0]["members"] == " + ".join(expected.best.members)
    assert float(rows[0]["turned"]) == pytest.approx(expected.best.fpr95["turned"])
    assert float(rows[-1]["real svhn"]) == pytest.approx(expected.trials[-1].real["svhn"])
    assert float(rows[0]["mean"]) == pytest.approx(expected.best.mean)
    assert (files / "choice.png").read_bytes().startswith(b"\x89PNG")
    assert f"of {len(rows)} sums" in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "there are no stand-ins; name at least one set with --near or --far"),
        (("--near", "{f}/turned.npz", "--plot", "{f}/p.png"), "--plot draws stand-ins against real sets"),
        (("--near", "{f}/turned.npz", "--near", "{f}/turned.npz"), "two sets of --near have the same name"),
        (("--near", "{f}/turned.npz", "--csv", "{f}/turned.npz"), "--csv"),
        (("--near", "{f}/none.npz"), "no such file"),
        (("--near", "{f}/train.npz", "--held-out", "{f}/train.npz"), "are training rows"),
    ],
)
def test_what_it_refuses(files, more, said):
    done = choose(files, *(part.format(f=files) for part in more), out="other.safetensors")
    assert done.returncode in (2, 3)
    assert said in done.stderr
    assert not (files / "other.safetensors").exists()
