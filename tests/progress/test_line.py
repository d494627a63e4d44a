"""The line of a task: it fits, and the counts are whole."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfield.progress.line import Task, cells, status_line


def task(title="fitting", total=50_000, unit="rows", done=1_234, note="", age=10.0):
    made = Task(title, total, unit)
    made.began = 100.0 - age
    if done is not None:
        made.advance(done, note)
    return made


@given(
    title=st.text(max_size=120),
    done=st.integers(0, 10**9),
    total=st.integers(0, 10**9),
    note=st.text(max_size=60),
    width=st.integers(20, 200),
    outer=st.booleans(),
    fancy=st.booleans(),
)
def test_the_line_fits_and_the_counts_are_whole(title, done, total, note, width, outer, fancy):
    around = [task("benchmark", 10, "stages", 3)] if outer else []
    line = status_line([*around, task(title, total, "samples", done, note)], width, now=100.0, fancy=fancy)
    assert cells(line) <= width
    if len(f"{done:,}/{total:,}") <= width:
        assert f"{done:,}/{total:,}" in line
    assert "\n" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize("width", [100, 60])
def test_a_long_title_and_note_do_not_eat_the_counts(width):
    shown = task("features of " + "a-very-long-name" * 8, note="epoch 17: loss 0.00123 " * 3)
    line = status_line([shown], width, now=100.0)
    assert "1,234/50,000" in line
    assert line.startswith("features of a-very")


def at(monkeypatch, seconds):
    monkeypatch.setattr(time, "monotonic", lambda: seconds)


def test_what_there_is_room_for_is_shown(monkeypatch):
    at(monkeypatch, 90.0)
    inner = task("fitting EBM", 200, "steps", 0, age=10)
    at(monkeypatch, 100.0)
    inner.advance(50, note="loss 0.1")
    line = status_line([task("benchmark", 10, "stages", 3), inner], 160, now=100.0)
    assert line.startswith("benchmark 3/10 › fitting EBM ━")
    assert line.endswith("50/200 steps 0:10 left 0:30 loss 0.1")
    assert line.count("━") * 3 == line.count("─")
    assert "left 0:25" in status_line([inner], 160, now=105.0)  # it counts down while nothing is said


def test_work_that_cannot_be_counted_shows_its_time():
    assert (
        status_line([task("opening the network", None, "", None, age=75)], 80, now=100.0) == "opening the network 1:15"
    )


def test_the_time_left_of_work_that_goes_on_counts_from_where_it_began(monkeypatch):
    at(monkeypatch, 90.0)
    resumed = task(total=1000, done=900)
    at(monkeypatch, 100.0)
    resumed.advance(950)
    assert resumed.seconds_left(100.0) == pytest.approx(10.0)
