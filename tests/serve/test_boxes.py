"""Guards of boxes over HTTP: verdicts on each box of an image, and the page that draws them."""

from __future__ import annotations

import base64
import functools

import numpy as np
import pytest
import torch
from tests.helpers.boxes import scene, scenes, squares
from tests.helpers.service import parsed_metrics, png, running
from tests.serve.test_events import HEADERS

import outfield as of
from outfield.serve import Keep, Service, Settings


@pytest.fixture(scope="module")
def guard():
    return of.Guard.build(of.Boxes(squares, ["red", "green"]), scenes(120), device="cpu")


@pytest.fixture(scope="module")
def service(guard, tmp_path_factory):
    path = tmp_path_factory.mktemp("boxes") / "cells.guard"
    guard.save(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of.Guard, "load", functools.partial(of.Guard.load, network=squares))
        with running(path) as found:
            yield found


def test_a_list_for_each_image(service, guard):
    images = [scene(1, "red", "blue")[0], scene(2)[0], scene(3, "green", "red", "red", "red")[0]]
    found = service.check(*map(png, images), b"no image").json()
    assert [len(one["boxes"]) for one in found] == [2, 0, 4, 0]
    assert "not an image" in found[3]["error"]
    for one, expected in zip(found, guard(images), strict=False):
        assert one["is_ood"] == expected.is_ood
        assert [box["score"] for box in one["boxes"]] == [box.score for box in expected.boxes]
        assert [box["left"] for box in one["boxes"]] == [box.left for box in expected.boxes]


def test_a_logged_request(service, guard):
    images = [scene(1, "red", "blue")[0], scene(2)[0]]
    said = {"instances": [{"b64": base64.b64encode(png(one)).decode()} for one in images]}
    found = service.client.post("/v1/events", json=said, headers=HEADERS).json()
    assert [len(one["boxes"]) for one in found] == [2, 0]
    assert [one["is_ood"] for one in found] == [one.is_ood for one in guard(images)]
    before = service.client.get("/v1/traffic").json()["samples"]
    row = {"name": "features", "datatype": "FP32", "shape": [1, 6], "data": [0.5] * 6}
    answer = service.client.post("/v1/events", json={"inputs": [row]}, headers=HEADERS)
    assert answer.status_code == 400
    assert "a guard of boxes looks at images" in answer.json()["error"]
    assert service.client.get("/v1/traffic").json()["samples"] == before


def test_boxes_are_counted(service):
    before = service.client.get("/v1/traffic").json()
    service.check(png(scene(1, "red", "blue")[0]), png(scene(2)[0]))
    after = service.client.get("/v1/traffic").json()
    assert after["samples"] - before["samples"] == 1  # one box of each image, of some
    metrics = [parsed_metrics(service.client.get("/metrics").text)]
    service.check(png(scene(1, "red", "blue")[0]), png(scene(2)[0]))
    metrics.append(parsed_metrics(service.client.get("/metrics").text))
    for decision in ("id", "ood"):
        counts = [one["outfield_samples_total", ("decision", decision), ("model_name", "cells")] for one in metrics]
        assert counts[1] - counts[0] == 1


def alike(images):
    """Many boxes, whose rows differ more from image to image than within one."""
    found = []
    for one in images:
        rng = np.random.default_rng(int(1e6 * one.mean()))
        count = rng.integers(6, 14)
        rows = 2 * rng.standard_normal(4) + rng.standard_normal((count, 4))
        boxes = {"boxes": [[0, 0, 8, 8]] * count, "labels": [0] * count, "scores": [0.9] * count}
        found.append({**boxes, "features": rows})
    return found


def test_boxes_of_one_image_are_one_sample_of_drift(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 600, 8, 8, 3), np.uint8)
    for images in pixels:
        annotated = [(one, [[0, 0, 8, 8]], ["a"]) for one in images[:150]]
        guard = of.Guard.build(of.Boxes(alike, ["a"]), annotated, detector="SSD", device="cpu")
        guard.save(tmp_path / "a.guard")
        again = of.Guard.load(tmp_path / "a.guard", "cpu", network=alike)
        assert torch.equal(again.watched.reference, guard.watched.reference)
        monkeypatch.setattr(of.Guard, "load", lambda *_, again=again: again)
        assert len(guard.watched.reference) < len(guard.threshold.reference) / 6
        verdicts = guard(images[150:])
        assert of.Drift(guard.threshold).update(verdicts.boxes.scores)
        service = Service([tmp_path / "a.guard"], Settings(device="cpu"))
        service.model("a").batcher._done(again, verdicts)
        service.stop()
        assert service.model("a").drift.summary()["samples"] == 450
        assert not service.model("a").drift.alarm
        monkeypatch.undo()


def test_nothing_is_kept_for_review(guard, tmp_path, monkeypatch):
    monkeypatch.setattr(of.Guard, "load", lambda *_: guard)
    with pytest.raises(of.InputError, match="cells judges boxes; serve it without --keep"):
        Service([tmp_path / "cells.guard"], Settings(keep=Keep(tmp_path / "kept")))
    assert not (tmp_path / "kept").exists()


def test_the_inference_protocol_is_refused_with_the_reason(service):
    answer = service.client.post("/v2/models/cells/infer", json={})
    assert answer.status_code == 400
    assert "POST /v1/check" in answer.json()["error"]
    about = service.client.get("/v2/models/cells").json()
    assert [one["name"] for one in about["inputs"]] == ["image", "pixels"]  # of logged requests, see above
    assert about["outputs"] == []


def test_the_page_draws_them(opened, service, guard):
    images = [scene(1, "red", "blue", "green")[0], scene(2)[0]]
    with opened(service, quiet=True) as page:
        given = [{"name": f"{i}.png", "mimeType": "image/png", "buffer": png(one)} for i, one in enumerate(images)]
        page.set_input_files("#files", given)
        page.get_by_text("2 images checked, 1 OOD").wait_for()
        first, second = page.locator("#images > li").nth(0), page.locator("#images > li").nth(1)
        assert first.locator("rect").count() == 3
        assert first.locator("rect.ood").count() == 1
        assert float(first.locator("rect.ood").get_attribute("x")) == 18
        assert first.locator("text.ood").text_content() == f"OOD {guard(images[0]).boxes[1].class_name}"
        assert "1 of 3 OOD" in first.inner_text()
        assert [one.split()[0] for one in first.locator(".found li").all_inner_texts()] == ["ID", "OOD", "ID"]
        assert "no boxes" in second.inner_text()
        assert page.locator("#scores .mark").count() == 3
        page.locator("#threshold").focus()
        page.keyboard.press("Home")
        assert first.locator("rect.ood").count() == 3
        assert "3 are OOD; 2 would change" in page.locator("#scores-say").inner_text()
