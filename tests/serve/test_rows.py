"""Guards of rows behind the Open Inference Protocol."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.guard.test_rows import odd, people
from tests.helpers.samples import make_set
from tests.helpers.service import running

import outfield as of


@pytest.fixture(scope="module")
def served(row_guards):
    with running(row_guards / "people.guard", row_guards / "plain.guard") as service:
        yield service


def inputs(frame: pd.DataFrame) -> list[dict]:
    kinds = {"size": "FP64", "weight": "FP64", "town": "BYTES"}
    return [
        {"name": name, "datatype": kind, "shape": [len(frame)], "data": frame[name].tolist()}
        for name, kind in kinds.items()
    ]


def asked(served, name, inputs, **others):
    return served.client.post(f"/v2/models/{name}/infer", json={"inputs": inputs, **others})


def column(answer, name):
    return next(one["data"] for one in answer.json()["outputs"] if one["name"] == name)


def test_columns_are_inputs(served, row_guards):
    said = served.client.get("/v2/models/people").json()["inputs"]
    assert said == [
        {"name": "size", "datatype": "FP64", "shape": [-1]},
        {"name": "weight", "datatype": "FP64", "shape": [-1]},
        {"name": "town", "datatype": "BYTES", "shape": [-1]},
    ]
    frame = pd.concat([people(5, 1), odd(5)], ignore_index=True)
    answer = asked(served, "people", inputs(frame), id="7")
    expected = of.Guard.load(row_guards / "people.guard")(frame)
    assert answer.json()["id"] == "7"
    np.testing.assert_allclose(column(answer, "score"), expected.scores, rtol=1e-6)
    assert column(answer, "is_ood") == expected.is_ood.tolist()
    assert column(answer, "label") == [-1] * 10


def test_columns_may_be_binary_and_lists_of_one(served):
    frame = people(3, 1)
    plain = asked(served, "people", inputs(frame))
    nested = [{**one, "shape": [3, 1], "data": [[cell] for cell in one["data"]]} for one in inputs(frame)]
    assert column(asked(served, "people", nested), "score") == column(plain, "score")
    parts = [frame[name].to_numpy("<f8").tobytes() for name in ("size", "weight")]
    texts = b"".join(len(town).to_bytes(4, "little") + town.encode() for town in frame["town"])
    head = [
        {"name": one["name"], "datatype": one["datatype"], "shape": [3], "parameters": {"binary_data_size": len(part)}}
        for one, part in zip(inputs(frame), [*parts, texts], strict=True)
    ]
    start = json.dumps({"inputs": head}).encode()
    answer = served.client.post(
        "/v2/models/people/infer",
        content=b"".join([start, *parts, texts]),
        headers={"Inference-Header-Content-Length": str(len(start))},
    )
    assert column(answer, "score") == column(plain, "score")


def test_null_is_a_missing_number(served):
    frame = people(2, 1)
    given = inputs(frame)
    given[0]["data"][0] = None
    assert asked(served, "people", given).status_code == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given[:2], "lacks column 'town'"),
        (lambda given: [*given, {**given[0], "name": "height"}], "has column 'height'"),
        (lambda given: [{**given[0], "data": ["a", "b"]}, *given[1:]], "2 cells of FP64"),
        (lambda given: [{**given[0], "data": [True, False]}, *given[1:]], "2 cells of FP64"),
        (lambda given: [{**given[0], "data": [1.0]}, *given[1:]], "2 cells of FP64"),
        (lambda given: [{**given[0], "datatype": "INT64", "data": [1.5, 2.0]}, *given[1:]], "cells of INT64"),
        (lambda given: [{**given[0], "datatype": "FP16"}, *given[1:]], "one of BYTES, FP64"),
        (lambda given: [{**given[0], "data": [10**400, 1]}, *given[1:]], "too large"),
    ],
)
def test_other_columns_are_bad_requests(served, change, message):
    answer = asked(served, "people", change(inputs(people(2, 1))))
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_features_are_served_as_they_are(served, row_guards):
    rows = make_set(n=6, seed=3).features
    answer = asked(
        served,
        "plain",
        [{"name": "features", "datatype": "FP32", "shape": [*rows.shape], "data": rows.flatten().tolist()}],
    )
    expected = of.Guard.load(row_guards / "plain.guard")(rows)
    np.testing.assert_allclose(column(answer, "score"), expected.scores, rtol=1e-6)
    wrong = asked(served, "plain", [{"name": "logits", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}])
    assert wrong.status_code == 400


def checked(served, content, kind, guard, **query):
    return served.client.post(
        "/v1/check", content=content, headers={"Content-Type": kind}, params={"guard": guard, **query}
    )


def test_rows_of_csv_and_json_have_the_verdicts_of_a_check(served, row_guards):
    frame = pd.concat([people(5, 1), odd(2)], ignore_index=True)
    guard = of.Guard.load(row_guards / "people.guard")
    expected = guard(frame)
    texts = {
        "text/csv": frame.to_csv(index=False),
        "text/csv; charset=utf-8": "\ufeff" + frame.to_csv(index=False, sep="\t", lineterminator="\r\n"),
        "application/json": json.dumps(frame.to_dict("records")),
    }
    for kind, text in texts.items():
        found = checked(served, text, kind, "people", why=True).json()
        np.testing.assert_allclose([one["score"] for one in found], expected.scores, rtol=1e-6)
        assert [one["is_ood"] for one in found] == expected.is_ood.tolist()
        assert [one["file"] for one in found] == [f"row {i}" for i in range(1, 8)]
        reasons = [one.to_dict() for one in guard.why(frame, most=3)]
        assert [one["why"] for one in found if one["is_ood"]] == json.loads(json.dumps(reasons))
        assert all(one["why"] is None for one in found if not one["is_ood"])
    assert "why" not in checked(served, texts["text/csv"], "text/csv", "people").json()[0]
    refused = checked(served, "[[1]]", "application/json", "plain", why=True)
    assert refused.status_code == 400
    assert "why names columns of a table, but plain looks at features" in refused.json()["error"]


def test_a_bad_row_is_told_and_the_others_are_judged(served, row_guards):
    frame = people(3, 1)
    good = of.Guard.load(row_guards / "people.guard")(frame).scores
    lines = frame[["size", "weight", "town"]].to_csv(index=False, header=False).splitlines()
    before = served.client.get("/v1/traffic", params={"guard": "people"}).json()["samples"]
    text = "\n".join(["size,weight,town", lines[0], "1,heavy,a", lines[1], "1,2", lines[2]])
    found = checked(served, text, "text/csv", "people").json()
    np.testing.assert_allclose([found[i]["score"] for i in (0, 2, 4)], good, rtol=1e-6)
    assert found[1]["error"] == "column 'weight' holds 'heavy' here, which is no number"
    assert found[3]["error"] == "it has 2 cells, but the header 3 columns"
    assert [one["file"] for one in found] == [f"row {i}" for i in range(1, 6)]
    assert served.client.get("/v1/traffic", params={"guard": "people"}).json()["samples"] == before + 3
    found = checked(served, "size,weight,town\n1,heavy,Ulm\n", "text/csv", "people").json()  # and no other row
    assert "'heavy' here" in found[0]["error"]
    rows = [*json.loads(frame.to_json(orient="records")), 5, {"size": 1, "weight": [2], "town": "a"}]
    found = checked(served, json.dumps(rows), "application/json", "people").json()
    np.testing.assert_allclose([one["score"] for one in found[:3]], good, rtol=1e-6)
    assert found[3]["error"] == "a row is an object, {column: cell}"
    assert "holds [2] here, which is no number" in found[4]["error"]
    given = inputs(frame)
    given[2]["data"][1], given[0]["data"][1] = "x", 1e309
    wrong = served.client.post("/v2/models/people/infer", content=json.dumps({"inputs": given}))
    assert wrong.status_code == 400  # a tensor has no place for an error
    assert wrong.json()["error"].startswith("row 2: column 'size' holds inf here, which is infinite or above 1.8e308")


def test_a_missing_cell_and_an_unknown_column_are_errors_of_their_own_rows(row_guards, tmp_path):
    of.Guard.build_rows(people(300, 0).drop(columns="group")).save(tmp_path / "strict.guard")
    rows = json.loads(people(3, 1).drop(columns="group").to_json(orient="records"))
    rows[1]["size"] = None
    rows.append(rows[0] | {"extra": 1})
    with running(tmp_path / "strict.guard") as service:
        found = service.client.post("/v1/check", json=rows).json()
        told = ["its cell in column 'size' is missing", None, "it has column 'extra', which the guard does not know"]
        assert [one["error"] for one in found] == [None, *told]
        text = pd.DataFrame(rows[:3]).assign(ready="true").to_csv(index=False)
        answer = checked(service, text, "text/csv", "strict")
        assert answer.status_code == 400
        assert answer.json()["error"] == "the first line has column 'ready', which the guard does not know"
        given = [*inputs(people(3, 1)), {"name": "ready", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]
        answer = service.client.post("/v2/models/strict/infer", json={"inputs": given})
        assert (answer.status_code, answer.json()["error"]) == (
            400,
            "the request has column 'ready', which the guard does not know",
        )
        metrics = service.client.get("/metrics").text
    assert 'outfield_samples_total{decision="error",model_name="strict"} 2.0' in metrics


def test_rows_of_features_as_lists_of_numbers(served, row_guards):
    rows = make_set(n=3, seed=3).features
    expected = of.Guard.load(row_guards / "plain.guard")(rows).scores
    width = rows.shape[1]
    listed = [*rows.tolist(), rows[0].tolist()[:-1], [None] * width, ["x"] * width, [1e39] * width, {}]
    found = checked(served, json.dumps(listed), "application/json", "plain").json()
    np.testing.assert_allclose([one["score"] for one in found[:3]], expected, rtol=1e-6)
    said = [f"it has {width - 1} numbers; this guard takes {width}", "a number is missing", "it is no list of numbers"]
    for one, text in zip(found[3:], [*said, "a number is missing, infinite", "it is no list"], strict=True):
        assert one["error"].startswith(text)
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist())
    for head in ("", ",".join(f"feature_{i}" for i in range(width)) + "\n"):
        found = checked(served, head + text, "text/csv", "plain").json()
        np.testing.assert_allclose([one["score"] for one in found], expected, rtol=1e-6)


def test_files_of_a_form_are_tables_each_with_its_own_errors(served):
    good = people(2, 1)[["size", "weight", "town"]]
    files = {
        "a.csv": good.to_csv(index=False),
        "b.csv": "size,town\n1,x\n",
        "c.json": good.to_json(orient="records"),
        "photo.png": b"\x89PNG\xff",
        "d.csv": 'size,weight,town\n1,2,"x',
        "e.csv": "size,size,town\n1,2,x",
        "f.csv": "",
        "g.json": "{}",
    }
    answer = served.client.post("/v1/check", files=[("file", one) for one in files.items()]).json()
    told = {one["file"]: one["error"] for one in answer}
    assert [*told] == ["a.csv row 1", "a.csv row 2", "b.csv", "c.json row 1", "c.json row 2", *list(files)[3:]]
    said = {
        "b.csv": "lacks column 'weight'", "photo.png": "no CSV in UTF-8", "d.csv": "no CSV in UTF-8: unexpected end of data",
        "e.csv": "names 'size' twice", "f.csv": "there are no rows", "g.json": "rows in JSON are a list",
    }  # fmt: skip
    for name, error in told.items():
        assert said[name] in error if name in said else error is None
    wrong = checked(served, '{"a"', "application/json", "people")
    assert wrong.status_code == 400
    assert "this is no JSON in UTF-8" in wrong.json()["error"]


def test_cells_of_a_csv(tmp_path):
    frame = pd.DataFrame({"x": np.arange(300.0) % 7, "on": np.arange(300) % 2 == 0, "t": ["a", "b", "c"] * 100})
    of.Guard.build_rows(frame, missing="median").save(tmp_path / "cells.guard")
    text = "x,on,t\n 3 ,TRUE,a\n3,1,a\n1_0,0,a\n3,maybe,a\nNA,null,\n"
    with running(tmp_path / "cells.guard") as service:
        found = checked(service, text, "text/csv", "cells").json()
    assert found[0]["score"] == found[1]["score"]
    said = [None, None, "column 'x' holds '1_0' here, which is no number", "neither true nor false", None]
    for one, text in zip(found, said, strict=True):
        assert one["error"] is None if text is None else text in one["error"]


def test_images_are_refused_and_others_told(served):
    answer = checked(served, b"not an image", "image/png", "people")
    assert answer.status_code == 400
    told = "looks at rows, not at images; send them as text/csv or application/json, with size, weight, town"
    assert told in answer.json()["error"]
    many = asked(served, "people", inputs(people(65, 1)))
    assert many.status_code == 413
    assert "there are 65 rows in the request" in many.json()["error"]
    about = served.client.get("/v1/guards").json()
    assert [one["name"] for one in about[0]["inputs"]] == ["size", "weight", "town"]
    assert about[1]["inputs"] == served.client.get("/v2/models/plain").json()["inputs"]
    assert about[0]["network"].startswith("Guard(a table of 3 columns")
    assert served.client.post("/v1/reload").json() == {"reloaded": {"people": True, "plain": True}}


@pytest.mark.parametrize(("shape", "status"), [([4], 200), ([4, 1], 200), ([1, 4], 200), ([2, 2], 400)])
def test_shapes_of_a_column(served, shape, status):
    given = inputs(people(4, 1))
    given[0]["shape"] = shape
    answer = asked(served, "people", given)
    assert answer.status_code == status
    assert status == 200 or "input 'size' has shape [2, 2]; a column is [N] or [N, 1]" in answer.json()["error"]
