"""Runs side by side, joined runs, and filters from stored scores."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import outfield as of
from outfield.benchmark import BenchmarkRun, Key, Record, load_run, save_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROTOCOL = of.Protocol("things", near=("near",), mid=(), far=("far",))


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def make_run(shift=0.0, detectors=("Auto", "KNN", "SSD"), seed=0):
    rng = np.random.default_rng(seed)
    known, near, far = (rng.normal(size=50).astype(np.float32) for _ in range(3))
    run = BenchmarkRun(PROTOCOL, accuracies={"net": 0.9})
    for number, name in enumerate(detectors):
        scores = {"things": known, "near": near + 1 + shift * number, "far": far + 3 + shift * number}
        run.scores[Key("net", name, None)] = scores
        for ood in ("near", "far"):
            fpr95, auroc = of.fpr95(known, scores[ood]), of.auroc(known, scores[ood])
            run.records.append(Record("net", name, None, ood, ood, fpr95, auroc, 0.5, 0.5, 0.5, 50, 50))
    return run


def test_the_default_is_measured_against_the_best_other_row(script):
    beside = script("runs_beside")
    results = {"A": beside.figures(make_run(1.0)), "B": beside.figures(make_run(0.0))}
    assert beside.best_of(results["A"]) == "SSD"  # the last detector is shifted farthest
    ours, theirs = (results["A"]["detectors"][name]["average"]["fpr95"] for name in ("Auto", "SSD"))
    overview = beside.overview(results).rows
    assert overview[0][4] == f"{ours - theirs:+.1f}"
    assert overview[1][4] == "+0.0"
    assert next(row[0] for row in beside.everything(results).rows) == "Auto"


def test_a_page_gets_the_tables(script, tmp_path, capsys):
    beside = script("runs_beside")
    save_run(make_run(1.0), tmp_path / "run.safetensors")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- beside -->\nold\n<!-- end -->\nafter\n")
    out = tmp_path / "beside.json"
    beside.main([f"A net={tmp_path / 'run.safetensors'}", "--out", str(out), "--page", str(page)])
    text = page.read_text()
    assert "| A net | 90.0 |" in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter\n")
    assert capsys.readouterr().out.strip() in text
    beside.main(["--show", str(out), "--page", str(page)])
    assert page.read_text() == text


def test_rows_are_taken_over_only_from_a_run_of_the_same_images(script, tmp_path, monkeypatch, capsys):
    join = script("join_runs")
    old, new, other = make_run(0.0), make_run(1.0, ("Auto", "KNN")), make_run(1.0, ("Auto", "KNN"), seed=1)
    old.scores[Key("net", "KNN", None)] = new.scores[Key("net", "KNN", None)]
    for name, run in (("old", old), ("new", new), ("other", other)):
        save_run(run, tmp_path / f"{name}.safetensors")

    def joined(second):
        paths = [str(tmp_path / f"{name}.safetensors") for name in ("old", second, "out")]
        monkeypatch.setattr(sys, "argv", ["join", *paths[:2], "--take", "Auto", "--check", "KNN", "--out", paths[2]])
        join.main()
        return load_run(paths[2])

    with pytest.raises(SystemExit, match="not of the same"):
        joined("other")
    made = joined("new")
    assert "correlation over backbones and sets is 1.00000" in capsys.readouterr().out
    assert [record.detector for record in made.records] == [name for name in ("Auto", "KNN", "SSD") for _ in range(2)]
    key = Key("net", "Auto", None)
    assert np.array_equal(made.scores[key]["near"], new.scores[key]["near"])
    assert made.provenance["joined"]["taken"] == ["Auto"]


def test_what_a_filter_does_is_read_from_scores(script, tmp_path, capsys):
    filters = script("filters")
    rng = np.random.default_rng(0)
    test = rng.normal(size=40).astype(np.float32)
    real, other = (rng.normal(size=30).astype(np.float32) + by for by in (1, 2))
    about = {"protocol": "cifar10", "net": "cifar10-0", "names": ["SSD ridge=0.0", "MSP", "EnergyCorrected hidden=128"]}
    arrays = {f"{n}|{key}": value for n in (0, 2) for key, value in
              {"test": test, "real lsun": real, "other lsun": other}.items()}  # fmt: skip
    arrays["1|test"] = test  # a detector that was not scored on every set
    np.savez(tmp_path / "scores.npz", about=np.array(json.dumps(about)), **arrays)
    filters.main(["--scores", str(tmp_path / "scores.npz"), "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())["backbones"]["cifar10-0"]
    assert list(found) == ["SSD"]
    rest = np.setdiff1d(np.arange(40), filters.held_out_index(40, 0))
    assert found["SSD"]["bicubic"]["lsun"]["fpr95"] == pytest.approx(of.fpr95(test[rest], other))
    assert found["SSD"]["bilinear"]["lsun"]["auroc"] == pytest.approx(of.auroc(test[rest], real))
    assert "| SSD |" in capsys.readouterr().out


def test_files_of_one_protocol_become_one(script, tmp_path):
    filters = script("filters")
    cells = {"lsun": {"fpr95": 0.5, "auroc": 0.75}}
    whole = {"protocol": "cifar10", "filters": ["bilinear", "bicubic"], "sets": {"lsun": 9}}
    files = []
    for name in ("a", "b"):
        detectors = {"SSD": {"bilinear": cells, "bicubic": {"lsun": {"fpr95": 0.5 + 0.1 * len(files), "auroc": 0.5}}}}
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({**whole, "backbones": {name: detectors}}))
    filters.main(["--show", *map(str, files), "--out", str(tmp_path / "both.json")])
    both = json.loads((tmp_path / "both.json").read_text())
    assert [*both["backbones"]] == ["a", "b"]
    assert both["table"][0]["mean"]["fpr95"] == pytest.approx([0.5, 0.55, -0.05])
    files[1].write_text(json.dumps({**whole, "protocol": "cifar100", "backbones": {}}))
    with pytest.raises(SystemExit):
        filters.main(["--show", *map(str, files), "--out", str(tmp_path / "both.json")])
