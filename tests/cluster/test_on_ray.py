"""The same on a local Ray cluster: equal bits, and no row lost or doubled when a worker or the driver is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
import ray
from tests.helpers.cluster import is_scoring, rows_of, scoring_processes, wait_for, write_guard, write_slow_images
from tests.helpers.guards import labelled, write_folder
from tests.helpers.program import outfield

from outfield.cluster import engines
from outfield.cluster.engines import ScoringActor, raised
from outfield.cluster.listing import listing
from outfield.cluster.score import score
from outfield.cluster.tries import Tries
from outfield.errors import FileFormatError, InputError, StorageError

SLOW = 24


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all tests of this file."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        settings = {"include_dashboard": False, "_temp_dir": folder, "object_store_memory": 100 * 2**20}
        ray.init(address="local", num_cpus=3, log_to_driver=False, logging_level="error", **settings)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_ray")
    write_guard(folder)
    write_folder(folder / "photos", labelled(40, 3))
    (folder / "photos" / "left" / "broken.png").write_bytes(b"no picture")
    write_slow_images(folder / "slow", SLOW)
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def slow_rows(folder):
    """Of the slow images, by this process."""
    score(folder / "my.guard", str(folder / "slow"), str(folder / "slow_rows"), part_rows=2, device="cpu")
    return rows_of(folder / "slow_rows")


def written(out):
    return len([*out.glob("part-*.parquet")])


def check_complete(rows, expected):
    """Every row once, by its file, and equal to the bit."""
    assert Counter(row["file"] for row in rows) == Counter(row["file"] for row in expected)
    assert rows == expected


def test_results_are_those_of_one_machine_to_the_bit(here, tmp_path):
    score("my.guard", "photos", str(tmp_path / "local"), part_rows=8, device="cpu")
    line = [
        "score",
        "my.guard",
        "photos",
        "--engine",
        "ray",
        "--workers",
        2,
        "--part-rows",
        8,
        "--out",
        tmp_path / "ray",
    ]
    done = outfield(*line)
    assert done.returncode == 0, done.stderr
    assert "41 rows, " in done.said
    assert "1 of 41 rows could not be read" in done.said
    check_complete(rows_of(tmp_path / "ray"), rows_of(tmp_path / "local"))
    for path in sorted((tmp_path / "local").glob("part-*")):
        assert path.read_bytes() == (tmp_path / "ray" / path.name).read_bytes()


def test_errors_of_workers_are_ours(here, tmp_path, monkeypatch):
    content, tries = ray.put((here / "my.guard").read_bytes()), ray.remote(num_cpus=0)(Tries).remote()
    worker = ScoringActor(content, tries, str(tmp_path), 1, "fail", "cpu")
    told = worker({"part": [part.to_text() for part in listing("photos").parts(8)]})["error"]
    assert [bool(text) for text in told] == [False, False, False, True, False, False]
    with monkeypatch.context() as patch:
        patch.setattr(engines, "_rows", lambda ray, work: [{"error": text} for text in told])
        with pytest.raises(FileFormatError, match=r"photos/left/broken.png is truncated"):
            score("my.guard", "photos", str(tmp_path / "out"), engine="ray", workers=1, on_error="fail")
    with pytest.raises(InputError, match=r"workers is 4, of 1 threads each, but the cluster has 3 cores; take 3"):
        score("my.guard", "photos", str(tmp_path / "many"), engine="ray", workers=4)
    with pytest.raises(InputError, match="the cluster has no GPU"):
        score("my.guard", "photos", str(tmp_path / "gpu"), engine="ray", device="cuda")


def test_a_killed_worker_loses_no_row(here, slow_rows, tmp_path):
    out, killed = tmp_path / "out", []

    def kill():
        wait_for(lambda: written(out) >= 3 if out.exists() else False)
        victim = scoring_processes()[0]
        os.kill(victim.pid, signal.SIGKILL)
        killed.append((victim.pid, written(out)))

    killer = threading.Thread(target=kill)
    killer.start()
    done = score("my.guard", str(here / "slow"), str(out), part_rows=2, engine="ray", workers=2)
    killer.join()
    (pid, parts) = killed[0]
    assert not psutil.pid_exists(pid)
    assert parts < done.parts == SLOW // 2
    check_complete(rows_of(out), slow_rows)


def test_a_killed_driver_is_gone_on_with(here, slow_rows, tmp_path):
    out = tmp_path / "out"
    line = ["score", "my.guard", str(here / "slow"), "--engine", "ray", "--workers", "2", "--part-rows", "2"]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as temporary:
        driver = subprocess.Popen(
            [sys.executable, "-m", "outfield", *line, "--out", str(out)],
            env={**os.environ, "RAY_TMPDIR": temporary},
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: out.exists() and (written(out) >= 3 or driver.poll() is not None))
        started = psutil.Process(driver.pid).children(recursive=True)
        scoring = [one for one in started if is_scoring(one)]
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert len(scoring) == 2
        assert psutil.wait_procs(scoring, timeout=30)[1] == []  # nobody goes on without it
        for left in started:  # what watches the cluster ends some time later
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
    parts = written(out)
    assert 3 <= parts < SLOW // 2
    line[line.index("--workers") + 1] = "1"  # as many as there are now
    done = outfield(*line, "--out", out)
    assert done.returncode == 0, done.stderr
    assert f"{parts} of 12 parts are there already" in done.said
    assert f"{12 - parts} of them made now" in done.said
    check_complete(rows_of(out), slow_rows)
    assert [path for path in Path(out).iterdir() if path.name.startswith(".")] == []


def test_a_part_that_kills_workers_is_given_up(here, tmp_path):
    tries = ray.remote(num_cpus=0)(Tries).remote()
    part = listing("photos").parts(4)[2]
    ray.get([tries.begin.remote(2) for _ in range(4)])
    content = ray.put((here / "my.guard").read_bytes())
    worker = ScoringActor(content, tries, str(tmp_path), 1, "skip", "cpu")
    assert worker({"part": [part.to_text()]}) == {"error": [""]}
    (told,) = worker({"part": [part.to_text()]})["error"]
    with pytest.raises(StorageError, match=r"workers died 5 times at the 4 rows from photos/across/0032.png on"):
        raise raised(told)
    assert worker({"part": [listing("photos").parts(4)[3].to_text()]}) == {"error": [""]}


def test_there_is_no_cluster_at_an_address(here, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(ConnectionError("nobody answers")))
    with pytest.raises(StorageError, match=r"no Ray cluster at 127.0.0.1:9: nobody answers"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address="127.0.0.1:9")
    with pytest.raises(StorageError, match="could be started here: nobody answers"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray")
    with pytest.raises(InputError, match="address is ''"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address="")
