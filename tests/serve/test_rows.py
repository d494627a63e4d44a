"""Guards of rows behind the Open Inference Protocol."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.guard.test_rows import odd, people
from tests.helpers.samples import make_set
from tests.helpers.service import running

import outfield as of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("row guards")
    of.Guard.build_rows(people(400, 0), label="group", missing="median").save(folder / "people.guard")
    of.Guard.build_rows(make_set(n=300), detector="SSD").save(folder / "plain.guard")
    return folder


@pytest.fixture(scope="module")
def served(folder):
    with running(folder / "people.guard", folder / "plain.guard") as service:
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


def test_columns_are_inputs(served, folder):
    said = served.client.get("/v2/models/people").json()["inputs"]
    assert said == [
        {"name": "size", "datatype": "FP64", "shape": [-1]},
        {"name": "weight", "datatype": "FP64", "shape": [-1]},
        {"name": "town", "datatype": "BYTES", "shape": [-1]},
    ]
    frame = pd.concat([people(5, 1), odd(5)], ignore_index=True)
    answer = asked(served, "people", inputs(frame), id="7")
    expected = of.Guard.load(folder / "people.guard")(frame)
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
    import json

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


def test_features_are_served_as_they_are(served, folder):
    rows = make_set(n=6, seed=3).features
    answer = asked(
        served,
        "plain",
        [{"name": "features", "datatype": "FP32", "shape": [*rows.shape], "data": rows.flatten().tolist()}],
    )
    expected = of.Guard.load(folder / "plain.guard")(rows)
    np.testing.assert_allclose(column(answer, "score"), expected.scores, rtol=1e-6)
    wrong = asked(served, "plain", [{"name": "logits", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}])
    assert wrong.status_code == 400


def test_images_are_refused_and_others_told(served):
    answer = served.check(b"not an image")
    assert answer.status_code == 400
    told = "looks at rows, not at images; POST them to /v2/models/people/infer, whose inputs are size, weight, town"
    assert told in answer.json()["error"]
    many = asked(served, "people", inputs(people(65, 1)))
    assert many.status_code == 413
    assert "there are 65 rows in the request" in many.json()["error"]
    about = served.client.get("/v1/guards").json()
    assert [one["name"] for one in about[0]["inputs"]] == ["size", "weight", "town"]
    assert about[1]["inputs"] == served.client.get("/v2/models/plain").json()["inputs"]
    assert about[0]["network"].startswith("Guard(a table of 3 columns")
    assert served.client.post("/v1/reload").json() == {"reloaded": {"people": True, "plain": True}}
