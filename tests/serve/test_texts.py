"""Guards of texts over HTTP: JSON, CSV, the Open Inference Protocol, the page, and what is kept for review."""

from __future__ import annotations

import json
import struct

import pytest
from tests.helpers.service import running
from tests.helpers.texts import guard_of_topics, sentences
from tests.serve.test_events import HEADERS

pytest.importorskip("transformers")
TEXTS = ["the car is a bus near the tram", 'bread, "soup"\nand rice', *sentences("food", 3)]


@pytest.fixture(scope="module")
def guard():
    return guard_of_topics()


@pytest.fixture(scope="module")
def service(guard, tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "topics.guard"
    guard.save(path)
    with running(path) as found:
        yield found


def check(service, body, kind="application/json", status=200):
    content = body if kind == "text/csv" else json.dumps(body)
    answer = service.client.post("/v1/check", content=content.encode(), headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_texts_in_json_and_csv(service, guard):
    wanted = guard(TEXTS).scores.tolist()
    quoted = "".join('"{}",1\n'.format(text.replace('"', '""')) for text in TEXTS)
    for body, kind in (
        (TEXTS, "application/json"),
        ([{"text": text, "id": 3} for text in TEXTS], "application/json"),
        (f"text,id\n{quoted}", "text/csv"),
    ):
        found = check(service, body, kind)
        assert [one["score"] for one in found] == wanted
        assert found[1]["file"] == "row 2"
    for one in (TEXTS[0], {"text": TEXTS[0]}):
        assert [each["class_name"] for each in check(service, one)] == ["vehicles"]


def test_what_is_no_text_does_not_keep_others_from_a_verdict(service):
    found = check(service, ["a cat", "", None, 3, {"text": 4}, {}, {"text": "a dog"}])
    errors = [one["error"] for one in found]
    assert errors[0] is errors[6] is None
    assert errors[1] == "the text is empty"
    assert all("no text" in one or "object" in one for one in errors[2:6])
    assert "no column 'text'" in check(service, [{"words": "a cat"}], status=400)["error"]
    answer = service.client.post("/v1/check?why=true", json=["a cat"])
    assert answer.status_code == 400
    assert "looks at texts" in answer.json()["error"]
    answer = service.client.post("/v1/check", content=b"x", headers={"Content-Type": "image/png"})
    assert "looks at texts, not at images" in answer.json()["error"]


def test_the_inference_protocol(service, guard):
    assert service.client.get("/v2/models/topics").json()["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [-1]}
    ]
    told = {"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)]}
    wanted = guard(TEXTS)
    answer = service.client.post("/v2/models/topics/infer", json={"inputs": [{**told, "data": TEXTS}]})
    found = {one["name"]: one["data"] for one in answer.json()["outputs"]}
    assert found["score"] == pytest.approx(wanted.scores)
    assert found["label"] == [one.class_index for one in wanted]
    raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in TEXTS)
    head = json.dumps({"inputs": [{**told, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = service.client.post("/v2/models/topics/infer", content=head + raw, headers=headers)
    assert answer.json()["outputs"][0]["data"] == found["score"]
    for shape in ([len(TEXTS)], [len(TEXTS), 1]):
        asked = {"inputs": [{**told, "shape": shape, "data": TEXTS}]}
        answer = service.client.post("/v1/events", json=asked, headers=HEADERS)
        assert [one["score"] for one in answer.json()] == pytest.approx(wanted.scores)


def test_the_page_takes_lines(opened, service):
    with opened(service, quiet=True) as page:
        assert "knows texts of 2 kinds: vehicles, animals" in page.locator("#about").inner_text()
        page.locator("#rows").fill('the car is bus near tram\n\nbread, "soup" and rice\n')
        page.get_by_role("button", name="Check texts").click()
        page.get_by_text("2 texts checked, 1 OOD").wait_for()
        items = page.locator("#images > li")
        assert [items.nth(i).get_attribute("class") for i in range(2)] == ["ok", "ood"]
        assert 'bread, "soup" and rice' in items.nth(1).inner_text()
        given = {"name": "a.csv", "mimeType": "text/csv", "buffer": b'id,text\n1,"a cat, a dog"\n'}
        page.set_input_files("#files", [given])
        page.get_by_text("1 text checked").wait_for()
