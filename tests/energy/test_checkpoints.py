"""Checkpoints: a fit that was cut off goes on and ends with the same bits; when they are written, and what is refused."""

import dataclasses
import functools
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy import SineMLP, loop
from outfield.energy.training_step import InTurn
from outfield.files import Record, read_record, write_record

LEARNED = ["EBM", "EnergyCorrected"]
BATCHES = 4  # of 120 rows, 25 in a batch


def settings(name, start="normal", epochs=3, **more):
    l2 = 0.1 if name == "EBM" else 10.0
    known = {"batch_size": 25, "learning_rate": 1e-3, "replay_size": 50, "betas": (0.5, 0.9), "average": 2}
    return {"training": of.Training(epochs=epochs, l2=l2, start=start, **known, **more)}


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
        with pytest.raises(of.InputError, match="with other features; delete it or name another file"):
            quick(name, **settings(name, start)).fit(make_set(seed=8), checkpoint=path)
        relabelled = of.FeatureSet(train_set.features, labels=1 - train_set.labels.clamp_max(1))
        if name == "EnergyCorrected":
            with pytest.raises(of.InputError, match="other labels"):
                quick(name, **settings(name, start)).fit(relabelled, checkpoint=path)
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
        detector, path = quick("EBM", training=training), tmp_path / "fit.safetensors"
        for _ in range(3):
            with pytest.raises(of.DivergenceError):
                detector.fit(train_set, checkpoint=of.Checkpoint(path, seconds=0))
            if path.exists():
                assert all(tensor.isfinite().all() for tensor in read_record(path, "Checkpoint")[1].values())

    def test_sys_exit_keeps_the_fit_too(self, train_set, tmp_path, monkeypatch):
        run, steps = InTurn.run, []

        def leave(self, real):
            steps.append(0)
            return sys.exit(3) if len(steps) == 3 else run(self, real)

        monkeypatch.setattr(InTurn, "run", leave)
        with pytest.raises(SystemExit):
            quick("EBM").fit(train_set, checkpoint=tmp_path / "fit.safetensors")
        assert (tmp_path / "fit.safetensors").exists()

    def test_it_is_written_every_30_seconds_and_at_the_end(self, train_set, tmp_path, monkeypatch):
        now, step, written, run, write = [0.0], [0], [], InTurn.run, write_record

        def slow(self, real):
            now[0] += 10
            step[0] += 1
            return run(self, real)

        monkeypatch.setattr(InTurn, "run", slow)
        monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(loop, "write_record", lambda *a: written.append(step[0]) or write(*a))
        training = dataclasses.replace(settings("EBM")["training"], epochs=2)
        quick("EBM", training=training).fit(train_set, checkpoint=tmp_path / "fit.safetensors")
        assert written == [3, 6, 2 * BATCHES]
        assert read_record(tmp_path / "fit.safetensors", "Checkpoint")[0]["version"] == 2  # as in files already written


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
        ("name", "wrong"),
        [("path", None), ("path", 5), ("path", ""), ("path", b"fit.safetensors"), ("path", "fit\0.safetensors"),
         ("seconds", -1), ("seconds", float("nan")), ("seconds", "often"), ("seconds", None), ("seconds", True)],
    )  # fmt: skip
    def test_checkpoints_that_make_no_sense(self, name, wrong):
        with pytest.raises(of.InputError, match=name):
            of.Checkpoint(**{"path": "fit.safetensors", name: wrong})


def test_a_checkpoint_of_an_earlier_version_is_refused_clearly(train_set, tmp_path):
    path = tmp_path / "fit.safetensors"
    detector = quick("EBM", **settings("EBM"))
    detector.fit(train_set, checkpoint=path)
    header, tensors = read_record(path, "Checkpoint")
    del header["version"]
    write_record(path, "Checkpoint", Record(header, tensors))
    with pytest.raises(of.FileFormatError, match=r"another version of Outfield.*delete it"):
        detector.fit(train_set, checkpoint=path)


def test_a_killed_process_goes_on(tmp_path, train_set, test_set):
    """A real SIGKILL in the middle of a fit, then the same fit in another process."""
    train_set.save(tmp_path / "train.safetensors")
    script = textwrap.dedent("""
        import sys, torch, outfield as of
        torch.set_num_threads(1)
        folder = sys.argv[1]
        detector = of.EnergyCorrected(network=of.MLP(hidden=32, depth=1), prior_temperature=5.0,
                                      training=of.Training(epochs=60, batch_size=32, learning_rate=1e-3))
        detector.fit(of.FeatureSet.load(folder + "/train.safetensors"),
                     checkpoint=of.Checkpoint(folder + "/fit.safetensors", seconds=0))
        open(folder + "/done", "w").close()
    """)
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    until = time.monotonic() + 600
    while not (tmp_path / "fit.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "done").exists()
    training = of.Training(epochs=60, batch_size=32, learning_rate=1e-3)
    detector = of.EnergyCorrected(network=of.MLP(hidden=32, depth=1), prior_temperature=5.0, training=training)
    whole = detector.fit(train_set).score(test_set)
    assert torch.equal(detector.fit(train_set, checkpoint=tmp_path / "fit.safetensors").score(test_set), whole)


@pytest.mark.parametrize(("name", "changed", "said"), [
    ("EBM", {"temperature": 0.02}, "temperature is 0.01 there and 0.02 here"),
    ("EnergyCorrected", {"prior_temperature": 6.0}, "prior_temperature is 5.0 there and 6.0 here"),
    ("EnergyCorrected", {"prior": of.MixturePrior(floor=1e-5)}, "prior.floor is 1e-06 there and 1e-05 here"),
    ("EBM", {"sampler": of.Langevin(steps=2)}, "sampler.steps is 3 there and 2 here"),
    ("EBM", {"projection": "sphere"}, "projection is 'relu_sphere' there and 'sphere' here"),
    ("EBM", {"seed": 3}, r"seeds is \[0\] there and \[3\] here"),
    ("EBM", {"training": of.Training(epochs=4)}, r"training.epochs is 2 there and 4 here"),
    ("EBM", {"network": of.MLP(hidden=16, depth=1, slope=0.9)}, "network.slope is 0.2 there and 0.9 here"),
    ("EBM", {"network": SineMLP()}, "other settings"),
    ("EBM", {"sampler": of.MetropolisLangevin(steps=3)}, "other settings"),
])  # fmt: skip
def test_a_checkpoint_of_other_settings_is_refused_and_they_are_named(name, changed, said, tmp_path):
    data = make_set(60)
    quick(name).fit(data, checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(of.InputError, match=said):
        quick(name, **changed).fit(data, checkpoint=tmp_path / "c.safetensors")
