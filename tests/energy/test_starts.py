"""Chains that begin between real rows, and a correction that learns from them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy.starts import FromMixed, make_start

DATA = make_set(100)


def test_the_mean_of_each_row_and_the_one_before():
    real = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 8.0]])
    kept, generator = real.clone(), torch.Generator().manual_seed(0)
    before = generator.get_state()
    points = make_start("mixed", None, 0, 0.0).begin(real, generator)
    assert points.tolist() == [[0.5, 4.0], [2.0, 2.0], [1.5, 6.0]]
    assert torch.equal(real, kept)
    assert torch.equal(generator.get_state(), before)


def test_one_row_is_mixed_with_itself():
    real = torch.tensor([[1.0, 2.0]])
    assert torch.equal(FromMixed().begin(real, torch.Generator()), real)


def test_it_keeps_nothing():
    start = FromMixed()
    assert start.state() == {}
    assert start.end(torch.ones(2, 2)) is None


@pytest.mark.parametrize("name", ["EBM", "EnergyCorrected"])
def test_both_engines_take_the_same_way(name):
    def fitted(engine, start="mixed"):
        training = dataclasses.replace(quick(name).training, engine=engine, start=start)
        return quick(name, training=training).fit(DATA).score(DATA)

    assert torch.allclose(fitted("eager"), fitted("fused"), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(fitted("eager"), fitted("eager", "data"), rtol=1e-4, atol=1e-6)


def test_the_quick_correction_s_network_alone_tells_rows_between_classes():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[4.0, 0.2, 0.2, 1.0], [0.2, 4.0, 0.2, 1.0], [0.2, 0.2, 4.0, 1.0]])
    labels = torch.arange(9000) % 3
    features = (centres[labels] + 0.2 * torch.randn(9000, 4, generator=generator)).abs()
    detector = of.EnergyCorrected.quick().fit(of.FeatureSet(features, labels=labels))
    between = (centres + centres.roll(1, 0)) / 2
    known, mixed = (detector.model_.residual(torch.nn.functional.normalize(z)) for z in (features[:300], between))
    assert of.auroc(known, mixed) > 0.95


def test_the_quick_correction_is_saved_whole(tmp_path):
    detector = of.EnergyCorrected.quick(seed=2).fit(DATA)
    detector.save(tmp_path / "d.safetensors")
    loaded = of.load(tmp_path / "d.safetensors")
    assert repr(loaded) == repr(detector)
    assert torch.equal(loaded.score(DATA), detector.score(DATA))
