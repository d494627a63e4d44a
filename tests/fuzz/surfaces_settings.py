"""Settings: constructors, settings as text, devices, chains."""

import dataclasses
import inspect
import random
from pathlib import Path
from typing import Any

import torch
from tests.fuzz.values import TEXTS, nonsense_array, scalar
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.config import CONFIGURABLE, construct_from_text, settings_of

SLOW = {"epochs", "steps", "hidden", "depth", "replay_size", "leapfrog", "batch_size", "seed"}
"""Settings of which large values are honest wishes for long work: only small or impossible ones are tried."""


def _odd(rng: random.Random, name: str) -> Any:
    while True:
        value = scalar(rng)
        large = isinstance(value, int | float) and not isinstance(value, bool) and value > 100
        if not (name in SLOW and large):
            return value


def constructor(rng: random.Random, folder: Path) -> None:
    """A detector with one odd setting either refuses it when fit begins, or fits, scores, saves and loads."""
    name = rng.choice(list(of.DETECTORS))
    parameters = list(inspect.signature(of.DETECTORS[name]).parameters)
    if not parameters:
        return
    setting = rng.choice(parameters)
    detector = quick(name, **{setting: _odd(rng, setting)})  # constructors only store
    repr(detector)
    detector.fit(make_set(60))
    scores = detector.score(make_set(7, seed=1))
    assert scores.shape == (7,)
    assert scores.isfinite().all(), scores
    detector.save(folder / "d.safetensors")
    assert torch.equal(of.load(folder / "d.safetensors").score(make_set(7, seed=1)), scores)


def value_class(rng: random.Random, folder: Path) -> None:
    """Classes of settings check themselves when they are made."""
    cls = rng.choice(sorted(CONFIGURABLE.values(), key=lambda c: c.__name__))
    parameters = list(inspect.signature(cls).parameters)
    chosen = {name: scalar(rng) for name in rng.sample(parameters, min(len(parameters), rng.randint(1, 2)))}
    made = cls(**chosen)
    repr(made)
    if dataclasses.is_dataclass(made):
        settings_of(made)


def text(rng: random.Random, folder: Path) -> None:
    """Settings as text, as the command line gives them."""
    cls = of.DETECTORS[rng.choice(list(of.DETECTORS))]
    odd = ("nothing", "training.nothing", "training", "seed.x", "", ".", "a.b.c", "network.hidden")
    paths = [*settings_of(cls()), *odd]
    construct_from_text(cls, {rng.choice(paths): rng.choice(TEXTS) for _ in range(rng.randint(1, 2))})


def device(rng: random.Random, folder: Path) -> None:
    """Only a device that computes is taken."""
    name = rng.choice(
        ["cpu", "meta", "cuda", "cuda:99", "mps", "xla", "hpu", "", "CPU", "cpu:0", "cpu:7", None, 3, "auto"]
    )
    detector = of.SSD().to(name if rng.random() < 0.8 else scalar(rng))
    assert detector.fit(make_set(30)).score(make_set(3)).isfinite().all()


def chains(rng: random.Random, folder: Path) -> None:
    """Chains from odd starts, under odd energies."""
    energy = rng.choice(
        [
            lambda z: 0.5 * z.square().sum(1),
            lambda z: z.sum(),
            lambda z: z,
            lambda z: z.detach().sum(1),
            lambda z: torch.zeros(len(z)),
            lambda z: (z / 0).sum(1),
            lambda z: None,
            lambda z: 0.5 * z.square().sum(1, keepdim=True),
        ]
    )
    start = torch.randn(3, 2) if rng.random() < 0.6 else nonsense_array(rng)
    sampler = rng.choice([of.Langevin(steps=3), of.MetropolisLangevin(steps=3), of.HamiltonianMonteCarlo(steps=2)])
    ends = of.run_chains(energy, start, sampler if rng.random() < 0.9 else scalar(rng)).ends
    assert ends.shape == start.shape


SURFACES = {f.__name__: f for f in (constructor, value_class, text, device, chains)}
