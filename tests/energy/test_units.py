"""Which devices have units for bfloat16, and which can run the kernels."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

import outfield as of
from outfield.energy import engine
from outfield.energy.network import layers_of
from outfield.energy.projection import PROJECTIONS

GPU = torch.device("cuda:1")


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((8, 6), True), ((9, 0), True)])
def test_a_gpu_has_units_from_ampere_on(capability, has, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or capability)
    assert engine.has_bfloat16(GPU) is has
    assert asked == [GPU]


def test_a_build_without_one_dnn_has_none(monkeypatch):
    def missing():
        raise RuntimeError("no oneDNN")

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", missing)
    assert engine.has_bfloat16(torch.device("cpu")) is False


@pytest.mark.parametrize("works", [True, False])
def test_kernels_run_on_a_gpu_that_compiles_them(works, monkeypatch):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("there is no Triton here")
    from outfield.energy.engine import triton_operations

    monkeypatch.setattr(triton_operations, "works", lambda device: works)
    assert engine.has_triton(GPU) is works
    assert engine.has_triton(torch.device("cpu")) is False


def test_without_triton_there_are_no_kernels(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert engine.has_triton(GPU) is False


def test_the_engine_says_what_it_cannot_do(monkeypatch):
    z, labels = torch.rand(60, 4), torch.arange(60) % 2
    model = of.CorrectedEnergy(of.MLP(hidden=8, depth=1).build(4, 0), prior=of.MixturePrior().fit(z, labels))
    fine = (model, of.Langevin(), PROJECTIONS["sphere"])
    assert engine.obstacle(*fine, z) is None
    assert engine.obstacle(*fine, z.double()) == "the rows are torch.float64, not float32"
    assert engine.obstacle(model, of.MetropolisLangevin(), PROJECTIONS["sphere"], z) == (
        "the sampler is MetropolisLangevin, not Langevin"
    )
    assert "projection" in engine.obstacle(model, of.Langevin(), lambda z: z, z)
    monkeypatch.setattr(of.MixturePrior, "well_scaled", lambda self, z: False)
    assert "nearly singular" in engine.obstacle(*fine, z)


@pytest.mark.parametrize(("slope", "taken"), [(0.2, True), (1.0, True), (0.0, False), (-0.1, False)])
def test_the_engine_takes_slopes_above_0(slope, taken):
    network = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(slope), nn.Linear(4, 1))
    assert (layers_of(network) is not None) is taken


@pytest.mark.parametrize("name", ["temperature", "prior_temperature"])
def test_temperatures_that_make_no_sense_are_named(name):
    with pytest.raises(of.InputError, match=f"^{name} is -1"):
        of.CorrectedEnergy(nn.Linear(2, 1), **{name: -1.0})


def test_classes_of_a_mixture_must_ascend():
    state = of.MixturePrior().fit(torch.rand(30, 2), torch.arange(30) % 3).state()
    with pytest.raises(of.FileFormatError, match="classes must be different, ascending"):
        of.MixturePrior().load_state({**state, "classes": torch.tensor([0, 2, 1])})
