"""The mixture against torch.distributions, against integrals, in pieces, and where the covariance is singular."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from torch.testing import assert_close

import outfield as of
from outfield.config import from_plain, to_plain


def data(n=300, d=4, k=3, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    mixing = torch.randn(d, d, generator=g, dtype=dtype)
    means = 3 * torch.randn(k, d, generator=g, dtype=dtype)
    return means[labels] + torch.randn(n, d, generator=g, dtype=dtype) @ mixing, labels


def by_the_book(z, labels):
    """Appendix A.3, written with loops."""
    classes = labels.unique()
    means = torch.stack([z[labels == c].mean(0) for c in classes])
    weights = torch.stack([(labels == c).double().mean() for c in classes])
    scatter = sum((z[labels == c] - m).T @ (z[labels == c] - m) for c, m in zip(classes, means, strict=True))
    return weights, means, scatter / len(z)


def reference(z, labels):
    weights, means, covariance = by_the_book(z, labels)
    return MixtureSameFamily(Categorical(weights), MultivariateNormal(means, covariance))


def test_parameters_are_those_of_the_appendix():
    z, labels = data()
    p = of.MixturePrior().fit(z, labels).parameters_
    weights, means, covariance = by_the_book(z, labels)
    assert_close(p.log_weights.exp(), weights)
    assert_close(p.means, means)
    assert_close(p.eigenvectors @ p.eigenvalues.diag() @ p.eigenvectors.T, covariance)


def test_whitened_classes_have_unit_covariance():
    z, labels = data(n=500)
    w = of.MixturePrior().fit(z, labels).whiten(z)
    _, _, covariance = by_the_book(w, labels)
    assert_close(covariance, torch.eye(4, dtype=torch.float64), atol=1e-9, rtol=0)


def test_the_density_integrates_to_one():
    z, labels = data(d=2)
    mixture = of.MixturePrior().fit(z, labels)
    line = torch.linspace(-30, 30, 601, dtype=torch.float64)
    total = mixture.log_prob(torch.cartesian_prod(line, line)).exp().sum() * (line[1] - line[0]) ** 2
    assert float(total) == pytest.approx(1, abs=1e-6)


def test_mahalanobis_matches_the_formula_and_affine_maps_leave_it_alone():
    z, labels = data()
    _, means, covariance = by_the_book(z, labels)
    offset = z[:, None, :] - means
    expected = torch.einsum("nkd,de,nke->nk", offset, covariance.inverse(), offset)
    assert_close(of.MixturePrior().fit(z, labels).mahalanobis_sq(z), expected)
    g = torch.Generator().manual_seed(3)
    moved = z @ torch.randn(4, 4, generator=g, dtype=torch.float64) + 5
    assert_close(of.MixturePrior(floor=1e-12).fit(moved, labels).mahalanobis_sq(moved), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 120), min_size=1, max_size=6), st.integers(0, 1000))
def test_pieces_in_any_order_give_the_statistics_of_the_whole(sizes, seed):
    z, labels = data(n=sum(sizes), seed=seed)
    z = z + 1e4  # a large common offset must not cost digits
    whole = of.ClassStatistics.of(z, labels)
    pieces = [of.ClassStatistics.of(a, b) for a, b in zip(z.split(sizes), labels.split(sizes), strict=True)]
    for order in (pieces, pieces[::-1]):
        merged = order[0]
        for piece in order[1:]:
            merged = merged.merge(piece)
        assert torch.equal(merged.classes, whole.classes)
        assert_close(merged.counts, whole.counts)
        assert_close(merged.means, whole.means, rtol=1e-12, atol=0)
        assert_close(merged.scatter, whole.scatter, rtol=1e-6, atol=1e-6 * float(whole.scatter.abs().max()) + 1e-9)


def test_classes_may_come_late_and_have_gaps():
    z, _ = data(n=90)
    labels = torch.tensor([7, 2, 40]).repeat_interleave(30)
    mixture = of.MixturePrior()
    for part in (slice(0, 30), slice(30, 90)):
        mixture.partial_fit(z[part], labels[part])
    assert mixture.parameters_.classes.tolist() == [2, 7, 40]
    assert_close(mixture.energy(z), of.MixturePrior().fit(z, labels).energy(z))


def test_samples_follow_the_mixture():
    z, labels = data(n=600, k=3)
    labels[:300] = 0  # unequal weights
    mixture = of.MixturePrior().fit(z, labels)
    drawn = mixture.sample(200_000, torch.Generator().manual_seed(0)).double()
    weights, means, covariance = by_the_book(z, labels)
    centre = weights @ means
    total = covariance + (weights[:, None] * (means - centre)).T @ (means - centre)
    assert_close(drawn.mean(0), centre, atol=0.05, rtol=0)
    assert_close(drawn.T.cov(correction=0), total, rtol=0.03, atol=0.1)
    torch.manual_seed(0)
    entropies = mixture.energy(drawn).mean(), mixture.energy(reference(z, labels).sample((200_000,))).mean()
    assert float(entropies[0]) == pytest.approx(float(entropies[1]), rel=0.01)


FEW = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))  # fewer samples than dimensions
MANY = FEW.repeat(20, 1) + 0.1 * torch.randn(240, 20, generator=torch.Generator().manual_seed(1))
DEGENERATE = {
    "one sample a class": (FEW, torch.arange(12)),
    "fewer samples than dimensions": (FEW, torch.arange(12) % 3),
    "constant features": (torch.ones(12, 20), torch.arange(12) % 3),
    "all zero": (torch.zeros(12, 20), torch.arange(12) % 3),
    "a duplicated column": (MANY[:, [0, 0, *range(2, 20)]], torch.arange(240) % 3),
    "one class": (FEW, torch.zeros(12, dtype=torch.int64)),
}


@pytest.mark.parametrize(("z", "labels"), DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_data_gives_finite_and_sensible_energies(z, labels):
    g = torch.Generator().manual_seed(0)
    mixture = of.MixturePrior().fit(z, labels)
    far = z + 10 * torch.randn(z.shape, generator=g)
    for value in (mixture.energy(z), mixture.energy(far), mixture.log_prob(z), mixture.mahalanobis_sq(far)):
        assert torch.isfinite(value).all()
    assert mixture.energy(z).max() < mixture.energy(far).min()
    drawn = mixture.sample(1000, torch.Generator().manual_seed(0))
    assert torch.isfinite(drawn).all()
    assert float((drawn.mean(0) - z.mean(0)).abs().max()) < 0.3


@pytest.mark.parametrize(("n", "d", "k"), [(12, 20, 12), (100, 512, 10), (40, 30, 2)])
def test_float32_is_as_good_as_float64_where_the_covariance_is_singular(n, d, k):
    """Near the data too, where expanding the square would leave nothing but rounding."""
    g = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.rand(n, d, generator=g))
    mixture = of.MixturePrior().fit(z, torch.arange(n) % k)
    near = z + 1e-4 * torch.randn(n, d, generator=g)
    for points in (z, near):
        narrow, wide = mixture.mahalanobis_sq(points).amin(1).double(), mixture.mahalanobis_sq(points.double()).amin(1)
        assert_close(narrow, wide, rtol=1e-3, atol=0.1)
        assert_close(mixture.energy(points).double(), mixture.energy(points.double()), rtol=1e-3, atol=0.1)


def test_unfitted_and_unlabelled():
    with pytest.raises(of.NotFittedError):
        of.MixturePrior().energy(torch.rand(2, 2))
    with pytest.raises(of.InputError, match="labels"):
        of.MixturePrior().fit(torch.rand(2, 2), None)


@pytest.mark.parametrize("singular", [False, True])
def test_the_written_gradient_is_that_of_the_energy(singular):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 4
    z = torch.rand(4, 40, generator=generator)[labels] + 0.1 * torch.randn(60, 40, generator=generator)
    if singular:
        z[:, 0] = 0.1 * labels  # no spread within a class
    mixture = of.MixturePrior().fit(z, labels)
    points = (z + 0.01 * torch.randn(60, 40, generator=generator)).requires_grad_()
    (expected,) = torch.autograd.grad(mixture.energy(points).sum(), points)
    found = mixture.gradient(points.detach())
    assert mixture.well_scaled(z) != singular
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def uneven(d=5, dtype=torch.float64):
    """Classes of 200, 40 and 6 rows that overlap, so that their weights matter."""
    g = torch.Generator().manual_seed(4)
    labels = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([200, 40, 6]))
    means = 0.7 * torch.randn(3, d, generator=g, dtype=dtype)
    return means[labels] + torch.randn(len(labels), d, generator=g, dtype=dtype), labels


class TestUnequalClasses:
    """Without the weights of the classes every one of these is wrong, which classes of one size would hide."""

    def test_energies_and_gradients_are_those_of_torch_distributions(self):
        z, labels = uneven()
        mixture, expected = of.MixturePrior().fit(z, labels), reference(z, labels)
        points = (2 * z[::3]).requires_grad_()
        assert_close(mixture.log_prob(points), expected.log_prob(points))
        (slope,) = torch.autograd.grad(-expected.log_prob(points).sum(), points)
        assert_close(mixture.gradient(points.detach()), slope)
        assert_close(torch.autograd.grad(mixture.energy(points).sum(), points)[0], slope)

    def test_the_refined_formulas_too(self):
        z, labels = uneven()
        z[:, 0] = (labels == 2).double()  # no spread within a class: the third lies a thousand deviations away
        mixture = of.MixturePrior().fit(z, labels)
        points = (z + 1e-5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
        assert not mixture.well_scaled(points.float())
        _, means, _ = by_the_book(z, labels)
        p = mixture.parameters_
        covariance = p.eigenvectors @ p.eigenvalues.diag() @ p.eigenvectors.T
        weights = torch.tensor([200.0, 40.0, 6.0], dtype=torch.float64) / 246
        law = MixtureSameFamily(Categorical(weights), MultivariateNormal(means, covariance))
        (slope,) = torch.autograd.grad(-law.log_prob(points).sum(), points)
        found = mixture.gradient(points.detach().float()).double()
        assert float((found - slope).norm() / slope.norm()) < 1e-3


class TestLearningAgain:
    def test_a_batch_more_changes_every_formula(self):
        z, labels = uneven()
        mixture = of.MixturePrior().fit(z[::2], labels[::2])
        before = mixture.energy(z), mixture.gradient(z), mixture.whiten(z), mixture.mahalanobis_sq(z)
        mixture.partial_fit(3 * z[1::2], labels[1::2])
        both = torch.cat([z[::2], 3 * z[1::2]]), torch.cat([labels[::2], labels[1::2]])
        whole = of.MixturePrior().fit(*both)
        after = mixture.energy(z), mixture.gradient(z), mixture.mahalanobis_sq(z)
        for found, expected in zip(after, (whole.energy(z), whole.gradient(z), whole.mahalanobis_sq(z)), strict=True):
            assert_close(found, expected)
        assert not any(torch.allclose(a, b) for a, b in zip(before, (*after[:2], mixture.whiten(z)), strict=False))

    def test_a_fit_that_fails_leaves_the_first(self):
        z, labels = uneven()
        mixture = of.MixturePrior().fit(z, labels)
        before = mixture.energy(z)
        for wrong in (z[:0], z * torch.nan):
            with pytest.raises(of.InputError):
                mixture.fit(wrong, labels[: len(wrong)])
        assert torch.equal(mixture.energy(z), before)


class TestRefusals:
    good = torch.rand(4, 3), torch.tensor([0, 0, 1, 1])

    @pytest.mark.parametrize("z", [
        torch.rand(4),
        torch.rand(0, 3),
        torch.rand(4, 0),
        torch.rand(2, 2, 3),
        torch.ones(4, 3, dtype=torch.int64),
        torch.ones(4, 3, dtype=torch.complex64),
        torch.full((4, 3), torch.nan),
        torch.full((4, 3), torch.inf),
        torch.full((4, 3), 1e200, dtype=torch.float64) * torch.arange(4)[:, None],
        [[1.0, 2.0]],
        None,
    ])  # fmt: skip
    def test_rows(self, z):
        with pytest.raises(of.InputError, match="rows"):
            of.MixturePrior().fit(z, self.good[1])
        with pytest.raises(of.InputError, match="rows"):
            of.MixturePrior().partial_fit(z, self.good[1])

    @pytest.mark.parametrize(
        "labels",
        [torch.zeros(3).long(), torch.zeros(4), torch.zeros(4, 1).long(), torch.zeros(4).bool(), [0, 0, 1, 1], "abcd"],
    )
    def test_labels(self, labels):
        with pytest.raises(of.InputError, match="labels"):
            of.MixturePrior().fit(self.good[0], labels)

    def test_pieces_of_different_widths(self):
        labels = torch.zeros(4).long()
        for workers in (1, 2):
            with pytest.raises(of.InputError, match=r"columns|width"):
                of.ClassStatistics.over([(torch.rand(4, w), labels) for w in (3, 2, 2, 3)], workers)
        with pytest.raises(of.InputError, match="width"):
            of.MixturePrior().fit(torch.rand(4, 3), labels).partial_fit(torch.rand(4, 4), labels)

    def test_what_the_formulas_take(self):
        mixture = of.MixturePrior().fit(*self.good)
        for wrong in (torch.rand(3), torch.rand(2, 4), torch.rand(1, 2, 3), torch.ones(2, 3).long(), [[0.1] * 3], None):
            for formula in (mixture.energy, mixture.gradient, mixture.mahalanobis_sq, mixture.log_prob, mixture.whiten):
                with pytest.raises(of.InputError, match="z "):
                    formula(wrong)
        with pytest.raises(of.InputError, match="statistics"):
            mixture.merge("statistics")

    @pytest.mark.parametrize("name", ["classes", "log_weights", "means", "mean", "eigenvalues", "eigenvectors"])
    def test_states_of_another_shape_or_without_sense(self, name):
        state = of.MixturePrior().fit(*self.good).state()
        changes = [state[name][:-1], state[name][None], state[name][:0]]
        if name == "eigenvalues":
            changes += [-state[name], 0 * state[name]]
        for changed in changes:
            with pytest.raises(of.FileFormatError, match=r"mixture's"):
                of.MixturePrior().load_state(state | {name: changed})
        of.MixturePrior().load_state(state | {"more": state["mean"]})


class TestRidge:
    def test_it_is_added_to_the_covariance(self):
        z, labels = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(200) % 3
        means = torch.stack([z[labels == c].mean(0) for c in range(3)])
        centred = z - means[labels]
        covariance = centred.T @ centred / 200
        ridged = covariance + 0.7 * covariance.trace() / 4 * torch.eye(4, dtype=torch.float64)
        apart = z[:, None] - means
        expected = (apart @ torch.linalg.inv(ridged) * apart).sum(2)
        assert torch.allclose(of.MixturePrior(ridge=0.7).fit(z, labels).mahalanobis_sq(z), expected, rtol=1e-8)

    def test_nothing_is_said_where_there_is_none(self, tmp_path):
        assert to_plain(of.MixturePrior()) == {"type": "MixturePrior", "floor": 1e-6}
        assert to_plain(of.MixturePrior(ridge=0.5)) == {"type": "MixturePrior", "floor": 1e-6, "ridge": 0.5}
        assert from_plain(to_plain(of.MixturePrior(ridge=0.5))).ridge == 0.5
        data = of.FeatureSet(torch.rand(30, 3), labels=torch.arange(30) % 2)
        of.SSD(ridge=2.0).fit(data).save(tmp_path / "d.safetensors")
        assert of.load(tmp_path / "d.safetensors").ridge == 2.0
        of.SSD().fit(data).save(tmp_path / "d.safetensors")
        assert b"ridge" not in (tmp_path / "d.safetensors").read_bytes()
        assert not torch.equal(of.SSD().fit(data).score(data), of.SSD(ridge=2.0).fit(data).score(data))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_workers_share_the_statistics(workers, offset):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(1000, 150, generator=g, dtype=torch.float64) + offset
    labels = torch.randint(4, (1000,), generator=g) * 5
    before, threads = z.clone(), torch.get_num_threads()
    pieces = list(zip(z.split(64), labels.split(64), strict=True))
    found = of.ClassStatistics.over(pieces, workers)
    assert torch.get_num_threads() == threads
    assert torch.equal(z, before)
    means = torch.stack([z[labels == c].mean(0) for c in found.classes])
    within = z - means[labels // 5]
    assert found.classes.tolist() == [0, 5, 10, 15]
    assert found.counts.tolist() == labels.bincount()[::5].tolist()
    assert_close(found.means, means, rtol=1e-12, atol=1e-12)
    assert_close(found.scatter, within.T @ within, rtol=1e-9, atol=1e-7 if offset else 1e-10)
    again = of.ClassStatistics.over(iter(pieces), workers)
    assert torch.equal(again.scatter, found.scatter)


def test_an_error_in_a_worker_arrives_and_threads_are_as_before():
    def fails(z):
        raise of.InputError("on purpose")

    threads = torch.get_num_threads()
    pieces = ((torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)) for _ in range(1000))
    with pytest.raises(of.InputError, match="on purpose"):
        of.ClassStatistics.over(pieces, 2, fails)
    assert torch.get_num_threads() == threads
    with pytest.raises(of.InputError, match="no pieces"):
        of.ClassStatistics.over([])


def test_an_outlier_as_first_row_costs_no_digits_that_count():
    """The fixed point of a class is its first rows' mean; far off, it cancels, by less than the floor."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(1500, 5, generator=g, dtype=torch.float64)
    z[0] += 1e6
    labels = torch.zeros(1500, dtype=torch.int64)
    found = of.ClassStatistics.over(zip(z.split(1), labels.split(1), strict=True))
    within = z - z.mean(0)
    expected = within.T @ within
    assert float((found.scatter - expected).abs().max()) < 1e-9 * float(expected.abs().max())
