"""Bets are fair, and the wealth is what a loop over numbers and starting moments makes of them."""

import math

import numpy as np
import pytest

from outfield.scores import betting as module
from outfield.scores.betting import BETS, CLOSEST, gaps_of, log_bets, lots, play, reserve, uniform


def test_every_bet_is_a_density():
    """∫ f = 1, by substituting u = x² (3 − 2x), whose slope is 0 at both ends, where some bets have poles."""
    x = (np.arange(300_000) + 0.5) / 300_000
    total = (np.exp(log_bets(x**2 * (3 - 2 * x))) * (6 * x * (1 - x))[:, None]).mean(0)
    assert total.shape == (BETS,) == (13,)
    assert total == pytest.approx(np.ones(BETS), abs=0.01)  # the pole u^(−0.8) converges slowly


def test_bets_by_hand():
    u = 0.04
    small = [(1 - s) + s * e * u ** (e - 1) for s in (0.03, 0.1, 0.3, 1.0) for e in (0.2, 0.5)]
    large = [(1 - s) + s * 0.5 * (1 - u) ** -0.5 for s in (0.1, 0.3, 1.0)]
    ends, middle = 1 / (math.pi * math.sqrt(u * (1 - u))), 6 * u * (1 - u)
    assert np.exp(log_bets(np.array([u]))[0]) == pytest.approx([*small, *large, ends, middle])


def test_bets_are_finite_at_the_ends():
    assert CLOSEST == 2**-53
    assert np.isfinite(log_bets(np.array([0.0, 1e-300, 1.0]))).all()


def by_loop(numbers):
    """S_k as a sum over the moments at which capital begins to work."""
    bets = np.exp(log_bets(numbers))
    wealth = []
    for t in range(1, len(numbers) + 1):
        parts = [
            (reserve(start) - reserve(start + 1)) * bets[start:t].prod(0) for start in range(t)
        ]  # capital that began at number start + 1
        wealth.append(float(reserve(t) + np.mean(np.sum(parts, axis=0))))
    return wealth


def test_the_wealth_is_a_mixture_over_bets_and_beginnings():
    numbers = np.random.default_rng(0).random(30) ** 2
    stakes, wealth = play(np.full(BETS, -np.inf), 0, numbers)
    assert np.exp(wealth) == pytest.approx(by_loop(numbers))
    assert np.exp(wealth[-1]) == pytest.approx(reserve(30) + np.exp(stakes).mean())


def test_pieces_are_the_whole():
    numbers = np.random.default_rng(1).random(100)
    whole, wealth = play(np.full(BETS, -np.inf), 0, numbers)
    stakes, count, pieces = np.full(BETS, -np.inf), 0, []
    for size in (1, 1, 30, 68):
        stakes, part = play(stakes, count, numbers[count : count + size])
        pieces, count = [*pieces, *part], count + size
    assert stakes == pytest.approx(whole)
    assert pieces == pytest.approx(wealth)


def test_the_wealth_of_uniform_numbers_is_a_martingale():
    """One step from any state: the mean over a grid of u is the wealth before."""
    stakes, wealth = play(np.full(BETS, -np.inf), 0, np.array([0.01, 0.5, 0.02]))
    grid = (np.arange(5_000) + 0.5) / 5_000
    x = grid**2 * (3 - 2 * grid)
    after = np.exp([play(stakes, 3, np.array([u]))[1][0] for u in x])
    assert (after * 6 * grid * (1 - grid)).mean() == pytest.approx(math.exp(wealth[-1]), rel=0.01)


def test_no_overflow():
    stakes, wealth = play(np.full(BETS, -np.inf), 0, np.full(50_000, 1e-12))
    assert wealth[-1] > 10_000
    assert np.isfinite(wealth).all()
    assert np.isfinite(play(stakes, 50_000, np.full(50_000, 0.5))[1]).all()


def test_gaps_by_hand():
    reference = np.array([1.0, 2.0, 2.0, 2.0, 5.0])
    ties = np.array([0.5, 0.1, 0.4, 0.8, 0.5])
    scores = np.array([0.0, 1.5, 2.0, 2.0, 2.0, 2.0, 6.0, np.inf, -np.inf])
    luck = np.array([0.9, 0.9, 0.05, 0.2, 0.7, 0.9, 0.0, 0.0, 0.0])
    assert gaps_of(reference, ties, scores, luck).tolist() == [5, 4, 4, 3, 2, 1, 0, 0, 5]


def test_lots_are_in_order_among_equals():
    assert lots(np.array([1.0, 1.0, 2.0]), np.array([0.9, 0.1, 0.5])).tolist() == [0.1, 0.9, 0.5]


def urn_by_loop(n, places, luck):
    counts, found = [0] * (n + 1), []
    for t, (place, v) in enumerate(zip(places, luck, strict=True)):
        below = sum(1 + counts[i] for i in range(place))
        found.append((below + v * (1 + counts[place])) / (n + 1 + t))
        counts[place] += 1
    return found, counts


@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_urn_is_that_of_the_formula(n, monkeypatch):
    monkeypatch.setattr(module, "TOGETHER", 16)
    rng = np.random.default_rng(n)
    places, luck = rng.integers(0, n + 1, 70), 1 - rng.random(70)
    counts = np.zeros(n + 1, np.int64)
    parts = [uniform(counts, places[start:end], luck[start:end]) for start, end in ((0, 1), (1, 40), (40, 70))]
    expected, after = urn_by_loop(n, places, luck)
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
