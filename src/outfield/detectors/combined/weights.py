"""Weights of detectors in a sum: a logistic regression of ID rows against stand-ins whose weights are not negative.

With t_i (M,) what the detectors add to the score of row i, y_i = 1 for a stand-in and −1 for an ID row, the weights w ≥ 0 and a
constant b minimise

    F(w, b) = Σ_i c_i log(1 + exp(−y_i (w·t_i + b))) + λ/2 ‖w‖².

ID rows have half of the total weight Σ c_i = 1, near and far stand-ins half of the rest each, every kind of a level the same. F
is convex, so that there is one minimum; it is found by Newton steps that are projected on w ≥ 0 (Bertsekas 1982).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from outfield.partners import LEVELS
from outfield.scores import rank

# shares of the ID rows that are kept where sums are compared: at one share alone a few rows decide
KEPT = (0.90, 0.93, 0.95, 0.97)
L2 = (0.001, 0.01, 0.1)  # λ that are compared
USUAL_L2 = 0.01  # λ where too few kinds of stand-ins are there to compare
LIGHTEST = 1 / 50  # members that count less than this share of the heaviest one are left out
LARGEST_TERM = 1000.0  # more is not told from more: it would only spoil the numbers of the solver
TOLERANCE = 1e-9  # the largest entry of the projected gradient where the solver ends
ROUNDING, STEPS, HALVINGS = 1e-14, 200, 40

Kind = tuple[str, str]  # level and name of a set of stand-ins


@dataclass(frozen=True)
class Terms:
    """What each of M detectors adds to a sum: for ID rows (n, M), float64, and for other sets (m, M) by level and name."""

    ids: Tensor
    others: Mapping[Kind, Tensor]

    @property
    def kinds(self) -> list[Kind]:
        """The sets of stand-ins; others are not learned from."""
        return [kind for kind in self.others if kind[0] in LEVELS]

    def accepted(self, weights: Tensor) -> dict[Kind, Tensor]:
        """Of each set the share of rows that weighted sums, one for each column of (M, S), accept at each of KEPT (S, KEPT)."""
        ids = (self.ids @ weights).sort(dim=0).values
        limits = torch.stack([ids[rank(kept, len(ids)) - 1] for kept in KEPT], dim=1)
        return {kind: ((rows @ weights)[:, :, None] <= limits).double().mean(0) for kind, rows in self.others.items()}

    def without(self, kind: Kind) -> Terms:
        """The same, but for one set."""
        return Terms(self.ids, {other: rows for other, rows in self.others.items() if other != kind})


def by_level(found: Mapping[Kind, float]) -> tuple[float, float]:
    """Means over the sets that stand for near and for far OOD; where there are only ones of one level, it stands for both."""
    levels = {level: [value for (at, _), value in found.items() if at == level] for level in LEVELS}
    means = {level: sum(values) / len(values) for level, values in levels.items() if values}
    other = next(iter(means.values()))
    return means.get("near", other), means.get("far", other)


def loss(accepted: Mapping[Kind, Tensor]) -> float:
    """Mean share of stand-ins that one sum accepts, over KEPT; near and far count equally."""
    return sum(by_level({kind: float(shares.mean()) for kind, shares in accepted.items() if kind[0] in LEVELS})) / 2


class Regression:
    """The convex problem of these terms."""

    def __init__(self, terms: Terms) -> None:
        kinds = terms.kinds
        rows = torch.cat([terms.ids, *(terms.others[kind] for kind in kinds)]).clamp(-LARGEST_TERM, LARGEST_TERM)
        counts = [torch.full((len(terms.ids),), 0.5 / len(terms.ids), dtype=torch.float64)]
        levels = [level for level, _ in kinds]
        for kind in kinds:
            share = 0.5 / len({*levels}) / levels.count(kind[0]) / len(terms.others[kind])
            counts.append(torch.full((len(terms.others[kind]),), share, dtype=torch.float64))
        signs = torch.ones(len(rows), 1, dtype=torch.float64)
        signs[: len(terms.ids)] = -1
        self._rows = signs * torch.cat([rows, torch.ones_like(signs)], dim=1)
        self._counts = torch.cat(counts)

    def weights(self, l2: float, members: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The minimum x = (w, b) (M + 1,); only ``members`` (M,), bool, have a weight. ``start`` is that of a similar problem."""
        whole = torch.zeros(self._rows.shape[1], dtype=torch.float64) if start is None else start.clone()
        free = torch.ones(len(whole), dtype=torch.bool)
        if members is not None:
            free[:-1] = members
        x = self._minimum(self._rows[:, free], whole[free], l2)
        whole = torch.zeros_like(whole)
        whole[free] = x
        return whole

    def _minimum(self, rows: Tensor, x: Tensor, l2: float) -> Tensor:
        bounded = torch.ones(len(x), dtype=torch.bool)
        bounded[-1] = False
        ridge = l2 * bounded.double()

        def projected(x: Tensor) -> Tensor:
            return torch.where(bounded, x.clamp_min(0), x)

        def value(x: Tensor) -> Tensor:
            return self._counts @ softplus(-(rows @ x)) + (ridge * x * x).sum() / 2

        now = value(x)
        for _ in range(STEPS):
            missed = torch.sigmoid(-(rows @ x))
            slope = ridge * x - rows.T @ (self._counts * missed)
            off = (x - projected(x - slope)).abs().max()
            if off <= TOLERANCE:
                break
            # Weights at 0, or so near that a step would end there, follow the slope; the others take Newton's step.
            still = bounded & (slope > 0) & (x <= off.clamp_max(1e-3))
            curvature = self._counts * missed * (1 - missed)
            matrix = (rows * curvature[:, None]).T @ rows + torch.diag(ridge + 1e-14)
            step = -slope
            step[~still] = torch.linalg.solve(matrix[~still][:, ~still], step[~still])
            for halving in range(HALVINGS):
                new = projected(x + step / 2**halving)
                then = value(new)
                if then <= now + 1e-4 * (slope @ (new - x)) + ROUNDING:
                    break
            else:
                break  # as low as the numbers can tell
            x, now = new, then
        return x


