"""Training: its settings, its history, averaged weights, divergence, and priors that are not the mixture."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.config import configurable
from outfield.energy.training_step import InTurn, loss_of

COUNTS, NAMES = ("epochs", "batch_size", "replay_size"), ("start", "engine", "precision")
NUMBERS = (*COUNTS, "learning_rate", "energy_limit", "l2", "input_noise", "replay_fresh", "average")
NO_NUMBERS = (-1, float("nan"), float("inf"), "1", None, True, (1,), [1], 10**30 * 10, np.array([1, 2]))
NO_NAMES = ("moon", "", None, 1, ("auto",), ["auto"], np.array(["auto", "eager"]))
WRONG = [
    *itertools.product(NUMBERS, NO_NUMBERS),
    *itertools.product(COUNTS, (0, 2.0, 2.5, np.float64(2))),
    *itertools.product(NAMES, NO_NAMES),
    ("learning_rate", 0), ("learning_rate", 1e300), ("energy_limit", 0.0), ("replay_fresh", 1.01), ("average", 2.5),
]  # fmt: skip


def tiny_model(prior=None):
    return of.CorrectedEnergy(of.MLP(hidden=8, depth=1).build(6, 0), 0.5, prior, 2.0)


def test_loss_is_the_formula():
    model = tiny_model()
    real, negatives = torch.rand(7, 6), torch.rand(5, 6)
    loss, on_real, on_negatives = loss_of(model, real, negatives, l2=0.3)
    e, n = model.residual(real), model.residual(negatives)
    torch.testing.assert_close(loss, e.mean() - n.mean() + 0.3 * ((e**2).mean() + (n**2).mean()))
    torch.testing.assert_close((on_real, on_negatives), (e, n))


def test_negatives_distributed_as_data_give_no_likelihood_gradient():
    model = tiny_model()
    real = torch.rand(400, 6, generator=torch.Generator().manual_seed(0))
    shuffled = real[torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    loss_of(model, real, shuffled, l2=0.0)[0].backward()
    assert all(float(p.grad.abs().max()) < 1e-6 for p in model.network.parameters())


def test_temperatures_are_one_unless_said_otherwise():
    z = torch.rand(20, 6)
    prior = of.MixturePrior().fit(z, torch.arange(20) % 2)
    network = of.MLP(hidden=4, depth=0).build(6, 0)
    torch.testing.assert_close(of.CorrectedEnergy(network, prior=prior)(z), network(z).squeeze(1) + prior.energy(z))
    torch.testing.assert_close(of.CorrectedEnergy(network)(z), network(z).squeeze(1))
    both = of.CorrectedEnergy(network, 4.0, prior, 3.0)
    torch.testing.assert_close(both(z), network(z).squeeze(1) / 4 + prior.energy(z) / 3)
    torch.testing.assert_close(both.residual(z), network(z).squeeze(1) / 4)


@pytest.mark.parametrize("sampler", [of.MetropolisLangevin(steps=2), of.HamiltonianMonteCarlo(steps=2, leapfrog=2)])
def test_every_sampler_trains_and_is_saved(sampler, train_set, test_set, tmp_path):
    detector = quick("EnergyCorrected", sampler=sampler).fit(train_set)
    detector.save(tmp_path / "d.safetensors")
    assert of.load(tmp_path / "d.safetensors").sampler == sampler


def test_training_lowers_real_energies_below_negative_ones(train_set):
    training = of.Training(epochs=30, batch_size=40, learning_rate=3e-3, l2=0.1, start="normal")
    history = quick("EBM", training=training).fit(train_set).history_
    assert history.real_energy[-1] < history.negative_energy[-1] - 0.2


def test_features_with_negative_entries_are_not_cut_off(train_set):
    centred = of.FeatureSet(train_set.features - 1.5, labels=train_set.labels)
    assert quick("EBM").fit(train_set).projection_ == "relu_sphere"
    assert quick("EBM").fit(centred).projection_ == "sphere"
    with pytest.raises(of.UnknownNameError, match="sphere"):
        quick("EBM", projection="cube").fit(train_set)


def test_a_batch_larger_than_the_data_is_the_data(train_set):
    training = of.Training(epochs=1, batch_size=10_000)
    assert len(quick("EnergyCorrected", training=training).fit(train_set[:9]).history_) == 1


@configurable
class UnitPrior(of.Prior):
    """N(m, s² I): a prior that needs no labels and cannot be sampled."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def fit(self, z, labels):
        self.mean = z.mean(0)
        return self

    def energy(self, z):
        return 0.5 * (z - self.mean.to(z)).square().sum(1) / self.scale**2

    def state(self):
        return {"mean": self.mean}

    def load_state(self, state):
        self.mean = state["mean"]
        return self


