"""The settings of training: the paper's by default, and nothing that makes no sense."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.helpers.samples import quick

import outfield as of

NUMBERS = ("epochs", "batch_size", "replay_size", "learning_rate", "energy_limit", "l2", "input_noise", "replay_fresh")
NO_NUMBERS = (-1, float("nan"), float("inf"), "1", None, True, (1,), [1], 10**30 * 10, np.array([1, 2]))


def test_the_defaults_are_the_papers():
    """Table of hyper-parameters in its appendix; what it leaves open is said in docs/method.md."""
    expected = {
        "epochs": 20, "batch_size": 256, "learning_rate": 5e-6, "betas": (0.0, 0.999), "l2": 10.0, "input_noise": 1e-3,
        "start": "auto", "replay_size": 10_000, "replay_fresh": 0.05, "energy_limit": 1e4, "engine": "auto",
        "precision": "auto", "average": 0,
    }  # fmt: skip
    assert dataclasses.asdict(of.Training()) == expected
    assert dataclasses.asdict(of.EBM().training) == expected | {"learning_rate": 5e-5, "l2": 0.1}
    assert of.Langevin() == of.Langevin(steps=20, step_size=(1e-6, 1e-7), noise_std=(1e-3, 1e-4))
    assert dataclasses.asdict(of.MLP()) == {"hidden": 1024, "depth": 4, "slope": 0.2}
    assert of.MixturePrior().floor == 1e-6


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("bad", NO_NUMBERS)
def test_numbers_that_make_no_sense(name, bad):
    with pytest.raises(of.InputError, match=name):
        of.Training(**{name: bad})


@pytest.mark.parametrize("name", ["epochs", "batch_size", "replay_size"])
@pytest.mark.parametrize("bad", [0, 2.0, 2.5, np.float64(2)])
def test_counts_that_make_no_sense(name, bad):
    with pytest.raises(of.InputError, match=name):
        of.Training(**{name: bad})


@pytest.mark.parametrize(
    ("name", "bad"), [("learning_rate", 0), ("energy_limit", 0.0), ("replay_fresh", 1.01), ("learning_rate", 1e300)]
)
def test_numbers_just_outside(name, bad):
    with pytest.raises(of.InputError, match=name):
        of.Training(**{name: bad})


@pytest.mark.parametrize("name", ["start", "engine", "precision"])
@pytest.mark.parametrize("bad", ["moon", "", None, 1, ("auto",), ["auto"], np.array(["auto", "eager"])])
def test_names_that_make_no_sense(name, bad):
    with pytest.raises(of.InputError, match=name):
        of.Training(**{name: bad})


@pytest.mark.parametrize(
    "bad",
    [0.5, (0.5,), (0.1, 0.2, 0.3), [0.0, 0.9], (2, 3), (-0.1, 0.9), (0.0, 1.0), ("0", "1"), (None, 0.9),
     (0.0, float("nan")), (True, 0.9), None, "ab"],
)  # fmt: skip
def test_betas_that_make_no_sense(bad):
    with pytest.raises(of.InputError, match="betas"):
        of.Training(betas=bad)
    of.Training(betas=(0, 1 - 1e-12))


@pytest.mark.parametrize("bad", [0, -1.0, 1.5, float("nan"), float("inf"), "small", None, True, (1e-6,)])
def test_floors_that_make_no_sense(bad):
    with pytest.raises(of.InputError, match="floor"):
        of.MixturePrior(floor=bad)


def test_numpys_numbers_are_numbers(train_set, test_set):
    given = of.Training(
        epochs=np.int64(1), batch_size=np.int32(32), learning_rate=np.float32(1e-3), betas=(np.float64(0), np.float32(0.5)),
        l2=np.float64(1), input_noise=np.float32(0.5), start="replay", replay_size=np.int64(40), replay_fresh=np.float64(0.25),
        energy_limit=np.float64(1e3),
    )  # fmt: skip
    plain = of.Training(1, 32, float(np.float32(1e-3)), (0.0, 0.5), 1.0, 0.5, "replay", 40, 0.25, 1e3)
    for engine in ("fused", "eager"):
        found, expected = (
            quick("EBM", training=dataclasses.replace(one, engine=engine)).fit(train_set).score(test_set)
            for one in (given, plain)
        )
        assert found.tolist() == expected.tolist()
