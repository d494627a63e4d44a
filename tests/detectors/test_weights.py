"""Weights of a sum: the minimum of a convex function, found; fewer members step by step; settings chosen by kinds left out."""

from __future__ import annotations

import math

import pytest
import torch

from outfield.detectors.combined.weights import L2, Regression, Terms, left_out, loss, weight_path


def made(seed=0, members=6, useless=2, ids=80, rows=60):
    """Terms of ID rows, and of two near and two far kinds that every member but the last few finds higher."""
    source = torch.Generator().manual_seed(seed)

    def draw(count, shift):
        found = torch.empty(count, members, dtype=torch.float64).exponential_(generator=source)
        useful = torch.arange(members) < members - useless
        common = shift * torch.rand(count, 1, generator=source, dtype=torch.float64)
        return found + common * useful * torch.linspace(0.3, 1, members, dtype=torch.float64)

    shifts = {("near", "a"): 1.0, ("near", "b"): 1.5, ("far", "c"): 4.0, ("far", "d"): 8.0}
    return Terms(draw(ids, 0.0), {kind: draw(rows + 7 * i, shift) for i, (kind, shift) in enumerate(shifts.items())})


def naive(terms, x, l2):
    """F(w, b), row by row."""
    total = l2 / 2 * float(x[:-1].square().sum())
    for row in terms.ids:
        total += 0.5 / len(terms.ids) * math.log1p(math.exp(float(row @ x[:-1] + x[-1])))
    levels = [level for level, _ in terms.others]
    for (level, _), rows in terms.others.items():
        for row in rows:
            share = 0.5 / len({*levels}) / levels.count(level) / len(rows)
            total += share * math.log1p(math.exp(-float(row @ x[:-1] + x[-1])))
    return total


def by_gradient(terms, l2, steps=20000):
    """The same minimum by projected gradient steps with momentum (Beck & Teboulle 2009), from torch's own derivatives."""
    levels = [level for level, _ in terms.others]
    rows = torch.cat([-terms.ids, *terms.others.values()])
    signs = torch.cat([-torch.ones(len(terms.ids)), torch.ones(len(rows) - len(terms.ids))]).double()
    counts = torch.cat(
        [torch.full((len(terms.ids),), 0.5 / len(terms.ids)).double()]
        + [
            torch.full((len(found),), 0.5 / len({*levels}) / levels.count(level) / len(found)).double()
            for (level, _), found in terms.others.items()
        ]
    )
    x = y = torch.zeros(rows.shape[1] + 1, dtype=torch.float64)
    speed = 4 / float((counts[:, None] * torch.cat([rows, signs[:, None]], 1).square()).sum())
    t = 1.0
    for _ in range(steps):
        at = y.clone().requires_grad_()
        value = counts @ torch.log1p(torch.exp(-(rows @ at[:-1] + signs * at[-1]))) + l2 / 2 * at[:-1].square().sum()
        (slope,) = torch.autograd.grad(value, at)
        new = y - speed * slope
        new[:-1] = new[:-1].clamp_min(0)
        after = (1 + math.sqrt(1 + 4 * t * t)) / 2
        x, y, t = new, new + (t - 1) / after * (new - x), after
    return x


@pytest.mark.parametrize("l2", [0.001, 0.01, 0.1, 3.0])
def test_the_minimum_is_that_of_another_solver(l2):
    terms = made()
    found, expected = Regression(terms).weights(l2), by_gradient(terms, l2, 4000)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert naive(terms, found, l2) <= naive(terms, expected, l2) + 1e-12
    assert bool((found[:-1] >= 0).all())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("l2", L2)
def test_the_conditions_of_a_minimum_hold(seed, l2):
    """The gradient is 0 where a weight is above 0, and not negative where it is 0 (Karush, Kuhn & Tucker)."""
    terms = made(seed, members=12, useless=5)
    x = Regression(terms).weights(l2)
    base = naive(terms, x, l2)
    slope = torch.empty_like(x)
    for i in range(len(x)):
        moved = x.clone()
        moved[i] += 1e-5
        slope[i] = (naive(terms, moved, l2) - base) / 1e-5
    assert bool((slope[:-1][x[:-1] == 0] > -1e-5).all())
    assert bool((slope[:-1][x[:-1] > 0].abs() < 2e-5).all())
    assert abs(float(slope[-1])) < 2e-5
    assert 0 < int((x[:-1] > 0).sum()) < 12


