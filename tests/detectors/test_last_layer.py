"""Detectors that look at features with the classifier's last layer: fDBD, NCI and GradNorm, against plain loops."""

import numpy as np
import pytest
import torch

import outfield as of
from outfield.detectors.head.vim import principal_dimension

CLASSES = (of.fDBD, of.NCI, of.GradNorm)


@pytest.fixture
def numbers(train_set, test_set):
    """W, b, the mean training feature, and the test features, in float64."""
    weight, bias = (np.asarray(value, np.float64) for value in (train_set.head_weight, train_set.head_bias))
    return weight, bias, np.asarray(train_set.features, np.float64).mean(0), np.asarray(test_set.features, np.float64)


@pytest.mark.parametrize("centre", [None, "mean", "origin"])
def test_fdbd(centre, train_set, test_set, numbers):
    weight, bias, mean, rows = numbers
    mean = 0 * mean if centre == "origin" else mean
    detector = of.fDBD(centre) if centre else of.fDBD()
    expected = []
    for f in rows:
        logits = weight @ f + bias
        c = logits.argmax()
        distances = [
            (logits[c] - logits[k]) / np.linalg.norm(weight[c] - weight[k]) for k in range(len(weight)) if k != c
        ]
        expected.append(-np.mean(distances) / np.linalg.norm(f - mean))
    np.testing.assert_allclose(detector.fit(train_set).score(test_set), expected, rtol=1e-5)


def test_fdbd_of_equal_classes(train_set, test_set):
    """Two classes with the same weights have no boundary: the one behind adds nothing, but counts among the classes."""
    weight, bias = train_set.head_weight, train_set.head_bias
    behind = torch.stack([bias[0], bias[1], bias[1] - 5])
    twins = of.FeatureSet(train_set.features, head_weight=weight[[0, 1, 1]], head_bias=behind)
    pair = of.FeatureSet(train_set.features, head_weight=weight[:2], head_bias=bias[:2])
    twin_scores, scores = (of.fDBD().fit(data).score(test_set) for data in (twins, pair))
    second = (test_set.features @ weight[:2].T + bias[:2]).argmax(1) == 1
    torch.testing.assert_close(twin_scores[second], scores[second] / 2)
    with pytest.raises(of.InputError, match="head_weight has one row; fDBD needs"):
        of.fDBD().fit(of.FeatureSet(train_set.features, head_weight=weight[:1]))


def test_fdbd_of_weights_that_are_nearly_equal():
    """Differences of 1e-6 between weights around 1,000: the boundaries lie at 0, 1, 2, …, so that the point 0.5 is known."""
    weight = 1000 + 2.0**-20 * np.arange(40.0)[:, None]
    bias = -(2.0**-20) * np.cumsum(np.arange(40.0))
    train = of.FeatureSet([[1.0], [2.0]], head_weight=weight, head_bias=bias)
    (score,) = of.fDBD().fit(train).score(of.FeatureSet([[0.5]]))
    logits = weight[:, 0] * 0.5 + bias
    expected = np.mean([(logits[0] - logits[k]) / (weight[k, 0] - weight[0, 0]) for k in range(1, 40)])
    assert float(score) == pytest.approx(-expected, rel=1e-6)


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_nci(alpha, train_set, test_set, numbers):
    weight, bias, mean, rows = numbers
    detector = of.NCI() if alpha is None else of.NCI(alpha)
    expected = []
    for f in rows:
        of_class = weight[(weight @ f + bias).argmax()]
        nearness = of_class @ (f - mean) / np.linalg.norm(f - mean)
        expected.append(-nearness - (alpha or 0.0001) * np.abs(f).sum())
    np.testing.assert_allclose(detector.fit(train_set).score(test_set), expected, rtol=1e-5, atol=1e-6)


def test_nci_at_the_mean_and_of_negative_features():
    train = of.FeatureSet([[1.0, -3.0], [1.0, 1.0]], head_weight=[[1.0, 0]])
    scores = of.NCI(2.0).fit(train).score(of.FeatureSet([[1.0, -1.0], [4.0, 3.0]]))
    torch.testing.assert_close(scores, torch.tensor([-4.0, -3 / 5 - 14]))


def test_gradnorm_against_autograd(train_set, test_set):
    layer = torch.nn.Linear(6, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(train_set.head_weight)
        layer.bias.copy_(train_set.head_bias)
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    expected = []
    for f in test_set.features.double():
        layer.zero_grad()
        torch.nn.functional.kl_div(layer(f).log_softmax(0), uniform, reduction="sum").backward()
        expected.append(-layer.weight.grad.abs().sum())
    scores = of.GradNorm().fit(train_set).score(test_set)
    torch.testing.assert_close(scores.double(), torch.stack(expected), rtol=1e-5, atol=1e-7)


def test_gradnorm_counts_negative_features(train_set):
    train = of.FeatureSet([[1.0, 1.0]], head_weight=[[1.0, 0.0], [0.0, 0.0]])
    scores = of.GradNorm().fit(train).score(of.FeatureSet([[0.0, -3.0], [-1.0, 2.0]]))
    p = 1 / (1 + np.exp(1))
    torch.testing.assert_close(scores, torch.tensor([0.0, -3 * 2 * (0.5 - p)], dtype=torch.float32))


@pytest.mark.parametrize("cls", CLASSES)
def test_numbers_beyond_float32_are_cut_off(cls, train_set):
    largest = float(torch.finfo(torch.float32).max)
    rows = torch.tensor([[1e300, 1, 1, 1, 1, -1e300], [largest, 1, 1, 1, 1, -largest]], dtype=torch.float64)
    first, second = cls().fit(train_set).score(of.FeatureSet(rows))
    assert first == second


def test_a_network_s_layer_beyond_float32_is_cut_off(train_set, test_set):
    huge = train_set.head_weight.double() * 1e300
    fitted = of.GradNorm().fit(of.FeatureSet(**{**train_set.tensors(), "head_weight": huge}))
    assert float(fitted.weight_.abs().max()) == torch.finfo(torch.float32).max
    assert fitted.score(test_set).isfinite().all()


@pytest.mark.parametrize("cls", CLASSES)
def test_what_is_missing(cls, train_set):
    bare = of.FeatureSet(train_set.features)
    message = rf"{cls.__name__}.fit needs head_weight, which this FeatureSet lacks; .*; or give logits, from which"
    with pytest.raises(of.MissingFieldError, match=message):
        cls().fit(bare)
    with pytest.raises(of.InputError, match="no linear function"):
        cls().fit(of.FeatureSet(train_set.features, logits=train_set.logits))


def test_a_layer_without_a_bias(train_set, test_set):
    none, zero = (of.FeatureSet(**{**train_set.tensors(), "head_bias": b}) for b in (None, 0 * train_set.head_bias))
    for cls in CLASSES:
        assert torch.equal(cls().fit(none).score(test_set), cls().fit(zero).score(test_set))


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
    with pytest.raises(of.TooFewSamplesError, match=r"there are 3 training samples for a principal space of 3"):
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
