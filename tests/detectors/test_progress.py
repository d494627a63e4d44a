"""What detectors show while they work: a title, how much there is to do, and in which unit."""

import contextlib

import pytest
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.detectors import base
from outfield.detectors import ebm_energy_corrected as learned_energy
from outfield.detectors.distance import ssd_mixture_rmds as ssd


@pytest.fixture
def shown(monkeypatch):
    """Every bar as (title, total, unit, how far it came)."""
    found = []

    @contextlib.contextmanager
    def bar(title, total=None, unit=""):
        far = []
        yield lambda done, **_: far.append(done)
        found.append((title, total, unit, far[-1] if far else None))

    for module in (base, learned_energy, ssd):
        monkeypatch.setattr(module, "bar", bar)
    return found


def test_scoring(shown):
    quick("KNN").fit(make_set(50)).score(make_set(70))
    assert shown == [("scoring with KNN", 70, "samples", 70)]


def test_fitting_a_mixture(shown):
    of.SSD().fit(make_set(50))
    assert shown == [("fitting SSD", 50, "samples", 50)]


def test_training(shown):
    quick("EBM").fit(make_set(100))  # two epochs of three batches of 32
    assert shown == [("fitting EBM", 6, "steps", 6)]
    shown.clear()
    quick("EBM").fit_seeds(make_set(100), [0, 1])
    assert shown == [("fitting EBM, 2 seeds", 6, "steps", 6)]
