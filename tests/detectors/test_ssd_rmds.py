"""SSD and GaussianMixture against their formulas: classes of unequal size, features with an offset, batch after batch."""

import math

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import outfield as of
from outfield.features import normalise

SIZES = torch.tensor([400, 60, 12])


def uneven(by=0.0, seed=0, d=6):
    """Classes of 400, 60 and 12 rows that overlap, so that their weights matter."""
    labels = torch.arange(3).repeat_interleave(SIZES)
    centres = 1.5 * torch.randn(3, d, generator=torch.Generator().manual_seed(9))
    rows = centres[labels] + torch.randn(len(labels), d, generator=torch.Generator().manual_seed(seed))
    return of.FeatureSet(rows + by, labels=labels)


def law_of(train):
    """The mixture of the normalised rows, float64, by PyTorch's distributions; its covariance floored as documented."""
    z, labels = normalise(train.features).double(), train.labels
    means = torch.stack([z[labels == c].mean(0) for c in range(3)])
    within = z - means[labels]
    values, vectors = torch.linalg.eigh(within.T @ within / len(z))
    floor = 1e-6 * max(float(values[-1]), 1e-6 * float(z.square().mean()))
    covariance = vectors @ values.clamp_min(floor).diag() @ vectors.T
    normals = MultivariateNormal(means, (covariance + covariance.T) / 2)
    return MixtureSameFamily(Categorical(SIZES.double() / SIZES.sum()), normals)


OFFSETS = pytest.mark.parametrize("by", [0.0, 1e2, 1e4, 1e6])


@OFFSETS
def test_the_mixture_s_score_is_minus_its_log_density_up_to_a_constant(by):
    train, test = uneven(by), uneven(by, seed=1)
    law = law_of(train)
    covariance = law.component_distribution.covariance_matrix[0]
    constant = 0.5 * (6 * math.log(2 * math.pi) + float(torch.logdet(covariance)))
    expected = -law.log_prob(normalise(test.features).double()) - constant
    found = of.GaussianMixture().fit(train).score(test).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@OFFSETS
def test_ssd_is_the_smallest_distance_exactly(by):
    train, test = uneven(by), uneven(by, seed=1)
    normals = law_of(train).component_distribution
    away = normalise(test.features).double()[:, None] - normals.mean
    expected = torch.einsum("ncd,de,nce->nc", away, torch.linalg.inv(normals.covariance_matrix[0]), away).amin(1)
    found = of.SSD().fit(train).score(test).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["SSD", "GaussianMixture", "RMDS"])
class TestPartialFit:
    def test_batches_are_the_whole(self, name):
        train, test = make_set(n=200), make_set(n=50, seed=1)
        detector = of.DETECTORS[name]()
        for start in range(0, 200, 80):
            detector.partial_fit(train[start : start + 80])
            detector.score(test)  # what is derived from the statistics is made anew after the next batch
        torch.testing.assert_close(
            detector.score(test), of.DETECTORS[name]().fit(train).score(test), rtol=1e-4, atol=1e-5
        )
        first = of.DETECTORS[name]().fit(train[:80]).score(test)
        assert not torch.allclose(detector.score(test), first, rtol=1e-2)

    def test_it_goes_on_from_a_fit_and_a_fit_forgets_it(self, name):
        train, more, test = make_set(n=100), make_set(n=100, seed=3), make_set(n=50, seed=1)
        detector = of.DETECTORS[name]().fit(train).partial_fit(more)
        both = of.DETECTORS[name]().fit(of.FeatureSet.join([train, more]))
        torch.testing.assert_close(detector.score(test), both.score(test), rtol=1e-4, atol=1e-5)
        assert torch.equal(detector.fit(more).score(test), of.DETECTORS[name]().fit(more).score(test))

    def test_a_batch_that_does_not_fit_changes_nothing(self, name):
        train, test = make_set(n=100), make_set(n=50, seed=1)
        detector = of.DETECTORS[name]().fit(train)
        before, named = detector.score(test), detector.fingerprint()
        for wrong, error in ((make_set(width=5), of.InputError), (of.FeatureSet(train.features), of.MissingFieldError)):
            with pytest.raises(error):
                detector.partial_fit(wrong)
        assert torch.equal(detector.score(test), before)
        assert detector.fingerprint() == named

    def test_a_loaded_one_has_no_statistics_to_go_on_from(self, name, tmp_path):
        of.DETECTORS[name]().fit(make_set()).save(tmp_path / "d.safetensors")
        with pytest.raises(of.InputError, match="holds no statistics"):
            of.load(tmp_path / "d.safetensors").partial_fit(make_set())