def test_any_prior_can_be_corrected(train_set, test_set, tmp_path):
    unlabelled = of.FeatureSet(train_set.features)
    data_start = of.Training(epochs=1, batch_size=32, start="data")
    detector = quick("EnergyCorrected", prior=UnitPrior(0.3), training=data_start).fit(unlabelled)
    detector.save(tmp_path / "d.safetensors")
    loaded = of.load(tmp_path / "d.safetensors")
    assert loaded.prior.scale == 0.3
    assert torch.equal(loaded.score(test_set), detector.score(test_set))
    with pytest.raises(of.InputError, match="start='data'"):
        quick("EnergyCorrected", prior=UnitPrior(), training=of.Training(epochs=1)).fit(unlabelled)


class TestDivergence:
    @pytest.mark.parametrize("rate", [1e3, 1e30])
    def test_exploding_energies_stop_with_advice(self, rate, train_set):
        training = of.Training(epochs=50, batch_size=32, learning_rate=rate, l2=0.0)
        with pytest.raises(of.DivergenceError, match=r"diverged in epoch .*learning_rate.*l2.*step_size"):
            quick("EnergyCorrected", training=training).fit(train_set)

    @pytest.mark.parametrize("step", [1, 3, 4, 5, 12])
    def test_the_message_says_where(self, step, train_set, monkeypatch):
        """Of three epochs of four batches, as soon as energies are looked at: at the end of an epoch at the latest."""
        run, steps = InTurn.run, []

        def explode(self, real):
            steps.append(0)
            return run(self, real) * (torch.nan if len(steps) == step else 1)

        monkeypatch.setattr(InTurn, "run", explode)
        monkeypatch.setattr("outfield.energy.loop.CHECK_EVERY", 1)
        training = of.Training(epochs=3, batch_size=30, learning_rate=1e-3)
        epoch, batch = (step - 1) // 4 + 1, (step - 1) % 4 + 1
        where = f"^training diverged in epoch {epoch} of 3, batch {batch} of 4: the mean absolute energy is nan"
        with pytest.raises(of.DivergenceError, match=where):
            quick("EnergyCorrected", training=training).fit(train_set)


def test_what_could_not_be_saved_is_refused_before_training(train_set):
    class Homemade(UnitPrior):
        """Not marked as configurable."""

    with pytest.raises(of.InputError, match="configurable"):
        quick("EnergyCorrected", prior=Homemade()).fit(train_set)
    with pytest.raises(of.InputError, match="checkpoint"):
        quick("EnergyCorrected").fit(train_set, checkpoint=5)


def test_energies_that_fell_without_end_are_found_after_the_last_step(train_set, monkeypatch):
    monkeypatch.setattr(of.CorrectedEnergy, "residual", lambda self, rows: torch.full((len(rows),), -1e9))
    training = of.Training(epochs=1, batch_size=1000, learning_rate=1e-6)
    with pytest.raises(of.DivergenceError, match=r"the mean absolute energy is 1e\+09"):
        quick("EnergyCorrected", training=training).fit(train_set)


def test_a_prior_of_one_s_own_is_not_fitted_in_pieces(train_set, tmp_path):
    train_set.save(tmp_path / "train.safetensors")
    data_start = of.Training(epochs=1, batch_size=32, start="data")
    detector = quick("EnergyCorrected", prior=UnitPrior(0.3), training=data_start)
    with pytest.raises(of.InputError, match="UnitPrior cannot be fitted in pieces; load the features first"):
        detector.fit(of.open_features(tmp_path / "train.safetensors"))


