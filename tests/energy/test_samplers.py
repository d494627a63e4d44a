"""What a move costs, and that carrying energies and gradients changes no bit of the chains."""

import itertools
import math

import pytest
import torch

import outfield as of
from outfield.energy import PROJECTIONS, identity

sphere = PROJECTIONS["sphere"]

LANGEVIN = of.Langevin(steps=6, step_size=(0.2, 0.05), noise_std=(0.3, 0.1))
MALA = of.MetropolisLangevin(steps=6, step_size=(0.4, 0.2))
HMC = of.HamiltonianMonteCarlo(steps=6, step_size=(0.5, 0.3), leapfrog=5)


class Counting:
    """A skewed energy through a network, that counts how often it is asked and how often with a gradient."""

    def __init__(self):
        self.network = of.MLP(hidden=12, depth=1).build(5, 3)
        self.calls = 0

    def __call__(self, z):
        self.calls += 1
        return (z + torch.exp(-z)).sum(1) + self.network(z).squeeze(1)


@pytest.mark.parametrize(
    ("sampler", "project", "expected"),
    [
        (LANGEVIN, identity, 6), (LANGEVIN, sphere, 6), (MALA, identity, 6 + 1), (MALA, sphere, 6 + 1),
        (HMC, identity, 6 * 5 + 1), (HMC, sphere, 6 * (5 + 1) + 1),
    ],
)  # fmt: skip
def test_how_often_a_chain_asks_for_the_energy(sampler, project, expected):
    energy = Counting()
    of.run_chains(energy, torch.ones(7, 5), sampler, project)
    assert energy.calls == expected


def slope(energy, z):
    z = z.clone().requires_grad_()
    value = energy(z)
    value.sum().backward()
    return value.detach(), z.grad


def mala_by_the_book(energy, z, sampler, project, generator):
    """Every energy and gradient is computed where it is needed, however often it has been before."""
    noise = torch.randn(sampler.steps, *z.shape, generator=generator, dtype=z.dtype)
    for t in range(sampler.steps):
        step = sampler.step_size[0] + (sampler.step_size[1] - sampler.step_size[0]) * t / (sampler.steps - 1)
        here, grad = slope(energy, z)
        proposal = project(z - step * grad + math.sqrt(2 * step) * noise[t])
        there, grad_there = slope(energy, proposal)
        back = -(z - proposal + step * grad_there).square().sum(1) / (4 * step)
        forth = -(proposal - z + step * grad).square().sum(1) / (4 * step)
        taken = torch.rand(len(z), generator=generator, dtype=z.dtype).log() < here - there + back - forth
        z = torch.where(taken[:, None], proposal, z)
    return z


def hmc_by_the_book(energy, z, sampler, project, generator):
    momenta = torch.randn(sampler.steps, *z.shape, generator=generator, dtype=z.dtype)
    for t in range(sampler.steps):
        step = sampler.step_size[0] + (sampler.step_size[1] - sampler.step_size[0]) * t / (sampler.steps - 1)
        momentum, proposal = momenta[t], z
        start = energy(z).detach() + 0.5 * momentum.square().sum(1)
        for _ in range(sampler.leapfrog):
            momentum = momentum - 0.5 * step * slope(energy, proposal)[1]
            proposal = proposal + step * momentum
            momentum = momentum - 0.5 * step * slope(energy, proposal)[1]
        proposal = project(proposal)
        end = energy(proposal).detach() + 0.5 * momentum.square().sum(1)
        taken = torch.rand(len(z), generator=generator, dtype=z.dtype).log() < start - end
        z = torch.where(taken[:, None], proposal, z)
    return z


@pytest.mark.parametrize("project", [identity, sphere])
@pytest.mark.parametrize(("sampler", "book"), [(MALA, mala_by_the_book), (HMC, hmc_by_the_book)])
def test_carrying_what_is_known_changes_no_chain(sampler, book, project):
    energy = Counting()
    start = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    found = of.run_chains(energy, start, sampler, project, torch.Generator().manual_seed(2))
    expected = book(energy, project(start), sampler, project, torch.Generator().manual_seed(2))
    assert 0.1 < float(found.acceptance) < 0.999  # some refused, some accepted
    assert torch.equal(found.ends, expected)


BAD_STEPS = [-1, 2.5, "5", None, True, float("nan"), float("inf"), 10**30, (3,)]
BAD_SCHEDULES = [
    0.1, None, "ab", (0.1,), (0.1, 0.1, 0.1), [0.1, 0.1], (-1e-9, 1.0), (1.0, float("nan")), (1.0, float("inf")),
    ("a", "b"), (None, 1.0), (True, 1.0), (1e300, 1.0),
]  # fmt: skip
BAD = [
    *itertools.product((of.Langevin, of.MetropolisLangevin, of.HamiltonianMonteCarlo), ["steps"], BAD_STEPS),
    *itertools.product((of.Langevin, of.MetropolisLangevin, of.HamiltonianMonteCarlo), ["step_size"], BAD_SCHEDULES),
    *itertools.product([of.Langevin], ["noise_std"], BAD_SCHEDULES),
    *itertools.product([of.HamiltonianMonteCarlo], ["leapfrog"], [0, -1, 1.0, "2", None, True, 10**30]),
]


@pytest.mark.parametrize(("cls", "name", "bad"), BAD)
def test_settings_that_make_no_sense(cls, name, bad):
    with pytest.raises(of.InputError, match=name):
        cls(**{name: bad})
