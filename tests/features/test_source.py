"""Sources of rows: names of rows, what is said of where they come from, and some rows of a source."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

import outfield as of
from outfield.features import Part, agree, csv_text, named_columns, network_text, readable
from outfield.features.source import common_about
from outfield.files import Record, read_record, write_record

NAMES = ("a.png", "", 'b/ü, "c".jpg', "d\n.png", "e\udcff.png")


def a_set(n=5, names=NAMES, **others):
    rng = np.random.default_rng(0)
    return of.FeatureSet(rng.random((n, 4)), stage2=rng.random((n, 3)), names=names, **others)


class TestNames:
    @pytest.mark.parametrize("ending", [".safetensors", ".npz"])
    def test_they_go_with_the_rows(self, tmp_path, ending):
        data, path = a_set(), tmp_path / f"f{ending}"
        data.save(path)
        stream = of.open_features(path)
        for found in (
            data,
            of.FeatureSet.load(path),
            stream,
            stream.in_memory(),
            data.on("stage2"),
            stream.on("stage2"),
        ):
            assert found.names == NAMES  # fmt: skip
        assert set(stream.shapes) == {"features", "stage2"}
        assert data[1:3].names == NAMES[1:3]
        assert data[::-1].names == NAMES[::-1]
        assert data[[4, 0, 0]].names == (NAMES[4], NAMES[0], NAMES[0])
        mask = torch.tensor([True, False, False, True, True])
        assert (
            data[mask].names == Part(stream, mask).names == Part(data, mask).in_memory().names == (NAMES[0], *NAMES[3:])
        )
        assert of.FeatureSet.join([data[:2], data[2:]]).names == NAMES

    def test_sets_without_names(self, tmp_path):
        data = a_set(names=None)
        data.save(tmp_path / "f.npz")
        mask = torch.ones(5, dtype=torch.bool)
        for found in (data, data[:2], of.open_features(tmp_path / "f.npz"), Part(data, mask), data.on("stage2")):
            assert found.names is None
        assert of.FeatureSet.join([data, a_set()]).names is None
        assert of.FeatureSet.join([a_set(), data]).names is None

    @pytest.mark.parametrize(("names", "words"), [
        ("abcde", "names is 'abcde'"),
        (7, "names is 7"),
        ([], "0 names for 5 rows"),
        ([1, 2, 3, 4, 5], r"names is \[1, 2"),
        (["a", None, "b", "c", "d"], r"names is \['a', None"),
        (["a"] * 4, "4 names for 5 rows"),
        (["a"] * 6, "6 names for 5 rows"),
        (["a"] * 4 + ["\ud800"], "names is .*a text for each row"),
    ])  # fmt: skip
    def test_what_are_no_names(self, names, words):
        with pytest.raises(of.InputError, match=words):
            a_set(names=names)

    def test_arrays_of_texts_are_taken(self):
        assert a_set(names=np.array(list("abcde"))).names == tuple("abcde")

    def test_more_names_than_rows_in_a_file(self, tmp_path):
        a_set().save(tmp_path / "f.safetensors")
        tensors = read_record(tmp_path / "f.safetensors", "FeatureSet").tensors | {"features": torch.rand(2, 2)}
        del tensors["stage2"]
        write_record(tmp_path / "f.safetensors", "FeatureSet", Record({}, tensors))
        with pytest.raises(of.FileFormatError, match=r"f\.safetensors: there are 5 names for 2 rows"):
            of.open_features(tmp_path / "f.safetensors").names
        with pytest.raises(of.InputError, match="5 names for 2 rows"):
            of.FeatureSet.load(tmp_path / "f.safetensors")

    def test_as_columns(self):
        columns = {**named_columns(NAMES), "score": np.array([0.5, 1, 2, 3, 4])}
        text = csv_text(columns)
        assert text.startswith('file,score\na.png,0.5\n,1.0\n"b/ü, ""c"".jpg",2.0\n"d\n.png",3.0\n')
        assert text.endswith("e\\xff.png,4.0\n")
        assert named_columns(None) == {}
        assert readable("ü") == "ü"


class TestNetworks:
    def test_the_digest_counts_and_not_the_name(self):
        one, same, other = (network_text(*pair) for pair in (("a b", "1" * 64), ("c", "1" * 64), ("a b", "2" * 64)))
        assert one == "a b 1111111111111111"
        assert agree("network", one, same)
        assert not agree("network", one, other)
        assert not agree("views", "x 1", "y 1")
        assert len(network_text("x" * 5000, "1" * 64)) < 1000

    def test_a_detector_refuses_rows_of_another_network(self, tmp_path):
        mine, renamed, others = (a_set(n=30, names=None, about={"network": t}) for t in ("a 1111", "b 1111", "a 2222"))
        detector = of.KNN(k=1).fit(mine)
        detector.save(tmp_path / "d.safetensors")
        for one in (detector, of.load(tmp_path / "d.safetensors")):
            assert one.score(renamed).shape == one.score(a_set(n=30, names=None)).shape == (30,)
            with pytest.raises(of.InputError, match="network is 'a 2222' here, but 'a 1111' where this KNN was fitted"):
                one.score(others)
        assert of.KNN(k=1).fit(a_set(n=30, names=None)).score(others).shape == (30,)

    def test_held_out_rows_of_another_network_are_refused_too(self):
        rng = np.random.default_rng(0)

        def rows(text):
            logits = rng.random((200, 3))
            return of.FeatureSet(rng.random((200, 4)), logits=logits, labels=logits.argmax(1), about={"network": text})

        with pytest.raises(of.InputError, match="network is"):
            of.Fused((of.SSD(), of.MSP())).fit(rows("a 1"), held_out=rows("a 2"))
        fused = of.Fused((of.SSD(), of.MSP())).fit(rows("a 1"), held_out=rows("b 1"))
        with pytest.raises(of.InputError, match="network is"):
            fused.score(rows("a 2"))

    def test_joined_sets(self):
        assert common_about([{"network": "a 1", "views": "one"}, {"network": "b 1", "views": "one"}]) == {
            "network": "a 1",
            "views": "one",
        }
        assert common_about([{"network": "a 1"}, {}]) == common_about([{}, {"network": "a 1"}]) == {}
        for other in ({"network": "a 2"}, {"network": "a 1", "views": "one"}):
            with pytest.raises(of.InputError, match="different places"):
                common_about([{"network": "a 1"}, other])


ABOUT = {"views": "flip", "stage2": "layer2"}


def told_set(n=6, **others):
    rng = np.random.default_rng(0)
    return of.FeatureSet(
        rng.random((n, 4)), stage2=rng.random((n, 3)), labels=np.arange(n) % 2, logits=rng.random((n, 2)), **others
    )


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_it_stays_with_the_rows(tmp_path, ending):
    data = told_set(about=ABOUT)
    data.save(tmp_path / f"f{ending}")
    for found in (
        data,
        data[1:3],
        of.FeatureSet.join([data[:1], data[1:]]),
        of.FeatureSet.load(tmp_path / f"f{ending}"),
        of.open_features(tmp_path / f"f{ending}"),
        of.open_features(tmp_path / f"f{ending}").in_memory(),
        data.on("stage2"),
        of.open_features(tmp_path / f"f{ending}").on("stage2"),
    ):
        assert found.about == ABOUT
    data.about["views"] = "six"
    assert data.about == ABOUT
    assert told_set().about == {}


def test_what_is_no_such_text(tmp_path):
    for bad in (3, "flip", [("views", "flip")], {"views": 2}, {2: "views"}):
        with pytest.raises(of.InputError, match="about is"):
            told_set(about=bad)
    write_record(tmp_path / "f.safetensors", "FeatureSet", Record({"about": 3}, told_set().tensors()))
    for read in (of.FeatureSet.load, of.open_features):
        with pytest.raises(of.FileFormatError, match=r"f.safetensors: about is 3"):
            read(tmp_path / "f.safetensors")


def test_sets_from_different_places_are_not_joined():
    with pytest.raises(of.InputError, match="different places"):
        of.FeatureSet.join([told_set(about=ABOUT), told_set()])


def test_another_field_in_the_place_of_the_features(tmp_path):
    data = told_set(spread=np.ones((6, 4)), head_weight=np.ones((2, 4)))
    data.save(tmp_path / "f.npz")
    columns = {name: list(value.numpy()) for name, value in data.tensors().items() if name != "head_weight"}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    for source, picks in (
        (data, True),
        (of.open_features(tmp_path / "f.npz"), True),
        (of.open_features(tmp_path / "f.parquet"), False),
    ):
        seen = source.on("stage2")
        assert seen.shapes == {"features": (6, 3), "labels": (6,), "logits": (6, 2)}
        assert len(seen) == 6
        assert seen.picks_rows == picks
        assert torch.equal(seen.in_memory().features, data.stage2)
        assert torch.equal(torch.cat([piece["features"] for piece in seen.batches(4)]), data.stage2)
        (first, _) = seen.batches(4, ["logits"])
        assert first.keys() == {"logits"}
        assert torch.equal(first["logits"], data.logits[:4])
        if picks:
            assert torch.equal(seen.rows([5, 2], ["features"])["features"], data.stage2[[5, 2]])
        assert source.on("features") is source
        with pytest.raises(of.InputError, match="on is 'logits'; it must be one of features, spread, stage1"):
            source.on("logits")
        with pytest.raises(of.MissingFieldError, match="no field 'stage1'"):
            source.on("stage1")


def whole_set(n=23):
    rng = np.random.default_rng(0)
    return of.FeatureSet(
        rng.random((n, 3)), labels=np.arange(n) % 4, head_weight=np.ones((4, 3)), about={"views": "flip"}
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_it_is_those_rows(streamed, tmp_path):
    data = whole_set()
    data.save(tmp_path / "f.npz")
    source = of.open_features(tmp_path / "f.npz") if streamed else data
    rng = np.random.default_rng(1)
    for chosen in (rng.random(23) < 0.4, np.arange(23) == 22, np.arange(23) < 23, np.arange(23) < 5):
        part, expected = Part(source, torch.from_numpy(chosen)), data[chosen]
        assert len(part) == chosen.sum()
        assert part.shapes == expected.shapes
        assert part.about == {"views": "flip"}
        assert part.picks_rows
        assert torch.equal(part.constant("head_weight"), data.head_weight)
        assert all(torch.equal(value, expected.tensors()[name]) for name, value in part.in_memory().tensors().items())
        for size in (1, 4, 5, 100):
            pieces = list(part.batches(size))
            assert [len(piece["labels"]) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
            assert torch.equal(torch.cat([piece["features"] for piece in pieces]), expected.features)
            assert pieces[0].keys() == {"features", "labels"}
        last = len(part) - 1
        assert torch.equal(part.rows([last, 0], ["features"])["features"], expected.features[[last, 0]])
        with pytest.raises(of.InputError, match="rows go from"):
            part.rows([last + 1])


def test_no_row_at_all():
    with pytest.raises(of.InputError, match="no row is chosen"):
        Part(whole_set(), torch.zeros(23, dtype=torch.bool))
