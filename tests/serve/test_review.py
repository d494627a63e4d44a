"""Inputs that are kept for review: what is kept, how it is listed and reviewed, and what goes wrong."""

import datetime
import json
import threading

import numpy as np
import pytest
from tests.guard.test_rows import odd
from tests.helpers.guards import labelled, noise
from tests.helpers.program import outfield
from tests.helpers.samples import make_set
from tests.helpers.service import parsed_metrics, png, running

import outfield as of
from outfield.guard import ReviewFolder
from outfield.serve import Keep


def kept(service, guard="ssd"):
    """The items, once all that waits is written."""
    queue = service.service.models[guard].queue
    queue._writer.submit(len, ()).result(20)
    return {own: queue.folder.item(own) for own in queue.folder.ids()}


def results(service, guard="ssd"):
    samples = parsed_metrics(service.client.get("/metrics").text)
    names = ("kept", "dropped", "failed", "removed")
    return {one: samples["outfield_kept_total", ("model_name", guard), ("result", one)] for one in names}


@pytest.fixture(scope="module")
def images():
    return [png(one) for one in [*labelled(4, 5).images, *noise(3)]]


@pytest.fixture
def service(files, tmp_path):
    with running(files["ssd"], files["fused"], keep=Keep(tmp_path / "kept"), token="secret") as found:
        yield found


def feedback(service, **said):
    return service.client.post("/v1/feedback", json=said)


class TestKeeping:
    def test_what_was_refused_is_kept_as_it_came(self, service, images, tmp_path):
        verdicts = service.check(*images).json()
        items = kept(service)
        refused = [one for one in verdicts if one["is_ood"]]
        assert len(items) == len(refused) >= 2
        for item, verdict in zip(items.values(), refused, strict=True):
            assert item["verdict"] == verdict
            assert item["guard"] == "ssd"
            assert item["fingerprint"] == service.service.models["ssd"].guard.fingerprint
            assert not item["sample"]
            assert item["review"] is None
            place = tmp_path / "kept" / "ssd" / item["image"]
            assert place.read_bytes() == images[int(verdict["file"][0])]
            assert place.suffix == ".png"
        assert not kept(service, "fused")
        assert results(service) == {"kept": len(refused), "dropped": 0, "failed": 0, "removed": 0}

    def test_pixels_of_the_protocol_are_kept_as_png(self, service):
        pixels = noise(2)
        one = {"name": "pixels", "datatype": "UINT8", "shape": [*pixels.shape], "data": pixels.ravel().tolist()}
        service.client.post("/v2/models/ssd/infer", json={"inputs": [one]}).raise_for_status()
        folder = service.service.models["ssd"].queue.folder
        items = kept(service)
        assert len(items) == 2
        of_images = of.Guard.load(service.service.models["ssd"].path, device="cpu")
        for own, item in items.items():
            assert of_images(folder.image(own)).score == pytest.approx(item["verdict"]["score"], rel=1e-4)

    def test_nothing_is_kept_unless_it_is_asked_for(self, files, images):
        with running(files["ssd"]) as service:
            service.check(*images)
            assert service.client.get("/v1/guards").json()[0]["review"] is None
            for answer in (service.client.get("/v1/queue"), service.client.get(f"/v1/queue/r{'0' * 32}")):
                assert answer.status_code == 404
                assert "--keep" in answer.json()["error"]

    def test_the_random_sample_does_not_look_at_verdicts(self, files, images, tmp_path):
        keep = Keep(tmp_path, share=0.0, sample=0.5)
        with running(files["ssd"], keep=keep) as service:
            verdicts = [one for _ in range(5) for one in service.check(*images * 8).json()]
            items = kept(service)
        for refused in (True, False):
            all_of = sum(one["is_ood"] == refused for one in verdicts)
            some = sum(one["verdict"]["is_ood"] == refused for one in items.values())
            assert abs(some - all_of / 2) < 4.5 * np.sqrt(all_of / 4)  # of 100,000 such tests one fails
        assert all(one["sample"] and own[0] == "s" for own, one in items.items())

    def test_a_restart_and_a_second_server_go_on_with_the_folder(self, files, images, tmp_path):
        with running(files["ssd"], keep=Keep(tmp_path)) as one, running(files["ssd"], keep=Keep(tmp_path)) as other:
            one.check(images[4])
            first = [*kept(one)]
            other.check(images[5])
            kept(other)
            assert [*kept(one)][:1] == first
            assert len(kept(one)) == 2
            assert feedback(other, id=first[0], known=False).status_code == 200
        with running(files["ssd"], keep=Keep(tmp_path)) as service:
            assert [one["review"] is None for one in kept(service).values()] == [False, True]

    def test_the_oldest_go_where_there_is_no_room(self, files, images, tmp_path):
        (tmp_path / "ssd").mkdir()
        (tmp_path / "ssd" / "mine.txt").write_text("not an item")
        limit = 60_000
        with running(files["ssd"], keep=Keep(tmp_path, limit=limit)) as service:
            for _ in range(20):
                service.check(*images[4:])
            left = [*kept(service)]
            count = results(service)
        assert sum(one.stat().st_size for one in (tmp_path / "ssd").iterdir() if one.is_file()) <= limit
        assert count["removed"] == 60 - len(left) > 0
        assert count["kept"] == 60
        assert (tmp_path / "ssd" / "mine.txt").exists()
        with running(files["ssd"], keep=Keep(tmp_path, limit=limit)) as service:
            service.check(images[4])
            assert {*left[1:]} <= {*kept(service)} | {*left[:20]}

    def test_what_is_larger_than_its_share_of_the_limit_is_dropped(self, files, images, tmp_path):
        with running(files["ssd"], keep=Keep(tmp_path, limit=5_000)) as service:
            assert service.check(images[4]).status_code == 200
            assert not kept(service)
            assert results(service)["dropped"] == 1

    def test_a_full_disk_fails_no_request(self, service, images, monkeypatch, caplog):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("outfield.serve.queue.PAUSE", 0.01)
        monkeypatch.setattr("os.fsync", full)
        assert service.check(*images).status_code == 200
        assert not kept(service)
        assert results(service)["failed"] >= 2
        assert "not kept for review" in caplog.text
        monkeypatch.undo()
        service.check(images[4])
        assert len(kept(service)) == 1

    def test_a_slow_disk_keeps_nobody_waiting(self, files, images, tmp_path, monkeypatch):
        add, held = ReviewFolder.add, threading.Event()
        monkeypatch.setattr(ReviewFolder, "add", lambda self, *given: (held.wait(60), add(self, *given))[1])
        monkeypatch.setattr("outfield.serve.queue.PENDING", 30_000)
        with running(files["ssd"], keep=Keep(tmp_path, share=1.0)) as service:
            for _ in range(7):
                service.check(images[4])
            assert results(service)["dropped"] >= 1
            held.set()

    def test_the_options_of_the_command(self, files, tmp_path, monkeypatch):
        def stopped(_, settings):
            raise of.InputError(f"{settings.keep}")

        monkeypatch.setattr("outfield.serve.Service", stopped)
        serve = ("serve", files["ssd"], "--port", "0", "--device", "cpu", "--keep-sample", "0.25")
        assert "name a folder for it" in outfield(*serve, code=2).said
        said = outfield(*serve, "--keep", tmp_path, "--keep-share", "0.5", "--keep-limit", "999", code=2).said
        assert str(Keep(tmp_path, 0.5, 0.25, 999)) in said

    def test_settings_are_checked(self, tmp_path):
        for wrong in ({"share": 1.1}, {"sample": -0.1}, {"limit": 0}):
            with pytest.raises(of.InputError):
                Keep(tmp_path, **wrong)


