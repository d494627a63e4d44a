"""CloudEvents as KServe's payload logger posts them: judged as the guard does, answered by an event, or refused."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from starlette.datastructures import Headers
from tests.guard.test_rows import odd, people
from tests.helpers.samples import make_set
from tests.helpers.service import parsed_metrics, png, running

import outfield as of
from outfield.serve import Limits
from outfield.serve.body import event_of

HEADERS = {  # of kserve 0.16, pkg/logger/worker.go
    "Ce-Specversion": "1.0",
    "Ce-Id": "7f0b-1",
    "Ce-Source": "http://localhost:9081/",
    "Ce-Type": "org.kubeflow.serving.inference.request",
    "Ce-Time": "2026-03-01T10:00:00.5Z",
    "Ce-Inferenceservicename": "cats",
    "Ce-Namespace": "default",
    "Ce-Component": "predictor",
    "Ce-Endpoint": "",
    "Ce-Metadata": "%7B%22X-Request-Id%22:%5B%225%22%5D%7D",
    "Content-Type": "application/json",
}


JSON = {"Content-Type": "application/cloudevents+json"}
STRUCTURED = {"specversion": "1.0", "id": "7", "source": "x", "type": "y"}


@pytest.fixture(scope="module")
def service(files, row_guards):
    with running(files["fused"], *(row_guards / f"{name}.guard" for name in ("people", "sizes", "plain"))) as found:
        yield found


def post(service, said, headers=HEADERS, guard="fused", **others):
    content = said if isinstance(said, bytes) else json.dumps(said).encode()
    query = {} if guard is None else {"guard": guard}
    return service.client.post("/v1/events", content=content, headers={**headers, **others}, params=query)


def encoded(images):
    return [base64.b64encode(png(one)).decode() for one in images]


def v2(name, datatype, data, **others):
    shape = [*np.shape(data)]
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}], **others}


def seen(service, guard):
    return service.client.get("/v1/traffic", params={"guard": guard}).json()["samples"]


def told(answer):
    assert answer.status_code == 200, answer.text
    return [(one["is_ood"], one["score"], one["error"]) for one in answer.json()]


def near(answer, expected):
    found = told(answer)
    np.testing.assert_allclose([score for _, score, _ in found], expected.scores, rtol=1e-4)
    return [ood for ood, _, _ in found] == expected.is_ood.tolist()


def test_a_request_of_kserves_logger_is_judged_and_counted(service, files, images):
    before, guard = seen(service, "fused"), of.Guard.load(files["fused"], device="cpu")
    asked = v2("input-0", "BYTES", encoded(images), id="5", outputs=[{"name": "predict"}])
    answer = post(service, asked)
    assert near(answer, guard(images))
    assert {one["is_ood"] for one in answer.json()} == {True, False}
    assert seen(service, "fused") == before + 5
    about = {name: value for name, value in answer.headers.items() if name.startswith("ce-")}
    assert about == {
        "ce-specversion": "1.0",
        "ce-type": "org.kubeflow.serving.inference.outlier",
        "ce-source": "/v1/events?guard=fused",
        "ce-id": "7f0b-1",
        "ce-inferenceservicename": "cats",
        "ce-namespace": "default",
        "ce-component": "predictor",
        "ce-endpoint": "",
    }
    assert answer.headers["content-type"] == "application/json"
    metrics = parsed_metrics(service.client.get("/metrics").text)
    assert metrics["outfield_requests_total", ("route", "/v1/events"), ("status", "200")] >= 1


def test_structured_mode_says_the_same(service, images):
    about = {name[3:].lower(): value for name, value in HEADERS.items() if name.startswith("Ce-")}
    asked = v2("image", "BYTES", encoded(images[:2]))
    kind = {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
    first = post(service, asked)
    for data in ({"data": asked}, {"data_base64": base64.b64encode(json.dumps(asked).encode()).decode()}):
        answer = post(service, {**about, "id": "ä \ud800\n", **data}, kind)
        assert told(answer) == told(first)
        assert answer.headers["ce-id"] == "%C3%A4%20?%0A"
        assert answer.headers["ce-inferenceservicename"] == "cats"


def test_an_event_that_answers_is_an_event_of_its_own_id(service):
    """Percent-decoded once, and encoded again."""
    headers = {**HEADERS, "Ce-Id": '"a%20\\"b%25"', "Ce-Inferenceservicename": "sizes"}
    answer = post(service, {"instances": [[1.0, 2.0]]}, headers, guard=None)
    event = event_of(Headers(answer.headers), bytearray(answer.content))
    assert event.about["id"] == 'a "b%'
    assert event.about["source"] == "/v1/events?guard=sizes"


def test_binary_tensors_with_the_length_that_the_logger_kept(service, images):
    pixels = np.stack(images)
    tensor = {
        "name": "x",
        "datatype": "UINT8",
        "shape": [*pixels.shape],
        "parameters": {"binary_data_size": pixels.nbytes},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    kept = json.dumps({"Inference-Header-Content-Length": [str(len(head))]})
    answer = post(service, head + pixels.tobytes(), **{"Ce-Metadata": kept, "Content-Type": "application/octet-stream"})
    assert told(answer) == told(post(service, v2("y", "UINT8", pixels.tolist())))
    assert "no JSON" in post(service, head + pixels.tobytes()).json()["error"]


@pytest.mark.parametrize(
    "instances",
    [
        lambda images: [{"b64": one} for one in encoded(images)],
        lambda images: [{"image_bytes": {"b64": one}} for one in encoded(images)],
        lambda images: [one.tolist() for one in images],
    ],
)
def test_images_of_v1(service, files, images, instances):
    answer = post(service, {"instances": instances(images)})
    assert near(answer, of.Guard.load(files["fused"], device="cpu")(images))


def test_a_broken_image_is_told_and_the_others_are_judged(service, images):
    found = told(post(service, {"instances": [encoded(images)[0], base64.b64encode(b"x").decode()]}))
    assert [error is None for _, _, error in found] == [True, False]


def test_rows_of_a_table(service, row_guards):
    frame = [*people(4, 1).itertuples(index=False), *odd(2).itertuples(index=False)]
    expected = of.Guard.load(row_guards / "people.guard")(of_rows(frame))
    rows = [dict(zip(("size", "weight", "town"), row[:3], strict=True)) for row in frame]
    assert near(post(service, {"instances": rows}, guard="people"), expected)
    assert near(post(service, {"instances": [[*row.values()] for row in rows]}, guard="people"), expected)
    found = told(post(service, {"instances": [rows[0], [1.0], "x"]}, guard="people"))
    assert [error is None for _, _, error in found] == [True, False, False]


def of_rows(rows):
    return {name: np.array([row[at] for row in rows], object) for at, name in enumerate(("size", "weight", "town"))}


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_a_matrix_stands_for_the_columns_or_the_features(service, row_guards, datatype):
    frame = people(5, 1)[["size", "weight"]]
    answer = post(service, v2("predict", datatype, frame.to_numpy().tolist()), guard="sizes")
    assert near(answer, of.Guard.load(row_guards / "sizes.guard")(frame))
    rows = make_set(n=5, seed=1).features
    expected = of.Guard.load(row_guards / "plain.guard")(of.FeatureSet(rows))
    assert near(post(service, v2("input-0", datatype, rows.tolist()), guard="plain"), expected)
    assert near(post(service, v2("features", datatype, rows.tolist()), guard="plain"), expected)
    assert near(post(service, {"instances": rows.tolist()}, guard="plain"), expected)


@pytest.mark.parametrize(
    "kind", ["org.kubeflow.serving.inference.response", "org.kubeflow.serving.inference.outlier", "x"]
)
def test_other_events_are_not_looked_at(service, kind):
    before = seen(service, "fused")
    answer = post(service, b"{", **{"Ce-Type": kind})
    assert (answer.status_code, answer.content) == (202, b"")
    assert "ce-type" not in answer.headers
    assert seen(service, "fused") == before


def test_which_guard(service):
    asked, named = {"instances": [[1.0, 2.0]]}, {"Ce-Inferenceservicename": "sizes"}
    assert post(service, asked, guard=None, **named).headers["ce-source"] == "/v1/events?guard=sizes"
    answer = post(service, asked, guard=None)  # of a service whose name no guard has, while there are several guards
    assert (answer.status_code, answer.json()["error"][:25]) == (404, "there is no guard 'cats';")
    assert post(service, asked, guard="none").status_code == 404


@pytest.mark.parametrize(
    ("content", "headers", "guard", "status", "message"),
    [
        (b"{", {}, "fused", 400, "no JSON"),
        (b"[" * 100_000, {}, "fused", 400, "no JSON"),
        (b"", {}, "fused", 400, "no JSON"),
        (b"[1]", {}, "fused", 400, "list of inputs"),
        (b"{}", {}, "plain", 400, "list of inputs"),
        ({"instances": [3]}, {}, "fused", 400, "an image in Base64"),
        ({"instances": ["?"]}, {}, "fused", 400, "is no image"),
        ({"instances": [[[[1.5, 1, 1]]]]}, {}, "fused", 400, "whole numbers"),
        ({"instances": [[[[256, 1, 1]]]]}, {}, "fused", 400, "whole numbers"),
        ({"instances": []}, {}, "people", 400, "no rows"),
        ({"instances": ["x"] * 65}, {}, "plain", 200, ""),
        (v2("x", "FP32", [[1.0, 2.0]]), {}, "plain", 400, "shape [1, 2]; this guard looks at"),
        (v2("x", "BYTES", ["a"]), {}, "plain", 400, "looks at numbers"),
        (v2("x", "INT64", [1]), {}, "fused", 400, "datatype"),
        (b"{}", {"Ce-Specversion": "0.3"}, "fused", 400, "CloudEvents 0.3; send 1.0"),
        (b"{}", {"Ce-Id": ""}, "fused", 400, "id is missing"),
        (b"{}", {"Ce-Id": "%ff"}, "fused", 400, "cannot be read"),
        (b"{}", {"Ce-Id": "a" * 3000}, "fused", 400, "longer than"),
        (b"{}", {"Ce-Metadata": "[1]"}, "fused", 400, "list of inputs"),
        ({**STRUCTURED, "id": 7}, JSON, "fused", 400, "id is missing"),
        (
            {**STRUCTURED, "data": {}, "data_base64": "e30="},
            JSON,
            "fused",
            400,
            "is a text, and there where data is not",
        ),
        ({**STRUCTURED, "data_base64": 5}, JSON, "fused", 400, "data_base64 is a text, and there where data is not"),
        (b"{}", JSON, "fused", 400, "specversion, id, source and type are missing"),
        (b"[]", JSON, "fused", 400, "cannot be read"),
        (b"[]", {"Content-Type": "application/cloudevents-batch+json"}, "fused", 415, "one by one"),
    ],
)
def test_what_is_wrong_is_told(service, content, headers, guard, status, message):
    answer = post(service, content, guard=guard, **headers)
    assert answer.status_code == status
    assert status == 200 or message in answer.json()["error"]


def test_without_headers_it_is_no_event(service):
    answer = post(service, b"{}", headers={})
    assert answer.json() == {
        "error": "not a CloudEvent: specversion, id, source and type are missing (headers ce-…, or a JSON object)"
    }


def test_limits_and_tokens_hold(files, images):
    with running(files["ssd"], limits=Limits(body=20_000, images=2), token="secret") as service:
        asked = {"instances": encoded(images[:1])}
        assert post(service, asked).status_code == 404  # no guard of this name
        assert post(service, asked, guard=None).status_code == 200
        assert post(service, asked, guard=None, Authorization="Bearer other").status_code == 401
        assert post(service, b" " * 20_001, guard=None).status_code == 413
        assert post(service, {"instances": [encoded(images)[0]] * 3}, guard=None).status_code == 413
