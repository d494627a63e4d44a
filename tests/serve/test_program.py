"""``outfield serve`` as a program: how it starts, stops, and what is left after ``kill -9``."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import httpx
import pytest
from tests.helpers.guards import labelled
from tests.helpers.program import outfield
from tests.helpers.service import Program, png, running

import outfield as of


@pytest.fixture(scope="module")
def image():
    return png(labelled(1, 5).images[0])


def ask(client, image):
    return client.post("v1/check", content=image, headers={"Content-Type": "image/png"})


def test_stopping_finishes_what_was_accepted_and_writes_the_state(files, image, tmp_path):
    state = tmp_path / "drift.safetensors"
    with Program(tmp_path, files["fused"], "--drift-state", state) as program:
        codes, stopped = [], threading.Event()

        def client():
            with httpx.Client(base_url=program.address, timeout=120, trust_env=False) as own:
                while True:
                    try:
                        codes.append(ask(own, image).status_code)
                    except httpx.ConnectError:
                        return  # nobody listens any more: it was not accepted
                    except (httpx.RemoteProtocolError, httpx.ReadError):
                        assert stopped.is_set()  # an idle connection was closed before the request arrived
                        return

        threads = [threading.Thread(target=client) for _ in range(6)]
        for one in threads:
            one.start()
        while len(codes) < 20:
            time.sleep(0.01)
        stopped.set()
        program.process.send_signal(signal.SIGTERM)
        for one in threads:
            one.join(120)
        assert program.process.wait(120) == 0
        answered = sum(line["event"] == "request" and line["status"] == 200 for line in program.lines())
    assert set(codes) == {200}
    assert answered == len(codes)
    assert of.Drift.load(state).summary()["samples"] == len(codes)


def test_before_the_end_it_is_not_ready_and_new_connections_are_served(files, image, tmp_path):
    with Program(tmp_path, files["ssd"]) as program:
        program.process.send_signal(signal.SIGTERM)
        codes, ready = [], []
        while program.process.poll() is None:
            try:
                with httpx.Client(base_url=program.address, timeout=120, trust_env=False) as client:
                    ready.append(client.get("v2/health/ready").status_code)
                    answer = ask(client, image)
            except httpx.TransportError:
                break
            codes.append(answer.status_code)
            if ready[-1] == 503:
                assert answer.headers["connection"] == "close"
        assert program.process.wait(120) == 0
    assert ready[-1] == 503
    assert codes.count(200) == len(codes) > 3


def test_after_kill_9_the_state_is_whole_and_goes_on(files, image, tmp_path):
    state = tmp_path / "drift.safetensors"
    with Program(tmp_path, files["ssd"], "--drift-state", state) as program:
        with httpx.Client(base_url=program.address, timeout=120, trust_env=False) as client:
            until = time.monotonic() + 120
            while not state.exists() or of.Drift.load(state).summary()["samples"] < 1:
                assert ask(client, image).status_code == 200
                assert time.monotonic() < until
        program.process.kill()
        program.process.wait(120)
    with running(files["ssd"], drift_state=state) as service:
        seen = service.client.get("/v1/traffic").json()["samples"]
        assert seen == of.Drift.load(state).summary()["samples"] > 0


def test_warnings_are_json_a_state_of_another_guard_is_moved_aside_and_ctrl_c_stops(files, tmp_path):
    state = tmp_path / "drift.safetensors"
    of.Drift(of.Guard.load(files["fused"], device="cpu").threshold).save(state)
    with Program(tmp_path, files["ssd"], "--drift-state", state, "--host", "0.0.0.0") as program:
        assert "--token-file asks clients for a token" in program.lines()[0]["event"]
        assert "another threshold" in program.wait_for("drift begins anew")["error"]
        assert (tmp_path / "drift.before.safetensors").exists()
        os.kill(program.process.pid, signal.SIGINT)
        assert program.process.wait(120) == 0


@pytest.fixture
def certificate(tmp_path):
    """A folder with a certificate of this machine and its key."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return tmp_path


