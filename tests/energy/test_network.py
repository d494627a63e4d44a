"""Networks: PyTorch's own initialisation from a generator of their own, with nothing shared between threads."""

import itertools

import pytest
import torch
from tests.helpers.samples import quick
from torch import nn

import outfield as of
from outfield.config import configurable
from outfield.energy import SineMLP, build_network


def weights(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def torch_built(seed, build):
    """A network built the usual way, from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def plain_mlp():
    return nn.Sequential(
        nn.Linear(7, 12), nn.LeakyReLU(0.3), nn.Linear(12, 12), nn.LeakyReLU(0.3),
        nn.Linear(12, 12), nn.LeakyReLU(0.3), nn.Linear(12, 1),
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_an_mlp_has_the_weights_that_pytorch_would_give_it(seed):
    found, expected = of.MLP(hidden=12, depth=2, slope=0.3).build(7, seed), torch_built(seed, plain_mlp)
    assert same(weights(found), weights(expected))
    assert str(found) == str(expected)
    assert all(p.requires_grad for p in found.parameters())


def test_a_sine_network_draws_its_frequencies_first():
    def usual():
        directions = torch.randn(3, 5) * 2.5
        return directions, nn.Sequential(nn.Linear(10, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    directions, rest = torch_built(4, usual)
    found = SineMLP(hidden=8, depth=1, frequencies=5, scale=2.5).build(3, 4)
    assert torch.equal(found[0].directions, directions)
    assert same(weights(nn.Sequential(*found[1:])), weights(rest))
    z = torch.rand(4, 3)
    angles = z @ directions
    torch.testing.assert_close(found(z), rest(torch.cat([angles.sin(), angles.cos()], dim=1)))


@configurable
class Careless:
    """A recipe that takes its weights from the global generator and does not look at the seed."""

    def build(self, width, seed):
        return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


def test_a_recipe_that_ignores_its_seed_is_given_it(train_set, test_set):
    before = torch.get_rng_state()
    detectors = [quick("EBM", network=Careless(), seed=seed).fit(train_set) for seed in (3, 3, 4)]
    scores = [detector.score(test_set) for detector in detectors]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_recipes_that_build_something_else_are_refused():
    class Wrong:
        def __init__(self, made):
            self.made = made

        def build(self, width, seed):
            return self.made

    with pytest.raises(of.InputError, match="network"):
        build_network(Wrong("a network"), 3, 0)
    with pytest.raises(of.InputError, match=r"torch.float64; they must be torch.float32"):
        build_network(Wrong(nn.Linear(3, 1).double()), 3, 0)


BAD_SIZES = [-5, 2.5, float("nan"), float("inf"), "8", None, True, 10**30]
BAD_NUMBERS = [-1.0, float("nan"), float("inf"), "0.2", None, True, 1e30]
BAD = [
    *itertools.product([of.MLP, SineMLP], ["hidden", "depth"], BAD_SIZES),
    *itertools.product([of.MLP, SineMLP], ["hidden"], [0]),
    *itertools.product([SineMLP], ["frequencies"], [*BAD_SIZES, 0]),
    *itertools.product([of.MLP], ["slope"], BAD_NUMBERS),
    *itertools.product([SineMLP], ["scale"], BAD_NUMBERS),
]


@pytest.mark.parametrize(("recipe", "name", "bad"), BAD)
def test_settings_that_make_no_sense(recipe, name, bad):
    with pytest.raises(of.InputError, match=name):
        recipe(**{name: bad})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("temperature", 0), ("temperature", float("nan")), ("temperature", None), ("prior_temperature", -1.0),
     ("prior_temperature", "1")],
)  # fmt: skip
def test_an_energy_of_what_is_none(name, wrong):
    with pytest.raises(of.InputError, match=name):
        of.CorrectedEnergy(**{"network": nn.Linear(2, 1), name: wrong})
