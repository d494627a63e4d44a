"""Prometheus's text format, against its own parser; logs; and settings."""

from __future__ import annotations

import json
import logging
import math
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

import outfield as of
from outfield.serve.logs import JsonLines
from outfield.serve.metrics import Counter, Histogram, exposition
from outfield.serve.settings import Limits, read_token


def parsed(text):
    families = text_string_to_metric_families(text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def test_counters_and_gauges():
    counter, gauge = Counter("a_total", "A.", ("x", "y")), Counter("b", "B.", kind="gauge")
    counter.add(2, 'q"\\\n', "1")
    counter.add(0.5, 'q"\\\n', "1")
    gauge.set(3)
    gauge.set(-1e-20)
    assert counter.get("none", "1") == 0
    assert parsed(exposition([counter, gauge], [])) == {("a_total", ("x", 'q"\\\n'), ("y", "1")): 2.5, ("b",): -1e-20}


def test_histograms_share_a_head_and_count_up_to_each_limit():
    one, other = (Histogram("h", "H.", (1.0, 2.0), {"g": name}) for name in "ab")
    one.observe([0.5, 1.0, 1.5, 2.5, math.inf, math.nan])
    text = exposition([], [one, other])
    assert text.count("# TYPE h histogram") == 1
    found = parsed(text)
    assert [found["h_bucket", ("g", "a"), ("le", le)] for le in ("1", "2", "+Inf")] == [2, 3, 5]
    assert found["h_count", ("g", "a")] == 5
    assert found["h_sum", ("g", "a")] == math.inf
    assert found["h_count", ("g", "b")] == 0


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
