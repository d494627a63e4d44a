"""Places among calibration scores: counted by hand, uniform given the past, whatever the calibration."""

from __future__ import annotations

import numpy as np
import pytest

from outfield.scores import gaps as module
from outfield.scores.gaps import gaps_of, lots, uniform


def test_gaps_by_hand():
    reference = np.array([1.0, 2.0, 2.0, 2.0, 5.0])
    ties = np.array([0.5, 0.1, 0.4, 0.8, 0.5])
    scores = np.array([0.0, 1.5, 2.0, 2.0, 2.0, 2.0, 6.0, np.inf, -np.inf])
    luck = np.array([0.9, 0.9, 0.05, 0.2, 0.7, 0.9, 0.0, 0.0, 0.0])
    assert gaps_of(reference, ties, scores, luck).tolist() == [5, 4, 4, 3, 2, 1, 0, 0, 5]


def test_lots_are_in_order_among_equals():
    assert lots(np.array([1.0, 1.0, 2.0]), np.array([0.9, 0.1, 0.5])).tolist() == [0.1, 0.9, 0.5]


def by_loop(n, places, luck):
    counts, found = [0] * (n + 1), []
    for t, (place, v) in enumerate(zip(places, luck, strict=True)):
        below = sum(1 + counts[i] for i in range(place))
        found.append((below + v * (1 + counts[place])) / (n + 1 + t))
        counts[place] += 1
    return found, counts


@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_urn_is_that_of_the_formula(n, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 16)
    rng = np.random.default_rng(n)
    places, luck = rng.integers(0, n + 1, 70), 1 - rng.random(70)
    counts = np.zeros(n + 1, np.int64)
    parts = [uniform(counts, places[start:end], luck[start:end]) for start, end in ((0, 1), (1, 40), (40, 70))]
    expected, after = by_loop(n, places, luck)
    assert np.concatenate(parts) == pytest.approx(expected)
    assert counts.tolist() == after


@pytest.mark.parametrize("tied", [False, True])
def test_numbers_are_uniform_though_the_p_values_are_not(tied):
    """Of few calibration scores, over many draws: each u is uniform, the last as the first, and u do not depend on each other."""
    numbers = []
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        draw = (lambda size, rng=rng: rng.integers(0, 3, size).astype(float)) if tied else rng.standard_normal
        reference = np.sort(draw(10))
        places = gaps_of(reference, lots(reference, rng.random(10)), draw(20), rng.random(20))
        numbers.append(uniform(np.zeros(11, np.int64), places, 1 - rng.random(20)))
    u = np.stack(numbers)
    for column in (0, 1, 19):
        distance = np.abs(np.sort(u[:, column]) - (np.arange(3000) + 0.5) / 3000).max()
        assert distance < 1.63 / np.sqrt(3000)  # Kolmogorov's at 1 %
    assert np.abs(np.corrcoef(u.T) - np.eye(20)).max() < 4.5 / np.sqrt(3000)
