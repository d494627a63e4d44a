"""HEAT: its score is the composition of its members' standardised scores, by a formula written out here."""

import inspect
import math

import numpy as np
import pytest
import torch
from tests.helpers.samples import QUICK, make_set, quick, refused

import outfield as of

TRAIN, TEST = make_set(120, seed=1), make_set(50, seed=3, shift=0.5)
CHEAP = (of.SSD(), of.SSD(field="spread"), of.EnergyLogits())


def standardised(members):
    """(N, M): each member alone, its score less its mean over training rows, over their standard deviation."""
    columns = []
    for member in members:
        alone = type(member)(**vars(member)).fit(TRAIN)
        known, scores = alone.score(TRAIN).double().numpy(), alone.score(TEST).double().numpy()
        columns.append((scores - known.mean()) / known.std())
    return np.stack(columns, axis=1)


def naive(terms, beta):
    if beta == 0:
        return terms.mean(1)
    return np.array([math.log(sum(math.exp(beta * t) for t in row) / len(row)) / beta for row in terms])


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.5, 1.0, 3.0])
def test_the_score_is_the_composition_of_its_members(beta):
    found = of.HEAT(CHEAP, beta=beta).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive(standardised(CHEAP), beta), rtol=1e-5, atol=1e-5)


def test_corrected_members():
    members = QUICK["HEAT"]["members"]
    found = of.HEAT(members, beta=0.7).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive(standardised(members), 0.7), rtol=1e-4, atol=1e-4)


def test_small_and_large_beta_are_the_limits():
    terms = standardised(CHEAP)
    for beta, limit in ((1e-300, terms.mean(1)), (1e-12, terms.mean(1)), (1e300, terms.max(1))):
        assert np.allclose(of.HEAT(CHEAP, beta=beta).fit(TRAIN).score(TEST).numpy(), limit, rtol=1e-5, atol=1e-5)


def test_a_member_whose_scores_are_all_equal_counts_as_it_is():
    same = of.FeatureSet(**{**TRAIN.tensors(), "logits": torch.zeros(120, 3)})
    detector = of.HEAT([of.MaxLogit(), of.SSD()]).fit(same)
    assert detector.scales_[0] == 1
    assert detector.means_[0] == 0
    moved = of.FeatureSet(**{**same.tensors(), "logits": torch.full((120, 3), -5.0)})
    assert torch.allclose(detector.score(moved), detector.score(same) + 2.5, atol=1e-5)


def test_the_seed_is_the_members_seed():
    members = QUICK["HEAT"]["members"]
    detector = of.HEAT(members, seed=3).fit(TRAIN)
    alone = quick("EnergyCorrected", seed=3).fit(TRAIN)
    assert torch.equal(detector.members_[0].score(TEST), alone.score(TEST))
    assert [one.seed for one in members[:2]] == [0, 0]
    assert not any(one._fitted for one in members)


def test_defaults_are_the_authors_as_far_as_they_can_be():
    detector = of.HEAT()
    on_features, on_spread, logits = detector.members
    assert [on_features.field, on_spread.field] == ["features", "spread"]
    for member, steps in ((on_features, 40), (on_spread, 1)):
        assert member.prior_temperature == 1000
        assert member.temperature == 1
        assert member.network == of.MLP(hidden=1024, depth=4, slope=0.2)
        assert member.sampler == of.Langevin(steps=steps, step_size=(1e-4, 1e-5), noise_std=(5e-3, 5e-4))
        assert member.training == of.Training(epochs=20, batch_size=1024, learning_rate=1e-5, l2=10.0, input_noise=1e-4)
    assert repr(logits) == repr(of.EnergyLogits())
    defaults = {name: one.default for name, one in inspect.signature(of.HEAT).parameters.items()}
    assert (defaults["beta"], defaults["seed"]) == (0.0, 0)
    assert detector.needs_to_score == ("features", "spread", "logits")
    assert detector.needs_to_fit == ("labels", "spread", "logits")


def test_members_that_are_not_those_of_the_settings(tmp_path):
    header, tensors = of.HEAT(CHEAP, beta=1.0).fit(TRAIN).record()
    path, members = tmp_path / "e.safetensors", header["notes"]["members"]
    for wrong in (None, 3, members[:2], [*members, members[2]], [1, 2, 3], [{}, *members[1:]]):
        refused(path, {**header, "notes": {"members": wrong}}, tensors, "cannot build")