def test_over_tls_logs_hold_no_token_and_sighup_reads_guards_again(files, image, certificate, tmp_path):
    (tmp_path / "token").write_text("a-secret-token\n")
    tls = ("--tls-cert", certificate / "cert.pem", "--tls-key", certificate / "key.pem")
    trusted = ssl.create_default_context(cafile=certificate / "cert.pem")
    with Program(tmp_path, files["ssd"], "--token-file", tmp_path / "token", *tls) as program:
        assert program.address.startswith("https://")
        headers = {"Authorization": "Bearer a-secret-token"}
        with httpx.Client(base_url=program.address, verify=trusted, headers=headers, trust_env=False) as client:
            assert ask(client, image).status_code == 200
            assert client.get("v2?token=a-secret-token").status_code == 200
            assert client.get("a-secret-token/v2").status_code == 404
            assert client.post("v2/models/a-secret-token/infer").status_code == 404
            assert client.get("v2%2Fa-secret-token").status_code == 404
        with httpx.Client(base_url=program.address, verify=trusted, trust_env=False) as client:
            assert client.get("v2", headers={"Authorization": "Bearer other-token"}).status_code == 401
            assert client.get("other-token").status_code == 401
        assert program.out.read_text() == f"ssd at {program.address} (Ctrl-C stops)\n"  # though it goes on
        program.process.send_signal(signal.SIGHUP)
        program.wait_for("reloaded")
        text = program.log.read_text()
        assert "a-secret-token" not in text
        assert "other-token" not in text
        line = next(line for line in program.lines() if line.get("path") == "/v1/check")
        assert (line["status"], line["guard"], line["images"], line["errors"]) == (200, "ssd", 1, 0)
        assert "/v2/models/…/infer" in [line.get("path") for line in program.lines()]
        program.process.send_signal(signal.SIGTERM)
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(120) == 0


class TestUsage:
    @pytest.fixture(autouse=True)
    def _no_guard_is_loaded(self, monkeypatch):
        """What is wrong is said before anything takes time."""
        monkeypatch.setattr(of.Guard, "load", lambda *_, **__: pytest.fail("a guard was loaded"))

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            ((), 2, "outfield serve --demo"),
            (("none.guard",), 3, "none.guard"),
            (("ssd.guard", "none.guard"), 3, "none.guard"),
            (("ssd.guard", "--device", "abacus"), 2, "abacus"),
            (("ssd.guard", "--timeout", "0"), 2, "timeout"),
            (("ssd.guard", "--queue", "8", "--max-images", "9"), 2, "queue"),
            (("ssd.guard", "--tls-cert", "words.pem"), 2, "--tls-key"),
            (("ssd.guard", "--tls-cert", "words.pem", "--tls-key", "words.pem"), 2, "cannot be used"),
        ],
    )
    def test_what_cannot_be(self, files, tmp_path, arguments, code, said):
        (tmp_path / "words.pem").write_text("no key")
        (tmp_path / "ssd.guard").symlink_to(files["ssd"])
        done = outfield("serve", *arguments, cwd=tmp_path, code=code)
        assert said in done.said

    @pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe"])
    def test_a_file_without_a_token(self, files, tmp_path, content):
        (tmp_path / "token").write_bytes(content)
        done = outfield("serve", files["ssd"], "--token-file", tmp_path / "token", "--device", "cpu")
        assert done.returncode in (2, 3)
        assert "token" in done.said

    def test_a_port_that_is_taken(self, files):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = outfield("serve", files["ssd"], "--port", str(taken.getsockname()[1]), "--device", "cpu")
        assert done.returncode == 2
        assert "cannot listen" in done.said


class TestDemo:
    def test_it_is_served_at_once_and_knows_its_classes(self, tmp_path, image):
        with Program(tmp_path, "--demo", OUTFIELD_TOKEN="t") as program:
            assert httpx.get(f"{program.address}v1/guards", trust_env=False).status_code == 401
            headers = {"Authorization": "Bearer t"}
            with httpx.Client(base_url=program.address, headers=headers, trust_env=False) as client:
                (told,) = client.get("v1/guards").json()
                assert told["name"] == "cifar10"
                assert told["classes"][:3] == ["airplane", "automobile", "bird"]
                assert ask(client, image).json()[0]["is_ood"] is True

    def test_its_file_is_small_and_holds_no_image(self):
        from importlib import resources

        guard = resources.files("outfield_demo") / "cifar10.guard"
        assert len(guard.read_bytes()) < 3_000_000

    def test_without_its_data_it_says_what_installs_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "outfield_demo", None)
        done = outfield("serve", "--demo", code=2)
        assert "pip install ./packages/outfield-demo" in done.said
