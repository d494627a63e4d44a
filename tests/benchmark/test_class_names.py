"""Names of classes come from the data, go with the run, and are kept with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.helpers.fake_benchmark import PROTOCOL, FakeBackbone, detectors, feature_sets, image_sets

from outfield.benchmark import benchmark_features, run_benchmark
from outfield.benchmark.saved import load_run, save_run
from outfield.files import storage

NAMES = ("dark", "grey", "bright")


@pytest.mark.parametrize("protocol", [PROTOCOL, replace(PROTOCOL, id="cifar10")], ids=["shapes", "cifar10"])
@pytest.mark.parametrize(("test", "train"), [(NAMES, ("a", "b", "c")), (None, NAMES), (None, None)])
def test_images_name_their_classes(protocol, test, train, tmp_path):
    """Not a published set that the ID set is called after."""
    images = image_sets()
    images["test"].classes, images["train"].classes = test, train
    run = run_benchmark(protocol, images, [FakeBackbone()], tmp_path, detectors=detectors("SSD"), view=False)
    assert run.classes == (test or train or ())


def test_features_have_none_unless_they_are_given():
    sets = {"net": feature_sets()}
    assert benchmark_features(PROTOCOL, sets, detectors=detectors("SSD"), view=False).classes == ()
    named = benchmark_features(PROTOCOL, sets, detectors=detectors("SSD"), view=False, classes=list(NAMES))
    assert named.classes == NAMES


def test_a_saved_run_keeps_them_and_an_older_one_has_none(tmp_path):
    run = benchmark_features(PROTOCOL, {"net": feature_sets()}, detectors=detectors("SSD"), view=False, classes=NAMES)
    save_run(run, tmp_path / "run.safetensors")
    assert load_run(tmp_path / "run.safetensors").classes == NAMES
    header, tensors = storage.read(tmp_path / "run.safetensors", "benchmark run")
    del header["classes"]
    storage.write(tmp_path / "old.safetensors", "benchmark run", header, tensors)
    old = load_run(tmp_path / "old.safetensors")
    assert (old.classes, old.records) == ((), run.records)