def make(n, seed, shift=0.0):
    """Rows with a class structure in the features and two stages, each of another width and scale."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    wide = {"features": 5, "stage1": 3, "stage2": 4}
    rows = {
        name: (10.0**i) * np.abs(rng.normal(size=(n, width)) + labels[:, None] + shift * rng.normal(size=(n, width)))
        for i, (name, width) in enumerate(wide.items())
    }
    return of.FeatureSet(**rows, labels=labels)


TRAIN_MAHALANOBIS, TEST_MAHALANOBIS = make(150, 0), make(40, 1, shift=1.0)
LAYERS = ("features", "stage1", "stage2")


def distances(rows, train, labels):
    """min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) of normalised rows, one row at a time."""
    unit = [
        value.double().numpy() / np.linalg.norm(value.double().numpy(), axis=1, keepdims=True)
        for value in (rows, train)
    ]
    means = [unit[1][labels == c].mean(0) for c in range(3)]
    centred = unit[1] - np.array(means)[labels]
    precision = np.linalg.inv(centred.T @ centred / len(centred))
    return np.array([min((z - m) @ precision @ (z - m) for m in means) for z in unit[0]])


def mahalanobis_naive(weights):
    labels, total = TRAIN_MAHALANOBIS.labels.numpy(), np.zeros(len(TEST_MAHALANOBIS))
    for layer, weight in zip(LAYERS, weights, strict=True):
        train = TRAIN_MAHALANOBIS.tensors()[layer]
        known = distances(train, train, labels)
        total += weight * (distances(TEST_MAHALANOBIS.tensors()[layer], train, labels) - known.mean()) / known.std()
    return total


def test_every_layer_counts_the_same():
    found = of.Mahalanobis(LAYERS, floor=1e-12).fit(TRAIN_MAHALANOBIS).score(TEST_MAHALANOBIS).numpy()
    assert np.allclose(found, mahalanobis_naive((1, 1, 1)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("weights", [(1.0, 0.0, 2.5), (0, 0, 1)])
def test_weights(weights):
    found = of.Mahalanobis(LAYERS, weights, floor=1e-12).fit(TRAIN_MAHALANOBIS).score(TEST_MAHALANOBIS).numpy()
    assert np.allclose(found, mahalanobis_naive(weights), rtol=2e-3, atol=2e-3)


def test_one_layer_ranks_as_ssd_does():
    for layer in LAYERS:
        alone = of.SSD(field=layer, floor=0.1, ridge=0.5).fit(TRAIN_MAHALANOBIS).score(TEST_MAHALANOBIS)
        found = of.Mahalanobis((layer,), floor=0.1, ridge=0.5).fit(TRAIN_MAHALANOBIS).score(TEST_MAHALANOBIS)
        assert torch.equal(found.argsort(), alone.argsort())
        assert not torch.allclose(of.Mahalanobis((layer,)).fit(TRAIN_MAHALANOBIS).score(TEST_MAHALANOBIS), found)


def test_defaults():
    assert {name: one.default for name, one in inspect.signature(of.Mahalanobis).parameters.items()} == {
        "layers": ("features", "stage1", "stage2", "stage3"),
        "weights": "equal",
        "floor": 1e-6,
        "ridge": 0.0,
    }
    detector = of.Mahalanobis()
    assert detector.needs_to_score == ("features", "stage1", "stage2", "stage3")
    assert detector.needs_to_fit == ("labels", "stage1", "stage2", "stage3")


class TestMistakes:
    def test_layers(self):
        for bad in ((), None, "features", ("features", "features"), ("stage9",), ("logits",), (2,), ("features", 2)):
            with pytest.raises(of.InputError, match=r"layers is .*different fields among features"):
                of.Mahalanobis(bad).fit(TRAIN_MAHALANOBIS)

    def test_weights(self):
        for bad in ("", "even", None, (1.0,), (1.0,) * 4, 3):
            with pytest.raises(of.InputError, match=r"weights is .*'equal' or a list of 3 numbers"):
                of.Mahalanobis(LAYERS, bad).fit(TRAIN_MAHALANOBIS)
        for bad in (-1e-9, "x", None):
            with pytest.raises(of.InputError, match=r"weights is .*at least 0"):
                of.Mahalanobis(LAYERS, (1.0, bad, 1.0)).fit(TRAIN_MAHALANOBIS)
