"""What a benchmark keeps belongs to the code that made it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

import fake_benchmark
import outfield as of
from fake_benchmark import (
    SETS,
    FakeBackbone,
    detectors,
    run_images,
)
from outfield import provenance
from outfield.benchmark import sources


class TestCode:
    """What changed code computed is not taken for a result of the code as it is."""

    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        copy = tmp_path / "package"
        shutil.copytree(sources.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setattr(sources, "PACKAGE", copy)
        sources.code.cache_clear()
        yield copy
        sources.code.cache_clear()

    @pytest.mark.parametrize(
        ("file", "extracted", "fits"),
        [
            ("engine/step.py", [], 5),
            ("detectors/knn.py", [], 5),
            ("hooks.py", list(SETS), 5),
            ("odin.py", list(SETS[1:]), 0),
            ("figures/roc.py", [], 0),
        ],
    )
    def test_what_it_stands_behind_is_computed_again(self, file, extracted, fits, package, tmp_path, count):
        run_images(tmp_path / "out")
        count.clear()
        with open(package / file, "a") as source:
            source.write("# changed\n")
        sources.code.cache_clear()
        backbone = FakeBackbone()
        run_images(tmp_path / "out", backbone)
        assert backbone.calls == extracted
        assert count["fit"] + count["fit_together"] == fits

    def test_another_torch_computes_again(self, tmp_path, count, monkeypatch):
        run_images(tmp_path)
        monkeypatch.setattr(sources, "version_of", lambda name: "0.0")
        sources.code.cache_clear()
        backbone = FakeBackbone()
        run_images(tmp_path, backbone)
        sources.code.cache_clear()
        assert backbone.calls == list(SETS)

    def test_a_detector_of_ones_own_has_its_file(self):
        assert sources.code_of(FakeBackbone()) == hashlib.sha256(Path(fake_benchmark.__file__).read_bytes()).hexdigest()

    @pytest.mark.parametrize(("what", "roots"), [("odin", ["backbone"]), ("detector", ["detectors", "training"])])
    def test_no_module_is_forgotten(self, what, roots):
        """Whatever is imported on the way is listed, or is of those that decide no number."""
        inert = {
            "arrays",
            "checks",
            "config",
            "devices",
            "errors",
            "features",
            "progress",
            "storage",
            "tables",
            "version",
        }
        seen, todo = set(), list(roots)
        while todo:
            name = todo.pop()
            if name not in seen | inert:
                seen.add(name)
                for file in [*(sources.PACKAGE / name).glob("*.py")] or [sources.PACKAGE / f"{name}.py"]:
                    text = file.read_text()
                    todo += re.findall(r"^\s*from outfield\.(\w+)", text, re.M)
                    todo += [
                        n for line in re.findall(r"^\s*from outfield import (.*)", text, re.M) for n in line.split(", ")
                    ]
        assert seen == set(sources.SOURCES[what]) - ({"imagefiles"} if what == "odin" else set())

    def test_results_say_what_made_them(self, tmp_path, monkeypatch):
        monkeypatch.setattr(provenance, "commit", lambda: {"commit": "a" * 40, "dirty": True})
        run_images(tmp_path, detectors=detectors("SSD"))
        monkeypatch.setattr(provenance, "commit", lambda: {"commit": "b" * 40, "dirty": False})
        run = run_images(tmp_path, detectors=detectors("SSD", "MSP"))
        made = {stage["detector"]: stage for stage in run.provenance["stages"] if stage["what"] == "detector"}
        assert (made["SSD"]["found"], made["SSD"]["commit"]) == (True, "a" * 12 + " with changes")
        assert (made["MSP"]["found"], made["MSP"]["commit"]) == (False, "b" * 12)
        assert made["SSD"]["torch"] == provenance.versions()["torch"]
        (note,) = (tmp_path / "cache").glob("detector-net-SSD*.json")
        about = json.loads(note.read_text())
        assert (about["outfield"], about["commit"]) == (of.__version__, "a" * 12 + " with changes")
        assert about["depends_on"]["code"] == sources.code("detector")