@pytest.mark.parametrize(("name", "bad"), WRONG)
def test_settings_that_make_no_sense(name, bad):
    with pytest.raises(of.InputError, match=f"{name} is"):
        of.Training(**{name: bad})


@pytest.mark.parametrize(
    "bad",
    [0.5, (0.5,), (0.1, 0.2, 0.3), [0.0, 0.9], (2, 3), (-0.1, 0.9), (0.0, 1.0), ("0", "1"), (None, 0.9),
     (0.0, float("nan")), (True, 0.9), None, "ab"],
)  # fmt: skip
def test_betas_that_make_no_sense(bad):
    with pytest.raises(of.InputError, match="betas"):
        of.Training(betas=bad)
    of.Training(betas=(0, 1 - 1e-12))


def test_numpys_numbers_are_numbers(train_set, test_set):
    given = of.Training(
        epochs=np.int64(1), batch_size=np.int32(32), learning_rate=np.float32(1e-3), betas=(np.float64(0), np.float32(0.5)),
        l2=np.float64(1), input_noise=np.float32(0.5), start="replay", replay_size=np.int64(40), replay_fresh=np.float64(0.25),
        energy_limit=np.float64(1e3),
    )  # fmt: skip
    plain = of.Training(1, 32, float(np.float32(1e-3)), (0.0, 0.5), 1.0, 0.5, "replay", 40, 0.25, 1e3)
    for engine in ("fused", "eager"):
        found, expected = (
            quick("EBM", training=dataclasses.replace(one, engine=engine)).fit(train_set).score(test_set)
            for one in (given, plain)
        )
        assert found.tolist() == expected.tolist()


def test_the_quick_correction_s_network_alone_tells_rows_between_classes():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[4.0, 0.2, 0.2, 1.0], [0.2, 4.0, 0.2, 1.0], [0.2, 0.2, 4.0, 1.0]])
    labels = torch.arange(9000) % 3
    features = (centres[labels] + 0.2 * torch.randn(9000, 4, generator=generator)).abs()
    detector = of.EnergyCorrected.quick().fit(of.FeatureSet(features, labels=labels))
    between = (centres + centres.roll(1, 0)) / 2
    known, mixed = (detector.model_.residual(torch.nn.functional.normalize(z)) for z in (features[:300], between))
    assert of.auroc(known, mixed) > 0.95


DATA = make_set(100)


def trained(epochs, average=0, name="EBM", engine="eager", seeds=(0,), start="auto", **more):
    training = dataclasses.replace(
        quick(name).training, epochs=epochs, average=average, engine=engine, start=start, replay_size=40
    )
    return quick(name, training=training).fit_seeds(DATA, seeds, **more)


def weights(detector):
    return {name: value.double() for name, value in detector.model_.network.state_dict().items()}


def mean_of(detectors):
    found = [weights(detector) for detector in detectors]
    return {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}


def close(a, b):
    return all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-7) for name in a)


@pytest.mark.parametrize("engine", ["eager", "fused"])
@pytest.mark.parametrize("name", ["EBM", "EnergyCorrected"])
def test_the_mean_of_the_last_epochs(name, engine):
    alone = {epochs: trained(epochs, name=name, engine=engine)[0] for epochs in (1, 2, 3, 4)}
    assert not close(weights(alone[3]), weights(alone[4]))
    for average, over in ((1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])):
        found = trained(4, average, name=name, engine=engine)[0]
        assert close(weights(found), mean_of([alone[epochs] for epochs in over]))
        assert found.history_.loss == alone[4].history_.loss


def test_seeds_are_not_mixed_up():
    together = trained(3, 2, seeds=(0, 1))
    for seed, found in zip((0, 1), together, strict=True):
        assert close(weights(found), mean_of([trained(epochs, seeds=(seed,))[0] for epochs in (2, 3)]))
