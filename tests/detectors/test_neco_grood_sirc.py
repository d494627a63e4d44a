"""NECO, GROOD and SIRC against plain computations with NumPy, and what each must do."""

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set
from torch.testing import assert_close

import outfield as of
from outfield.adapters.graph import scorer
from outfield.config import construct_from_text

TRAIN, TEST = make_set(150, seed=1), make_set(40, seed=3, shift=0.5)
SECONDS = ("norm1", "residual", "knn")


def array(tensor):
    return tensor.double().numpy()


def changed(data, **fields):
    return of.FeatureSet(**{**data.tensors(), **fields})


class TestNECO:
    @pytest.mark.parametrize("dimension", [0, 1, 5])
    def test_the_authors_steps(self, dimension):
        train = array(TRAIN.features)
        mean, scale = train.mean(0), train.std(0)
        axes = np.linalg.svd((train - mean) / scale)[2][: dimension or 3]
        z = (array(TEST.features) - mean) / scale
        share = np.linalg.norm(z @ axes.T, axis=1) / np.linalg.norm(z, axis=1)
        found = of.NECO(dimension).fit(TRAIN).score(TEST)
        np.testing.assert_allclose(found, -share * array(TEST.logits).max(1), rtol=1e-5)

    def test_all_axes_leave_the_largest_logit(self):
        found = of.NECO(dimension=6).fit(TRAIN).score(TEST)
        assert_close(found, of.MaxLogit().fit(TRAIN).score(TEST))

    def test_units_of_the_columns_do_not_matter(self):
        units = torch.tensor([1.0, 10, 0.1, 3, 7, 100])
        train, test = (changed(data, features=data.features * units + 5) for data in (TRAIN, TEST))
        assert_close(of.NECO().fit(train).score(test), of.NECO().fit(TRAIN).score(TEST), rtol=1e-4, atol=1e-5)

    def test_of_many_classes_at_most_half_of_the_columns_lead(self):
        many = make_set(60, width=6, classes=5)
        assert of.NECO().fit(many).axes_.shape == (3, 6)
        assert of.NECO().fit(of.FeatureSet(torch.rand(9, 1), logits=torch.rand(9, 4))).axes_.shape == (1, 1)

    def test_columns_that_do_not_vary_and_the_mean(self):
        train = changed(TRAIN, features=torch.cat([TRAIN.features[:, :5], torch.full((150, 1), 2.0)], 1))
        detector = of.NECO().fit(train)
        assert detector.scale_[5] == 1
        mean = of.FeatureSet(detector.mean_[None], logits=torch.ones(1, 3))
        assert float(detector.score(mean)) == pytest.approx(0, abs=1e-5)

    def test_too_many_dimensions(self):
        with pytest.raises(of.InputError, match="dimension is 7; it must be at most 6"):
            of.NECO(dimension=7).fit(TRAIN)


def gradients_by_autograd(features, prototypes, origin, logits):
    """The derivative by ν of the cross-entropy of −distances, for the class of the largest logit, as the authors take it."""
    found = []
    for f, c in zip(features, logits.argmax(1), strict=True):
        nu = origin.clone().requires_grad_()
        scores = -torch.cat([(f - prototypes).norm(dim=1), (f - nu).norm()[None]])
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores[None], c[None]), nu)
        found.append(gradient)
    return torch.stack(found)


