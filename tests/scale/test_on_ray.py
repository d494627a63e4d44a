"""The same on a local Ray cluster: equal bits, and no row lost or doubled when a worker or the driver is killed."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import numpy as np
import psutil
import pyarrow
import pytest
import ray
import ray.data
import torch
from pyarrow import parquet
from safetensors.torch import load
from tests.helpers.cluster import rows_of, scoring_processes, wait_for, write_guard, write_slow_images
from tests.helpers.guards import labelled, write_folder
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of
from outfield.energy import ClassStatistics
from outfield.errors import FileFormatError, InputError, StorageError
from outfield.scale import connected, fit_mixture
from outfield.scale import score_files as score
from outfield.scale import scorer as scoring
from outfield.scale.catalog import catalog
from outfield.scale.scorer import ScoringActor
from outfield.scale.shards import Gatherer, merged

SLOW = 19
ROWS = SLOW + 1
PARTS = ROWS // 2
BEGUN = 2


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all tests of this file, started as the library starts it."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        with connected("local", 3):
            assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
            yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_ray")
    write_guard(folder)
    write_folder(folder / "photos", labelled(40, 3))
    write_slow_images(folder / "slow", SLOW)
    for name in ("photos/left", "slow"):
        (folder / name / "broken.png").write_bytes(b"no picture")
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """Results of the slow images by this process."""
    with contextlib.chdir(folder):
        score("my.guard", "slow", "alone", part_rows=2, device="cpu")
    return folder / "alone"


LINE = ["score", "my.guard", "slow", "--part-rows", "2", "--device", "cpu"]


def written(out):
    return len([*out.glob("part-*.parquet")])


def check_complete(out, alone):
    """Every row once, by its file, and all files equal to the byte."""
    files = [row["file"] for row in rows_of(out)]
    assert files == [*(f"slow/{i:04d}.png" for i in range(SLOW)), "slow/broken.png"]
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in alone.iterdir())
    for path in alone.glob("part-*"):
        assert path.read_bytes() == (out / path.name).read_bytes()


def test_results_are_those_of_one_machine_though_a_worker_is_killed(here, alone, tmp_path):
    """Begun by one process, gone on with by two workers; one dies: no row is lost, none doubled, each equal to the bit."""
    out, killed = tmp_path / "out", []
    shutil.copytree(alone, out)
    for path in [out / "_summary.json", *sorted(out.glob("part-*"))[BEGUN:]]:
        path.unlink()

    def kill():
        wait_for(lambda: written(out) >= BEGUN + 2)
        victim = scoring_processes()[0]
        os.kill(victim.pid, signal.SIGKILL)
        killed.append((victim.pid, written(out)))

    killer = threading.Thread(target=kill)
    killer.start()
    done = outfield(*LINE, "--engine", "ray", "--workers", 2, "--out", out)
    killer.join()
    ((pid, parts),) = killed
    assert not psutil.pid_exists(pid)
    assert parts < PARTS
    assert done.returncode == 0, done.stderr
    assert f"{BEGUN} of {PARTS} parts are there already" in done.said
    assert f"{ROWS} rows, " in done.said
    assert f"{PARTS - BEGUN} of them made now" in done.said
    assert f"1 of {ROWS} rows could not be read" in done.said
    check_complete(out, alone)


def names_of(process):
    """What a process is called, unless it has ended."""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return [name.strip() for name in process.cmdline()[:1]]  # none in the moment of its end
    return []


def killed_driver(out, *more, workers, **settings):
    """What a driver had started that was killed after three parts, once its workers are gone."""
    before = {one.pid for one in scoring_processes()}
    line = [*LINE, "--out", out, "--engine", "ray", "--workers", workers, *more]
    arguments = [sys.executable, "-m", "outfield", *map(str, line)]
    driver = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, **settings)
    wait_for(lambda: driver.poll() is not None or (out.exists() and written(out) >= 3))
    scoring = [one for one in scoring_processes() if one.pid not in before]
    started = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert len(scoring) == workers
    wait_for(lambda: not any(map(names_of, scoring)), 120)  # nobody goes on without it
    assert 3 <= written(out) < PARTS
    assert not (out / "_summary.json").exists()
    return started


def check_gone_on_with(out, alone, *more):
    parts = written(out)
    done = outfield(*LINE, "--out", out, *more, code=0)
    assert f"{parts} of {PARTS} parts are there already" in done.said
    assert f"{PARTS - parts} of them made now" in done.said
    check_complete(out, alone)


def test_a_killed_driver_is_gone_on_with(here, alone, tmp_path):
    """Begun by a worker whose driver dies, gone on with by one process, and by a worker of another driver."""
    out = tmp_path / "out"
    killed_driver(out, "--address", ray.get_runtime_context().gcs_address, workers=1)
    shutil.copytree(out, tmp_path / "copy")
    check_gone_on_with(tmp_path / "copy", alone)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    check_gone_on_with(out, alone, "--engine", "ray", "--workers", 1)
    assert all((out / name).stat().st_mtime_ns == stamp for name, stamp in kept.items())


def test_a_cluster_ends_with_the_driver_that_started_it(here, alone, tmp_path):
    """A driver is killed whose cluster is its own: nothing of that works on, or holds the folder, which can be gone on with."""
    out = tmp_path / "out"
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        started = killed_driver(out, workers=1, env={**os.environ, "RAY_TMPDIR": temporary})
        assert len(started) >= 5
        try:  # Ray's agents wait a minute for a cluster that is gone
            agents = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
            wait_for(lambda: {name for one in started for name in names_of(one)} <= agents, 120)
        finally:
            for one in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
    check_gone_on_with(out, alone)


def test_errors_of_workers_are_ours(here, tmp_path, monkeypatch):
    content = ray.put((here / "my.guard").read_bytes())
    worker = ScoringActor(content, "cpu", 1, str(tmp_path), "fail", "mark", {})
    answers = [worker({"part": [part.to_text()]}) for part in catalog("photos").parts(8)]
    rows = [{name: column[0] for name, column in answer.items()} for answer in answers]
    assert [bool(row["error"]) for row in rows] == [False, False, False, True, False, False]
    with monkeypatch.context() as patch:
        patch.setattr(ray.data.Dataset, "iter_rows", lambda self: iter(rows))
        with pytest.raises(FileFormatError, match=r"photos/left/broken.png is truncated"):
            score("my.guard", "photos", str(tmp_path / "out"), engine="ray", workers=1, on_error="fail")
    with pytest.raises(InputError, match=r"workers is 4, of 1 threads each, but the cluster has 3 cores; take 3"):
        score("my.guard", "photos", str(tmp_path / "many"), engine="ray", workers=4)
    with pytest.raises(InputError, match="the cluster has no GPU"):
        score("my.guard", "photos", str(tmp_path / "gpu"), engine="ray", device="cuda")


def test_a_part_that_kills_workers_is_given_up(here, tmp_path, monkeypatch):
    class Dying:
        def __init__(self, *given):
            pass

        def __call__(self, batch):
            os._exit(1)

    monkeypatch.setattr(scoring, "ScoringActor", Dying)
    with pytest.raises(StorageError, match=r"workers died .* first part that is missing is part-0000000.parquet"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray", workers=1)


def test_there_is_no_cluster_at_an_address(here, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(ConnectionError("nobody answers")))
    with pytest.raises(StorageError, match=r"no Ray cluster at auto: nobody answers"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address="auto")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{listener.getsockname()[1]}"
        for address in (free, f"ray://{free}"):  # Ray would ask for minutes
            with pytest.raises(StorageError, match=rf"no Ray cluster at {address}: Connection refused"):
                score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address=address)
        listener.listen()
        with pytest.raises(StorageError, match=rf"no Ray cluster at {free}: nobody answers"):
            score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address=free)
    for wrong in ("host:", ":6379", "host:port", "host:0", "host:65536"):
        with pytest.raises(InputError, match=f"address is '{wrong}'; it must be .* such as host:6379"):
            score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address=wrong)
    with pytest.raises(StorageError, match="could be started here: nobody answers"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray")
    with pytest.raises(InputError, match="address is ''"):
        score("my.guard", "photos", str(tmp_path / "out"), engine="ray", address="")


def write_features(folder, rows=700, width=12, seed=0):
    """Parquet files of features and labels, in rows of which some are equal."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)
    features = (rng.normal(size=(rows, width)).round(1) + 2 * labels[:, None]).astype(np.float32)
    features[rows // 2 :][: rows // 4] = features[: rows // 4]
    folder.mkdir()
    for number, (some, classes) in enumerate(zip(np.array_split(features, 3), np.array_split(labels, 3), strict=True)):
        table = pyarrow.table({"features": [*some], "label": classes})
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=100)
    return of.FeatureSet(features, labels=labels)


