"""outfield drift: reads what outfield score writes, goes on from its state, and exits with 10 on an alarm if asked to."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.helpers.program import outfield

import outfield as of
from outfield.features import write_columns


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    rule = of.Threshold.fit(rng.standard_normal(500))
    rule.save(tmp_path / "threshold.safetensors")
    of.Threshold.fit(rng.standard_normal(500)).save(tmp_path / "other.safetensors")
    for name, scores in {"quiet.csv": rng.standard_normal(400), "odd.parquet": rng.standard_normal(200) + 1.5}.items():
        write_columns(tmp_path / name, {"score": scores, "p_value": rule.p_value(scores).numpy()})
    lines = [json.dumps({"file": f"{i}.jpg", "p_value": p}) for i, p in enumerate(rule.p_value(scores).tolist())]
    (tmp_path / "odd.jsonl").write_text("\n".join([*lines, '{"file": "broken.jpg", "p_value": null}']))
    return tmp_path


RULE = ("--threshold", "threshold.safetensors")


def test_quiet_data(folder):
    done = outfield("drift", "quiet.csv", *RULE, "--fail-on-drift", cwd=folder, code=0)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("400 samples, ")
    assert "5.0 expected of ID data), " in lines[0]
    assert lines[1].split()[:4] == ["p", "up", "to", "0.05"]
    assert len(lines) == 22
    assert lines[-1].startswith("no drift found: evidence ")
    assert lines[-1].endswith(" to 1, an alarm needs 100 to 1 (a false alarm, ever, has probability 0.01 at most)")


def test_drift_is_found_and_told_by_the_exit_code(folder):
    done = outfield("drift", "odd.parquet", *RULE, "--fail-on-drift", cwd=folder, code=10)
    assert "DRIFT since about sample " in done.stdout
    assert ", found after " in done.stdout
    assert outfield("drift", "odd.parquet", *RULE, cwd=folder).returncode == 0


def test_p_values_alone_need_the_size_of_the_calibration(folder):
    done = outfield("drift", "odd.jsonl", "--calibration", 500, "--json", "--alpha", 0.05, "--window", 50, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["samples"], told["alpha"], told["recent_samples"], told["alarm"]) == (200, 0.05, 50, True)
    assert "odd.jsonl: 1 row without p_value" in done.stderr
    refused = outfield("drift", "odd.jsonl", cwd=folder, code=2)
    assert "--calibration N" in refused.said
    wrong = outfield("drift", "odd.jsonl", "--calibration", 400, cwd=folder, code=2)
    assert "odd.jsonl: p_values[" in wrong.said


def test_the_state_goes_on(folder):
    state = ("--state", "drift.safetensors")
    outfield("drift", "quiet.csv", *RULE, *state, cwd=folder)
    apart = outfield("drift", "odd.parquet", *state, "--json", cwd=folder, code=0)
    together = outfield("drift", "quiet.csv", "odd.parquet", *RULE, "--json", cwd=folder)
    one, two = json.loads(apart.stdout), json.loads(together.stdout)
    assert one == two
    assert one["samples"] == 600


def test_a_state_that_does_not_fit_is_left_as_it_is(folder):
    state = ("--state", "drift.safetensors")
    outfield("drift", "quiet.csv", *RULE, *state, cwd=folder)
    before = (folder / "drift.safetensors").read_bytes()
    (folder / "bad.csv").write_text("score\nnan\n")
    for arguments, said in {
        ("quiet.csv", "--threshold", "other.safetensors"): "another threshold",
        ("quiet.csv", "--alpha", "0.5"): "--alpha is 0.5, but drift.safetensors was begun with 0.01",
        ("quiet.csv", "bad.csv"): "bad.csv: scores has NaN",
        ("none.csv",): "none.csv",
    }.items():
        done = outfield("drift", *arguments, *state, cwd=folder)
        assert done.returncode in (2, 3)
        assert said in done.said
        assert (folder / "drift.safetensors").read_bytes() == before
    assert outfield("drift", "quiet.csv", *RULE, "--state", "quiet.csv", cwd=folder).returncode == 2
    assert outfield("drift", "quiet.csv", *RULE, "--state", "threshold.safetensors", cwd=folder).returncode == 2


def test_verdicts_of_another_guard_are_refused(folder):
    done = outfield("drift", "quiet.csv", "--threshold", "other.safetensors", cwd=folder, code=2)
    assert "quiet.csv: these are verdicts of another guard or threshold" in done.said


def test_boxes_are_refused(folder):
    (folder / "boxes.csv").write_text("score,p_value,bottom\n1,0.5,20\n2,0.25,30\n")
    for how in (RULE, ("--calibration", 3)):
        done = outfield("drift", "boxes.csv", *how, cwd=folder, code=2)
        assert "boxes.csv: these are verdicts on boxes" in done.said


def test_calls_at_the_same_time_lose_no_sample(folder):
    call = [sys.executable, "-m", "outfield", "drift", "quiet.csv", *RULE, "--state", "drift.safetensors"]
    for one in [subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL) for _ in range(2)]:
        assert one.wait() == 0
    assert of.Drift.load(folder / "drift.safetensors").summary()["samples"] == 800


def test_columns_are_compared_with_a_reference(tmp_path):
    rng = np.random.default_rng(0)
    for name, factor in {"train.csv": 1.0, "quiet.csv": 1.0, "raised.csv": 1.15}.items():
        income, town = factor * rng.lognormal(10, 0.45, 2000), rng.choice(["Oslo", "Rome"], 2000)
        write_columns(tmp_path / name, {"town": town, "income": income})
    options = ("--reference", "train.csv", "--state", "columns.safetensors", "--fail-on-drift")
    done = outfield("drift", "quiet.csv", *options, cwd=tmp_path, code=0)
    assert "2,000 rows of 2 columns\nno drift found: " in done.stdout
    done = outfield("drift", "raised.csv", *options, cwd=tmp_path, code=10)
    assert "DRIFT in income since about row 1,958, found after 2,632 rows: evidence over a million to 1" in done.stdout
    before = (tmp_path / "columns.safetensors").read_bytes()
    for more in (("--keep", 0.9), ("--alpha", 0.5), ("--reference", "raised.csv")):
        assert outfield("drift", "quiet.csv", *options, *more, cwd=tmp_path).returncode == 2
    (tmp_path / "other.csv").write_text("town\nOslo\n")
    done = outfield("drift", "other.csv", *options, cwd=tmp_path, code=2)
    assert "other.csv: the rows have no column 'income'" in done.said
    assert (tmp_path / "columns.safetensors").read_bytes() == before
