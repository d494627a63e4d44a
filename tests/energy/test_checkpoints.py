"""Checkpoints: a fit that was cut off goes on and ends with the same bits; when they are written, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy import SineMLP, loop
from outfield.energy.loop import Keeper, State, differences
from outfield.energy.step import InTurn
from outfield.files import Record, read_record, write_record

LEARNED = ["EBM", "EnergyCorrected"]
BATCHES = 4  # of 120 rows, 25 in a batch


def settings(name, start="normal", epochs=3, **more):
    l2 = 0.1 if name == "EBM" else 10.0
    training = of.Training(
        epochs=epochs, batch_size=25, learning_rate=1e-3, l2=l2, start=start, replay_size=50, betas=(0.5, 0.9), **more
    )
    return {"training": training}


def cut(patch, stop, inside=False):
    """Press Ctrl-C in step number ``stop``: before it has done anything, or when it has changed everything but its end."""
    run, steps = InTurn.run, 0

    def interrupted(self, real):
        nonlocal steps
        steps += 1
        if steps == stop and not inside:
            raise KeyboardInterrupt
        result = run(self, real)
        if steps == stop:
            raise KeyboardInterrupt
        return result

    patch.setattr(InTurn, "run", interrupted)


@functools.cache
def uncut(name, start, engine):
    """The history and the scores of a fit that nobody interrupts."""
    whole = quick(name, **settings(name, start, engine=engine)).fit(make_set())
    return whole.history_, whole.score(make_set(n=50, seed=1))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("start", ["normal", "replay"])
class TestResume:
    @pytest.mark.parametrize("engine", ["fused", "eager"])
    @pytest.mark.parametrize(("stop", "inside"), [(2, False), (2, True), (5, False), (8, True), (12, True)])
    def test_a_fit_interrupted_anywhere_ends_with_the_same_bits(
        self, name, start, engine, stop, inside, train_set, test_set, tmp_path, monkeypatch
    ):
        detector = quick(name, **settings(name, start, engine=engine))
        history, scores = uncut(name, start, engine)
        path = tmp_path / "fit.safetensors"
        with monkeypatch.context() as patch:
            cut(patch, stop, inside)
            with pytest.raises(KeyboardInterrupt) as raised:
                detector.fit(train_set, checkpoint=path)  # every 30 seconds, which this fit does not last
        assert "goes on from there" in raised.value.__notes__[0]
        header, _ = read_record(path, "Checkpoint")
        assert BATCHES * header["epoch"] + header["batch"] == stop - 1  # the last whole step
        resumed = detector.fit(train_set, checkpoint=path)
        again = quick(name, **settings(name, start, engine=engine)).fit(train_set, checkpoint=path)
        for one in (resumed, again):
            assert one.history_ == history
            assert torch.equal(one.score(test_set), scores)

    def test_another_fits_checkpoint_is_refused(self, name, start, train_set, tmp_path):
        path = tmp_path / "fit.safetensors"
        quick(name, **settings(name, start)).fit(train_set, checkpoint=path)
        kept = path.read_bytes()
        with pytest.raises(of.InputError, match=r"other settings \(training.epochs is 3 there and 4 here\)"):
            quick(name, **settings(name, start, epochs=4)).fit(train_set, checkpoint=path)
        with pytest.raises(of.InputError, match="other features"):
            quick(name, **settings(name, start)).fit(make_set(seed=8), checkpoint=path)
        relabelled = of.FeatureSet(train_set.features, labels=1 - train_set.labels.clamp_max(1))
        slope = of.MLP(hidden=16, depth=1, slope=0.9)
        with pytest.raises(of.InputError, match=r"other settings \(network.slope is 0.2 there and 0.9 here\)"):
            quick(name, network=slope, **settings(name, start)).fit(train_set, checkpoint=path)
        for wrong in (
            {"seed": 1},
            {"temperature": 0.5},
            {"network": SineMLP()},
            {"sampler": of.MetropolisLangevin(steps=3)},
            {"projection": "sphere"},
        ):
            with pytest.raises(of.InputError, match="other settings"):
                quick(name, **settings(name, start) | wrong).fit(train_set, checkpoint=path)
        if name == "EnergyCorrected":
            with pytest.raises(of.InputError, match="other labels"):
                quick(name, **settings(name, start)).fit(relabelled, checkpoint=path)
            with pytest.raises(of.InputError, match="other settings"):
                quick(name, prior=of.MixturePrior(0.5), **settings(name, start)).fit(train_set, checkpoint=path)
        assert path.read_bytes() == kept
        path.write_bytes(kept[:-9])
        with pytest.raises(of.FileFormatError):
            quick(name, **settings(name, start)).fit(train_set, checkpoint=path)


class TestInterrupts:
    def test_a_second_interrupt_gets_out_at_once(self, train_set, tmp_path, monkeypatch):
        path = tmp_path / "fit.safetensors"
        detector = quick("EBM", **settings("EBM"))
        with monkeypatch.context() as patch:
            cut(patch, 3)
            with pytest.raises(KeyboardInterrupt):
                detector.fit(train_set, checkpoint=path)
        before = path.read_bytes()

        def impatient(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            cut(patch, 3)
            patch.setattr(loop, "write_record", impatient)
            with pytest.raises(KeyboardInterrupt):
                detector.fit(train_set, checkpoint=path)
        assert path.read_bytes() == before

    def test_a_real_signal_in_the_middle_of_a_fit(self, train_set, tmp_path, monkeypatch):
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("signals arrive in the main thread")
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        path = tmp_path / "fit.safetensors"
        detector = quick("EBM", **settings("EBM", epochs=10_000))
        run, timers, done = InTurn.run, [], []

        def soon(self, real):
            if not timers:
                timers.append(threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)))
                timers[0].start()
            return run(self, real)

        monkeypatch.setattr(InTurn, "run", soon)
        try:
            for _ in range(2):
                timers.clear()
                with pytest.raises(KeyboardInterrupt):
                    detector.fit(train_set, checkpoint=path)
                header, _ = read_record(path, "Checkpoint")
                done.append(BATCHES * header["epoch"] + header["batch"])
        finally:
            for timer in timers:
                timer.cancel()
            signal.signal(signal.SIGINT, before)
        assert 0 < done[0] < done[1]

    def test_an_interrupt_before_the_first_step_writes_nothing(self, train_set, tmp_path, monkeypatch):
        cut(monkeypatch, 1)
        with pytest.raises(KeyboardInterrupt):
            quick("EBM").fit(train_set, checkpoint=tmp_path / "fit.safetensors")
        assert not list(tmp_path.iterdir())

    def test_a_full_disk_does_not_hide_the_interrupt(self, train_set, tmp_path, monkeypatch):
        def full(*_):
            raise of.StorageError("no space left")

        cut(monkeypatch, 2)
        monkeypatch.setattr(loop, "write_record", full)
        with pytest.raises(KeyboardInterrupt), pytest.warns(of.OutfieldWarning, match="no space left"):
            quick("EBM").fit(train_set, checkpoint=tmp_path / "fit.safetensors")

    @pytest.mark.parametrize("rate", [1e3, 1e30])
    def test_a_fit_that_diverged_does_so_again(self, rate, train_set, tmp_path):
        """What its checkpoint holds is what it diverged from, and never numbers that mean nothing."""
        training = of.Training(epochs=20, batch_size=32, learning_rate=rate, l2=0.0)
        detector = quick("EBM", training=training)
        for _ in range(3):
            with pytest.raises(of.DivergenceError):
                detector.fit(train_set, checkpoint=of.Checkpoint(tmp_path / "fit.safetensors", seconds=0))

    def test_sys_exit_keeps_the_fit_too(self, train_set, tmp_path, monkeypatch):
        run, steps = InTurn.run, []

        def leave(self, real):
            steps.append(0)
            return sys.exit(3) if len(steps) == 3 else run(self, real)

        monkeypatch.setattr(InTurn, "run", leave)
        with pytest.raises(SystemExit):
            quick("EBM").fit(train_set, checkpoint=tmp_path / "fit.safetensors")
        assert (tmp_path / "fit.safetensors").exists()

    def test_it_is_written_as_often_as_asked(self, train_set, tmp_path, monkeypatch):
        write, written = write_record, []
        monkeypatch.setattr(loop, "write_record", lambda *a: written.append(a[2].header["epoch"]) or write(*a))
        detector = quick("EBM", **settings("EBM"))
        detector.fit(train_set, checkpoint=of.Checkpoint(tmp_path / "always.safetensors", seconds=0))
        assert len(written) == 3 * BATCHES
        written.clear()
        detector.fit(train_set, checkpoint=of.Checkpoint(tmp_path / "once.safetensors", seconds=float("inf")))
        assert written == [3]


class TestPaths:
    def test_a_place_that_cannot_be_written_is_found_before_training(self, train_set, tmp_path, monkeypatch):
        def never(self, real):
            raise AssertionError("trained before looking")

        monkeypatch.setattr(InTurn, "run", never)
        (tmp_path / "folder.safetensors").mkdir()
        for path in (tmp_path / "nowhere" / "fit.safetensors", tmp_path / "folder.safetensors"):
            for checkpoint in (path, of.Checkpoint(path)):
                with pytest.raises(of.StorageError, match="cannot write"):
                    quick("EBM").fit(train_set, checkpoint=checkpoint)
        with pytest.raises(of.InputError, match=r"\.safetensors"):
            quick("EBM").fit(train_set, checkpoint=tmp_path / "fit.pt")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"path": None},
            {"path": 5},
            {"path": ""},
            {"path": b"fit.safetensors"},
            {"path": "fit\0.safetensors"},
            {"seconds": -1},
            {"seconds": float("nan")},
            {"seconds": "often"},
            {"seconds": None},
            {"seconds": True},
            {"identity": "mine"},
        ],
    )
    def test_checkpoints_that_make_no_sense(self, wrong):
        with pytest.raises(of.InputError, match=next(iter(wrong))):
            of.Checkpoint(**{"path": "fit.safetensors"} | wrong)


class TestDamage:
    """Files with a matching checksum whose content a fit cannot go on from."""

    @pytest.fixture
    def kept(self, train_set, tmp_path, monkeypatch):
        """A fit with a replay buffer, cut in its second epoch: its detector, its file, and what that holds."""
        path = tmp_path / "fit.safetensors"
        detector = quick("EBM", **settings("EBM", "replay"))
        with monkeypatch.context() as patch:
            cut(patch, BATCHES + 3)
            with pytest.raises(KeyboardInterrupt):
                detector.fit(train_set, checkpoint=path)
        return detector, path, *read_record(path, "Checkpoint")

    def refuse(self, kept, train_set, header, tensors, reason=None):
        detector, path, _, _ = kept
        write_record(path, "Checkpoint", Record(header, tensors))
        with pytest.raises(of.FileFormatError, match=reason):
            detector.fit(train_set, checkpoint=path)

    def test_what_was_written_is_accepted(self, kept, train_set):
        detector, path, header, tensors = kept
        write_record(path, "Checkpoint", Record(header, tensors))
        detector.fit(train_set, checkpoint=path)

    def test_tensors(self, kept, train_set):
        _, _, header, tensors = kept
        for name, tensor in tensors.items():
            without = {key: value for key, value in tensors.items() if key != name}
            self.refuse(kept, train_set, header, without, f"{name} is missing")
            self.refuse(kept, train_set, header, tensors | {name: tensor[None]}, name)
            self.refuse(kept, train_set, header, tensors | {name: tensor.to(torch.int32)}, name)
        self.refuse(kept, train_set, header, tensors | {"more": torch.zeros(1)}, "more is not part of it")
        self.refuse(kept, train_set, header, tensors | {"0.generator": 0 * tensors["0.generator"]})

    @pytest.mark.parametrize(
        "change",
        [
            {"epoch": 9},
            {"epoch": -1},
            {"epoch": "1"},
            {"epoch": 2},
            {"epoch": 3},
            {"batch": BATCHES},
            {"batch": -1},
            {"batch": [1]},
            {"histories": None},
            {"histories": [{"loss": [1.0]}]},
            {"histories": [{"loss": [1.0], "real_energy": [1.0], "negative_energy": ["a"]}]},
            {"identity": None},
        ],
        ids=str,
    )
    def test_headers(self, kept, train_set, change):
        _, _, header, tensors = kept
        self.refuse(kept, train_set, header | change, tensors)
        if (name := next(iter(change))) != "identity":
            self.refuse(kept, train_set, {k: v for k, v in header.items() if k != name}, tensors)

    def test_a_checkpoint_of_an_earlier_version_is_refused_clearly(self, kept, train_set):
        _, _, header, tensors = kept
        old = {k: v for k, v in header.items() if k != "version"} | {
            "identity": {"features": "1", "settings": "Training()"}
        }
        self.refuse(kept, train_set, old, tensors, "another version of Outfield.*delete it")


def test_settings_are_compared_as_numbers_not_as_text(train_set, tmp_path):
    """NumPy's numbers and Python's are the same settings, though their repr is not."""
    import numpy as np

    path = tmp_path / "fit.safetensors"
    plain = quick("EBM", **settings("EBM")).fit(train_set, checkpoint=path)
    training = dataclasses.replace(settings("EBM")["training"], epochs=np.int64(3), l2=np.float64(0.1))
    again = quick("EBM", training=training, temperature=np.float64(1e-2)).fit(train_set, checkpoint=path)
    assert torch.equal(plain.score(train_set), again.score(train_set))


def test_a_killed_process_goes_on(tmp_path, train_set, test_set):
    """A real SIGKILL in the middle of a fit, then the same fit again."""
    train_set.save(tmp_path / "train.safetensors")
    script = textwrap.dedent("""
        import sys, torch, outfield as of
        torch.set_num_threads(1)
        folder, seconds = sys.argv[1], float(sys.argv[2])
        detector = of.EnergyCorrected(network=of.MLP(hidden=32, depth=1), prior_temperature=5.0,
                                      training=of.Training(epochs=60, batch_size=32, learning_rate=1e-3))
        detector.fit(of.FeatureSet.load(folder + "/train.safetensors"),
                     checkpoint=of.Checkpoint(folder + "/fit.safetensors", seconds=seconds))
        detector.save(folder + "/detector.safetensors")
    """)
    command = [sys.executable, "-c", script, str(tmp_path)]
    process = subprocess.Popen([*command, "0"])
    for _ in range(2400):
        if (tmp_path / "fit.safetensors").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "detector.safetensors").exists()
    subprocess.run([*command, "30"], check=True, env=os.environ)
    training = of.Training(epochs=60, batch_size=32, learning_rate=1e-3)
    whole = of.EnergyCorrected(network=of.MLP(hidden=32, depth=1), prior_temperature=5.0, training=training).fit(
        train_set
    )
    assert torch.equal(of.load(tmp_path / "detector.safetensors").score(test_set), whole.score(test_set))
    assert {path.name for path in tmp_path.iterdir()} == {
        "train.safetensors",
        "fit.safetensors",
        "detector.safetensors",
    }


class Run:
    """A run of one number, which counts its steps."""

    def __init__(self, diverged=False):
        self.number, self.diverged, self.checks = torch.zeros(1), diverged, 0

    def step(self, value):
        self.number.fill_(value)

    def state(self):
        return State({"epoch": int(self.number.nan_to_num())}, {"number": self.number}, {"fixed": torch.ones(2)})

    def check(self):
        self.checks += 1
        if self.diverged:
            raise of.DivergenceError("too large")


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when it is told to."""
    now = [100.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    return now


def keeper(tmp_path, run, seconds=30.0):
    return Keeper(of.Checkpoint(tmp_path / "c.safetensors", seconds=seconds), run, {})


def kept(tmp_path):
    path = tmp_path / "c.safetensors"
    return float(read_record(path, "Checkpoint")[1]["number"]) if path.exists() else None


def test_it_writes_when_it_is_time_and_at_the_end(tmp_path, clock):
    run = Run()
    one = keeper(tmp_path, run)
    for now, value, over, expected in [
        (129.9, 1, False, None),
        (130.0, 2, False, 2),  # 30 seconds after it began
        (159.9, 3, False, 2),
        (160.0, 4, False, 4),  # 30 seconds after it last wrote
        (161.0, 5, True, 5),
    ]:
        clock[0] = now
        run.step(value)
        one.after_step(over)
        assert kept(tmp_path) == expected
    assert run.checks == 3


def test_it_keeps_the_last_whole_step_while_the_next_one_changes_the_numbers(tmp_path, clock):
    run = Run()
    one = keeper(tmp_path, run)
    for value in (1, 2, 3):
        run.step(value)
        one.after_step(False)
    run.step(9)  # half done
    interrupt = KeyboardInterrupt()
    one.interrupted(interrupt)
    assert kept(tmp_path) == 3
    assert "c.safetensors; the same fit again goes on from there" in interrupt.__notes__[0]


def test_numbers_that_a_later_step_brings_are_kept_too(tmp_path, clock):
    class Growing(Run):
        def state(self):
            state = super().state()
            more = {"late": 10 * self.number} if float(self.number) >= 4 else {}
            return State(state.header, state.moving | more, state.fixed)

    run = Growing()
    one = keeper(tmp_path, run)
    for value in range(1, 8):
        run.step(value)
        one.after_step(False)
        one.interrupted(KeyboardInterrupt())
        tensors = read_record(tmp_path / "c.safetensors", "Checkpoint")[1]
        late = {"late": [10.0 * value]} if value >= 4 else {}
        found = {name: tensor.tolist() for name, tensor in tensors.items()}
        assert found == {"number": [float(value)], "fixed": [1.0, 1.0]} | late


def test_a_run_that_diverged_is_not_kept(tmp_path, clock):
    run = Run(diverged=True)
    one = keeper(tmp_path, run)
    run.step(1)
    one.after_step(False)
    interrupt = KeyboardInterrupt()
    one.interrupted(interrupt)
    assert kept(tmp_path) is None
    assert not getattr(interrupt, "__notes__", [])
    with pytest.raises(of.DivergenceError):
        one.after_step(True)
    assert kept(tmp_path) is None


def test_numbers_that_are_not_finite_are_not_written(tmp_path, clock):
    run = Run()
    one = keeper(tmp_path, run)
    run.step(float("nan"))
    one.after_step(True)
    assert kept(tmp_path) is None


def test_one_number_that_is_not_finite_is_enough(tmp_path, clock):
    class Two(Run):
        def state(self):
            whole = torch.tensor([1.0, float(self.number)])
            return State({"epoch": 1}, {"number": torch.zeros(1), "pair": whole}, {})

    run = Two()
    one = keeper(tmp_path, run)
    run.step(float("inf"))
    one.after_step(True)
    assert kept(tmp_path) is None
    run.step(2)
    one.after_step(True)
    assert kept(tmp_path) == 0


def test_differences_of_settings():
    there, here = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}, {"a": 1, "b": {"c": 2, "d": 5}, "e": 6}
    assert [*differences(there, here)] == ["b.d is 3 there and 5 here", "e is {'f': 4} there and 6 here"]
    assert [*differences(here, there)] == ["b.d is 5 there and 3 here", "e is 6 there and {'f': 4} here"]
    assert [*differences({}, {"a": None, "b": 1})] == ["b is None there and 1 here"]


