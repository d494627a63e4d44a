"""Thresholds keep what they promise, agree with their p-values, and say how they were chosen."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc, betaincinv

import outfield as of
from outfield.files import Record, read_record, write_record
from outfield.scores.threshold import beta_cdf, beta_quantile


@given(st.integers(19, 400), st.sampled_from([0.5, 0.9, 0.95]), st.integers(0, 10**6))
def test_decision_and_p_value_are_one_rule(n, keep, seed):
    rng = np.random.default_rng(seed)
    held_out = rng.integers(0, 30, n).astype(float) if seed % 2 else rng.standard_normal(n)
    threshold = of.Threshold.fit(held_out, keep=keep)
    new = np.r_[held_out, rng.standard_normal(50) * 10, threshold.value]
    assert torch.equal(threshold.is_ood(new), threshold.p_value(new) <= threshold.p_limit)
    assert 1 - keep - 1 / (n + 1) - 1e-12 < threshold.p_limit <= 1 - keep + 1e-12
    assert float((~threshold.is_ood(held_out)).float().mean()) >= keep - 1e-9


def test_new_id_samples_are_kept_as_promised():
    rng = np.random.default_rng(0)
    kept = [
        1 - of.Threshold.fit(rng.standard_normal(99), keep=0.9).is_ood(rng.standard_normal(99)).float().mean()
        for _ in range(2000)
    ]
    assert float(np.mean(kept)) == pytest.approx(0.9, abs=0.004)


def test_p_values_of_id_samples_are_uniform():
    rng = np.random.default_rng(0)
    p = of.Threshold.fit(rng.standard_normal(20_000)).p_value(rng.standard_normal(20_000)).numpy()
    assert np.abs(np.quantile(p, np.linspace(0.1, 0.9, 9)) - np.linspace(0.1, 0.9, 9)).max() < 0.02
    assert p.min() > 0


def test_the_interval_covers():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(500):
        threshold = of.Threshold.fit(rng.uniform(size=100))
        low, high = threshold.kept_interval(0.9)
        inside += low <= threshold.value <= high  # for uniform scores the kept share is the threshold itself
    assert inside / 500 == pytest.approx(0.9, abs=0.05)


def test_bad_scores_are_refused():
    for bad in ([1.0, float("nan")] * 30, [float("inf")] * 30):
        with pytest.raises(of.InputError, match="held_out"):
            of.Threshold.fit(bad)
    with pytest.raises(of.InputError, match="scores"):
        of.Threshold.fit(np.arange(100)).is_ood([float("nan")])


def test_saved_with_how_it_was_chosen(tmp_path):
    threshold = of.Threshold.fit(np.random.default_rng(0).standard_normal(321), keep=0.9, source="SSD 12ab")
    threshold.save(tmp_path / "t.safetensors")
    loaded = of.Threshold.load(tmp_path / "t.safetensors")
    assert (loaded.value, loaded.keep, len(loaded.reference)) == (threshold.value, 0.9, 321)
    assert read_record(tmp_path / "t.safetensors", "Threshold").header["n"] == 321
    assert "0.9" in repr(loaded)
    assert "321" in repr(loaded)
    assert loaded.source == "SSD 12ab"
    new = np.linspace(-3, 3, 50)
    assert torch.equal(loaded.p_value(new), threshold.p_value(new))


@pytest.mark.parametrize("keep", [1e-12, 1e-6, 0.01])
def test_a_small_share_keeps_the_lowest_scores(keep):
    threshold = of.Threshold.fit(np.arange(50.0), keep=keep)
    assert threshold.value == 0.0
    assert threshold.p_limit == pytest.approx(50 / 51)


@pytest.mark.parametrize("keep", [np.float32(0.5), np.float64(0.5)])
def test_numbers_of_numpy_are_shares_too(keep):
    assert of.Threshold.fit(np.arange(9.0), keep=keep).value == 4.0


@pytest.mark.parametrize("keep", [0, 1, -1, 95, True, None, "0.9", float("nan"), float("inf"), [0.9], 1 - 1e-17])
def test_what_is_no_share_is_refused(keep):
    with pytest.raises(of.InputError, match="keep"):
        of.Threshold.fit(np.arange(100), keep=keep)


def test_a_share_that_no_number_of_scores_can_keep():
    with pytest.raises(of.TooFewSamplesError):
        of.Threshold.fit(np.arange(100), keep=1 - 1e-16)


class TestSource:
    """A threshold belongs to one detector, in Python as on the command line."""

    def test_scores_of_another_detector_are_refused(self, train_set, test_set):
        ssd, knn = of.SSD().fit(train_set), of.KNN(k=3).fit(train_set)
        threshold = of.Threshold.fit(ssd.score(test_set))
        assert threshold.source == ssd.fingerprint()
        threshold.is_ood(ssd.score(test_set))
        for method in (threshold.is_ood, threshold.p_value):
            with pytest.raises(of.InputError, match="KNN"):
                method(knn.score(test_set))

    def test_a_source_that_is_not_theirs_is_refused(self, train_set, test_set):
        scores = of.SSD().fit(train_set).score(test_set)
        with pytest.raises(of.InputError, match="KNN 12"):
            of.Threshold.fit(scores, source="KNN 12")

    def test_a_fresh_fit_has_a_fresh_mark(self, train_set, test_set):
        ssd = of.SSD().fit(train_set)
        threshold = of.Threshold.fit(ssd.score(test_set))
        ssd.fit(test_set)
        with pytest.raises(of.InputError, match="chosen on scores"):
            threshold.is_ood(ssd.score(test_set))
        ssd.fit(train_set).partial_fit(test_set)
        with pytest.raises(of.InputError, match="chosen on scores"):
            threshold.is_ood(ssd.score(test_set))

    def test_plain_numbers_are_taken(self, train_set, test_set):
        scores = of.SSD().fit(train_set).score(test_set)
        threshold = of.Threshold.fit(scores)
        assert torch.equal(threshold.is_ood(scores.numpy()), threshold.is_ood(scores))
        of.Threshold.fit(scores.tolist()).is_ood(scores)


@pytest.mark.parametrize(
    ("value", "keep", "reference"),
    [
        (1.0, 0.5, [1.0, 0.0, 2.0]), (1.0, 0.5, [0.0, 1.0, float("inf")]), (float("nan"), 0.5, [0.0, 1.0, 2.0]),
        ("1", 0.5, [0.0, 1.0, 2.0]), (1.0, 1.5, [0.0, 1.0, 2.0]), (1.0, "half", [0.0, 1.0, 2.0]),
        (1.0, 0.5, [[0.0, 1.0, 2.0]]),
    ],
)  # fmt: skip
def test_a_crafted_file_is_refused(value, keep, reference, tmp_path):
    """Its digest is right, but it cannot be a threshold that was chosen on these scores."""
    header = {"value": value, "keep": keep, "source": None}
    write_record(
        tmp_path / "t.safetensors", "Threshold", Record(header, {"reference": torch.tensor(reference).double()})
    )
    with pytest.raises(of.FileFormatError, match=r"t\.safetensors"):
        of.Threshold.load(tmp_path / "t.safetensors")


@pytest.mark.parametrize("missing", ["value", "keep", "source", "reference"])
def test_an_incomplete_file_is_refused(missing, tmp_path):
    header = {name: entry for name, entry in {"value": 1.0, "keep": 0.5, "source": None}.items() if name != missing}
    tensors = {} if missing == "reference" else {"reference": torch.arange(3.0).double()}
    write_record(tmp_path / "t.safetensors", "Threshold", Record(header, tensors))
    with pytest.raises(of.FileFormatError, match=missing):
        of.Threshold.load(tmp_path / "t.safetensors")


@pytest.mark.parametrize("n", [1, 2, 19, 20, 99])
def test_a_threshold_at_the_largest_score_is_kept(n, tmp_path):
    """keep = n / (n + 1) takes the n-th of n scores, the last that there is."""
    threshold = of.Threshold.fit(torch.arange(n, dtype=torch.float32), keep=(n - 0.5) / (n + 1))
    assert threshold.value == n - 1
    threshold.save(tmp_path / "t.safetensors")
    assert of.Threshold.load(tmp_path / "t.safetensors").value == n - 1


@pytest.mark.parametrize("bad", [0, -0.1, 1.1, float("nan"), "a"])
def test_confidences_that_make_no_sense(bad):
    threshold = of.Threshold.fit(torch.arange(50.0), keep=0.9)
    with pytest.raises(of.InputError, match="confidence is"):
        threshold.kept_interval(bad)
    assert threshold.kept_interval(1.0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("keep", "fewest"), [(0.95, 19), (0.9, 9), (0.85, 6), (0.7, 3), (0.5, 1), (0.99, 99), (0.3, 1)]
)
def test_the_error_names_the_fewest_scores_that_would_do(keep, fewest):
    of.Threshold.fit(torch.arange(float(fewest)), keep=keep)
    if fewest > 1:
        with pytest.raises(of.TooFewSamplesError, match=rf"\b{fewest}\b"):
            of.Threshold.fit(torch.arange(float(fewest - 1)), keep=keep)


@pytest.mark.parametrize(
    ("n", "keep", "confidence"), [(19, 0.95, 0.9), (200, 0.9, 0.9), (500, 0.95, 0.5), (50, 0.3, 0.99)]
)
def test_the_kept_share_lies_where_the_beta_distribution_says(n, keep, confidence):
    from scipy import stats

    position = math.ceil(round(keep * (n + 1), 9))
    expected = stats.beta(position, n + 1 - position).ppf([(1 - confidence) / 2, (1 + confidence) / 2])
    found = of.Threshold.fit(torch.arange(float(n)), keep=keep).kept_interval(confidence)
    assert found == pytest.approx(expected.tolist(), rel=1e-9)


SHAPES = [
    (1, 1), (2, 1), (1, 50_000), (19, 1), (950, 51), (9_501, 500), (475_001, 25_000), (3, 1_000), (0.5, 0.5), (7, 3),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_agrees_with_scipy(a, b):
    for share in (1e-6, 0.05, 0.3, 0.5, 0.95, 1 - 1e-6):
        x = beta_quantile(a, b, share)
        assert x == pytest.approx(betaincinv(a, b, share), rel=1e-9)
        assert beta_cdf(a, b, x) == pytest.approx(betainc(a, b, x), rel=1e-9)


def test_the_ends_are_the_ends():
    assert [beta_quantile(3, 4, share) for share in (0.0, 1.0)] == [0.0, 1.0]
    assert [beta_cdf(3, 4, x) for x in (-1.0, 0.0, 1.0, 2.0)] == [0.0, 0.0, 1.0, 1.0]