def weight_path(terms: Terms, l2: float, most: int) -> dict[int, Tensor]:
    """Weights (M,) by the number of members, from 1 to at most ``most``, the heaviest 1.

    All detectors are fitted; those below LIGHTEST go, then the lightest of those that are left, one after the other (a third at
    once while there are too many), and the others are fitted again each time. The one that stays alone is the one that tells ID
    rows from stand-ins best alone. Numbers of members at which nothing was fitted are left out.
    """
    found = {1: _best_alone(terms)}
    problem, start = Regression(terms), None
    members = torch.ones(terms.ids.shape[1], dtype=torch.bool)
    while True:
        start = problem.weights(l2, members, start)
        weights = start[:-1]
        heavy = weights >= LIGHTEST * weights.max()
        if weights.max() == 0:
            return found
        count = int((members & heavy).sum())
        if count < int(members.sum()):
            members = members & heavy
            continue
        if count == 1:
            return found
        if count <= most:
            found[count] = weights / weights.max()
        fewer = count - 1 if count <= most else max(most, count * 2 // 3)
        members = torch.zeros_like(members).index_fill(0, weights.argsort(descending=True, stable=True)[:fewer], True)


def _best_alone(terms: Terms) -> Tensor:
    each = torch.eye(terms.ids.shape[1], dtype=torch.float64)
    accepted = terms.accepted(each)
    losses = [loss({kind: shares[i] for kind, shares in accepted.items()}) for i in range(len(each))]
    return each[losses.index(min(losses))]


def left_out(terms: Terms, most: int) -> dict[tuple[float, int], dict[Kind, float]]:
    """The loss on each kind of stand-in that was left out of the fit, if another stands for its level; by λ and most members."""
    levels = [level for level, _ in terms.kinds]
    losses: dict[tuple[float, int], dict[Kind, float]] = {(l2, count): {} for l2 in L2 for count in range(1, most + 1)}
    for kind in terms.kinds:
        if levels.count(kind[0]) < 2:
            continue
        judged = Terms(terms.ids, {kind: terms.others[kind]})
        for l2 in L2:
            path = weight_path(terms.without(kind), l2, most)
            own = {count: loss(judged.accepted(weights[:, None])) for count, weights in path.items()}
            for count in range(1, most + 1):
                losses[l2, count][kind] = own[max(known for known in own if known <= count)]
    return {setting: found for setting, found in losses.items() if found}


def best_setting(losses: Mapping[tuple[float, int], Mapping[Kind, float]], most: int) -> tuple[float, int]:
    """The usual λ and number of members, unless others lose less by two standard errors over the kinds left out."""
    usual, better = (USUAL_L2, most), {}
    for setting, found in losses.items():
        gains = {kind: losses[usual][kind] - value for kind, value in found.items()}
        gain = sum(by_level(gains)) / 2
        levels = [level for level, _ in gains]
        shares = [1 / len({*levels}) / levels.count(level) for level in levels]
        error = sum((share * (one - gain)) ** 2 for share, one in zip(shares, gains.values(), strict=True)) ** 0.5
        if gain > 2 * error:
            better[setting] = gain
    return max(better, key=lambda one: (better[one], -one[1])) if better else usual
