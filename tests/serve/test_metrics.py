"""Prometheus's text format, against its own parser; logs; and settings."""

import json
import logging
import math
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from tests.helpers.service import parsed_metrics

import outfield as of
from outfield.serve import Limits, json_lines, read_token
from outfield.serve.telemetry import Counts, JsonLines


def test_scores_of_guards_share_a_head_and_have_limits_of_their_own():
    counts = Counts()
    for name, largest in (("a", 1.0), ('q"\\\n', 10.0)):
        threshold = of.Threshold.fit(torch.linspace(0, largest, 201))
        guard = SimpleNamespace(threshold=threshold)
        counts.add_guard(SimpleNamespace(name=name, guard=guard, accepted=2, drift=of.Drift(threshold)))  # type: ignore[arg-type]
    scores = (0.05, 0.5, math.inf, math.nan)
    counts.see("a", [SimpleNamespace(score=one, p_value=0.3, is_ood=one > 0.1) for one in scores])  # type: ignore[misc]
    text = counts.text().decode()
    assert text.count("# TYPE outfield_score histogram") == 1
    assert "_created" not in text
    found = parsed_metrics(text)
    assert found["outfield_score_count", ("model_name", "a")] == 3
    assert found["outfield_score_bucket", ("le", "0.5"), ("model_name", "a")] == 2
    assert found["outfield_score_bucket", ("le", "5.0"), ("model_name", 'q"\\\n')] == 0
    assert found["outfield_samples_total", ("decision", "ood"), ("model_name", "a")] == 2
    assert found["outfield_p_value_count", ("model_name", "a")] == 4
    assert found["outfield_queue_images", ("model_name", "a")] == 2
    assert found["outfield_drift_alarm", ("model_name", "a")] == 0


def test_a_log_line_is_one_object_and_cut():
    try:
        1 / 0
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "failed\n%s", ("y",), sys.exc_info())
    record.about = {"path": "/" + "a" * 10_000, "status": 500}
    line = JsonLines().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert (said["event"], said["level"], said["status"], len(said["path"])) == ("failed\ny", "error", 500, 500)
    assert "ZeroDivisionError" in said["traceback"]


def test_warnings_of_libraries_are_lines_of_json(capsys):
    with json_lines():
        warnings.warn("this is old", FutureWarning, stacklevel=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "FutureWarning: this is old" in json.loads(line)["event"]


@pytest.mark.parametrize("name", ["body", "pixels", "images", "queue", "batch", "connections", "timeout"])
def test_limits_are_above_0(name):
    with pytest.raises(of.InputError, match=name):
        Limits(**{name: 0})


def test_defaults_are_those_of_the_page():
    limits = Limits()
    assert (limits.body, limits.pixels, limits.images, limits.timeout) == (32 * 2**20, 50_000_000, 64, 30)
    assert (limits.queue, limits.batch, limits.held) == (256, 32, 8 * 32 * 2**20)


def test_tokens(tmp_path):
    file = tmp_path / "token"
    file.write_text(" abc\n")
    assert read_token(file, "other") == "abc"
    assert read_token(None, "other") == "other"
    assert read_token(None, None) is None
    with pytest.raises(of.InputError, match="OUTFIELD_TOKEN"):
        read_token(None, "")
    with pytest.raises(of.StorageError, match="cannot read the token"):
        read_token(tmp_path / "none", None)
