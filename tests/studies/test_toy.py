"""The 2-D experiments: exact quadrature, and the paper's claims on a short run."""

import json
import math

import pytest
import torch

import outfield as of
from outfield import studies
from outfield.cli import app
from outfield.errors import UnknownNameError
from outfield.report import toy_figure, toy_json, toy_table
from outfield.studies import toy


@pytest.fixture
def coarse(monkeypatch):
    """Quadrature on few cells."""
    monkeypatch.setattr(toy.GridDensity.of.__func__, "__defaults__", (90,))


@pytest.fixture(scope="module")
def grid():
    torch.set_num_threads(1)
    return toy.run_toy("grid", 0, batches=120)


@pytest.mark.parametrize("name", ["cross", "grid"])
def test_the_true_density_integrates_to_one_and_fits_its_data(name):
    data = toy.make_data(name)
    density = toy.GridDensity.of(lambda z: -toy.true_log_density(data, z), data.half_width, cells=900)
    assert density.log_z == pytest.approx(0, abs=5e-3)
    assert density.masses(data.centres).sub(1 / len(data.centres)).abs().max() < 5e-3
    other = toy.make_data(name, seed=5)
    gaps = [toy.nll(lambda z: -toy.true_log_density(data, z), density, z) for z in (data.train, other.held_out)]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.05)


def test_quadrature_of_a_gaussian():
    density = toy.GridDensity.of(lambda z: 0.5 * z.square().sum(1), 8.0)
    assert density.log_z == pytest.approx(math.log(2 * math.pi), abs=1e-4)
    points = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(0))
    assert toy.nll(lambda z: 0.5 * z.square().sum(1), density, points) == pytest.approx(
        1 + math.log(2 * math.pi), abs=0.02
    )
    halves = density.masses(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(halves, torch.full((2,), 0.5, dtype=torch.float64), atol=1e-6, rtol=0)


def test_points_lie_on_two_bars_with_noise_across():
    points = toy.draw_cross(40_000, torch.Generator().manual_seed(0))
    assert (points.dtype, points.shape) == (torch.float32, (40_000, 2))
    for bar in (0, 1):
        along, across = points[:, bar], points[:, 1 - bar]
        far = along.abs() > 0.5  # five deviations of the other bar: these lie on this one
        assert float(across[far].std()) == pytest.approx(0.1, rel=0.02)
        assert float(across[far].mean()) == pytest.approx(0, abs=0.005)
        assert float(far.float().mean()) == pytest.approx(0.25, abs=0.01)  # half of half of the points
        assert float(along[far].abs().mean()) == pytest.approx(0.75, abs=0.01)
        assert float(along.abs().max()) == pytest.approx(1, abs=1e-3)


def test_data_is_its_seed_and_held_out_points_are_others():
    one, again, two = (toy.make_data("grid", seed, per_mode=50) for seed in (0, 0, 1))
    assert torch.equal(one.train, again.train)
    assert not torch.equal(one.train, two.train)
    assert not torch.equal(one.train, one.held_out)
    assert one.labels.tolist() == [k for k in range(9) for _ in range(50)]
    for k, centre in enumerate(one.centres):
        assert float((one.train[one.labels == k] - centre).abs().max()) < 1.6


def test_chains_of_both_models_are_proper_langevin_and_the_ebm_starts_from_noise(coarse, monkeypatch):
    calls = []

    def record(model, z, training, sampler, project, seed):
        calls.append((model.prior is None, training, sampler, seed, [p.clone() for p in model.network.parameters()]))
        return of.History()

    monkeypatch.setattr(toy, "train", record)
    assert len(toy.run_toy("grid", 3, batches=70).data.train) == 18_000
    noise = math.sqrt(2 * 5e-3)
    (alone, ebm, *_), (_, corrected, *_) = calls
    assert [call[0] for call in calls] == [True, False]
    assert alone
    assert (ebm.start, corrected.start) == ("normal", "prior")
    for _, training, sampler, seed, weights in calls:
        assert sampler == of.Langevin(steps=20, step_size=(5e-3, 5e-3), noise_std=(noise, noise))
        assert (training.learning_rate, training.l2, training.input_noise) == (1e-3, 0.5, 0.0)
        assert (training.batch_size, training.epochs, seed) == (512, 2, 3)
        for found, built in zip(weights, toy.SineMLP().build(2, 3).parameters(), strict=True):
            assert torch.equal(found, built)
    toy.run_toy("cross", 3, batches=30)
    assert calls[-1][1].l2 == 0.2
    assert calls[-1][1].epochs * (2000 // 512) == 30


def test_the_mixtures_grid_likelihood_is_its_own(grid):
    prior = of.MixturePrior().fit(grid.data.train, grid.data.labels)
    assert grid.mixture.nll == pytest.approx(-float(prior.log_prob(grid.data.held_out).mean()), abs=1e-3)
    assert grid.mixture.masses.sub(1 / 9).abs().max() < 1e-3


def test_the_correction_beats_the_mixture_and_the_ebm_loses_modes(grid):
    assert grid.true_nll < grid.corrected.nll < grid.mixture.nll - 0.1
    assert grid.corrected.masses.sub(1 / 9).abs().max() < 0.04
    assert grid.ebm.masses.sub(1 / 9).abs().max() > 0.04
    assert grid.ebm.nll > grid.mixture.nll


def test_the_corrected_energy_is_the_sum(grid):
    total = grid.mixture.density.energy + grid.residual
    torch.testing.assert_close(grid.corrected.density.energy, total, rtol=1e-4, atol=1e-3)


def test_figures_and_numbers_are_written(grid, coarse, tmp_path):
    toy_figure(grid, tmp_path / "grid.png")
    toy_figure(toy.run_toy("cross", 0, batches=3), tmp_path / "cross.png")
    for name in ("grid.png", "cross.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / name).stat().st_size > 30_000
    rows = json.loads(toy_json([grid]))
    assert len(rows[0]["models"]["correction"]["masses"]) == 9
    table = toy_table([grid, grid])
    assert [row[0] for row in table.rows] == ["true density", "mixture", "EBM alone", "correction"]
    assert table.rows[0][2:] == ["0.111", "0.000"]  # nine modes of equal mass


def test_the_command_leaves_figures_and_numbers(coarse, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(studies, "run_toys", lambda name, n, jobs: [toy.run_toy(name, s, batches=2) for s in range(n)])
    app(["toy", "cross", "--seeds", "2", "--out", str(tmp_path), "--quiet"], standalone_mode=False)
    assert [one["seed"] for one in json.loads((tmp_path / "toy.json").read_text())] == [0, 1]
    assert (tmp_path / "cross.png").read_bytes().startswith(b"\x89PNG")
    assert "correction" in capsys.readouterr().out


def test_seeds_differ_and_repeat():
    runs = list(toy.run_toys("cross", 2, batches=2, jobs=2))
    assert [run.seed for run in runs] == [0, 1]
    assert runs[0].corrected.nll != runs[1].corrected.nll
    assert torch.equal(runs[0].data.train, toy.make_data("cross", 0).train)


def test_unknown_toys_are_refused():
    with pytest.raises(UnknownNameError, match="cross and grid"):
        toy.make_data("moons")
