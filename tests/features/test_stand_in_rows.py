"""Stand-ins made of features: mixes of two classes and swapped coordinates, with everything that goes with them."""

import numpy as np
import pytest
import torch

import outfield as of


def rows(n=40, width=10, **more):
    """Rows that tell their class and number: coordinates are 100 × class + number."""
    labels = np.arange(n) % 4
    features = np.repeat((100 * labels + np.arange(n))[:, None], width, axis=1).astype(np.float32)
    return of.FeatureSet(features, **{"labels": labels, **more})


def with_head(n=60, **more):
    rng = np.random.default_rng(0)
    features, weight, bias = rng.standard_normal((n, 6)), rng.standard_normal((3, 6)), rng.standard_normal(3)
    return of.FeatureSet(features, logits=features @ weight.T + bias, **more), weight, bias


class TestKinds:
    def test_levels(self):
        assert of.feature_stand_ins(rows()).levels == {"mixed": "near", "swapped": "far"}

    def test_mixed_is_the_mean_of_rows_of_two_classes(self):
        data = rows()
        found = of.feature_stand_ins(data)["mixed"].features
        partners = 2 * found - data.features
        assert set(partners.flatten().tolist()) <= set(data.features[:, 0].tolist())
        assert (partners == partners[:, :1]).all()
        assert ((partners[:, 0] // 100) != data.labels).all()
        assert len(partners[:, 0].unique()) > 10

    def test_swapped_has_three_of_ten_coordinates_of_a_row_of_another_class(self):
        data = rows()
        found = of.feature_stand_ins(data)["swapped"].features
        foreign = found != data.features
        assert foreign.sum(1).tolist() == [3] * 40
        assert len({tuple(row) for row in foreign.tolist()}) > 10
        for row, mask, label in zip(found, foreign, data.labels, strict=True):
            (partner,) = set(row[mask].tolist())
            assert partner // 100 != label

    @pytest.mark.parametrize(("width", "count"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (100, 30)])
    def test_swapped_at_other_widths(self, width, count):
        data = rows(width=width)
        found = of.feature_stand_ins(data, "swapped")["swapped"].features
        assert (found != data.features).sum(1).tolist() == [count] * 40


class TestFields:
    def test_classes_without_labels_are_those_of_the_logits(self):
        data = rows()
        logits = torch.nn.functional.one_hot(data.labels, 4).float()
        unlabelled = of.FeatureSet(data.features, logits=logits)
        found = of.feature_stand_ins(unlabelled)["mixed"].features
        assert torch.equal(found, of.feature_stand_ins(data)["mixed"].features)

    def test_without_any_classes_rows_are_mixed_with_others(self):
        data = of.FeatureSet(np.eye(20))
        found = of.feature_stand_ins(data, "mixed")["mixed"].features
        assert ((found == 0.5).sum(1) == 2).all()

    @pytest.mark.parametrize("given", [True, False])
    def test_logits_are_those_of_the_new_features(self, given):
        data, weight, bias = with_head()
        if given:
            data = of.FeatureSet(**data.tensors(), head_weight=weight, head_bias=bias)
        for found in of.feature_stand_ins(data).values():
            expected = found.features.double().numpy() @ weight.T + bias
            assert np.allclose(found.logits, expected, atol=1e-4)
            assert found.logits.dtype == found.features.dtype
            assert (found.head_weight is not None) == given

    def test_logits_that_are_no_function_of_the_features_are_left_out(self):
        rng = np.random.default_rng(0)
        data = of.FeatureSet(rng.standard_normal((50, 4)), logits=rng.standard_normal((50, 3)))
        assert of.feature_stand_ins(data, "mixed")["mixed"].logits is None

    def test_stages_and_spread_are_changed_and_the_rest_left_out(self):
        data = rows()
        whole = of.FeatureSet(
            data.features,
            labels=data.labels,
            spread=data.features * 2,
            stage2=data.features[:, :5] * 3,
            odin_logits=np.zeros((40, 4)),
            about={"stage2": "layer2", "views": "six"},
        )
        made = of.feature_stand_ins(whole)
        assert torch.equal(made["mixed"].stage2, made["mixed"].features[:, :5] * 3)
        assert torch.equal(made["mixed"].spread, made["mixed"].features * 2)
        assert (made["swapped"].stage2 != whole.stage2).sum(1).tolist() == [2] * 40
        for found in made.values():
            assert found.about == {"stage2": "layer2", "views": "six"}
            assert sorted(found.shapes) == ["features", "spread", "stage2"]

    def test_a_stream_gives_the_same(self, tmp_path):
        data = rows()
        data.save(tmp_path / "rows.npz")
        found = of.feature_stand_ins(of.open_features(tmp_path / "rows.npz"))
        for name, one in of.feature_stand_ins(data).items():
            assert torch.equal(found[name].features, one.features)


class TestChoice:
    def test_the_seed_decides(self):
        data = rows()
        one, same, other = (of.feature_stand_ins(data, seed=seed) for seed in (0, 0, 1))
        alone = of.feature_stand_ins(data, kinds=["swapped"])
        for name in ("mixed", "swapped"):
            assert torch.equal(one[name].features, same[name].features)
            assert not torch.equal(one[name].features, other[name].features)
        assert torch.equal(alone["swapped"].features, one["swapped"].features)
        assert list(alone) == ["swapped"]
        assert one.by_level() == {"near": {"mixed": one["mixed"]}, "far": {"swapped": one["swapped"]}}

    @pytest.mark.parametrize(("data", "arguments", "error", "message"), [
        (np.eye(3), {}, of.InputError, "features is a ndarray; it must be a FeatureSet"),
        (of.FeatureSet([[1.0]]), {}, of.InputError, "at least two are needed"),
        (rows(), {"kinds": "turned90"}, of.UnknownNameError, "there are mixed, swapped"),
        *((rows(), {"seed": seed}, of.InputError, "seed is") for seed in (-1, 2**63, 2.5, None)),
    ])  # fmt: skip
    def test_what_is_refused(self, data, arguments, error, message):
        with pytest.raises(error, match=message):
            of.feature_stand_ins(data, **arguments)

    def test_they_are_told_from_id_rows(self):
        """A detector that knows the classes finds mixes of two of them farther away."""
        rng = np.random.default_rng(0)
        labels = np.arange(300) % 3
        means = 5 * rng.standard_normal((3, 16))
        data = of.FeatureSet(means[labels] + 0.3 * rng.standard_normal((300, 16)), labels=labels)
        detector = of.SSD().fit(data)
        for found in of.feature_stand_ins(data).values():
            assert of.auroc(detector.score(data), detector.score(found)) > 0.95
