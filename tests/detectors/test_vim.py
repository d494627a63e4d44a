"""Residual and ViM against numpy, as the authors' code has them, and on data whose residual is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import outfield as of
from outfield.detectors.head.vim import principal_dimension


def by_numpy(train, test, dimension):
    """Residuals (N,) of train and test, and both sets' logits, in float64."""
    weight, bias = (np.asarray(value, np.float64) for value in (train.head_weight, train.head_bias))
    origin = -np.linalg.pinv(weight) @ bias
    a, b = (np.asarray(data.features, np.float64) for data in (train, test))
    values, vectors = np.linalg.eig(np.mean([np.outer(f - origin, f - origin) for f in a], axis=0))
    outside = vectors[:, np.argsort(-values)[dimension:]]
    residuals = [np.linalg.norm((f - origin) @ outside, axis=1) for f in (a, b)]
    return *residuals, *(f @ weight.T + bias for f in (a, b))


@pytest.mark.parametrize(("setting", "dimension"), [(0, 3), (1, 1), (5, 5)])
def test_against_numpy(setting, dimension, train_set, test_set):
    of_train, of_test, train_logits, test_logits = by_numpy(train_set, test_set, dimension)
    scores = of.Residual(setting).fit(train_set).score(test_set)
    np.testing.assert_allclose(scores, of_test, rtol=1e-5, atol=1e-6)
    alpha = train_logits.max(1).mean() / of_train.mean()
    vim = of.ViM(setting).fit(train_set)
    assert float(vim.alpha_) == pytest.approx(alpha, rel=1e-9)
    expected = alpha * of_test - np.log(np.exp(test_logits).sum(1))
    np.testing.assert_allclose(vim.score(test_set), expected, rtol=1e-5, atol=1e-5)


def test_a_residual_that_is_known(monkeypatch):
    """Rows are (a, b, 0) around the origin u = (−1, 0, 0), a being large: along the third axis all is residual."""
    rng = np.random.default_rng(0)
    rows = np.stack([10 * rng.normal(size=50) - 1, 3 * rng.normal(size=50), 0 * rng.normal(size=50)], 1)
    train = of.FeatureSet(rows, head_weight=[[2.0, 0, 0], [1.0, 0, 0]], head_bias=[2.0, 1.0])
    test = of.FeatureSet([[-1.0, 0, 0], [5.0, 0, 7.0], [-4.0, 0, -2.0]])
    monkeypatch.setattr(of.Residual, "rows_at_once", 7)
    fitted = of.Residual(2).fit(train)
    torch.testing.assert_close(fitted.origin_, torch.tensor([-1.0, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(fitted.score(test), torch.tensor([0.0, 7.0, 2.0]), atol=1e-6, rtol=0)


def test_the_layer_may_be_recovered_from_logits(train_set, test_set):
    logits = train_set.features.double() @ train_set.head_weight.double().T + train_set.head_bias.double()
    bare = of.FeatureSet(train_set.features, logits=logits)
    for cls in (of.Residual, of.ViM):
        recovered, given = (cls().fit(data).score(test_set) for data in (bare, train_set))
        torch.testing.assert_close(recovered, given, rtol=1e-4, atol=1e-4)


def test_negative_logits_do_not_turn_the_residual(train_set, test_set):
    low = of.FeatureSet(**{**train_set.tensors(), "head_bias": train_set.head_bias - 100})
    fitted = of.ViM().fit(low)
    assert float(fitted.alpha_) > 0


def test_the_authors_dimensions():
    widths = {2048: 1000, 1501: 1000, 1500: 512, 768: 512, 767: 383, 512: 256, 6: 3, 1: 0}
    assert {width: principal_dimension(width) for width in widths} == widths
    assert of.Residual().dimension == of.ViM().dimension == 0


@pytest.mark.parametrize("cls", [of.Residual, of.ViM])
def test_what_cannot_be_fitted(cls, train_set):
    with pytest.raises(of.InputError, match="dimension is 6; it must be less than 6"):
        cls(6).fit(train_set)
    with pytest.raises(
        of.TooFewSamplesError, match=r"there are 3 training samples for a principal space of 3 dimensions"
    ):
        cls().fit(train_set[:3])
    cls().fit(train_set[:4])
    with pytest.raises(of.InputError, match="dimension is -1"):
        cls(-1).fit(train_set)


def test_features_without_a_residual():
    flat = np.zeros((9, 3))
    flat[:, 0] = np.arange(9)
    train = of.FeatureSet(flat, head_weight=np.eye(3), head_bias=np.ones(3) * [1, 0, 0])
    of.Residual(1).fit(train)
    with pytest.raises(of.InputError, match="nothing to match the logits with; lower dimension"):
        of.ViM(1).fit(train)


@pytest.mark.parametrize(("share", "fits"), [(5e-10, False), (1e-9, False), (1.5e-9, True)])
def test_residuals_that_are_rounding(share, fits):
    """Rows at a distance of 1 from the origin (3, 0) along the first axis, and a share of that along the second."""
    rows = np.array([[4.0, share], [4.0, -share], [2.0, share], [2.0, -share]])
    train = of.FeatureSet(rows, head_weight=np.eye(2), head_bias=[-3.0, 0.0])
    if fits:
        assert float(of.ViM(1).fit(train).alpha_) == pytest.approx(0.5 * (1 + 0) / share, rel=1e-6)
    else:
        with pytest.raises(of.InputError, match="nothing to match"):
            of.ViM(1).fit(train)


def test_a_file_with_another_dimension_is_refused(tmp_path, train_set):
    from outfield.files import Record, read_record, write_record

    of.ViM(2).fit(train_set).save(tmp_path / "d.safetensors")
    header, tensors = read_record(tmp_path / "d.safetensors", "detector")
    assert tensors["basis"].shape == (6, 4)
    for dimension in (3, 6, 0):
        header["settings"]["dimension"] = dimension
        write_record(tmp_path / "e.safetensors", "detector", Record(header, tensors))
        with pytest.raises(of.FileFormatError, match=r"basis|dimension"):
            of.load(tmp_path / "e.safetensors")
