"""Auto: the sum that stand-ins choose, as one detector."""

import pytest
import torch
from tests.helpers.samples import make_set, refused

import outfield as of
from outfield.detectors.combined import auto as unlabelled
from outfield.detectors.combined.auto import is_one_class, with_clusters
from outfield.detectors.combined.choice import default_members
from outfield.detectors.combined.fused import apart
from outfield.features import FIELDS


@pytest.fixture(scope="module")
def train():
    return make_set(n=200, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return make_set(n=100, seed=1)


@pytest.fixture(scope="module")
def stand_ins():
    return {"near": {"shifted": make_set(n=60, seed=2, shift=0.4)}, "far": {"far": make_set(n=60, seed=3, shift=2.0)}}


def test_it_is_the_sum_that_choose_picks(train, held_out, stand_ins):
    auto = of.Auto(most_members=2, seed=3).fit(train, held_out=held_out, stand_ins=stand_ins)
    choice = of.choose(train, held_out, stand_ins, most_members=2, seed=3)
    test = make_set(n=40, seed=5)
    assert auto.names == choice.chosen.members == auto.choice_.chosen.members
    assert auto.weights_ == tuple(choice.weights.values())
    assert len({*auto.weights_}) > 1
    assert len(auto.choice_.trials) == len(choice.trials)
    assert torch.equal(auto.score(test), choice.detector.score(test))
    assert torch.equal(auto.p_values(test), choice.detector.p_values(test))


def test_without_held_out_rows_a_share_of_the_training_rows_is_kept(train):
    auto = of.Auto(most_members=1, held_out=0.3, seed=1).fit(train)
    rest, kept = apart(train, None, 0.3, 1)
    assert len(auto.sum_.scores) + len(auto.calibrations_[0].scores) == 60
    expected = of.Fused(default_members(rest), seed=1).fit(rest, held_out=kept)
    assert auto.names == expected.names
    assert torch.equal(auto.score(train), expected.score(train))


@pytest.mark.parametrize(("fields", "members"), [
    (("labels", "logits", "stage2", "stage1"), ("EnergyLogits", "KNN k=5", "SSD", "SSD on stage2")),
    (("labels", "logits"), ("EnergyLogits", "KNN", "SSD")),
    (("labels",), ("KNN", "SSD")),
    (("logits",), ("EnergyLogits", "KNN")),
    ((), ("KNN", "SSD")),
])  # fmt: skip
def test_without_stand_ins_nothing_is_chosen(train, held_out, fields, members):
    def part(data):
        stages = {name: data.features[:, :3] for name in ("stage1", "stage2") if name in fields}
        return of.FeatureSet(
            data.features, **{name: data.tensors()[name] for name in fields if name not in stages}, **stages
        )

    auto = of.Auto().fit(part(train), held_out=part(held_out))
    assert [name.split(" k=")[0] for name in auto.names] == [name.split(" k=")[0] for name in members]
    assert [member.k for member in auto.members_ if isinstance(member, of.KNN)] == [5]
    assert auto.choice_ is None


def test_a_rare_class_costs_neighbours_and_no_member():
    features = make_set(n=60).features
    for rare, k in ((1, 1), (4, 4), (5, 5), (6, 5)):
        few = of.FeatureSet(features, labels=[1] * rare + [0] * (60 - rare))
        assert [repr(one) for one in default_members(few)] == [repr(of.KNN(k=k)), repr(of.SSD())]
    alone = of.FeatureSet(features[:4])
    assert [repr(one) for one in default_members(alone)] == [repr(of.KNN(k=4))]


def test_what_it_uses_is_known_and_not_needed(train):
    assert set(of.Auto.uses) == set(FIELDS) - {"features", "odin_logits"}
    assert of.Auto().needs_to_fit == ()
    assert of.Auto().needs_to_score == ("features",)
    bare = of.FeatureSet(train.features)
    auto = of.Auto(most_members=1).fit(bare)
    assert auto.needs_to_score == ("features",)
    assert torch.isfinite(auto.score(bare)).all()


def test_what_it_scores_is_what_its_members_score(train, held_out, stand_ins):
    auto = of.Auto(most_members=3).fit(train, held_out=held_out, stand_ins=stand_ins)
    assert set(auto.needs_to_score) == {name for member in auto.members_ for name in member.needs_to_score}
    explanation = auto.explain(held_out)
    assert explanation.members == auto.names
    torch.testing.assert_close(explanation.terms.sum(1).float(), auto.score(held_out).as_subclass(torch.Tensor))


class TestFiles:
    def test_a_saved_one_scores_the_same(self, train, held_out, stand_ins, tmp_path):
        auto = of.Auto(most_members=3, seed=2).fit(train, held_out=held_out, stand_ins=stand_ins)
        auto.save(tmp_path / "auto.safetensors")
        loaded = of.load(tmp_path / "auto.safetensors")
        assert isinstance(loaded, of.Auto)
        assert (loaded.most_members, loaded.seed, loaded.names) == (3, 2, auto.names)
        assert loaded.weights_ == auto.weights_
        assert len({*auto.weights_}) > 1
        assert loaded.fingerprint() == auto.fingerprint()
        assert torch.equal(loaded.score(held_out), auto.score(held_out))
        assert not hasattr(loaded, "choice_")

    @pytest.mark.parametrize(("change", "said"), [
        (lambda notes: notes["members"][0].update(detector="Nonsense"), "there is no detector 'Nonsense'"),
        (lambda notes: notes["members"][0].update(detector=["SSD"]), "there is no detector"),
        (lambda notes: notes["members"][0].pop("detector"), "detector"),
        (lambda notes: notes["members"].clear(), "cannot build"),
        (lambda notes: notes.update(members=["SSD"]), "cannot build"),
    ])  # fmt: skip
    def test_notes_that_no_fit_leaves(self, train, held_out, stand_ins, tmp_path, change, said):
        fitted = of.Auto(most_members=1).fit(train, held_out=held_out, stand_ins=stand_ins)
        header, tensors = fitted.record()
        change(header["notes"])
        refused(tmp_path / "auto.safetensors", header, tensors, said)


class TestThreshold:
    def test_it_is_that_of_the_rows_that_calibrated_the_sum(self, train, held_out, stand_ins):
        auto = of.Auto(most_members=2).fit(train, held_out=held_out, stand_ins=stand_ins)
        found = auto.threshold()
        expected = of.Threshold.fit(auto.sum_.scores.float(), keep=0.95)
        assert (found.keep, found.value, found.source) == (0.95, expected.value, auto.fingerprint())
        assert auto.threshold(0.5).value < found.value
        assert found.is_ood(auto.score(held_out)).dtype == torch.bool

    def test_what_it_refuses(self, train, held_out, stand_ins):
        with pytest.raises(of.NotFittedError, match="not fitted"):
            of.Auto().threshold()
        with pytest.raises(of.InputError, match="keep is 0"):
            of.Auto(most_members=1).fit(train, held_out=held_out, stand_ins=stand_ins).threshold(0)


def blobs(count, rows=300, seed=0, width=6, spread=0.05):
    """Rows around so many far directions, each Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    centres = 5 * torch.eye(max(count, width))[:count, :]
    z = centres[torch.arange(rows) % count] + spread * torch.randn(rows, centres.shape[1], generator=generator)
    return of.FeatureSet(z, about={"network": "n"})


@pytest.mark.parametrize("count", [1, 5, 10])
def test_as_many_clusters_as_there_are(count):
    rows = blobs(count)
    found = with_clusters(rows, 0)
    sizes = torch.bincount(found.labels)
    assert len(sizes) == count
    assert sizes.min() >= 300 // count - 1
    for label in range(count):  # each cluster is one of the groups
        assert len(torch.unique(torch.arange(300)[found.labels == label] % count)) == 1
    assert torch.equal(found.features, rows.features)
    assert found.about == rows.about
    assert torch.equal(with_clusters(rows, 0).labels, found.labels)


def test_the_likelihood_of_rows_that_were_left_out_decides(monkeypatch):
    seen = {}

    class Spy(unlabelled.MixturePrior):
        def fit(self, z, labels):
            self.count, self.rows = len(labels.unique()), len(z)
            return super().fit(z, labels)

        def log_prob(self, z):
            seen[self.count] = (self.rows, len(z))
            return torch.full((len(z),), {1: 0.0, 2: 3.0, 5: 3.0, 10: 2.0, 20: -1.0}[self.count])

    monkeypatch.setattr(unlabelled, "MixturePrior", Spy)
    assert len(with_clusters(blobs(3), 0).labels.unique()) == 2  # of equal ones the smallest
    assert seen == dict.fromkeys((1, 2, 5, 10, 20), (240, 60))


def test_few_rows_are_not_cut_into_many():
    assert with_clusters(blobs(10, rows=124), 0).labels.max() == 9  # 100 rows are left: just enough for ten
    assert with_clusters(blobs(10, rows=123), 0).labels.max() < 5
    assert with_clusters(blobs(5, rows=61), 0).labels.max() < 5
    assert with_clusters(blobs(2, rows=24), 0).labels.max() == 1  # 20 rows are just enough for two
    assert with_clusters(blobs(2, rows=23), 0).labels.max() == 0
    assert with_clusters(of.FeatureSet(torch.ones(1, 3)), 0).labels.tolist() == [0]


def test_equal_rows():
    assert with_clusters(of.FeatureSet(torch.ones(80, 3)), 0).labels.tolist() == [0] * 80


def test_many_rows_are_drawn_from(monkeypatch):
    monkeypatch.setattr(unlabelled, "MOST", 100)
    rows = blobs(2)
    found = with_clusters(rows, 0)
    assert len(found) == 100
    assert all((one == rows.features).all(1).any() for one in found.features)


def test_what_is_one_class():
    known = make_set(n=20)
    fields = known.tensors()
    assert not is_one_class(known)
    assert not is_one_class(of.FeatureSet(known.features, labels=known.labels))
    assert not is_one_class(of.FeatureSet(known.features, labels=known.labels, logits=fields["logits"]))
    assert not is_one_class(of.FeatureSet(known.features, logits=fields["logits"]))
    assert is_one_class(of.FeatureSet(known.features))
    assert is_one_class(of.FeatureSet(known.features, labels=torch.full((20,), 3)))


def test_auto_without_classes_is_a_sum_over_clusters():
    train, held = blobs(5), blobs(5, rows=100, seed=1)
    auto = of.Auto(seed=2).fit(train, held_out=held)
    expected = of.Fused((of.KNN(k=5), of.SSD()), seed=2).fit(with_clusters(train, 2), held_out=held)
    assert auto.names == expected.names
    assert torch.equal(auto.score(held), expected.score(held))
    zeros = torch.zeros(300, dtype=torch.int64)
    one = of.Auto(seed=2).fit(of.FeatureSet(train.features, labels=zeros, about=train.about), held_out=held)
    assert torch.equal(one.score(held), expected.score(held))
    middle = of.FeatureSet(train.features.mean(0, keepdim=True), about=train.about)
    assert auto.score(middle)[0] > auto.score(held).max()


def test_rows_on_disk_are_not_all_loaded(tmp_path, monkeypatch):
    rows = make_set(n=200)
    few = of.FeatureSet(rows.features, stage2=rows.features * 2, about={"network": "n"})
    few.save(tmp_path / "rows.safetensors")
    stream = of.open_features(tmp_path / "rows.safetensors")
    whole = with_clusters(few, 0)
    monkeypatch.setattr(type(stream), "in_memory", lambda self: pytest.fail("all rows were loaded"))
    found = with_clusters(stream, 0)
    assert torch.equal(found.labels, whole.labels)
    assert torch.equal(found.tensors()["stage2"], few.tensors()["stage2"])
    monkeypatch.setattr(unlabelled, "MOST", 50)
    assert len(with_clusters(stream, 0)) == 50
