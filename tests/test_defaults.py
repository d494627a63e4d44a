"""What public classes and functions do when nothing is said: a table of its own, so that no default moves unseen."""

import importlib.metadata
import inspect
import subprocess

import pytest

import outfield as of
from outfield.benchmark import commit_in_words, provenance
from outfield.benchmark.cache import Entry
from outfield.benchmark.plan import find_images
from outfield.benchmark.provenance import versions
from outfield.energy import SineMLP

DEFAULTS = {
    of.Checkpoint: {"seconds": 30.0},
    of.CorrectedEnergy: {"temperature": 1.0, "prior": None, "prior_temperature": 1.0},
    SineMLP: {"hidden": 64, "depth": 3, "frequencies": 64, "scale": 3.0},
    of.HamiltonianMonteCarlo: {"steps": 20, "step_size": (0.1, 0.1), "leapfrog": 5},
    of.MetropolisLangevin: {"steps": 20, "step_size": (0.01, 0.01)},
    of.Drift: {"calibration": None, "keep": None, "alpha": 0.01, "window": 1000, "bins": 20, "seed": 0},
    of.Threshold.fit: {"keep": 0.95},
    of.Threshold.kept_interval: {"confidence": 0.9},
    of.Detector.save: {"float16": False},
    of.Fused.of_fitted: {"rule": "fisher", "seed": 0},
    of.choose: {
        "held_out": None, "stand_ins": None, "candidates": None, "most_members": 8, "real": None, "seed": 0,
        "device": "auto",
    },
    of.feature_stand_ins: {"kinds": None, "seed": 0},
    of.stand_ins: {"kinds": None, "seed": 0, "count": None},
    of.Protocol: {"neighbours": 50},
    of.benchmark_features: {"seeds": 3, "device": "auto", "allow_missing": False, "layout": True, "classes": ()},
    find_images: {"download": False},
    of.run_benchmark: {"seeds": 3, "device": "auto", "allow_missing": False, "layout": True, "download": False},
}  # fmt: skip


@pytest.mark.parametrize("what", DEFAULTS, ids=lambda what: what.__qualname__)
def test_defaults(what):
    parameters = inspect.signature(what).parameters  # fmt: skip
    assert {name: parameters[name].default for name in DEFAULTS[what]} == DEFAULTS[what]


def test_a_cache_entry_s_digest_does_not_hang_on_the_order_of_what_it_depends_on():
    one, other = (
        Entry("scores", {}, {"a": 1, "b": {"c": 2, "d": 3}}),
        Entry("scores", {}, {"b": {"d": 3, "c": 2}, "a": 1}),
    )
    assert one.digest == other.digest != Entry("scores", {}, {"a": 1, "b": {"c": 2, "d": 4}}).digest


def test_a_machine_tells_what_is_installed():
    found = versions()
    for name in ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn"):
        assert found[name] == importlib.metadata.version(name)


def test_the_commit_of_a_checkout(tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "benchmark").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(package / "benchmark" / "provenance.py"))
    monkeypatch.setenv(provenance.COMMIT, "given")
    assert provenance.commit() == {"commit": "given", "dirty": None}

    def git(*words):
        name = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", "-C", tmp_path, *name, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init")
    assert provenance.commit() == {"commit": "given", "dirty": None}
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert provenance.commit() == {"commit": head, "dirty": False}
    (tmp_path / "beside.txt").write_text("not part of the package")
    assert provenance.commit() == {"commit": head, "dirty": False}
    (package / "__init__.py").write_text("changed")
    assert provenance.commit() == {"commit": head, "dirty": True}


def test_a_commit_in_words():
    assert commit_in_words({}) == commit_in_words({"commit": None, "dirty": True}) == "no commit"
    assert commit_in_words({"commit": "0123456789abcdef", "dirty": False}) == "commit 0123456789ab"
    assert commit_in_words({"commit": "0123456789abcdef", "dirty": True}) == "commit 0123456789ab with changes"
