"""Training against the same loop written out by hand: the order of random numbers, the chains, the loss, Adam, every setting."""

import dataclasses
import math

import pytest
import torch
from tests.helpers.samples import quick

import outfield as of
from outfield.energy import PROJECTIONS, train

SAMPLER = of.Langevin(steps=3, step_size=(3e-2, 1e-2), noise_std=(2e-2, 1e-2))
TRAINING = of.Training(
    epochs=2, batch_size=16, learning_rate=2e-3, betas=(0.3, 0.8), l2=0.7, input_noise=0.05, precision="float32"
)
ENGINES = ["fused", "eager"]
VARIANTS = {
    "as it is": {},
    "another rate": {"learning_rate": 7e-3},
    "other betas": {"betas": (0.0, 0.5)},
    "little l2": {"l2": 0.1},  # without any, the gradient of the last bias is rounding, and Adam makes a step of it
    "more noise": {"input_noise": 0.5},
    "from data": {"start": "data"},
    "from N(0, I)": {"start": "normal"},
    "from a buffer": {"start": "replay", "replay_size": 24, "replay_fresh": 0.3, "epochs": 6},
    "from a smaller buffer": {"start": "replay", "replay_size": 18, "replay_fresh": 0.3, "epochs": 6},
    "from a buffer that is renewed": {"start": "replay", "replay_size": 24, "replay_fresh": 0.9, "epochs": 6},
}


def rows(n=40, d=6):
    """Rows on the sphere in two classes of 30 and 10."""
    g = torch.Generator().manual_seed(0)
    labels = (torch.arange(n) % 4 == 0).long()
    z = torch.rand(2, d, generator=g)[labels] + 0.4 * torch.randn(n, d, generator=g)
    return torch.nn.functional.normalize(z.relu(), dim=1), labels


def tiny(prior, weights=3):
    return of.CorrectedEnergy(of.MLP(hidden=10, depth=1).build(6, weights), 0.5, prior, 2.0)


def by_hand(model, z, training, seed):
    """Appendix A.2 of the paper; the loss of every step."""
    g, prior, project = torch.Generator().manual_seed(seed), model.prior, PROJECTIONS["relu_sphere"]
    parameters = list(model.network.parameters())
    adam = torch.optim.Adam(parameters, training.learning_rate, training.betas)
    buffer, losses = None, []
    n, d, steps = training.batch_size, z.shape[1], SAMPLER.steps
    for _ in range(training.epochs):
        order = torch.randperm(len(z), generator=g)
        for b in range(len(z) // n):
            real = z[order[b * n : (b + 1) * n]]
            if training.start == "data":
                x = real
            elif training.start == "normal" or prior is None:
                x = torch.randn(n, d, generator=g)
            else:
                x = prior.sample(n, g)
            if training.start == "replay":
                if buffer is None:
                    size = max(training.replay_size, n)
                    buffer = torch.cat([x] * math.ceil(size / n))[:size]
                chosen = torch.randperm(len(buffer), generator=g)[:n]
                x = torch.where(torch.rand(n, generator=g)[:, None] < training.replay_fresh, x, buffer[chosen])
            noise, x = torch.randn(steps, n, d, generator=g), project(x)
            for t in range(steps):
                x = x.detach().requires_grad_()
                energy = model.network(x).squeeze(1) / 0.5 + (0 if prior is None else prior.energy(x) / 2.0)
                (slope,) = torch.autograd.grad(energy.sum(), x)
                share = t / (steps - 1)
                rate, std = 3e-2 + share * (1e-2 - 3e-2), 2e-2 + share * (1e-2 - 2e-2)
                x = project(x - rate * slope + std * noise[t]).detach()
            if buffer is not None:
                buffer[chosen] = x
            extra = training.input_noise * torch.randn(2, n, d, generator=g)
            e_real, e_fake = (model.network(w).squeeze(1) / 0.5 for w in (real + extra[0], x + extra[1]))
            loss = e_real.mean() - e_fake.mean() + training.l2 * ((e_real**2).mean() + (e_fake**2).mean())
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("with_prior", [True, False])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda name: name.replace(" ", "-"))
def test_training_is_the_loop_written_out(variant, with_prior, engine):
    z, labels = rows()
    prior = of.MixturePrior().fit(z, labels) if with_prior else None
    training = dataclasses.replace(TRAINING, **VARIANTS[variant])
    ours, hand = tiny(prior), tiny(prior)
    history = train(ours, z, dataclasses.replace(training, engine=engine), SAMPLER, PROJECTIONS["relu_sphere"], seed=5)
    losses = by_hand(hand, z, training, seed=5)
    for a, b in zip(ours.network.parameters(), hand.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    means = [sum(losses[i : i + 2]) / 2 for i in range(0, len(losses), 2)]
    assert history.loss == pytest.approx(means, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["EBM", "EnergyCorrected"])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_detectors_seed_is_that_of_its_weights(name, seed, train_set):
    still = of.Training(epochs=1, batch_size=32, learning_rate=1e-30)
    detector = quick(name, training=still, seed=seed).fit(train_set)
    built = detector.network.build(6, seed).parameters()
    assert all(torch.equal(a, b) for a, b in zip(detector.model_.network.parameters(), built, strict=True))


def test_the_limit_is_one_of_mean_absolute_energies():
    z, _ = rows()
    model = tiny(None)
    energy = float(model.residual(z).detach().abs().mean())
    still = of.Training(epochs=1, batch_size=40, learning_rate=1e-30, input_noise=0.0, start="data")
    sampler = of.Langevin(steps=0)
    with pytest.raises(of.DivergenceError, match=f"{energy:.3g}"):
        train(model, z, dataclasses.replace(still, energy_limit=0.99 * energy), sampler, PROJECTIONS["none"], seed=0)
    train(model, z, dataclasses.replace(still, energy_limit=1.01 * energy), sampler, PROJECTIONS["none"], seed=0)
