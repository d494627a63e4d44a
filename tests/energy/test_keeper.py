"""What keeps a running fit: when it writes, what it refuses to write, and what it says."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy import checkpoints
from outfield.energy.checkpoints import Keeper, State, check_like, differences, finite_numbers, whole_number
from outfield.files import storage


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
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    return now


def keeper(tmp_path, run, seconds=30.0):
    return Keeper(of.Checkpoint(tmp_path / "c.safetensors", seconds=seconds), run, {})


def kept(tmp_path):
    path = tmp_path / "c.safetensors"
    return float(storage.read(path, "Checkpoint")[1]["number"]) if path.exists() else None


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
        tensors = storage.read(tmp_path / "c.safetensors", "Checkpoint")[1]
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


def test_tensors_of_a_checkpoint_are_like_those_of_the_run():
    expected = {"w": torch.zeros(2), "count": torch.zeros(2, dtype=torch.int64)}
    check_like(expected, expected)
    for wrong, said in (
        ({"w": torch.tensor([0.0, float("nan")])}, "w holds values that are not finite"),
        ({"w": torch.zeros(3)}, r"w is torch.float32 \(3,\), not torch.float32 \(2,\)"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, "w is torch.float64"),
        ({"more": torch.ones(1)}, "more is not part of it"),
    ):
        with pytest.raises(ValueError, match=said):
            check_like(expected | wrong, expected)
    with pytest.raises(ValueError, match="count is missing"):
        check_like({"w": torch.zeros(2)}, expected)


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
    header, _ = storage.read(tmp_path / "c.safetensors", "Checkpoint")
    assert header["version"] == 2  # files already written have it


@pytest.mark.parametrize("name", ["c.npz", "c", "folder/c.safetensors"])
def test_a_file_that_cannot_be_written_is_found_before_any_work(tmp_path, name):
    with pytest.raises(of.OutfieldError, match=r"checkpoint|folder"):
        Keeper(of.Checkpoint(tmp_path / name), Run(), {})


def test_other_rows_are_named_without_a_list_of_differences(tmp_path):
    Keeper(of.Checkpoint(tmp_path / "c.safetensors"), run := Run(), {"rows": "abc"}).after_step(True)
    with pytest.raises(of.InputError, match=r"belongs to a fit with other rows; delete it or name another file"):
        Keeper(of.Checkpoint(tmp_path / "c.safetensors"), run, {"rows": "abd"}).resume()


@pytest.mark.parametrize("wrong", [[1.0], [1.0, 2.0, 3.0], [1.0, "2"], [1.0, float("nan")], [float("inf"), 1.0], None])
def test_what_is_no_list_of_finite_numbers(wrong):
    assert finite_numbers([1, 2.5], 2, "loss") == [1, 2.5]
    with pytest.raises(ValueError, match="loss is not a list of 2 finite numbers"):
        finite_numbers(wrong, 2, "loss")


@pytest.mark.parametrize("wrong", [-1, 4, 1.0, True, "1", None])
def test_what_is_no_whole_number(wrong):
    assert [whole_number({"epoch": good}, "epoch", 3) for good in (0, 3)] == [0, 3]
    with pytest.raises(ValueError, match=f"epoch is {wrong!r}, not a whole number from 0 to 3"):
        whole_number({"epoch": wrong}, "epoch", 3)