@pytest.mark.parametrize("name", ["SSD", "GaussianMixture"])
class TestStatistics:
    def test_shares_are_the_whole_to_1e_10(self, name):
        train, test = uneven(by=3.0), uneven(by=3.0, seed=1)
        shares = [train[:100], train[100:430], train[430:]]  # the last has rows of two classes only
        ours = of.DETECTORS[name]()
        found = [ours.statistics([shares[0]]), ours.statistics(iter(shares[1:]))]
        assert not ours._fitted
        ours.fit_statistics(found[1].merge(found[0]))
        whole = of.DETECTORS[name]().fit(train)
        for field in ("mean", "means", "log_weights", "eigenvalues"):
            a, b = getattr(ours.mixture_.parameters_, field), getattr(whole.mixture_.parameters_, field)
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(ours.score(test), whole.score(test), rtol=1e-5, atol=1e-6)

    def test_settings_count(self, name):
        train = of.FeatureSet(uneven().features, labels=uneven().labels, stage2=uneven(d=4).features)
        for settings in ({"field": "stage2"}, {"ridge": 0.5}, {"floor": 0.5}):
            cls = of.DETECTORS[name]
            ours, whole = cls(**settings), cls(**settings).fit(train)
            assert torch.allclose(
                ours.fit_statistics(ours.statistics([train])).score(train), whole.score(train), rtol=1e-5
            )

    def test_it_is_saved_and_goes_on(self, name, tmp_path):
        train, test = uneven(), uneven(seed=1)
        ours = of.DETECTORS[name]()
        before = ours.fit(test).fingerprint()
        ours.fit_statistics(ours.statistics([train]))
        assert ours.fingerprint() != before
        ours.save(tmp_path / "d.safetensors")
        assert torch.equal(of.load(tmp_path / "d.safetensors").score(test), ours.score(test))
        both = of.DETECTORS[name]().fit(of.FeatureSet.join([train, test]))
        torch.testing.assert_close(ours.partial_fit(test).score(test), both.score(test), rtol=1e-4, atol=1e-5)

    def test_what_cannot_be_is_refused(self, name):
        ours = of.DETECTORS[name]()
        with pytest.raises(of.MissingFieldError, match=r"statistics needs labels.*of.clustered\(rows, 10\)"):
            ours.statistics([of.FeatureSet(uneven().features)])
        with pytest.raises(of.InputError, match=r"statistics takes an outfield.FeatureSet"):
            ours.statistics([uneven().features])
        with pytest.raises(of.InputError, match="no pieces"):
            ours.statistics([])
        with pytest.raises(of.InputError, match=r"statistics .*must be an outfield.ClassStatistics"):
            ours.fit_statistics(uneven())
        for call in (lambda d: d.statistics([uneven()]), lambda d: d.fit_statistics(ours.statistics([uneven()]))):
            with pytest.raises(of.InputError, match="floor"):
                call(of.DETECTORS[name](floor=-1.0))


def rmds_uneven(seed=0, by=0.0):
    """Classes of 100, 30 and 10 rows."""
    labels = np.repeat([0, 1, 2], [100, 30, 10])
    whole = make_set(n=300, seed=seed)
    picked = np.concatenate([np.flatnonzero(whole.labels.numpy() == c)[: (labels == c).sum()] for c in range(3)])
    return of.FeatureSet(whole.features[picked] + by, labels=labels)


def unit(data):
    return normalise(data.features).double().numpy()


def naive(train, test):
    z, new, y = unit(train), unit(test), train.labels.numpy()
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    within, around = z - means[y], z - z.mean(0)
    inside, outside = (np.linalg.inv(rows.T @ rows / len(z)) for rows in (within, around))
    near = [min((p - m) @ inside @ (p - m) for m in means) for p in new]
    return np.array(near) - [(p - z.mean(0)) @ outside @ (p - z.mean(0)) for p in new]


@pytest.mark.parametrize("by", [0.0, 30.0])
def test_it_is_the_difference_of_two_distances(by):
    train, test = rmds_uneven(by=by), rmds_uneven(seed=1, by=by)
    expected = naive(train, test)
    assert (expected < 0).any()
    np.testing.assert_allclose(of.RMDS().fit(train).score(test).numpy(), expected, rtol=2e-4, atol=2e-4)


def test_both_covariances_have_the_floor():
    train, test = make_set(), make_set(seed=1)
    assert of.RMDS().floor == 1e-6
    z, new, y = unit(train), unit(test), train.labels.numpy()
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    within, between = z - means[y], (means - z.mean(0))[y]

    def floored(covariance):
        values, vectors = np.linalg.eigh(covariance)
        return vectors @ np.diag(values.clip(0.3 * max(values.max(), 0.3 / 6))) @ vectors.T

    inside = floored(within.T @ within / len(z))
    outside = floored(inside + between.T @ between / len(z))
    near = [min((p - m) @ np.linalg.inv(inside) @ (p - m) for m in means) for p in new]
    expected = np.array(near) - [(p - z.mean(0)) @ np.linalg.inv(outside) @ (p - z.mean(0)) for p in new]
    np.testing.assert_allclose(of.RMDS(floor=0.3).fit(train).score(test).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_statistics_replace_what_an_earlier_fit_left():
    train, other = uneven(), uneven(seed=1)
    ours = of.RMDS().fit(other)
    ours.score(other)
    found = ours.statistics([train])
    assert torch.equal(ours.fit_statistics(found).score(other), of.RMDS().fit_statistics(found).score(other))
