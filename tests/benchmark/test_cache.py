"""The cache of a benchmark: what a result depends on, what is noted beside it, and the log of a run in short."""

import importlib
import json

import pytest
from tests.helpers.fake_benchmark import SETS, FakeBackbone, detectors, run_images

import outfield as of
from outfield.benchmark import provenance
from outfield.benchmark.cache import Cache


@pytest.fixture
def cache():
    return Cache(None, "cpu")


def scored(cache, detector, name, seconds, found):
    cache.log.append({"what": "scores", "detector": detector, "set": name, "seconds": seconds, "found": found})


def test_scores_of_a_detector_count_together(cache):
    cache.log.append({"what": "detector", "detector": "KNN", "seconds": 1.0, "found": False})
    cache.log.append({"what": "history", "detector": "EBM", "seconds": 1.0, "found": False})
    scored(cache, "KNN", "svhn", 0.25, True)
    scored(cache, "SSD", "svhn", 0.5, True)
    scored(cache, "KNN", "lsun", 0.0101, True)
    scored(cache, "KNN", "places", 0.1, False)
    for seconds in (None, 1.0):  # what is not known makes the sum unknown
        scored(cache, "MSP", "a", seconds, True)
    assert cache.summary() == [
        {"what": "detector", "detector": "KNN", "seconds": 1.0, "found": False},
        {"sets": 3, "what": "scores", "detector": "KNN", "seconds": 0.36, "found": False},
        {"sets": 1, "what": "scores", "detector": "SSD", "seconds": 0.5, "found": True},
        {"sets": 2, "what": "scores", "detector": "MSP", "seconds": None, "found": True},
    ]


def test_another_version_computes_again(tmp_path, monkeypatch):
    run_images(tmp_path)
    monkeypatch.setattr("outfield.benchmark.cache.__version__", "9.9")
    backbone = FakeBackbone()
    run_images(tmp_path, backbone)
    assert backbone.calls == list(SETS)


def test_a_detector_of_ones_own_is_fitted_again_where_its_file_changed(tmp_path, monkeypatch):
    mine = tmp_path / "mine_alone.py"
    mine.write_text("import outfield\nclass Mine(outfield.SSD): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    chosen = {"Mine": importlib.import_module("mine_alone").Mine()}
    found = []
    for change in ("", "", "# changed\n"):
        mine.write_text(mine.read_text() + change)
        run = run_images(tmp_path, detectors=chosen)
        found += [stage["found"] for stage in run.provenance["stages"] if stage["what"] == "detector"]
    assert found == [False, True, False]


def test_results_say_what_made_them(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: {"commit": "a" * 40, "dirty": True})
    run_images(tmp_path, detectors=detectors("SSD"))
    monkeypatch.setattr(provenance, "commit", lambda: {"commit": "b" * 40, "dirty": None})
    run = run_images(tmp_path, detectors=detectors("SSD", "MSP"))
    made = {stage["detector"]: stage for stage in run.provenance["stages"] if stage["what"] == "detector"}
    assert (made["SSD"]["found"], made["SSD"]["commit"]) == (True, "a" * 12 + " with changes")
    assert (made["MSP"]["found"], made["MSP"]["commit"]) == (False, "b" * 12 + ", changes unknown")
    assert made["SSD"]["torch"] == provenance.versions()["torch"]
    (note,) = (tmp_path / "cache").glob("detector-net-SSD*.json")
    about = json.loads(note.read_text())
    assert (about["outfield"], about["commit"]) == (of.__version__, "a" * 12 + " with changes")