class TestRows:
    @pytest.mark.filterwarnings("ignore:column .town.")  # has a text that no training row had
    def test_rows_of_tables_and_features_are_kept(self, row_guards, tmp_path):
        paths = row_guards / "people.guard", row_guards / "plain.guard"
        with running(*paths, keep=Keep(tmp_path / "kept", sample=1.0)) as service:
            frame = odd(3)[["size", "weight", "town"]]
            frame.loc[0, "town"] = '=HYPERLINK("http://x.y")<img src=x onerror=alert(1)>'
            body = frame.to_dict("records")
            body[1]["weight"] = None
            answer = service.client.post("/v1/check", json=[*body, {"size": "heavy"}])
            scores = [one["score"] for one in answer.json()[:3]]
            items = [*kept(service, "people").values()]
            assert [one["row"]["size"] for one in items] == frame["size"].tolist()
            assert items[0]["row"]["town"] == frame.loc[0, "town"]
            assert items[1]["row"]["weight"] is None
            guard = of.Guard.load(paths[0], device="cpu")
            again = guard({name: np.array([one["row"][name] for one in items], object) for name in items[0]["row"]})
            np.testing.assert_allclose(again.scores, scores)
            rows = make_set(n=2, seed=3).features
            service.client.post("/v1/check", json=rows.tolist(), params={"guard": "plain"}).raise_for_status()
            found = [one["row"]["features"] for one in kept(service, "plain").values()]
            np.testing.assert_array_equal(np.array(found, np.float32), rows.numpy())
            own = items[0]["id"]
            assert service.client.get(f"/v1/queue/{own}/image").status_code == 400
            assert feedback(service, id=own, known=True).status_code == 400  # of which class?
            name = guard.table.classes[1]
            assert feedback(service, id=own, known=True, **{"class": name}).json()["class"] == name


