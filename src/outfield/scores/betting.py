"""Betting against uniform numbers: a wealth that cannot be expected to grow while they are uniform, and grows when they are not.

A bet is a density f on (0, 1) with ∫ f = 1. Whoever stakes wealth on it has f(u) times as much after the number u; if u is
uniform given the past, the wealth is a martingale, and P(it ever reaches 1 / alpha) ≤ alpha (Ville's inequality). The test may
be looked at after every number and never ends.

The wealth here is a mixture over several bets and over the moment at which each begins to bet, so that a change after a
million quiet numbers is found, too: capital w_t = R_{t−1} − R_t is put to work at number t, with the reserve
R_t = 1 / (1 + ln(1 + t)), and for each bet k

    S_k,t = (S_k,t−1 + w_t) f_k(u_t),        wealth_t = R_t + mean_k S_k,t.

A change after τ numbers costs −ln w_τ ≈ ln τ + 2 ln ln τ of the evidence. All of it is kept as logarithms.

Uniform numbers from ranks: the p-values of many samples against *one* set of n calibration scores are not uniform. Given the
set they deviate by about 1 / √n, and a long stream of ID samples would look like drift. What is exact is the next place given
those before. The n scores leave n + 1 gaps; if calibration scores and samples so far are exchangeable, the next sample falls
into gap g with probability

    (1 + N_g) / (n + 1 + t)

after t samples of which N_g fell into it (Pólya's urn). So, with v uniform on (0, 1],

    u = (Σ_{i<g} (1 + N_i) + v (1 + N_g)) / (n + 1 + t)

is uniform given the past, whatever the distribution of the scores and the luck of the calibration: small u, high score.

References: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World, ch. 8 (2nd ed., 2022); Ramdas et al., Game-theoretic
statistics and safe anytime-valid inference (Statistical Science, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# numbers are not taken to be closer to 0 and 1 than this, where some bets grow without bound; it makes them smaller only
CLOSEST = 2.0**-53
SHARES = (0.03, 0.1, 0.3, 1.0)  # of the numbers that are not uniform, in bets on small ones
POWERS = (0.2, 0.5)  # ε of the densities ε u^(ε − 1)
LARGE_SHARES = (0.1, 0.3, 1.0)  # of the numbers that are too large
TOGETHER = 256  # samples that are compared with each other together
BETS = len(SHARES) * len(POWERS) + len(LARGE_SHARES) + 2


def log_bets(numbers: np.ndarray) -> np.ndarray:
    """ln f_k(u) of numbers (N,) in (0, 1], for each bet (N, BETS).

    (1 − λ) + λ ε u^(ε−1) for each λ and ε: a share λ of small numbers, as OOD samples give; the same in 1 − u for ε = ½: numbers
    that are too large; 1 / (π √(u (1 − u))): too many at both ends; 6 u (1 − u): too many in the middle.
    """
    low = np.clip(np.asarray(numbers, dtype=np.float64), CLOSEST, 1 - CLOSEST)
    high = 1 - low
    bets = [_partly(share, power, low) for share in SHARES for power in POWERS]
    bets += [_partly(share, 0.5, high) for share in LARGE_SHARES]
    bets += [1 / (np.pi * np.sqrt(low * high)), 6 * low * high]
    logarithms: np.ndarray = np.log(np.stack(bets, axis=1))
    return logarithms


def _partly(share: float, power: float, number: np.ndarray) -> np.ndarray:
    return (1 - share) + share * power * number ** (power - 1)


def reserve(count: np.ndarray | int) -> np.ndarray:
    """R_t, the part of the wealth that is not yet at work after t numbers."""
    return 1 / (1 + np.log1p(np.asarray(count, dtype=np.float64)))


def play(stakes: np.ndarray, count: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bet on the next numbers (N,) after ``count`` others, with the stakes ln S_k (BETS,), −inf at the beginning.

    Gives ln S_k (BETS,) after the last of them, and ln wealth after each of them (N,).
    """
    gains = np.cumsum(log_bets(numbers), axis=0)
    before = np.vstack([np.zeros_like(gains[:1]), gains[:-1]])
    times = np.arange(count, count + len(numbers))
    new = np.log(reserve(times) - reserve(times + 1))[:, None] - before
    new[0] = np.logaddexp(new[0], stakes)
    stakes_after = gains + np.logaddexp.accumulate(new, axis=0)
    at_work = np.logaddexp.reduce(stakes_after, axis=1) - np.log(BETS)
    return stakes_after[-1], np.logaddexp(at_work, np.log(reserve(times + 1)))