def test_huge_terms_and_terms_that_tell_all():
    terms = made()
    others = {kind: rows.clone() for kind, rows in terms.others.items()}
    for rows in others.values():
        rows[:, 0] = 1e30
    found = Regression(Terms(terms.ids, others)).weights(0.01)
    assert bool(torch.isfinite(found).all())
    assert found[0] > 0
    apart = Terms(terms.ids, {kind: rows + 100 for kind, rows in terms.others.items()})
    found = Regression(apart).weights(0.01)
    assert bool(torch.isfinite(found).all())
    assert loss(apart.accepted(found[:-1, None])) == 0


def test_the_start_and_other_members_do_not_matter():
    problem = Regression(made())
    members = torch.tensor([True, False, True, True, False, True])
    plain = problem.weights(0.01, members)
    assert plain[:-1][~members].tolist() == [0, 0]
    for start in (torch.full((7,), 5.0, dtype=torch.float64), problem.weights(0.01)):
        torch.testing.assert_close(problem.weights(0.01, members, start), plain, rtol=1e-6, atol=1e-8)
    assert torch.equal(problem.weights(0.01, members), plain)


class TestPath:
    def test_one_of_each_number_of_members(self):
        terms = made(members=10, useless=3)
        path = weight_path(terms, 0.01, 5)
        assert [*sorted(path)] == [1, 2, 3, 4, 5]
        for count, weights in path.items():
            assert int((weights > 0).sum()) == count
            assert float(weights.max()) == 1.0
            assert float(weights[weights > 0].min()) >= 1 / 50
            if count > 1:
                again = Regression(terms).weights(0.01, weights > 0)[:-1]
                torch.testing.assert_close(weights, again / again.max(), rtol=1e-6, atol=1e-8)

    def test_fewer_members_are_some_of_more(self):
        path = weight_path(made(members=10, useless=3), 0.01, 8)
        for few, more in ((2, 3), (3, 4), (4, 5)):
            assert bool((path[more][path[few] > 0] > 0).all())

    def test_one_member_is_the_best_alone(self):
        terms = made(members=10, useless=3)
        each = torch.eye(10, dtype=torch.float64)
        losses = [loss(terms.accepted(one[:, None])) for one in each]
        assert weight_path(terms, 0.01, 1).keys() == {1}
        assert int(weight_path(terms, 0.01, 8)[1].argmax()) == losses.index(min(losses))

    def test_where_nothing_tells_one_is_taken(self):
        terms = made(members=3, useless=3)
        worse = Terms(terms.ids, {kind: rows * 0 for kind, rows in terms.others.items()})
        path = weight_path(worse, 0.01, 8)
        assert path.keys() == {1}
        assert int((path[1] > 0).sum()) == 1


def test_the_share_that_is_accepted():
    ids = torch.arange(1.0, 101, dtype=torch.float64)[:, None]
    others = {("near", "a"): torch.tensor([[90.0], [90.5], [93.5], [95.0], [97.0], [200.0]], dtype=torch.float64)}
    found = Terms(ids, others).accepted(torch.ones(1, 1, dtype=torch.float64))
    assert found["near", "a"][0].tolist() == pytest.approx([1 / 6, 2 / 6, 4 / 6, 5 / 6])
    assert loss({("near", "a"): found["near", "a"][0]}) == pytest.approx(3 / 6)


class TestLeftOut:
    def test_it_is_judged_by_the_kind_that_took_no_part(self):
        terms = made()
        found = left_out(terms, 3)
        assert found.keys() == {(l2, count) for l2 in L2 for count in (1, 2, 3)}
        judged = {}
        for kind, rows in terms.others.items():
            others = {other: found for other, found in terms.others.items() if other != kind}
            weights = weight_path(Terms(terms.ids, others), 0.01, 3)[2]
            judged[kind] = loss(Terms(terms.ids, {kind: rows}).accepted(weights[:, None]))
        near = (judged["near", "a"] + judged["near", "b"]) / 2
        far = (judged["far", "c"] + judged["far", "d"]) / 2
        assert found[0.01, 2] == pytest.approx((near + far) / 2)

    def test_a_kind_that_stands_alone_for_its_level_is_not_left_out(self):
        terms = made()
        near = {kind: rows for kind, rows in terms.others.items() if kind != ("far", "d")}
        several = left_out(Terms(terms.ids, near), 2)
        assert several.keys() == {(l2, count) for l2 in L2 for count in (1, 2)}
        one = {kind: near[kind] for kind in (("near", "a"), ("far", "c"))}
        assert left_out(Terms(terms.ids, one), 2) == {}

    def test_real_sets_take_no_part(self):
        terms = made()
        real = Terms(terms.ids, {**terms.others, ("real", "x"): terms.ids - 9})
        assert left_out(real, 2) == left_out(terms, 2)
        assert torch.equal(Regression(real).weights(0.01), Regression(terms).weights(0.01))
