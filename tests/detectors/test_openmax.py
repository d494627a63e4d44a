"""OpenMax against a loop in numpy with scipy's Weibull fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import weibull_min

import outfield as of
from outfield.detectors.logits.openmax_tempscale_kl_matching import fit_weibull, weibull_cdf
from outfield.files import Record, read_record, write_record


def made(n=200, classes=4, seed=0, signal=4.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    logits = signal * np.eye(classes)[labels] + rng.standard_normal((n, classes))
    return of.FeatureSet(np.ones((n, 1)), logits=logits, labels=labels)


def by_loops(train, test, tail=20, alpha=10):
    logits, labels = train.logits.numpy(), train.labels.numpy()
    right = logits.argmax(1) == labels
    means, laws, everything = {}, {}, []
    for c in range(logits.shape[1]):
        rows = logits[right & (labels == c)]
        if len(rows):
            means[c] = rows.mean(0)
            everything.append(np.linalg.norm(rows - means[c], axis=1))
            laws[c] = np.sort(everything[-1])[-tail:]
    pooled = np.sort(np.concatenate(everything))[-tail:]
    for c, values in laws.items():
        values = values if len(values) > 1 and np.ptp(values) > 0 else pooled
        shape, _, scale = weibull_min.fit(values, floc=0)
        laws[c] = weibull_min(shape, scale=scale)
    scores = []
    for row in test.logits.numpy():
        alpha_here, known, unknown = min(alpha, len(row)), row.copy(), 0.0
        for rank, c in enumerate(np.argsort(-row)[:alpha_here]):
            w = (alpha_here - rank) / alpha_here * laws[c].cdf(np.linalg.norm(row - means[c])) if c in laws else 0.0
            known[c] -= row[c] * w
            unknown += row[c] * w
        e = np.exp(np.array([unknown, *known]))
        scores.append(e[0] / e.sum())
    return scores


@pytest.mark.parametrize(
    "settings", [{}, {"tail": 5}, {"tail": 2}, {"tail": 10**6}, {"alpha": 1}, {"alpha": 3}, {"alpha": 4}]
)
@pytest.mark.parametrize("pieces", [4096, 33])
def test_it_is_the_loop_s(settings, pieces, monkeypatch):
    monkeypatch.setattr(of.OpenMax, "rows_at_once", pieces)
    train, test = made(), made(50, seed=1, signal=2.0)
    found = of.OpenMax(**settings).fit(train).score(test).numpy()
    np.testing.assert_allclose(found, by_loops(train, test, **settings), rtol=2e-3)


def test_defaults():
    assert (of.OpenMax().tail, of.OpenMax().alpha) == (20, 10)
    for wrong in ({"tail": 1}, {"alpha": 0}):
        with pytest.raises(of.InputError, match=f"^{next(iter(wrong))} is "):
            of.OpenMax(**wrong).fit(made())
    train = made(300, classes=12)
    test = made(20, classes=12, seed=1, signal=1.0)
    np.testing.assert_allclose(of.OpenMax().fit(train).score(test).numpy(), by_loops(train, test), rtol=2e-3)


def test_classes_with_few_rows_or_none():
    """Class 1 has one row that is right, class 2 none, class 3 two that are the same."""
    train = made(120)
    labels, logits = train.labels.clone(), train.logits.clone()
    right = logits.argmax(1) == labels
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[((labels == 1) & right).nonzero()[1:, 0]] = False
    keep[((labels == 2) & right).nonzero()[:, 0]] = False
    same = ((labels == 3) & right).nonzero()[:, 0]
    keep[same[2:]] = False
    logits[same[1]] = logits[same[0]]
    train = of.FeatureSet(train.features, logits=logits, labels=labels)[keep]
    test = made(60, seed=1, signal=2.0)
    detector = of.OpenMax().fit(train)
    assert detector.classes_.tolist() == [0, 1, 3]
    np.testing.assert_allclose(detector.score(test).numpy(), by_loops(train, test), rtol=2e-3)


def test_what_cannot_be_fitted_is_said():
    none_right = of.FeatureSet(np.ones((3, 1)), logits=np.eye(3), labels=[1, 2, 0])
    same = of.FeatureSet(np.ones((3, 1)), logits=[[1.0, 0.0]] * 3, labels=[0, 0, 0])
    for data in (none_right, same, made(1)):
        with pytest.raises(of.TooFewSamplesError, match="OpenMax needs rows that are classified right"):
            of.OpenMax().fit(data)
    for size in (1e200, 1.7e308):
        huge = of.FeatureSet(np.ones((4, 1)), logits=[[size, -size], [size / 2, 0.0]] * 2, labels=[0] * 4)
        with pytest.raises(of.InputError, match="squares are not finite"):
            of.OpenMax().fit(huge)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("classes", lambda v: v - 1, "classes must be"),
        ("classes", lambda v: v + 1, "classes must be"),
        ("classes", lambda v: v.flip(0), "classes must be"),
        ("classes", lambda v: 0 * v, "classes must be"),
        ("classes", lambda v: torch.tensor([0, 1, 1, 3]), "classes must be"),
        ("scales", lambda v: 0 * v, "scales and shapes"),
        ("scales", lambda v: torch.cat([v[:-1], 0 * v[-1:]]), "scales and shapes"),
        ("shapes", lambda v: torch.cat([v[:-1], -v[-1:]]), "scales and shapes"),
        ("shapes", lambda v: 0 * v, "scales and shapes"),
        ("shapes", lambda v: v[:2], "shapes is"),
        ("scales", lambda v: v[:2], "scales is"),
    ],
)
def test_a_file_that_no_fit_gives(name, change, said, tmp_path):
    of.OpenMax().fit(made()).save(tmp_path / "d.safetensors")
    header, tensors = read_record(tmp_path / "d.safetensors", "detector")
    write_record(tmp_path / "d.safetensors", "detector", Record(header, {**tensors, name: change(tensors[name])}))
    with pytest.raises(of.FileFormatError, match=said):
        of.load(tmp_path / "d.safetensors")


class TestWeibull:
    @pytest.mark.parametrize("shape", [0.3, 1.0, 2.5, 40.0, 900.0])
    @pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
    def test_it_is_scipy_s_fit(self, shape, scale):
        values = scale * weibull_min.rvs(shape, size=50, random_state=3)
        fitted = weibull_min.fit(values / scale, floc=0)
        found_scale, found_shape = fit_weibull(torch.tensor(values))
        assert found_shape == pytest.approx(fitted[0], rel=2e-3)
        assert found_scale == pytest.approx(scale * fitted[2], rel=2e-3)

    @pytest.mark.parametrize("shape", [0.5, 3.0])
    def test_the_likelihood_has_its_maximum_there(self, shape):
        values = weibull_min.rvs(shape, scale=2.0, size=30, random_state=1)
        scale, shape = fit_weibull(torch.tensor(values))
        best = weibull_min.logpdf(values, shape, scale=scale).sum()
        for factor in (1 - 1e-3, 1 + 1e-3):
            assert weibull_min.logpdf(values, shape * factor, scale=scale).sum() < best
            assert weibull_min.logpdf(values, shape, scale=scale * factor).sum() < best

    def test_values_that_have_no_finite_shape(self):
        assert fit_weibull(torch.full((5,), 3.0, dtype=torch.float64)) == pytest.approx((3.0, 1e4))
        scale, shape = fit_weibull(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
        assert fit_weibull(torch.tensor([1e-12, 1e-13, 1.0], dtype=torch.float64)) == (scale, shape)
        assert shape > 0.01
        few = torch.tensor([0.0] * 5000 + [1.0], dtype=torch.float64)
        assert 0.1 < fit_weibull(few)[1] < 0.3

    def test_the_distribution(self):
        x, scale, shape = torch.tensor([0.0, 1e-9, 1.0, 3.0, torch.inf]), torch.tensor(2.0), torch.tensor(1.5)
        expected = weibull_min.cdf(x.numpy(), 1.5, scale=2.0)
        np.testing.assert_allclose(weibull_cdf(x, scale, shape).numpy(), expected, rtol=1e-6)
