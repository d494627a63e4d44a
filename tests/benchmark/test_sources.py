"""What a benchmark keeps belongs to the code that made it."""

from __future__ import annotations

import importlib
import json
import shutil

import pytest
from tests.helpers.fake_benchmark import (
    SETS,
    FakeBackbone,
    detectors,
    run_images,
)

import outfield as of
from outfield.benchmark import provenance, sources


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
            ("energy/engine/step.py", [], 1),
            ("energy/projection.py", [], 3),
            ("detectors/knn.py", [], 1),
            ("detectors/corrected.py", [], 1),
            ("backbone/observer.py", list(SETS), 5),
            ("backbone/odin.py", list(SETS[1:]), 0),
            ("report/figures/roc.py", [], 0),
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

    def test_scores_follow_the_perturbed_images(self, package, tmp_path):
        """A change of how images are perturbed changes no fit and no feature, but ODIN's scores."""

        class Changed(FakeBackbone):
            def extract(self, images, *, odin=None, labels=True):
                found = super().extract(images, odin=odin, labels=labels)
                return found if odin is None else of.FeatureSet(**{**found.tensors(), "odin_logits": -found.logits})

        before = run_images(tmp_path, detectors=detectors("ODIN"))
        with open(package / "backbone/odin.py", "a") as source:
            source.write("# changed\n")
        sources.code.cache_clear()
        after = run_images(tmp_path, Changed(), detectors=detectors("ODIN"))
        fresh = run_images(tmp_path / "fresh", Changed(), detectors=detectors("ODIN"))
        assert after.records == fresh.records
        assert after.records != before.records

    def test_another_torch_computes_again(self, tmp_path, count, monkeypatch):
        run_images(tmp_path)
        monkeypatch.setattr(sources, "version_of", lambda name: "0.0")
        sources.code.cache_clear()
        backbone = FakeBackbone()
        run_images(tmp_path, backbone)
        sources.code.cache_clear()
        assert backbone.calls == list(SETS)

    def test_a_detector_of_ones_own_has_its_file_and_what_it_imports(self, tmp_path, monkeypatch, package):
        mine = tmp_path / "mine_alone.py"
        mine.write_text("from outfield.energy.projection import normalise\nclass Mine: pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        detector = importlib.import_module("mine_alone").Mine()
        digests = [sources.code_of(detector)]
        for file in (mine, package / "energy/projection.py", package / "detectors/knn.py"):
            with open(file, "a") as source:
                source.write("# changed\n")
            digests.append(sources.code_of(detector))
        assert len(set(digests)) == 3
        assert digests[2] == digests[3]

    def test_a_result_depends_on_what_computed_it(self):
        """Fits of other detectors, and reports, are not behind a detector; what it uses is, at any depth."""
        knn = sources.modules_behind(["detectors.knn"])
        ssd = sources.modules_behind(["detectors.mixture"])
        ebm = sources.modules_behind(["detectors.ebm"])
        own = {"detectors.knn", "detectors.neighbours", "detectors.approximate", "detectors.once"}
        assert knn == {*own, "energy.projection", "modes"}
        assert {"energy.priors.mixture", "energy.priors.moments", "energy.projection"} < ssd
        assert {"energy.loop", "energy.engine.kernels", "energy.chains", "detectors.learned"} < ebm
        assert not {"detectors.knn", "detectors.logits", "detectors.corrected"} & (ssd | ebm)
        assert not any(name.startswith(("report", "cli", "benchmark")) for name in knn | ssd | ebm)

    def test_what_only_checks_stores_or_tells_is_behind_nothing(self):
        every = sources.modules_behind(f"detectors.{name}" for name in ("fused", "ebm", "corrected", "knn", "residual"))
        inert = ["errors", "version", "config", "devices", "extras", "progress", "files"]
        inert += ["features.set", "features.fields"]
        inert += [f"detectors.{name}" for name in ("base", "data", "registry", "saved", "state")]
        for name in inert:
            assert not any(found == name or found.startswith(f"{name}.") for found in every)
            assert sources.modules_behind([name]) == set()
        assert {"features.head", "features.part", "features.seen"} & every == {"features.head", "features.part"}
        assert sources.modules_behind(["features.seen"]) == {"features.seen"}

    @pytest.mark.parametrize("line", ["from outfield.energy import projection", "import outfield.energy.projection"])
    def test_modules_are_found_however_they_are_imported(self, line, tmp_path):
        (tmp_path / "mine.py").write_text(f"{line}\nfrom outfield.errors import InputError\nimport torch\n")
        assert sources._imports(tmp_path / "mine.py") == {"energy.projection", "errors"}

    def test_every_member_of_a_list_counts(self, package):
        fused = [of.Fused([of.MSP(), of.EBM()]), of.Fused([of.MSP()]), of.Fused([of.MSP(), of.Fused([of.EBM()])])]
        before = [sources.code_of(one) for one in fused]
        with open(package / "detectors/ebm.py", "a") as source:
            source.write("# changed\n")
        assert [sources.code_of(one) != was for one, was in zip(fused, before, strict=True)] == [True, False, True]

    def test_the_classes_of_settings_count(self, package):
        before = sources.code_of(of.EnergyCorrected())
        with open(package / "energy/priors/mixture.py", "a") as source:
            source.write("# changed\n")
        assert sources.code_of(of.EnergyCorrected()) != before

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


def test_libraries_that_numbers_come_from():
    images = ("torch", "torchvision", "timm", "pillow")
    assert {
        "features": images,
        "blocks": images,
        "odin": images,
        "detector": ("torch",),
        "view": ("scikit-learn",),
        "views": ("torch",),
    } == sources.LIBRARIES