def test_nothing_is_kept_before_the_first_step(tmp_path, clock):
    run = Run()
    interrupt = KeyboardInterrupt()
    keeper(tmp_path, run).interrupted(interrupt)
    assert kept(tmp_path) is None
    assert run.checks == 0
    assert not getattr(interrupt, "__notes__", [])


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("EBM", {"temperature": 0.02}, "temperature is 0.01 there and 0.02 here"),
        ("EnergyCorrected", {"prior_temperature": 6.0}, "prior_temperature is 5.0 there and 6.0 here"),
        ("EnergyCorrected", {"prior": of.MixturePrior(floor=1e-5)}, "prior.floor is 1e-06 there and 1e-05 here"),
        ("EBM", {"sampler": of.Langevin(steps=2)}, "sampler.steps is 3 there and 2 here"),
        ("EBM", {"projection": "sphere"}, "projection is 'relu_sphere' there and 'sphere' here"),
        ("EBM", {"seed": 3}, r"seeds is \[0\] there and \[3\] here"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_and_they_are_named(name, changed, said, tmp_path):
    data = make_set(60)
    quick(name).fit(data, checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(of.InputError, match=said):
        quick(name, **changed).fit(data, checkpoint=tmp_path / "c.safetensors")


def test_how_often_and_which_version(tmp_path, clock):
    assert of.Checkpoint("c.safetensors").seconds == 30
    run = Run()
    keeper(tmp_path, run).after_step(True)
    header, _ = read_record(tmp_path / "c.safetensors", "Checkpoint")
    assert header["version"] == 2  # files already written have it


def test_other_rows_are_named_without_a_list_of_differences(tmp_path):
    Keeper(of.Checkpoint(tmp_path / "c.safetensors"), run := Run(), {"rows": "abc"}).after_step(True)
    with pytest.raises(of.InputError, match=r"belongs to a fit with other rows; delete it or name another file"):
        Keeper(of.Checkpoint(tmp_path / "c.safetensors"), run, {"rows": "abd"}).resume()
