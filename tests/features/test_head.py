"""The classifier's last layer: as it was given, or recovered from features and logits."""

import numpy as np
import pytest
import torch

import outfield as of
from outfield.features import has_head, head_of

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], dtype=torch.float64)
BIAS = torch.tensor([0.25, -4.0], dtype=torch.float64)


def rows(n=50, offset=0.0):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + offset


def with_logits(z, noise=0.0):
    return of.FeatureSet(z, logits=z @ WEIGHT.T + BIAS + noise)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_it_is_recovered(offset):
    head = head_of(with_logits(rows(offset=offset)))
    assert torch.allclose(head.weight, WEIGHT, atol=1e-9)
    assert torch.allclose(head.bias, BIAS, atol=1e-9 * (1 + offset) * 10)
    assert torch.allclose(head.logits(rows(4)), rows(4) @ WEIGHT.T + BIAS, atol=1e-4)


def test_it_is_numpy_s_least_squares_with_noise():
    z = rows()
    data = with_logits(z, 0.05 * torch.randn(50, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    solution = np.linalg.lstsq(np.c_[z.numpy(), np.ones(50)], data.logits.numpy(), rcond=None)[0]
    head = head_of(data)
    assert np.allclose(head.weight.numpy(), solution[:3].T, atol=1e-10)
    assert np.allclose(head.bias.numpy(), solution[3], atol=1e-10)


def test_directions_without_rows_have_no_weight():
    z = rows() * torch.tensor([1.0, 1.0, 0.0])
    head = head_of(with_logits(z))
    assert torch.allclose(head.weight[:, :2], WEIGHT[:, :2], atol=1e-9)
    assert torch.equal(head.weight[:, 2], torch.zeros(2, dtype=torch.float64))
    two = head_of(with_logits(rows(2)))
    assert torch.allclose(two.logits(rows(2)), with_logits(rows(2)).logits, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_directions_in_which_rows_extend_by_rounding_alone_have_no_weight(seed):
    """Rows in a subspace that no axis shows: the eigenvalues of the others are not 0, but tiny and of either sign."""
    generator = torch.Generator().manual_seed(seed)
    z, inside, weight = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((80, 3), (3, 12), (2, 12))
    )
    z = z @ inside + 1.0
    data = of.FeatureSet(z, logits=z @ weight.T)
    centred = (z - z.mean(0)).numpy()
    expected = np.linalg.pinv(centred, rcond=1e-9) @ (data.logits - data.logits.mean(0)).numpy()
    assert np.allclose(head_of(data).weight.numpy(), expected.T, atol=1e-9)


def test_few_small_or_equal_numbers():
    z = rows() * 1e-8
    assert torch.allclose(head_of(of.FeatureSet(z, logits=z @ WEIGHT.T)).weight, WEIGHT, atol=1e-9)
    z = rows()[:, :1]
    assert torch.allclose(head_of(of.FeatureSet(z, logits=3 * z)).weight, torch.full((1, 1), 3.0, dtype=torch.float64))
    equal = head_of(of.FeatureSet(torch.ones(4, 3), logits=torch.tensor([[2.0, 5.0]]).expand(4, 2).contiguous()))
    assert equal.weight.tolist() == [[0.0] * 3] * 2
    assert equal.bias.tolist() == [2.0, 5.0]


def test_a_stream_gives_the_same(tmp_path):
    data = with_logits(rows(9000))
    data.save(tmp_path / "f.npz")
    here, there = head_of(data), head_of(of.open_features(tmp_path / "f.npz"))
    assert torch.equal(here.weight, there.weight)
    assert torch.equal(here.bias, there.bias)


def test_a_given_one_is_taken_as_it_is(tmp_path):
    z = rows(5)
    data = of.FeatureSet(z, logits=torch.zeros(5, 2), head_weight=WEIGHT.float(), head_bias=BIAS)
    data.save(tmp_path / "f.safetensors")
    for source in (data, data[1:3], of.open_features(tmp_path / "f.safetensors")):
        head = head_of(source)
        assert torch.equal(head.weight, WEIGHT)
        assert torch.equal(head.bias, BIAS)
    assert torch.equal(head_of(of.FeatureSet(z, head_weight=WEIGHT)).bias, torch.zeros(2, dtype=torch.float64))


def test_what_cannot_be_recovered():
    for data, error, words in [
        (of.FeatureSet(rows()), of.MissingFieldError, "head_weight and head_bias, or logits"),
        (with_logits(rows(1)), of.TooFewSamplesError, "one row"),
        (
            of.FeatureSet(rows(500), logits=rows(500).square()),
            of.InputError,
            r"no linear .*\(9\d.\d % of their variance",
        ),
    ]:
        with pytest.raises(error, match=words):
            head_of(data)
    for fields in ({"head_weight": torch.ones(2, 4)}, {"logits": torch.ones(50, 2), "head_bias": torch.ones(3)}):
        with pytest.raises(of.InputError, match="has shape"):
            of.FeatureSet(rows(), **fields)


def test_the_layer_or_logits_will_do():
    z = rows(5)
    assert has_head(of.FeatureSet(z, head_weight=WEIGHT))
    assert has_head(with_logits(z))
    assert not has_head(of.FeatureSet(z, labels=[0] * 5))


def test_constants_are_no_rows(tmp_path):
    z = rows(6)
    data = of.FeatureSet(z, head_weight=WEIGHT, head_bias=BIAS)
    data.save(tmp_path / "f.npz")
    for source in (data, of.open_features(tmp_path / "f.npz")):
        assert source.row_fields == ("features",)
        assert [set(piece) for piece in source.batches(4)] == [{"features"}] * 2
        assert set(source.rows([0])) == {"features"}
        with pytest.raises(of.MissingFieldError, match="has rows of samples"):
            source.batches(4, ["head_weight"])
        assert torch.equal(source.constant("head_weight"), WEIGHT)
        assert source.constant("features") is source.constant("labels") is None
        assert source.in_memory().tensors().keys() == {"features", "head_weight", "head_bias"}
    assert torch.equal(of.FeatureSet.join([data[:2], data[2:]]).head_weight, WEIGHT)
    other = of.FeatureSet(z, head_weight=WEIGHT + 1, head_bias=BIAS)
    with pytest.raises(of.InputError, match="differ in head_weight"):
        of.FeatureSet.join([data, other])
