"""A detector as a setting of another one: kept in files, and found before its file was imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import outfield as of
from outfield.config import construct_from_text, from_plain, is_configurable, settings_of, to_plain


@pytest.mark.parametrize("name", of.DETECTORS)
def test_settings_to_plain_data_and_back(name):
    detector = of.DETECTORS[name]()
    assert is_configurable(detector)
    plain = to_plain(detector)
    assert plain["type"] == name
    back = from_plain(plain)
    assert type(back) is type(detector)
    assert repr(settings_of(back)) == repr(settings_of(detector))


def test_a_detector_that_was_not_imported_yet():
    code = (
        "import outfield as of, sys; of.DETECTORS; from outfield.config import from_plain; "
        "assert 'outfield.detectors.knn' not in sys.modules; "
        "assert from_plain({'type': 'KNN', 'k': 3}).k == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_is_no_detector():
    with pytest.raises(of.UnknownNameError, match="unknown setting of type 'KNM'"):
        from_plain({"type": "KNM"})
    with pytest.raises(of.InputError, match="KNN has no setting kk"):
        from_plain({"type": "KNN", "kk": 3})


def test_a_text_that_names_a_detector():
    class Holder:
        def __init__(self, score=None):
            self.score = score

    assert isinstance(construct_from_text(Holder, {"score": "KNN"}).score, of.KNN)
    assert construct_from_text(Holder, {"score": '{"type": "KNN", "k": 7}'}).score.k == 7