def gaps_of(reference: np.ndarray, ties: np.ndarray, scores: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """How many calibration scores (n,), ascending, lie above each score (N,): 0 to n. Equal ones are ordered by lot.

    ``ties`` (n,), ascending among equal scores, and ``luck`` (N,) are numbers from one distribution.
    """
    first = np.searchsorted(reference, scores, side="left")
    last = np.searchsorted(reference, scores, side="right")
    for index in np.flatnonzero(last > first):
        start, end = first[index], last[index]
        first[index] = start + np.searchsorted(ties[start:end], luck[index])
    return len(reference) - first


def lots(reference: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The numbers (n,), put in ascending order among equal calibration scores (n,)."""
    return numbers[np.lexsort((numbers, reference))]


def uniform(counts: np.ndarray, gaps: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """u of samples in these gaps (N,), with v = ``luck`` (N,); ``counts`` (n + 1,), the N_g, is brought up to date."""
    found = np.empty(len(gaps))
    for start in range(0, len(gaps), TOGETHER):
        piece = gaps[start : start + TOGETHER]
        sums = np.concatenate([[0], np.cumsum(counts)])
        earlier = np.tri(len(piece), k=-1, dtype=bool)
        below = sums[piece] + piece + ((piece[None] < piece[:, None]) & earlier).sum(1)
        within = 1 + counts[piece] + ((piece[None] == piece[:, None]) & earlier).sum(1)
        slots = len(counts) + sums[-1] + np.arange(len(piece))
        found[start : start + TOGETHER] = (below + luck[start : start + TOGETHER] * within) / slots
        np.add.at(counts, piece, 1)
    return found


def anytime_interval(hits: int, count: int, confidence: float) -> tuple[float, float]:
    """A confidence sequence for a share: with probability ``confidence`` it holds the true share at *every* count at once.

    With k hits among t samples, the shares q that the mixture bet of Robbins has not refuted:

        ∫ x^k (1 − x)^(t−k) dx / (q^k (1 − q)^(t−k)) < 1 / (1 − confidence).

    Wider than Clopper and Pearson's interval, which holds at one count that was chosen beforehand.

    >>> low, high = anytime_interval(50, 1000, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.0282, 0.0802)
    >>> anytime_interval(0, 0, 0.95)
    (0.0, 1.0)
    """
    misses = count - hits
    mixture = math.lgamma(hits + 1) + math.lgamma(misses + 1) - math.lgamma(count + 2)
    limit = mixture + math.log1p(-confidence)

    def stands(share: float) -> bool:
        likelihood = (hits * math.log(share) if hits else 0.0) + (misses * math.log1p(-share) if misses else 0.0)
        return likelihood > limit

    middle = hits / count if count else 0.5
    low = 0.0 if not hits else _edge(0.0, middle, stands)
    high = 1.0 if not misses else _edge(1.0, middle, stands)
    return low, high


def _edge(out: float, inside: float, stands: Callable[[float], bool]) -> float:
    """The last share on the way from ``out``, which does not stand, to ``inside``, which does; by bisection."""
    while out != (middle := (out + inside) / 2) != inside:
        if stands(middle):
            inside = middle
        else:
            out = middle
    return inside