class TestGROOD:
    def test_the_authors_gradients(self):
        train, test, labels = TRAIN.features.double(), TEST.features.double(), TRAIN.labels
        logits, test_logits = (f @ TRAIN.head_weight.double().T + TRAIN.head_bias.double() for f in (train, test))
        prototypes = torch.stack([train[labels == c].mean(0) for c in range(3)])
        order = logits.argsort(1, descending=True)
        origin = ((train + prototypes[order[:, 1]]) / 2).mean(0)
        detector = of.GROOD().fit(TRAIN)
        assert_close(detector.prototypes_, prototypes)
        assert_close(detector.origin_, origin)
        bank = gradients_by_autograd(train, prototypes, origin, logits)[order[:, 0] == labels]
        assert_close(detector.bank_.double(), bank, rtol=1e-5, atol=1e-7)
        expected = torch.cdist(gradients_by_autograd(test, prototypes, origin, test_logits), bank).amin(1)
        assert_close(detector.score(TEST).double(), expected, rtol=1e-4, atol=1e-6)

    def test_rows_that_are_classified_right_score_zero_and_others_are_no_neighbours(self):
        predicted = (TRAIN.features @ TRAIN.head_weight.T + TRAIN.head_bias).argmax(1)
        labels = torch.where(torch.arange(150) < 20, (predicted + 1) % 3, predicted)
        detector = of.GROOD().fit(changed(TRAIN, labels=labels))
        scores = detector.score(TRAIN)
        assert len(detector.bank_) == 130
        assert not scores[20:].any()
        assert scores[:20].all()
        assert len(of.GROOD().fit(changed(TRAIN, labels=(predicted + 1) % 3)).bank_) == 150  # none right: all kept

    def test_a_shift_of_all_features_does_not_matter(self):
        """The last layer's bias takes it back."""
        bias = TRAIN.head_bias - 1000 * TRAIN.head_weight.sum(1)
        train, test = (
            changed(
                data,
                features=data.features.double() + 1000,
                head_weight=TRAIN.head_weight.double(),
                head_bias=bias.double(),
            )
            for data in (TRAIN, TEST)
        )
        assert_close(of.GROOD().fit(train).score(test), of.GROOD().fit(TRAIN).score(TEST), rtol=1e-3, atol=1e-5)

    def test_one_class_and_classes_without_rows(self):
        one = of.FeatureSet(TRAIN.features, labels=[0] * 150, head_weight=TRAIN.head_weight[:1])
        detector = of.GROOD().fit(one)
        assert_close(detector.origin_, detector.prototypes_[0])
        assert detector.score(one).isfinite().all()
        some = TRAIN[TRAIN.labels != 1]
        assert of.GROOD().fit(some).prototypes_.shape == (2, 6)


class TestSIRC:
    def seconds(self, name):
        """S of the training rows and of the test rows."""
        if name == "norm1":
            return array(TRAIN.features).sum(1), array(TEST.features).sum(1)
        if name == "residual":
            return tuple(-array(of.Residual().fit(TRAIN).score(data)) for data in (TRAIN, TEST))
        return -array(of.KNN(k=2).fit(TRAIN).score(TRAIN)), -array(of.KNN(k=1).fit(TRAIN).score(TEST))

    @pytest.mark.parametrize("name", SECONDS)
    def test_the_formula(self, name):
        known, new = self.seconds(name)
        a, b = known.mean() - 3 * known.std(), 1 / known.std()
        p = torch.softmax(TEST.logits.double(), 1).amax(1).numpy()
        expected = np.log((1 - p) * (1 + np.exp(-b * (new - a))))
        np.testing.assert_allclose(of.SIRC(name).fit(TRAIN).score(TEST), expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", SECONDS)
    def test_files_devices_text_and_export(self, name, tmp_path):
        detector = construct_from_text(of.SIRC, {"second": name}).fit(TRAIN)
        detector.save(tmp_path / "d.safetensors")
        loaded = of.load(tmp_path / "d.safetensors").to("cpu")
        assert torch.equal(loaded.score(TEST), detector.score(TEST))
        assert loaded.fingerprint() == detector.fingerprint()
        assert_close(scorer(loaded)(TEST.tensors()), torch.as_tensor(detector.score(TEST)))
        with pytest.raises(of.InputError, match="features has 5 columns"):
            detector.score(of.FeatureSet(TEST.features[:, :5], logits=TEST.logits))

    def test_where_the_second_score_is_that_of_id_rows_the_order_is_that_of_msp(self):
        logits = 300 * torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        rows = of.FeatureSet(TRAIN.features[:1].expand(200, 6), logits=logits)
        order = (logits[:, 0] - logits[:, 1]).abs().argsort(descending=True)
        assert (of.SIRC().fit(TRAIN).score(rows)[order].diff() > 0).all()

    def test_extreme_rows_are_finite_and_in_order(self):
        detector = of.SIRC().fit(TRAIN)
        lengths = of.FeatureSet(
            torch.tensor([[3e38], [1e9], [1.0], [0.0]]).expand(4, 6), logits=torch.tensor([[1e30, 0]] * 4)
        )
        sure = detector.score(changed(lengths, logits=torch.zeros(4, 3)))
        assert detector.score(lengths).isfinite().all()
        assert (sure.diff() >= 0).all()
        assert sure[3] > sure[0]

    def test_rows_that_are_all_the_same(self):
        same = of.FeatureSet(torch.ones(30, 6), logits=torch.rand(30, 3))
        for name in ("norm1", "knn"):
            detector = of.SIRC(name).fit(same)
            assert float(detector.spread_) == 1
            assert detector.score(same).isfinite().all()
        assert of.SIRC("knn").fit(TRAIN[:1]).score(TEST).isfinite().all()

    def test_neighbours_of_a_hundredth_of_the_smallest_class(self):
        assert of.SIRC("knn").fit(make_set(900)).second_.k == 3
        assert of.SIRC("knn").fit(changed(make_set(900), labels=None)).second_.k == 9