class TestReviewing:
    def test_the_queue_is_listed_in_pages(self, service, images, monkeypatch):
        monkeypatch.setattr("outfield.serve.queue.PAGE_SIZE", 2)
        for _ in range(5):
            service.check(images[4])
        items = [*kept(service)]
        first = service.client.get("/v1/queue", params={"guard": "ssd"}).json()
        assert [one["id"] for one in first["items"]] == items[:2]
        second = service.client.get("/v1/queue", params={"after": first["next"]}).json()
        last = service.client.get("/v1/queue", params={"after": second["next"]}).json()
        assert [one["id"] for one in (*second["items"], *last["items"])] == items[2:]
        assert last["next"] is None
        feedback(service, id=items[0], known=False)
        assert service.client.get("/v1/queue").json()["items"][0]["id"] == items[1]
        assert service.client.get("/v1/queue", params={"show": "all"}).json()["items"][0]["id"] == items[0]
        assert service.client.get("/v1/queue", params={"show": "sample"}).json()["items"] == []
        counts = {"items": 5, "reviewed": 1, "sample": 0, "sample_reviewed": 0}
        assert service.client.get("/v1/queue").json()["counts"] == counts
        assert service.client.get("/v1/queue", params={"show": "none"}).status_code == 400

    def test_an_item_and_what_people_say_of_it(self, service, images):
        service.check(images[4])
        ((own, item),) = kept(service).items()
        assert service.client.get(f"/v1/queue/{own}").json() == item
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(item["time"])
        assert datetime.timedelta() <= age < datetime.timedelta(minutes=5)
        answer = service.client.get(f"/v1/queue/{own}/image")
        assert answer.content == images[4]
        assert answer.headers["content-disposition"] == "attachment"
        assert feedback(service, id=own, known=True, **{"class": "down"}).json()["class"] == "down"
        assert feedback(service, id=own, known=True, **{"class": "left"}).json()["class"] == "left"
        assert feedback(service, id=own, known=False).json()["known"] is False  # whoever erred may say so
        (after,) = kept(service).values()
        assert {**after, "review": None} == item
        assert after["review"] == {"known": False, "class": None, "time": after["review"]["time"]}

    def test_what_is_no_feedback(self, service, images):
        service.check(images[4])
        (own,) = kept(service)
        wrong = [{"id": 7, "known": True}, {"id": own}, {"id": own, "known": 1}, {"id": own, "known": False, "more": 1}]
        wrong += [{"id": own, "known": False, "class": "down"}, {"id": own, "known": True}]
        wrong += [{"id": own, "known": True, "class": name} for name in ("cat", 0, True)]
        for said in ("", "{", "[]", "[" * 4000, *map(json.dumps, wrong)):
            answer = service.client.post("/v1/feedback", content=said)
            assert answer.status_code == 400, (said, answer.text)
        assert kept(service)[own]["review"] is None

    def test_attackers(self, service, images, tmp_path):
        service.check(images[4], images[5])
        own, other = kept(service)
        folder, secret = tmp_path / "kept" / "ssd", tmp_path / "secret.json"
        secret.write_text('{"id": "x"}')
        outside = ("../secret", "../../secret.json", "%2e%2e%2fsecret")
        for name in (*outside, own.upper(), own[:-1], f"{own}.json", "x" * 5000):
            assert service.client.get(f"/v1/queue/{name}").status_code == 404
            assert feedback(service, id=name, known=False).status_code in (404, 413)
        assert feedback(service, id=own + "\0", known=False).status_code == 404
        assert service.client.post("/v1/feedback", content=b" " * 100_000).status_code == 413
        for path in ("/v1/queue", f"/v1/queue/{own}", f"/v1/queue/{own}/image"):
            assert service.client.get(path, headers={"Authorization": ""}).status_code == 401
        assert service.client.post("/v1/feedback", json={}, headers={"Authorization": ""}).status_code == 401
        image, link = folder / f"{own}.png", folder / f"{other}.review.json"
        image.unlink()
        image.symlink_to(secret)
        link.symlink_to(secret)
        assert service.client.get(f"/v1/queue/{own}/image").status_code == 500
        assert "secret" not in service.client.get("/v1/queue", params={"show": "all"}).text.replace(str(link), "")
        assert feedback(service, id=own, known=False).status_code == 200
        assert secret.read_text() == '{"id": "x"}'
        (folder / f"{own}.json").write_text(json.dumps({"id": own, "verdict": {}, "image": "../../secret.json"}))
        assert service.client.get(f"/v1/queue/{own}/image").status_code == 500
        listed = service.client.get("/v1/queue", params={"show": "all"}).json()["items"]
        assert "damaged" in listed[0]["error"]
        stray = folder / f"r{'0' * 32}.json"
        stray.symlink_to(secret)
        assert len(service.client.get("/v1/queue", params={"show": "all"}).json()["items"]) == 2

    def test_a_client_does_not_choose_names(self, service, images, tmp_path):
        files = [("file", ("../../evil\x00.png", images[4])), ("file", ("/etc/passwd", images[5]))]
        assert service.client.post("/v1/check", files=files).status_code == 200
        items = kept(service)
        assert len(items) == 2
        there = (one for one in (tmp_path / "kept" / "ssd").iterdir() if one.is_file())
        assert {one.name.partition(".")[0] for one in there} == {*items}
