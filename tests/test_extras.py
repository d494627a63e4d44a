"""A library that is not there: one error, which names the extra that installs it."""

import sys

import pytest

from outfield.errors import MissingExtraError
from outfield.extras import library


def test_a_missing_library_names_its_extra():
    with pytest.raises(MissingExtraError, match=r"needs no_such, .*: pip install 'outfield\[images\]'"):
        library("no_such.part", extra="images")


def test_a_broken_library_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"broken_library, which cannot be imported \(No module named"):
        library("broken_library", extra="images")
    sys.modules.pop("broken_library", None)
