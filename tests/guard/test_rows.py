"""Guards of rows: of tables and of features, without a network."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of
from outfield.files import kind_of
from outfield.guard import Reader, describe_guard


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    town = rng.choice(["Bonn", "Kiel", "Ulm"], rows)
    size = rng.standard_normal(rows) + (town == "Ulm")
    return pd.DataFrame(
        {"size": size, "weight": 2 * size + rng.normal(0, 0.3, rows), "town": town, "group": rng.integers(1, 3, rows)}
    )


def odd(rows: int) -> pd.DataFrame:
    """Sizes and weights as usual, but not together."""
    frame = people(rows, 9)
    return frame.assign(weight=-frame["weight"] - 4)


@pytest.fixture(scope="module")
def guard() -> of.Guard:
    return of.Guard.build_rows(people(400, 0), label="group")


def test_rows_of_a_table_are_told_from_others(guard):
    good, bad = guard(people(500, 1)), guard(odd(100))
    assert good.is_ood.mean() < 0.12
    assert bad.is_ood.mean() > 0.8
    assert guard.members == ("KNN", "SSD")
    assert (good[0].class_index, good[0].class_name, good[0].label) == (None, None, "")
    assert repr(good[0]).startswith("Verdict(ok, score")
    assert repr(good).startswith("Verdicts(500 rows, ")
    assert repr(good[:1]).startswith("Verdicts(1 row, ")
    assert bad[0].triggered_by in guard.members
    assert repr(guard).startswith("Guard(a table of 3 columns: KNN + SSD; keeps 0.95 of ID")


def test_held_out_rows_take_no_part_in_what_is_learned():
    frame = people(400, 0)
    made = of.Guard.build_rows(frame, label="group", detector="SSD")
    notes = made.provenance
    assert (notes["train"], notes["choose"], notes["calibrate"]) == (267, 0, 133)  # a third: a fifth would be few
    assert notes["split_off"] is True
    given = of.Guard.build_rows(frame[:280], frame[280:], label="group", detector=of.SSD())
    assert given.provenance["split_off"] is False
    assert given.table == of.TablePreprocessing.fit(frame[:280], label="group")
    scores = given.detector.score(given.table(frame[280:]))
    assert given.threshold.value == of.Threshold.fit(scores).value


def test_a_held_out_file_is_read_as_the_training_rows_were(tmp_path):
    frame = people(300, 0).assign(code=["07", "x"] * 150)
    frame[1::2].to_csv(tmp_path / "train.csv", index=False)
    frame.assign(code="07")[::2].to_csv(tmp_path / "held.csv", index=False)  # all of which look like numbers
    with pytest.warns(of.OutfieldWarning, match="150 cells that no training row had"):
        made = of.Guard.build_rows(tmp_path / "train.csv", tmp_path / "held.csv", label="group", detector="SSD")
    assert made.provenance["calibrate"] == 150


def test_p_values_are_valid(guard):
    p_values = guard(people(2000, 3)).p_values
    for level in (0.05, 0.2, 0.5):
        assert (p_values <= level).mean() < level + 0.1


def test_a_file_holds_all_of_it(guard, tmp_path):
    guard.save(tmp_path / "people.guard")
    again = of.Guard.load(tmp_path / "people.guard")
    assert again(odd(20)).to_list() == guard(odd(20)).to_list()
    assert again.table == guard.table
    assert again.widths == guard.widths == {"features": 6}
    assert of.open_guard(tmp_path / "people.guard").takes == "table"
    assert kind_of(tmp_path / "people.guard") == "guard of rows"
    with pytest.raises(of.InputError, match=r"\.guard"):
        guard.save(tmp_path / "people.txt")
    told = describe_guard(tmp_path / "people.guard")
    assert told["columns"] == "size (number), weight (number), town (text)"
    assert told["detector"] == "Auto of KNN + SSD"
    assert told["quality"] == "not estimated for rows; outfield guard evaluate measures it on other ones"


def test_a_threshold_that_does_not_follow_from_its_scores_is_refused(tmp_path):
    made = of.Guard.build_rows(people(400, 0), label="group", detector="SSD")
    made.threshold = replace(made.threshold, value=float(made.threshold.reference[0]))
    made.save(tmp_path / "my.guard")
    with pytest.raises(of.FileFormatError, match="its threshold does not follow from its scores"):
        of.Guard.load(tmp_path / "my.guard")


def test_features_alone_will_do(tmp_path):
    train, new = make_set(n=300), make_set(n=50, seed=1)
    plain = of.Guard.build_rows(train.features.numpy(), detector="KNN", keep=0.9, network_features=True)
    assert plain.table is None
    assert plain.widths == {"features": train.features.shape[1]}
    rows = new.features
    assert plain(rows.numpy()).to_list() == plain(of.FeatureSet(rows)).to_list() == plain(rows).to_list()
    with pytest.raises(of.InputError, match="looks at features, not at a DataFrame"):
        plain(people(5, 0))
    named = of.Guard.build_rows(train, names=["a", "b", "c"])
    verdict = named(new)[0]
    assert verdict.class_index == int(new.logits[0].argmax())
    assert verdict.class_name == "abc"[verdict.class_index]
    assert set(named.widths) == {"logits", "features"}
    named.save(tmp_path / "named.guard")
    assert of.Guard.load(tmp_path / "named.guard").names == ("a", "b", "c")
    other = of.FeatureSet(new.features, logits=np.eye(5)[:, :4].repeat(10, 0))
    of_features = of.Guard.build_rows(train, names=["a", "b", "c"], detector="KNN")
    with pytest.raises(of.InputError, match="names of 3 classes, but the logits have 4"):
        of_features(other)


def test_rows_without_labels_are_clustered():
    made = of.Guard.build_rows(make_set(n=300).features)
    assert made.members == ("KNN", "SSD")
    assert made.detector.members_[1].mixture_.state()["means"].shape[0] > 1
    plain = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    single = of.Guard.build_rows(plain + 20, network_features=True).detector.members_[1]
    assert single.mixture_.state()["means"].shape[0] == 1


def test_as_many_rows_are_fitted_on_as_are_wanted():
    few = of.Guard.build_rows(people(400, 0), label="group", detector="KNN", max_train=150)
    assert few.provenance["train"] == len(few.detector.bank_) == 150
    assert of.Guard.build_rows(people(400, 0), label="group", detector="KNN", max_train=None).provenance["train"] == 267


def test_what_cannot_be_is_told():
    frame, rows = people(400, 0), make_set(n=300)
    for given, settings, words in [
        ([frame[:60]], {"label": "group"}, "59 would have to be held out .* SSD, for which 38 are enough"),
        ([frame[:100], frame[100:110]], {"label": "group"}, "found 10 held-out rows; at least 59"),
        ([rows, frame], {}, "held_out must be features, too"),
        ([rows], {"label": "group"}, "label is given, but the rows are features"),
        ([frame], {"keep": 2}, "keep"),
        ([frame], {"max_train": 0}, "max_train is 0"),
        ([rows], {"names": ["a"]}, "names of 1 class, but the logits have 3"),
        ([rows], {"names": "abc"}, "names is 'abc'; it must be a text for each class"),
        ([rows], {"names": [1, 2, 3]}, "names is .1, 2, 3.; it must be a text for each class"),
        ([rows.features], {"names": ["a", "b", "c"]}, "the rows have no logits"),
    ]:
        with pytest.raises(of.InputError, match=words):
            of.Guard.build_rows(*given, **settings)
    ssd, knn = (of.Guard.build_rows(frame, label="group", detector=name) for name in ("SSD", "KNN"))
    with pytest.raises(of.InputError, match="threshold was chosen for"):
        of.Guard(Reader(), ssd.detector, knn.threshold)


def test_names_of_version_0_1(guard, tmp_path):
    guard.save(tmp_path / "people.guard")
    with pytest.warns(DeprecationWarning, match=r"RowGuard\.load is now Guard\.load"):
        assert isinstance(of.RowGuard.load(tmp_path / "people.guard"), of.RowGuard)
    with pytest.warns(DeprecationWarning, match=r"RowGuard\.build is now Guard\.build_rows"):
        few = of.RowGuard.build(make_set(n=300), detector="SSD", most=150)
    assert (few.provenance["train"], few.takes) == (150, "features")
    assert not isinstance(few.detector, of.RowGuard)
    with pytest.raises(TypeError, match="not built with 'more'"):
        of.Guard.build_rows(make_set(n=300), more=1)
    with pytest.warns(DeprecationWarning, match="triggered_by"):
        assert guard(odd(1))[0].rang in guard.members


def test_the_command_line_builds_checks_and_shows(tmp_path):
    people(400, 0).to_csv(tmp_path / "train.csv", index=False)
    pd.concat([people(5, 1), odd(5)]).drop(columns="group").to_parquet(tmp_path / "new.parquet")
    outfield("guard", "rows", tmp_path / "train.csv", "--label", "group", "-o", tmp_path / "my.guard", code=0)
    found = outfield("guard", "check", tmp_path / "my.guard", tmp_path / "new.parquet", tmp_path / "none.csv", "--json")
    verdicts = json.loads(found.stdout)
    assert [one["file"] for one in verdicts[:2]] == [f"{tmp_path / 'new.parquet'} row {i}" for i in (1, 2)]
    assert sum(one["is_ood"] for one in verdicts[5:10]) >= 4
    assert "none.csv" in verdicts[10]["error"]
    assert "10 rows" in found.stderr
    shown = outfield("guard", "show", tmp_path / "my.guard")
    assert "a table of 3 columns" in shown.stdout
    scored = outfield("score", tmp_path / "my.guard", tmp_path / "new.parquet", "--device", "cpu")
    assert [float(one["score"]) for one in csv.DictReader(io.StringIO(scored.stdout))] == [
        one["score"] for one in verdicts[:10]
    ]
    into = outfield("score", tmp_path / "my.guard", tmp_path / "new.parquet", "-o", tmp_path / "v.csv")
    assert "10 rows" in into.stderr
    assert (tmp_path / "v.csv").read_text() == scored.stdout
    for given, code, said in (
        (("score", tmp_path / "my.guard", tmp_path / "none.csv"), 11, "none.csv"),
        (("score", tmp_path / "my.guard", tmp_path / "none.csv", "-o", tmp_path / "v.csv"), 11, "0 rows, 0 OOD"),
        (("score", tmp_path / "my.guard", tmp_path / "new.parquet", "-o", tmp_path / "folder"), 2, ".csv, .parquet"),
        (("score", tmp_path / "my.guard", tmp_path / "new.parquet", "--engine", "ray"), 2, "works in this process"),
        (("score", tmp_path / "my.guard", tmp_path / "new.parquet", "--part-rows", "9"), 2, "one file"),
        (("export", tmp_path / "my.guard", "-o", tmp_path / "x.onnx"), 2, "POST /v2/models/my/infer"),
        (("export", tmp_path / "my.guard", "-o", tmp_path / "x", "--format", "mlflow"), 2, "is a guard of rows"),
    ):
        done = outfield(*given, code=code)
        assert said in done.said


def test_a_row_that_cannot_be_used_is_told_and_the_others_are_judged(guard, tmp_path):
    frame = people(6, 1).drop(columns="group")
    wanted = guard(frame)
    holes = frame.astype({"size": object}).copy()
    holes.at[2, "size"], holes.at[5, "town"] = None, None
    with pytest.raises(of.InputError, match="cells are missing"):
        guard(holes)
    with pytest.raises(of.InputError, match="on_error"):
        guard(holes, on_error="stop")
    found = guard(holes, on_error="skip")
    assert [one.error for one in found if one.error] == [
        "its cell in column 'size' is missing",
        "its cell in column 'town' is missing",
    ]
    assert [i for i, one in enumerate(found) if one.error] == [2, 5]
    assert [found[i].score for i in (0, 1, 3, 4)] == pytest.approx([wanted[i].score for i in (0, 1, 3, 4)], rel=1e-5)
    assert repr(found).startswith("Verdicts(6 rows, ")
    assert len(found.failed) == 2
    assert [one.error for one in guard(holes.iloc[[2]], on_error="skip")] == ["its cell in column 'size' is missing"]
    assert [*guard(frame, on_error="skip")] == [*wanted]
    rows = guard.features(frame)
    assert [*guard(rows, on_error="skip")] == [*wanted]
    holes.to_csv(tmp_path / "new.csv", index=False)
    streamed = [*guard.stream([tmp_path / "new.csv", tmp_path / "none.csv"], on_error="skip")]
    assert [one.file for one in streamed] == [
        *(f"{tmp_path / 'new.csv'} row {i}" for i in range(1, 7)),
        str(tmp_path / "none.csv"),
    ]
    assert [bool(one.error) for one in streamed] == [False, False, True, False, False, True, True]
    with pytest.raises(of.InputError, match="cells are missing"):
        [*guard.stream([tmp_path / "new.csv"], on_error="fail")]


def test_a_line_that_is_too_short_or_too_long_is_told_and_the_others_are_judged(guard, tmp_path):
    frame = people(4, 1)[["size", "weight", "town"]]
    head, *lines = frame.to_csv(index=False).splitlines()
    lines[1:] = ["1,2", lines[1], "", lines[2], "inf,1,a", "1,2,a,4", lines[3]]
    (tmp_path / "new.csv").write_text("\n".join([head, *lines]))
    found = [*guard.stream([tmp_path / "new.csv"], on_error="skip")]
    told = [f"it has {cells} cells, but the header 3 columns" for cells in (2, 4)]
    told.insert(1, "column 'size' holds 'inf' here, which is infinite or above 1.8e308")
    assert [one.error for one in found] == [None, told[0], None, None, *told[1:], None]
    assert [one.score for one in found if not one.error] == guard(frame).scores.tolist()
    assert [one.file for one in found] == [f"{tmp_path / 'new.csv'} row {i}" for i in range(1, 8)]
    with pytest.raises(of.FileFormatError, match=r"new\.csv, row 2: it has 2 cells, but .* 3 columns; mend it$"):
        guard(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text(f"{head}\n1,2\n")
    with pytest.raises(of.InputError, match="has no rows as long as its header"):
        guard(tmp_path / "new.csv", on_error="skip")


def test_a_folder_is_no_table(guard, tmp_path):
    guard.save(tmp_path / "my.guard")
    said = "is a folder; a guard of rows reads .csv or .parquet"
    done = outfield("guard", "check", tmp_path / "my.guard", tmp_path, code=11)
    assert done.stderr == f"warning: {tmp_path} {said}\n"
    words = ("guard", "evaluate", tmp_path / "my.guard", "--id", tmp_path, "--ood", tmp_path)
    assert outfield(*words, code=3).stderr == f"error: no row of {tmp_path} could be read: {tmp_path} {said}\n"


def test_the_command_line_leaves_out_rows_one_by_one(guard, tmp_path):
    guard.save(tmp_path / "my.guard")
    frame = people(4, 1).drop(columns="group").astype({"size": object})
    frame.at[1, "size"] = "tall"
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.iloc[[1]].to_csv(tmp_path / "bad.csv", index=False)
    checked = outfield("guard", "check", tmp_path / "my.guard", tmp_path / "new.csv", "--json", code=0)
    said = "column 'size' holds 'tall' here, which is no number"
    assert [one["error"] for one in json.loads(checked.stdout)] == [None, said, None, None]
    scored = outfield("score", tmp_path / "my.guard", tmp_path / "new.csv", code=0)
    assert f"1 of 4 rows could not be read; {tmp_path / 'new.csv'} row 2: {said}" in scored.said
    assert [one["error"] for one in csv.DictReader(io.StringIO(scored.stdout))] == ["", said, "", ""]
    for given, code in (("bad.csv", 11), ("new.csv", 2)):
        fail = ("--on-error", "fail") if code == 2 else ()
        done = outfield("score", tmp_path / "my.guard", tmp_path / given, *fail)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize("width", [1, 6])
def test_features_of_no_network_keep_their_length(tmp_path, width):
    """In whatever way they are given, and with their classes."""
    rng = np.random.default_rng(0)
    rows, new = rng.normal(size=(300, width)) + 2, rng.normal(size=(20, width)) + 2
    made = of.Guard.build_rows(of.FeatureSet(rows, labels=np.arange(300) % 2), detector="SSD")
    assert (made.takes, made.table.classes, made.table.columns[0].name) == ("table", ("0", "1"), "feature_0")
    assert made(100 * new).is_ood.all()
    wanted = made(new).to_list()
    of.FeatureSet(new, labels=np.zeros(20, int)).save(tmp_path / "new.safetensors")
    np.save(tmp_path / "new.npy", new)
    pd.DataFrame(new, columns=[f"feature_{i}" for i in range(width)]).to_csv(tmp_path / "new.csv", index=False)
    pd.DataFrame({"features": [*new]}).to_parquet(tmp_path / "new.parquet")
    for given in (new, new.tolist(), torch.tensor(new), of.FeatureSet(new), *tmp_path.iterdir()):
        assert [one["score"] for one in made(given).to_list()] == pytest.approx([one["score"] for one in wanted], 1e-4)
    of_network = of.Guard.build_rows(rows, detector="SSD", network_features=True)
    assert of_network.takes == "features"
    assert np.allclose(of_network(100 * new).scores, of_network(new).scores, rtol=1e-4)


def test_a_table_of_few_values_has_a_guard():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.choice(["a", "b"], 400, p=[0.8, 0.2]) for name in "xyz"})
    made = of.Guard.build_rows(frame)
    assert made(frame).is_ood.mean() < 0.1


def test_a_detector_that_is_named_suits_the_smallest_class():
    frame = people(900, 0)
    smallest = frame["group"].value_counts().min()
    made = of.Guard.build_rows(frame, label="group", detector="KNN")
    assert made.detector.k == len(made.detector.bank_) * smallest // 900 // 100 == 3
    assert of.Guard.build_rows(frame, label="group", detector=of.KNN(k=7)).detector.k == 7
    assert [of.KNN.suited(rows).k for rows in (1, 199, 200, 4999, 5000, 10**6)] == [1, 1, 2, 49, 50, 50]


def test_unknown_columns_numbers_that_are_names_and_settings(tmp_path):
    """On the command line: what is unknown is named, and ignored on request."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"line": rng.choice([7, 61], 400), "x": rng.normal(size=400)})
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[:3].assign(more=1).to_csv(tmp_path / "new.csv", index=False)
    build = ("guard", "rows", tmp_path / "train.csv", "-o", tmp_path / "my.guard", "--categories", "line")
    outfield(*build, "--detector", "KNN", "--set", "k=2", code=0)
    guard = of.Guard.load(tmp_path / "my.guard")
    assert (guard.detector.k, guard.table.names) == (2, ("line = 61", "line = 7", "x", "constant"))
    assert guard(frame[:3]).to_list() == guard(frame[:3].assign(line=frame["line"][:3].astype(str))).to_list()
    check = ("guard", "check", tmp_path / "my.guard", tmp_path / "new.csv")
    unknown = outfield(*check, code=11)
    assert "has column 'more', which the training rows did not have; leave it out, or pass --ign" in unknown.said
    failed = outfield(*check, "--on-error", "fail", code=2)
    assert "leave it out, or pass --ignore-extra\n" in failed.stderr
    assert "1 of 1 rows" not in unknown.said
    assert "3 rows, " in outfield(*check, "--ignore-extra").said
    assert outfield(*build, "--ignore-extra", "--detector", "SSD").returncode == 0
    assert "3 rows, " in outfield(*check).said
    refused = outfield(*build, "--set", "k=2", code=2)
    assert "name it with --detector" in refused.said


def test_the_command_splits_by_its_seed(tmp_path):
    people(400, 0).to_csv(tmp_path / "train.csv", index=False)
    for seed, name in ((0, "a"), (0, "b"), (1, "c")):
        made = tmp_path / f"{name}.guard"
        outfield("guard", "rows", tmp_path / "train.csv", "--detector", "SSD", "--seed", seed, "-o", made, code=0)
    a, b, c = (of.Guard.load(tmp_path / f"{name}.guard").threshold.reference for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