def test_the_mixture_is_that_of_one_machine(tmp_path):
    train = write_features(tmp_path / "train")
    line = ["fit", "ssd", tmp_path / "train", "--engine", "ray", "--workers", 2, "-o", tmp_path / "ssd.safetensors"]
    done = outfield(*line, code=0)
    assert "fitted SSD on 700 samples" in done.said
    ours, whole = of.load(tmp_path / "ssd.safetensors"), of.SSD().fit(train)
    for name in ("mean", "means", "eigenvalues", "log_weights"):
        a, b = (getattr(one.mixture_.parameters_, name) for one in (ours, whole))
        assert float((a - b).abs().max()) <= 1e-10 * float(b.abs().max())
    a, b = (one.mixture_.parameters_ for one in (ours, whole))
    a, b = (one.eigenvectors @ one.eigenvalues.diag() @ one.eigenvectors.T for one in (a, b))
    assert float((a - b).abs().max()) <= 1e-10 * float(b.abs().max())
    torch.testing.assert_close(ours.score(train), whole.score(train), rtol=1e-5, atol=1e-6)


def test_shares_are_merged_in_their_order(tmp_path):
    train = write_features(tmp_path / "train")
    parts = catalog(str(tmp_path / "train")).parts(50)
    gather = Gatherer(of.SSD())
    texts = ["\n".join(part.to_text() for part in parts[i : i + 4]) for i in range(0, len(parts), 4)]
    found = [gather({"number": np.array([i]), "parts": np.array([text])}) for i, text in enumerate(texts)]
    assert [one["number"] for one in found] == [[0], [1], [2], [3]]
    assert all(one["error"] == [""] for one in found)
    statistics = merged([ClassStatistics(**load(one["statistics"][0])) for one in found])
    whole = of.SSD().statistics([train])
    for name in ("classes", "counts", "means", "scatter"):
        torch.testing.assert_close(getattr(statistics, name), getattr(whole, name), rtol=1e-11, atol=1e-9)
    with pytest.raises(of.InputError, match="KNN is not a mixture"):
        fit_mixture(of.KNN(), str(tmp_path / "train"))
    with pytest.raises(of.InputError, match="floor"):
        fit_mixture(of.SSD(floor=-1.0), str(tmp_path / "train"))
    (tmp_path / "a.txt").write_text("a.png\n")
    with pytest.raises(of.InputError, match=r"a.txt must be Parquet of features and labels"):
        fit_mixture(of.SSD(), str(tmp_path / "a.txt"))
    parquet.write_table(pyarrow.table({"features": [[0.0, 1.0]]}), tmp_path / "b.parquet")
    (part,) = catalog(str(tmp_path / "b.parquet")).parts(1)
    (told,) = gather({"number": np.arange(1), "parts": np.array([part.to_text()])})["error"]
    assert told.startswith("MissingFieldError: SSD.statistics needs labels")


def test_a_detector_is_scored_by_this_process(tmp_path):
    write_features(tmp_path / "train", rows=20)
    of.SSD().fit(make_set()).save(tmp_path / "ssd.safetensors")
    done = outfield("score", tmp_path / "ssd.safetensors", tmp_path / "train" / "0.parquet", "--engine", "ray")
    assert done.returncode == 2
    assert "a detector is scored by this process" in done.said
