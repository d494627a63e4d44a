"""The root of an increasing function, also of functions that mislead Newton's steps: flat, steep, kinked, far away."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

from outfield.detectors.roots import increasing_root

CASES = {
    "a line": (lambda x: (x - 3.0, 1.0), 3.0),
    "a logarithm": (lambda x: (float(np.log(x / 7)), 1 / x), 7.0),
    "flat far away": (
        lambda x: (float(np.tanh(40 * (x - 0.3))), float(40 / np.cosh(min(40 * (x - 0.3), 300)) ** 2)),
        0.3,
    ),
    "a high power": (lambda x: (x**9 - 1e-9, 9 * x**8), 0.1),
    "a step": (lambda x: (1.0 if x > 0.02 else -1.0, 0.0), 0.02),
    "a slope below zero": (lambda x: (x - 5.0, -1.0), 5.0),
    "at once": (lambda x: (x - 1.0, 1.0), 1.0),
    "below the bracket": (lambda x: (x, 1.0), 1e-2),
    "at its lower end": (lambda x: (x - 1e-2, 1.0), 1e-2),
    "above the bracket": (lambda x: (x - 1e6, 1.0), 1e2),
    "at its upper end": (lambda x: (x - 1e2, 1.0), 1e2),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_found(name):
    function, expected = CASES[name]
    asked = []

    def counting(x):
        asked.append(x)
        return function(x)

    assert increasing_root(counting, 1e-2, 1e2) == pytest.approx(expected, rel=1e-11)
    assert len(asked) <= 62
    assert all(1e-2 <= x <= 1e2 for x in asked)


def test_newton_s_steps_are_taken_where_they_help():
    asked = []

    def counting(x):
        asked.append(x)
        return float(np.log(x / 7)), 1 / x

    increasing_root(counting, 1e-2, 1e2)
    assert len(asked) <= 10


def test_a_coarser_tolerance_asks_less():
    assert increasing_root(lambda x: (1.0 if x > 0.02 else -1.0, 0.0), 1e-2, 1e2, 1e-2) == pytest.approx(0.02, rel=1e-2)


def asked_of(values, low=0.5, high=800.0, left=(1.0, 1.0)):
    """Where a function is asked that gives these values and slopes, one after the other, between its ends."""
    ends, told, asked = {low: (-1.0, 1.0), high: left}, iter(values), []

    def function(x):
        asked.append(x)
        return ends[x] if x in ends and len(asked) <= 2 else next(told)

    with contextlib.suppress(StopIteration):
        increasing_root(function, low, high)
    return asked


def test_where_it_asks():
    assert asked_of([(17.0, 1.0)]) == [0.5, 800.0, 20.0, 3.0]  # the middle of logarithms, then Newton's step
    assert asked_of([(10.0, 1.0), (5.0, 1.0)]) == [0.5, 800.0, 20.0, 10.0, 5.0]  # which halved the value
    assert asked_of([(10.0, 1.0), (4.0, 1.0)]) == [0.5, 800.0, 20.0, 10.0, 6.0]
    assert asked_of([(10.0, 1.0), (6.0, 1.0)]) == [0.5, 800.0, 20.0, 10.0, math.sqrt(0.5 * 10)]  # which did not
    assert asked_of([(-10.0, 1.0), (-9.0, 1.0)]) == [0.5, 800.0, 20.0, 30.0, math.sqrt(30 * 800)]
    assert asked_of([(30.0, 1.0)]) == [0.5, 800.0, 20.0, math.sqrt(0.5 * 20)]  # out of the bracket


def test_ends_are_asked_first():
    assert increasing_root(lambda x: (x, 1.0), 0.5, 800.0) == 0.5
    assert increasing_root(lambda x: (x - 900, 1.0), 0.5, 800.0) == 800
    assert asked_of([], left=(-1e-9, 1.0)) == asked_of([], left=(0.0, 1.0)) == [0.5, 800.0]
