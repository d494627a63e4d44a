"""Prometheus's text format, against its own parser; logs; and settings."""

import json
import logging
import warnings

import pytest

import outfield as of
from outfield.serve import Limits, json_lines, read_token


def test_a_log_line_is_one_object_and_cut_and_so_is_a_warning_of_a_library(capsys):
    with json_lines():
        warnings.warn("this is old", FutureWarning, stacklevel=1)
        try:
            1 / 0
        except ZeroDivisionError:
            about = {"path": "/" + "a" * 10_000, "status": 500}
            logging.getLogger("outfield.serve").exception("failed\n%s", "y", extra={"about": about})
    warned, said = map(json.loads, capsys.readouterr().err.splitlines())
    assert "FutureWarning: this is old" in warned["event"]
    assert (said["event"], said["level"], said["status"], len(said["path"])) == ("failed\ny", "error", 500, 500)
    assert "ZeroDivisionError" in said["traceback"]


@pytest.mark.parametrize("name", ["body", "pixels", "images", "queue", "batch", "timeout"])
def test_limits_are_above_0(name):
    with pytest.raises(of.InputError, match=name):
        Limits(**{name: 0})


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
