"""The service over HTTP: verdicts are the guard's own, and whatever else comes is refused in the right way."""

import asyncio
import base64
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest
from tests.helpers.guards import labelled, noise, small_guard
from tests.helpers.service import parsed_metrics, png, running

import outfield as of
from outfield.serve import Limits, Service
from outfield.serve.routes import check_head


@pytest.fixture(scope="module")
def guard(files):
    return of.Guard.load(files["fused"], device="cpu")


@pytest.fixture(scope="module")
def service(files):
    with running(files["fused"], files["ssd"]) as found:
        yield found


@pytest.fixture(scope="module")
def images():
    return [*labelled(4, 5).images, *noise(2)]


def near(found, expected):
    """Whether two verdicts agree, but for the last bits that the size of a batch changes."""
    names = ("class_index", "class_name", "is_ood", "triggered_by")
    same = all(found[name] == getattr(expected, name) for name in names)
    close = np.isclose(found["score"], expected.score, rtol=1e-4) and abs(found["p_value"] - expected.p_value) < 0.02
    return same and close


class TestCheck:
    def test_verdicts_are_the_guards_own(self, service, guard, images):
        answer = service.check(*map(png, images))
        assert answer.status_code == 200
        found = answer.json()
        assert all(near(one, other) for one, other in zip(found, guard(images), strict=True))
        assert [one["file"] for one in found] == [f"{i}.png" for i in range(6)]
        assert {one["is_ood"] for one in found} == {True, False}
        assert set(found[0]) == set(guard(images[0]).to_dict())

    def test_the_body_may_be_one_image(self, service, guard, images):
        answer = service.client.post("/v1/check", content=png(images[0]), headers={"Content-Type": "image/png"})
        assert near(answer.json()[0], guard(images[0]))
        assert answer.json()[0]["file"] is None

    def test_a_broken_image_is_told_and_the_others_are_judged(self, service, guard, images):
        found = service.check(png(images[0]), png(images[1])[:60], b"", png(images[5]), b"a text").json()
        assert near(found[0], guard(images[0]))
        assert near(found[3], guard(images[5]))
        assert "1.png is truncated" in found[1]["error"]
        assert found[2]["error"].startswith("2.png is empty")
        assert "4.png is truncated, or is not an image" in found[4]["error"]
        assert [one["file"] for one in found] == [f"{i}.png" for i in range(5)]

    def test_another_guard_by_its_name(self, service, files, images):
        expected = of.Guard.load(files["ssd"], device="cpu")(images[0])
        assert near(service.check(png(images[0]), guard="ssd").json()[0], expected)
        assert service.check(png(images[0]), guard="none").status_code == 404

    @pytest.mark.parametrize(
        ("content", "kind", "status"),
        [
            (b"x", "text/plain", 415),
            (b"x", "multipart/form-data", 415),
            (b"x", "multipart/form-data; boundary=a", 400),
            (b"--a\r\n", "multipart/form-data; boundary=a", 400),
            (b"--a--\r\n", "multipart/form-data; boundary=a", 400),
            (b'--a\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n--a--\r\n', "multipart/form-data; boundary=a", 400),
            (b"x", "multipart/form-data; boundary=" + "x" * 5000, 400),
        ],
    )  # fmt: skip
    def test_what_is_no_form_with_files(self, service, content, kind, status):
        answer = service.client.post("/v1/check", content=content, headers={"Content-Type": kind})
        assert answer.status_code == status
        assert answer.json()["error"]


