"""Weights averaged over the last epochs are the mean of what fits of those lengths end with."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.config import to_plain
from outfield.energy.eager import InTurn

DATA = make_set(100)


def trained(epochs, average=0, name="EBM", engine="eager", seeds=(0,), start="auto", **more):
    training = dataclasses.replace(
        quick(name).training, epochs=epochs, average=average, engine=engine, start=start, replay_size=40
    )
    return quick(name, training=training).fit_seeds(DATA, seeds, **more)


def weights(detector):
    return {name: value.double() for name, value in detector.model_.network.state_dict().items()}


def mean_of(detectors):
    found = [weights(detector) for detector in detectors]
    return {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}


def close(a, b):
    return all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-7) for name in a)


@pytest.mark.parametrize("engine", ["eager", "fused"])
@pytest.mark.parametrize("name", ["EBM", "EnergyCorrected"])
def test_the_mean_of_the_last_epochs(name, engine):
    alone = {epochs: trained(epochs, name=name, engine=engine)[0] for epochs in (1, 2, 3, 4)}
    assert not close(weights(alone[3]), weights(alone[4]))
    for average, over in ((0, [4]), (1, [4]), (2, [3, 4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])):
        found = trained(4, average, name=name, engine=engine)[0]
        assert close(weights(found), mean_of([alone[epochs] for epochs in over]))
        assert found.history_.loss == alone[4].history_.loss


def test_the_mean_of_one_epoch_is_that_epoch_to_the_bit():
    one, mean = weights(trained(1)[0]), weights(trained(1, average=2)[0])
    assert all(torch.equal(value, mean[name]) for name, value in one.items())


def test_seeds_are_not_mixed_up():
    together = trained(3, 2, seeds=(0, 1))
    for seed, found in zip((0, 1), together, strict=True):
        assert close(weights(found), mean_of([trained(epochs, seeds=(seed,))[0] for epochs in (2, 3)]))


@pytest.mark.parametrize("stop", [2, 4, 7, 9])
def test_a_fit_that_was_cut_off_ends_with_the_same_bits(stop, tmp_path, monkeypatch):
    whole = trained(3, 2, start="replay")[0]
    steps, run = 0, InTurn.run

    def interrupted(self, real):
        nonlocal steps
        steps += 1
        if steps == stop:
            raise KeyboardInterrupt
        return run(self, real)

    with monkeypatch.context() as patch:
        patch.setattr(InTurn, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(3, 2, start="replay", checkpoint=tmp_path / "c.safetensors")
    for _ in range(2):  # the second finds all of it done
        found = trained(3, 2, start="replay", checkpoint=tmp_path / "c.safetensors")[0]
        assert all(torch.equal(a, b) for a, b in zip(weights(found).values(), weights(whole).values(), strict=True))


def test_the_setting():
    assert "average" not in to_plain(of.Training())
    assert to_plain(of.Training(average=3))["average"] == 3
    for bad in (-1, 2.5, "a", None, 10**10):
        with pytest.raises(of.InputError, match="average is"):
            of.Training(average=bad)


def test_uniform_starts():
    start = make_uniform()
    generator = torch.Generator().manual_seed(3)
    points = start.begin(torch.zeros(2000, 4), generator)
    again = torch.rand(2000, 4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(points, again)
    assert (start.state(), start.end(points)) == ({}, None)
    found = quick("EBM", training=dataclasses.replace(quick("EBM").training, start="uniform")).fit(DATA)
    assert not torch.equal(found.score(DATA), quick("EBM").fit(DATA).score(DATA))


def make_uniform():
    from outfield.energy.starts import make_start

    return make_start("uniform", None, 10, 0.1)
