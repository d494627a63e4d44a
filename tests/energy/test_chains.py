"""Chains in exact cases: no noise, known stationary moments, a skewed target, and nothing global touched."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import gamma, kstest

import outfield as of
from outfield.energy import PROJECTIONS, chains, identity, projection_for
from outfield.energy.chains import STARTS, Random, make_start
from outfield.features import normalise

sphere, relu_sphere = PROJECTIONS["sphere"], PROJECTIONS["relu_sphere"]
SIGMA = 0.7
SAMPLERS = [
    of.MetropolisLangevin(steps=300, step_size=(0.15, 0.15)),
    of.HamiltonianMonteCarlo(steps=120, step_size=(0.35, 0.35), leapfrog=4),
]


def quadratic(z):
    return 0.5 * z.square().sum(1) / SIGMA**2


def gumbel(z):
    """A skewed density, exp(−z − e^(−z)): a Gaussian would hide a wrong sign."""
    return (z + torch.exp(-z)).sum(1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_without_noise_a_quadratic_contracts_exactly():
    start = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    step = 0.05
    sampler = of.Langevin(steps=30, step_size=(step, step), noise_std=(0.0, 0.0))
    ends = of.run_chains(quadratic, start, sampler).ends
    torch.testing.assert_close(ends, start * (1 - step / SIGMA**2) ** 30)


def test_stationary_variance_of_unadjusted_langevin():
    step, noise = 0.2, 0.3
    a = step / SIGMA**2
    sampler = of.Langevin(steps=200, step_size=(step, step), noise_std=(noise, noise))
    ends = of.run_chains(quadratic, torch.zeros(60_000, 1), sampler, generator=generator()).ends
    assert float(ends.var()) == pytest.approx(noise**2 / (a * (2 - a)), rel=0.02)
    assert float(ends.mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_adjusted_chains_have_the_exact_variance(sampler):
    chains = of.run_chains(quadratic, torch.zeros(15_000, 2), sampler, generator=generator())
    assert float(chains.ends.var()) == pytest.approx(SIGMA**2, rel=0.03)
    assert 0.5 < float(chains.acceptance) <= 1


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_adjusted_chains_follow_a_skewed_target(sampler):
    ends = of.run_chains(gumbel, torch.zeros(4000, 1), sampler, generator=generator(2)).ends
    assert kstest(torch.exp(-ends[:, 0].double()).numpy(), gamma(1).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_of_several_moves_is_drawn_together_and_none_too_much(dtype, monkeypatch):
    monkeypatch.setattr(chains, "NUMBERS_AT_ONCE", 13)  # two moves of six numbers
    z, mine, theirs = torch.zeros(3, 2, dtype=dtype), generator(), generator()
    random = Random(mine, moves=5)
    with torch.device("meta"):  # what a caller has chosen for itself
        drawn, uniform = torch.stack([random.normal(z) for _ in range(5)]), random.uniform(z)
    expected = [torch.randn(count, 3, 2, generator=theirs, dtype=dtype) for count in (2, 2, 1)]
    assert drawn.dtype == dtype
    assert torch.equal(drawn, torch.cat(expected))
    assert torch.equal(uniform, torch.rand(3, generator=theirs, dtype=dtype))


def test_schedules_are_straight_lines():
    seen = []

    def constant_slope(z):
        seen.append(z.detach().clone())
        return z.sum(1)

    sampler = of.Langevin(steps=3, step_size=(0.3, 0.1), noise_std=(0.0, 0.0))
    ends = of.run_chains(constant_slope, torch.zeros(1, 1, dtype=torch.float64), sampler).ends
    assert [float(z) for z in seen] == pytest.approx([0, -0.3, -0.5])
    assert float(ends) == pytest.approx(-0.6)


def test_the_step_is_the_formula():
    """z − α ∇E(z) + σ ξ; a chain of one step takes the first of its sizes."""
    z, slope, noise = torch.ones(1, 2), torch.tensor([2.0, -1.0]), torch.randn(1, 1, 2, generator=generator())[0]
    sampler = of.Langevin(steps=1, step_size=(0.1, 9.0), noise_std=(0.2, 9.0))
    ends = of.run_chains(lambda z: z @ slope, z, sampler, generator=generator()).ends
    torch.testing.assert_close(ends, z - 0.1 * slope + 0.2 * noise)


@pytest.mark.parametrize("sampler", [of.Langevin(steps=4, step_size=(1e-2, 1e-2), noise_std=(0.3, 0.3)), *SAMPLERS])
@pytest.mark.parametrize("project", [sphere, relu_sphere])
def test_projected_chains_stay_where_features_live(sampler, project):
    start = torch.randn(50, 8, generator=generator())
    ends = of.run_chains(quadratic, start, sampler, project, generator()).ends
    torch.testing.assert_close(ends.norm(dim=1), torch.ones(50))
    if project is relu_sphere:
        assert (ends >= 0).all()


@pytest.mark.parametrize("sampler", [of.Langevin(steps=2), *SAMPLERS])
def test_pure(sampler):
    start = torch.randn(5, 3, generator=generator())
    layer = torch.nn.Linear(3, 1)
    before, state = start.clone(), torch.get_rng_state()

    def energy(z):
        return layer(z).squeeze(-1)

    with torch.no_grad():
        first = of.run_chains(energy, start, sampler, identity, generator(3))
        assert not torch.is_grad_enabled()
    second = of.run_chains(energy, start, sampler, identity, generator(3))
    assert torch.equal(first.ends, second.ends)
    assert torch.equal(start, before)
    assert torch.equal(state, torch.get_rng_state())
    assert layer.weight.grad is None
    assert not first.ends.requires_grad


def test_no_steps_means_no_move():
    start = torch.randn(3, 2)
    assert torch.equal(of.run_chains(quadratic, start, of.Langevin(steps=0)).ends, start)


class TestWhatChainsCannotStartFrom:
    good = torch.zeros(3, 2)

    @pytest.mark.parametrize("start", [
        torch.zeros(3), torch.zeros(1, 3, 2), torch.zeros(0, 2), torch.zeros(2, 0),
        torch.tensor([[0.0, float("nan")]]), torch.tensor([[0.0, float("inf")]]),
        torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.bool),
        torch.zeros(3, 2, dtype=torch.complex64), [[0.0, 0.0]], None,
        torch.zeros(3, 2).to_sparse(), torch.zeros(3, 2).to_sparse_csr(), torch.zeros(3, 2, device="meta"),
        torch.nested.nested_tensor([torch.zeros(2)]), torch.zeros(3, 2).to(torch.float8_e4m3fn),
    ])  # fmt: skip
    def test_starts(self, start):
        with pytest.raises(of.InputError, match="start"):
            of.run_chains(quadratic, start, of.Langevin(steps=1))

    @pytest.mark.parametrize("sampler", [of.Langevin(steps=1), *SAMPLERS])
    @pytest.mark.parametrize(("energy", "reason"), [
        (lambda z: z.square().sum(), r"shape \(\)"),
        (lambda z: z.square(), r"shape \(3, 2\)"),
        (lambda z: z.square().sum(1, keepdim=True), r"shape \(3, 1\)"),
        (lambda z: z.square().sum(1)[:2], r"shape \(2,\)"),
        (lambda z: [0.0] * len(z), "list"),
        (lambda z: z.detach().sum(1), "no gradient"),
        (lambda z: torch.ones(3, requires_grad=True), "no gradient"),
    ])  # fmt: skip
    def test_energies(self, sampler, energy, reason):
        with pytest.raises(of.InputError, match=f"energy .*{reason}"):
            of.run_chains(energy, self.good, sampler)

    @pytest.mark.parametrize(("arguments", "name"), [
        ({"sampler": None}, "sampler"),
        ({"sampler": "Langevin"}, "sampler"),
        ({"sampler": SimpleNamespace(begin=len, steps=1)}, "sampler is .*; it must be one such as"),
        ({"sampler": SimpleNamespace(move=len, steps=1)}, "sampler is .*; it must be one such as"),
    ])  # fmt: skip
    def test_other_arguments(self, arguments, name):
        given = {"energy": quadratic, "start": self.good, "sampler": of.Langevin(steps=1)}
        with pytest.raises(of.InputError, match=name):
            of.run_chains(**given | arguments)

    def test_a_start_made_in_inference_mode(self):
        with torch.inference_mode():
            start = torch.ones(3, 2)
            inside = of.run_chains(quadratic, start, of.Langevin(steps=2), generator=generator()).ends
        outside = of.run_chains(quadratic, torch.ones(3, 2), of.Langevin(steps=2), generator=generator()).ends
        assert torch.equal(inside, outside)


class TestStarts:
    real = torch.rand(6, 3, generator=generator())

    @pytest.mark.parametrize("name", STARTS)
    def test_points_are_where_the_batch_is(self, name):
        prior = of.MixturePrior().fit(self.real, torch.zeros(6, dtype=torch.int64))
        start = make_start(name, prior, 10, 0.5)
        with torch.device("meta"):  # what a caller has chosen for itself
            for _ in range(2):
                begin = start.begin(self.real, generator())
                start.end(begin)
        assert (begin.device, begin.dtype, begin.shape) == (self.real.device, torch.float32, self.real.shape)

    def test_replay_that_was_loaded_waits_for_its_first_batch(self):
        start = make_start("replay", None, 6, 0.0)
        start.load_state({"start.buffer": torch.arange(18.0).view(6, 3)})
        start.end(torch.zeros(6, 3))  # the ends of no chains of its own
        assert torch.equal(start.state()["start.buffer"], torch.arange(18.0).view(6, 3))
        assert sorted(start.begin(self.real, generator())[:, 0].tolist()) == [0, 3, 6, 9, 12, 15]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        ("name", "draw"), [("normal", torch.randn), ("uniform", torch.rand), ("auto", torch.randn)]
    )
    def test_random_points_come_from_the_generator(self, name, draw, dtype):
        start = make_start(name, None, 10, 0.05)
        assert torch.equal(
            start.begin(self.real.to(dtype), generator()), draw(6, 3, generator=generator(), dtype=dtype)
        )
        start.end(self.real)
        assert start.state() == {}

    def test_auto_and_new_chains_of_a_buffer_begin_in_the_prior_where_there_is_one(self):
        prior = of.MixturePrior().fit(self.real, torch.zeros(6, dtype=torch.int64))
        for name in ("prior", "auto", "replay"):
            drawn = make_start(name, prior, 10, 1.0).begin(self.real, generator())
            assert torch.equal(drawn, prior.sample(6, generator()))
        for name in ("auto", "replay"):
            without = make_start(name, None, 10, 1.0).begin(self.real, generator())
            assert torch.equal(without, torch.randn(6, 3, generator=generator()))

    def test_mixed_is_the_mean_of_each_row_and_the_one_before(self):
        real, source = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 8.0]]), generator()
        start, kept, before = make_start("mixed", None, 0, 0.0), real.clone(), source.get_state()
        assert start.begin(real, source).tolist() == [[0.5, 4.0], [2.0, 2.0], [1.5, 6.0]]
        assert torch.equal(real, kept)
        assert torch.equal(source.get_state(), before)
        assert torch.equal(start.begin(real[:1], source), real[:1])
        assert start.state() == {}


# Where points may live: lengths of 1, zero rows, and features of any magnitude

Z = torch.tensor([[3.0, -4.0], [0.0, 0.0], [-1.0, -2.0]])


def test_each_projection_is_its_formula():
    assert identity(Z) is Z
    torch.testing.assert_close(sphere(Z), torch.tensor([[0.6, -0.8], [0.0, 0.0], [-(5**-0.5), -2 * 5**-0.5]]))
    torch.testing.assert_close(relu_sphere(Z), torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    for project in PROJECTIONS.values():
        torch.testing.assert_close(project(project(Z)), project(Z))
        torch.testing.assert_close(project(Z.expand(2, 3, 2)), project(Z).expand(2, 3, 2))


def test_auto_looks_for_negative_entries():
    for z, expected in ((Z, "sphere"), (Z.abs(), "relu_sphere"), (torch.zeros(2, 2), "relu_sphere")):
        assert projection_for("auto", z) == expected
    for name in PROJECTIONS:
        assert projection_for(name, Z) == name
    with pytest.raises(of.UnknownNameError, match="'cube'; it must be one of auto, none, sphere, relu_sphere"):
        projection_for("cube", Z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_features_of_any_type_become_float32_rows_of_length_one(dtype):
    features = torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=dtype)
    found = normalise(features)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[0.6, -0.8], [0.0, 0.0]]), rtol=1e-6, atol=1e-6)