class TestInfer:
    def infer(self, service, said, name="fused", **about):
        return service.client.post(f"/v2/models/{name}/infer", json=said, **about)

    def columns(self, answer):
        assert answer.status_code == 200, answer.text
        return {one["name"]: one["data"] for one in answer.json()["outputs"]}

    def test_json_of_encoded_images(self, service, guard, images):
        data = [base64.b64encode(png(image)).decode() for image in images]
        for shape, given in (([6], data), ([6, 1], [[one] for one in data])):
            one = {"name": "image", "datatype": "BYTES", "shape": shape, "data": given}
            answer = self.infer(service, {"id": "7", "inputs": [one]})
            found, expected = self.columns(answer), guard(images)
            assert answer.json()["id"] == "7"
            assert answer.json()["model_name"] == "fused"
            np.testing.assert_allclose(found["score"], expected.scores, rtol=1e-4)
            assert found["is_ood"] == expected.is_ood.tolist()
            assert found["label"] == [one.class_index for one in expected]

    def test_features_where_the_detector_needs_no_more(self, service, files, images):
        guard = of.Guard.load(files["ssd"], device="cpu")
        rows = guard.backbone.extract(of.ImageArray(np.stack(images)), workers=0)
        shape, data = [*rows.features.shape], rows.features.tolist()
        asked = {"inputs": [{"name": "features", "datatype": "FP32", "shape": shape, "data": data}]}
        found = self.columns(self.infer(service, asked, "ssd"))
        np.testing.assert_allclose(found["score"], guard(images).scores, rtol=1e-4)
        assert found["label"] == rows.logits.argmax(1).tolist()
        refused = self.infer(service, asked)
        assert refused.status_code == 400
        assert "this guard scores" in refused.json()["error"]

    @pytest.mark.parametrize(
        "said",
        [
            [],
            {},
            {"inputs": []},
            {"inputs": [1]},
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}]},
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["%"]}]},
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2], "data": ["aaaa"]}]},
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["aaaa"]}]},
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [7]}]},
            {"inputs": [{"name": "image", "datatype": "FP64", "shape": [1], "data": [1]}]},
            {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 2, 2, 3], "data": [256] * 12}]},
            {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 2, 2, 3], "data": [0.5] * 12}]},
            {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 2, 2, 3], "data": [1] * 11}]},
            {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [2, 2, 3], "data": [1] * 12}]},
            {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [10**12], "data": [1]}]},
            {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 0, 2, 3], "data": []}]},
            {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]},
            {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 96], "data": [1e39] * 96}]},
            {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 2], "data": [[1], [2, 3]]}]},
            {"id": 7, "inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 1, 1]}]},
            {
                "inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 1, 1]}],
                "outputs": [{"name": "x"}],
            },
        ],
    )
    def test_what_is_no_request(self, service, said):
        for name in ("fused", "ssd"):
            answer = self.infer(service, said, name)
            assert answer.status_code == 400, answer.text
            assert isinstance(answer.json()["error"], str)

    @pytest.mark.parametrize(
        "data", [[True, 2, 3], [[[[False, 2, 3]]]], [[[[1, 2, 3]], [[1, 2, True]]]], [True, False, True], [1, 2, None]]
    )
    def test_true_and_false_are_no_numbers(self, service, data):
        for kind in ("UINT8", "FP32"):
            one = {"name": "pixels", "datatype": kind, "shape": [1, np.size(data) // 3, 1, 3], "data": data}
            answer = self.infer(service, {"inputs": [one]})
            assert answer.status_code == 400
            assert f"numbers of {kind}" in answer.json()["error"]

    def test_a_shape_is_checked(self, service):
        one = {"name": "pixels", "datatype": "UINT8", "shape": [2**16, 2**15, 2], "data": [1]}
        assert "must be 4,294,967,296 numbers" in self.infer(service, {"inputs": [one]}).json()["error"]
        for shape in ([1] * 9, [], [0], [True], [2**31], [10**30]):
            one["shape"] = shape
            assert "one to eight whole numbers above 0" in self.infer(service, {"inputs": [one]}).json()["error"]

    def test_what_is_no_json(self, service):
        for content in (b"", b"{", b"\xff", b"[" * 100_000):
            answer = service.client.post("/v2/models/ssd/infer", content=content)
            assert answer.status_code == 400
        length = {"Inference-Header-Content-Length": "9" * 6000}
        assert "Length is '999" in service.client.post("/v2/models/ssd/infer", headers=length).json()["error"]

    def test_half_a_million_inputs_are_too_many(self, service):
        answer = self.infer(service, {"inputs": [{}] * 10_001})
        assert answer.status_code == 413
        assert "has 10,001 inputs; at most 10,000 are taken" in answer.json()["error"]

    def test_unknown_names(self, service):
        assert self.infer(service, {}, "none").status_code == 404
        assert service.client.get("/v2/models/none").status_code == 404
        assert service.client.get("/v2/models/ssd/versions/2/ready").status_code == 404
        assert service.client.get("/v2/models/ssd/versions/1/ready").status_code == 200
        assert service.client.get("/nothing").json() == {"error": "Not Found"}
        assert service.client.get("/v1/check").status_code == 405


class TestTelling:
    def test_metadata(self, service):
        assert service.client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
        assert service.client.get("/v2/health/live").status_code == 200
        assert service.client.get("/v2/health/ready").status_code == 200
        told = service.client.get("/v2/models/ssd").json()
        assert {one["name"]: (one["datatype"], one["shape"]) for one in told["inputs"]} == {
            "image": ("BYTES", [-1]),
            "pixels": ("UINT8", [-1, -1, -1, 3]),
            "features": ("FP32", [-1, 96]),
            "logits": ("FP32", [-1, 4]),
        }

    def test_openapi_needs_no_other_place(self, service):
        told = service.client.get("/openapi.json").json()
        assert {"/v1/check", "/v2/models/{name}/infer", "/metrics"} <= set(told["paths"])
        assert service.client.get("/docs").status_code == 404
        assert "securitySchemes" not in told["components"]
        schema = told["paths"]["/v1/check"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        verdict = told["components"]["schemas"][schema["items"]["anyOf"][0]["$ref"].rpartition("/")[2]]["properties"]
        assert {"file", "score", "p_value", "is_ood", "triggered_by", "members", "error", "why"} <= set(verdict)
        assert verdict["score"]["anyOf"] == [{"type": "number"}, {"type": "null"}]

    def test_guards(self, service, guard):
        told = service.client.get("/v1/guards").json()
        assert [one["name"] for one in told] == ["fused", "ssd"]
        reference = guard.threshold.reference
        assert told[0]["threshold"] == guard.threshold.value
        assert told[0]["scores"] == reference.tolist()
        assert sum(told[0]["histogram"]["counts"]) == len(reference)

    def test_every_answer_keeps_other_places_out(self, service):
        for path in ("/", "/v2", "/none"):
            policy = service.client.get(path).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        assert service.client.get("/v2", headers={"Origin": "https://example.org"}).status_code == 403
        assert service.client.get("/v2", headers={"Origin": service.address.rstrip("/")}).status_code == 200

    def test_metrics_count_what_came(self, files, images):
        with running(files["fused"]) as service:
            found = service.check(*map(png, images), b"x").json()
            samples = parsed_metrics(service.client.get("/metrics").text)
            traffic = service.client.get("/v1/traffic").json()
        ood = sum(bool(one["is_ood"]) for one in found)
        guard = ("model_name", "fused")
        assert samples["outfield_samples_total", ("decision", "ood"), guard] == ood > 0
        assert samples["outfield_samples_total", ("decision", "id"), guard] == 6 - ood
        assert samples["outfield_samples_total", ("decision", "error"), guard] == 1
        assert samples["outfield_p_value_bucket", ("le", "+Inf"), guard] == 6
        assert samples["outfield_score_count", guard] == 6
        assert samples["outfield_score_sum", guard] == pytest.approx(sum(one["score"] for one in found[:6]))
        assert samples["request_predict_seconds_count", guard] == 1
        assert samples["outfield_build_info", ("version", of.__version__)] == 1
        assert samples["outfield_drift_alarm", guard] == 0
        assert traffic["samples"] == 6
        assert traffic["ood"] == ood


class TestLimits:
    def test_a_token(self, files, images):
        with running(files["ssd"], token="secret") as service:
            assert service.check(png(images[0])).status_code == 200
            for header in ("Bearer secre", "Bearer secret2", "Basic secret", "secret", "", "Bearer \xff"):
                answer = httpx.get(f"{service.address}v2", headers={"Authorization": header.encode("latin-1")})
                assert answer.status_code == 401, header
                assert answer.headers["www-authenticate"] == "Bearer"
            for path in ("", "v2/health/live", "v2/health/ready"):
                assert httpx.get(f"{service.address}{path}").status_code == 200
            assert httpx.get(f"{service.address}metrics").status_code == 401
            with socket.create_connection(("127.0.0.1", service.port)) as client:  # which sends on before it reads
                client.settimeout(60)
                client.sendall(b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n")
                for _ in range(10):
                    time.sleep(0.02)
                    client.sendall(b"x" * 50_000)
                assert client.recv(100).startswith(b"HTTP/1.1 401")
            told = service.client.get("/openapi.json").json()
            assert told["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
            assert told["paths"]["/v1/check"]["post"]["security"] == [{"token": []}]
            assert told["paths"]["/v2/health/ready"]["get"]["security"] == []

    def test_bodies_pixels_and_images(self, files):
        limits = Limits(body=20_000, pixels=400, images=2)
        with running(files["ssd"], limits=limits) as service:
            small, large = png(np.zeros((20, 20, 3), np.uint8)), png(np.zeros((20, 21, 3), np.uint8))
            assert service.check(small, small).status_code == 200
            assert service.check(small, small, small).status_code == 413
            assert "too large" in service.check(large).json()[0]["error"]
            pixels = {"name": "p", "datatype": "UINT8", "shape": [1, 20, 21, 3], "data": [0] * 1260}
            assert service.client.post("/v2/models/ssd/infer", json={"inputs": [pixels]}).status_code == 400
            assert service.client.post("/v2/models/ssd/infer", content=b"x" * 20_001).status_code == 413
            assert service.client.post("/v2/models/ssd/infer", content=b"x" * 20_000).status_code == 400
            parts = (b"x" * 1000 for _ in range(30))  # chunked: no length is said
            assert service.client.post("/v2/models/ssd/infer", content=parts).status_code == 413
            packed = service.client.post("/v1/check", content=b"x", headers={"Content-Encoding": "gzip"})
            assert packed.status_code == 415
            assert service.check(small).status_code == 200
            assert service.service.bodies.held == 0

    def test_pixels_of_a_request(self, files):
        image = png(np.zeros((20, 20, 3), np.uint8))
        with running(files["ssd"], limits=Limits(pixels=400)) as service:
            assert service.check(png(np.zeros((1, 401, 3), np.uint8)), *[image] * 4).status_code == 200
            service.service.model(None).guard.prepare = None  # refused before any image is decoded
            refused = service.check(*[image] * 5)
            assert refused.status_code == 413
            assert "may have 1,600 pixels in all; send fewer" in refused.json()["error"]

    def test_one_client_does_not_keep_others_from_decoding(self, files, images):
        """Large images and long texts of one: those of others are answered in between."""
        with running(files["ssd"]) as service:
            guard = service.service.model(None).guard
            prepare = guard.prepare
            slow = png(np.zeros((64, 64, 3), np.uint8))
            guard.prepare = lambda image: (image == slow and time.sleep(0.2), prepare(image))[1]
            held = threading.Event()
            service.service.work._parser.submit(held.wait, 60)
            with ThreadPoolExecutor(4) as pool:
                greedy = [pool.submit(service.check, *[slow] * 10) for _ in range(3)]
                time.sleep(0.2)
                assert service.check(png(images[0])).status_code == 200
                assert not any(one.done() for one in greedy)  # all of theirs take 3 s
                held.set()
                assert all(one.result().status_code == 200 for one in greedy)

    def test_parsing_has_a_deadline(self, files):
        with running(files["ssd"], limits=Limits(timeout=2)) as service:
            held = threading.Event()
            service.service.work._parser.submit(held.wait, 60)
            answer = service.client.post("/v2/models/ssd/infer", content=b" " * 100_000)
            held.set()
            assert answer.status_code == 504
            assert service.client.post("/v2/models/ssd/infer", content=b" ").status_code == 400

    @pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.0.0.2", "[::1]:8000"])
    def test_names_of_this_machine_are_answered(self, service, host):
        assert service.client.get("/v2", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize("host", ["evil.com", "evil.com:8000", "127.0.0.1.evil.com", "10.0.0.1"])
    def test_other_names_of_a_loopback_address_need_a_token(self, service, files, host):
        refused = service.client.get("/v2", headers={"Host": host, "Origin": f"http://{host}"})
        assert refused.status_code == 403
        assert "without a token only localhost" in refused.json()["error"]

    def test_on_another_address_or_with_a_token_names_do_not_matter(self):
        for server in (("10.0.0.7", 8000), None):
            check_head({"type": "http", "path": "/v2", "headers": [(b"host", b"evil.com")], "server": server}, None)
        headers = [(b"host", b"evil.com"), (b"authorization", b"Bearer secret")]
        check_head({"type": "http", "path": "/v2", "headers": headers, "server": ("127.0.0.1", 8000)}, "secret")

    def test_addresses_that_are_none(self, service):
        for headers in ({"Host": "["}, {"Host": "[::1"}, {"Origin": "http://[::1"}):
            answer = service.client.get("/v2", headers=headers)
            assert answer.status_code == 400
            assert "no address" in answer.json()["error"]

    def test_a_request_that_says_its_length_twice_is_refused_and_the_connection_closed(self, service, images):
        """Whatever comes after it on the same connection, a proxy may have taken for a part of it."""
        body, both = png(images[0]), b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        for version, lengths in (
            (b"1.1", both),
            (b"1.1", b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n" % len(chunked)),
            (b"1.0", b"Transfer-Encoding: chunked\r\n"),
            (b"1.1", b"Content-Length: 4\r\nContent-Length: 5\r\n"),
        ):
            head = b"POST /v1/check HTTP/" + version + b"\r\nHost: localhost\r\nContent-Type: image/png\r\n" + lengths
            with socket.create_connection(("127.0.0.1", service.port)) as client:
                client.settimeout(60)
                client.sendall(head + b"\r\n" + chunked + b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b"".join(iter(lambda: client.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 400"), answer
            assert b"connection: close" in answer.lower()
            assert answer.count(b"HTTP/1.1 ") == 1

    def test_a_body_in_chunks_is_judged(self, service, guard, images):
        parts = (png(images[0])[start : start + 50] for start in range(0, 100_000, 50))
        answer = service.client.post("/v1/check", content=parts, headers={"Content-Type": "image/png"})
        assert near(answer.json()[0], guard(images[0]))

    def test_slow_bodies_and_heads(self, files):
        with running(files["ssd"], limits=Limits(timeout=1)) as service:
            head = b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\nabc"
            for sent, expected in ((head, b"HTTP/1.1 408"), (b"GET / HT", b"")):
                with socket.create_connection(("127.0.0.1", service.port)) as client:
                    client.settimeout(60)
                    client.sendall(sent)
                    assert client.recv(100).startswith(expected)

    def test_a_full_queue_is_429_and_nothing_accepted_is_lost(self, files, images):
        limits = Limits(queue=8, images=4, batch=4)
        with running(files["ssd"], limits=limits) as service:
            guard = service.service.model(None).guard
            judge = guard.judge_pixels
            guard.judge_pixels = lambda pixels: (time.sleep(0.2), judge(pixels))[1]

            async def all_at_once():
                async with httpx.AsyncClient(base_url=service.address, timeout=30, trust_env=False) as client:
                    files = [("file", ("a.png", png(images[0])))] * 4
                    return await asyncio.gather(*(client.post("/v1/check", files=files) for _ in range(12)))

            answers = asyncio.run(all_at_once())
            codes = [answer.status_code for answer in answers]
            assert set(codes) == {200, 429}
            assert codes.count(200) >= 2
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert int(refused.headers["retry-after"]) >= 1
            assert "waiting" in refused.json()["error"]
            assert all(len(answer.json()) == 4 for answer in answers if answer.status_code == 200)
            assert service.service.counts.samples.labels("ssd", "id")._value.get() == 4 * codes.count(200)
            assert service.check(png(images[0])).status_code == 200

    def test_work_that_takes_too_long_is_504(self, files, images):
        with running(files["ssd"], limits=Limits(timeout=2)) as service:
            guard, held = service.service.model(None).guard, threading.Event()
            judge = guard.judge_pixels
            guard.judge_pixels = lambda pixels: (held.wait(60), judge(pixels))[1]
            assert service.check(png(images[0])).status_code == 504
            held.set()
            assert service.check(png(images[0])).status_code == 200

    def test_a_failure_of_ours_is_500_and_the_next_is_served(self, files, images):
        with running(files["ssd"]) as service:
            guard = service.service.model(None).guard
            judge = guard.judge_pixels
            guard.judge_pixels = lambda pixels: 1 / 0
            answer = service.check(png(images[0]))
            assert answer.status_code == 500
            assert "ZeroDivision" not in answer.text
            guard.judge_pixels = judge
            assert service.check(png(images[0])).status_code == 200

    def test_concurrent_requests_share_a_batch(self, files, images, monkeypatch):
        monkeypatch.setattr("outfield.serve.batcher.WAIT", 1.0)
        with running(files["ssd"]) as service:
            model = service.service.model(None)
            sizes, judge = [], model.guard.judge_pixels
            model.guard.judge_pixels = lambda pixels: (sizes.append(len(pixels)), judge(pixels))[1]
            with ThreadPoolExecutor(12) as pool:
                list(pool.map(service.check, [png(images[0])] * 12))
            assert sum(sizes) == 12
            assert len(sizes) < 12


class TestReload:
    def test_another_guard_takes_its_place_and_a_broken_file_does_not(self, files, images, tmp_path):
        path = tmp_path / "mine.guard"
        path.write_bytes(files["fused"].read_bytes())
        fused, ssd = (of.Guard.load(files[name], device="cpu")(images[0]) for name in ("fused", "ssd"))
        with running(path, look_every=0.05) as service:
            reloads = service.service.counts.reloads
            assert near(service.check(png(images[0])).json()[0], fused)
            path.write_bytes(b"no guard")
            wait_until(lambda: reloads.labels("mine", "failed")._value.get() >= 1)
            assert near(service.check(png(images[0])).json()[0], fused)
            assert service.client.post("/v1/reload").status_code == 409
            assert service.client.get("/v1/traffic").json()["samples"] == 2
            path.write_bytes(files["ssd"].read_bytes())
            wait_until(lambda: reloads.labels("mine", "replaced")._value.get() >= 1)
            assert near(service.check(png(images[0])).json()[0], ssd)
            assert service.client.get("/v1/traffic").json()["samples"] == 1  # of the new threshold
            assert service.client.post("/v1/reload").json() == {"reloaded": {"mine": True}}
            assert service.client.get("/v1/traffic").json()["samples"] == 1  # the same one: what was seen goes on

    def test_no_request_is_lost_meanwhile(self, files, images, tmp_path):
        path = tmp_path / "mine.guard"
        contents = [files[name].read_bytes() for name in ("fused", "ssd")]
        path.write_bytes(contents[0])
        expected = [of.Guard.load(files[name], device="cpu")(images[0]).score for name in ("fused", "ssd")]
        wrong, done, ended = [], [0], threading.Event()
        with running(path, look_every=0.02) as service:

            def ask():
                with httpx.Client(base_url=service.address, trust_env=False) as client:
                    while not ended.is_set():
                        answer = client.post("/v1/check", content=png(images[0]), headers={"Content-Type": "image/png"})
                        good = answer.status_code == 200 and np.isclose(answer.json()[0]["score"], expected, 1e-4).any()
                        done[0] += 1
                        if not good:
                            wrong.append(answer.text)

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for one in threads:
                one.start()
            for number in range(6):
                reloads = service.service.counts.reloads.labels("mine", "replaced")._value
                count = reloads.get()
                (tmp_path / "next").write_bytes(contents[(number + 1) % 2])
                (tmp_path / "next").replace(path)
                wait_until(lambda count=count, reloads=reloads: reloads.get() > count)
            ended.set()
            for one in threads:
                one.join()
        assert wrong == []
        assert done[0] > 6


def wait_until(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_two_guards_of_one_name_are_refused(files, tmp_path):
    with pytest.raises(of.InputError, match="must differ"):
        Service([files["ssd"], tmp_path / "ssd.guard"])


def test_infinite_scores_are_null_in_json(files, images):
    with running(files["ssd"]) as service:
        guard = service.service.model(None).guard
        judge = guard.judge_pixels
        guard.judge_pixels = lambda pixels: [replace(one, score=float("inf")) for one in judge(pixels)]
        assert json.loads(service.check(png(images[0])).text, parse_constant=pytest.fail)[0]["score"] is None
        one = {"name": "pixels", "datatype": "UINT8", "shape": [1, 16, 16, 3], "data": images[0].ravel().tolist()}
        answer = service.client.post("/v2/models/ssd/infer", json={"inputs": [one]}).text
        assert json.loads(answer, parse_constant=pytest.fail)["outputs"][0]["data"] == [None]


def test_guards_of_a_network_given_in_python_say_what_is_missing(files, tmp_path):
    network = of.load_classifier(files["ssd"].parent / "net.safetensors")[0]
    backbone = of.Backbone(network, size=16, mean=(0.5,) * 3, std=(0.5,) * 3)
    small_guard(backbone, detector="SSD").save(tmp_path / "own.guard")
    with (
        pytest.raises(of.InputError, match=r"To serve or check it, .*torch.onnx.export"),
        running(tmp_path / "own.guard"),
    ):
        pass
