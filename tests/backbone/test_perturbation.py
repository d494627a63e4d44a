"""Perturb against a naive loop of autograd over single images, in float64; ODIN's step against its closed form."""

import inspect

import pytest
import torch
from tests.helpers.gpu import DEVICES
from tests.helpers.networks import CLASSES, Plain, backbone, close, normalised, seeded
from tests.helpers.pictures import make_pictures
from torch import nn

import outfield as of

IMAGES = make_pictures(n=40, classes=CLASSES)


def pooled(network, x):
    return network.map(x).mean((2, 3))


def distance(z, train, labels):
    """min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c), z normalised."""
    rows = train / train.norm(dim=1, keepdim=True)
    means = torch.stack([rows[labels == c].mean(0) for c in range(CLASSES)])
    centred = rows - means[labels]
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(rows))
    values = values.clamp_min(1e-6 * float(values.max()))
    away = ((z / z.norm() - means) @ vectors) / values.sqrt()
    return away.square().sum(1).min()


@pytest.fixture(scope="module")
def fitted():
    network = seeded(Plain)
    train = backbone(network).extract(IMAGES)
    return network, train, of.SSD().fit(train)


@pytest.mark.parametrize("epsilon", [0.002, 0.05])
def test_a_naive_loop(fitted, epsilon):
    network, train, detector = fitted
    found = backbone(network).extract(IMAGES, perturb=of.Perturb(detector, epsilon), batch_size=7)
    exact = seeded(Plain).double()
    rows, labels = train.features.double(), train.labels
    moved = []
    for x in normalised(IMAGES, torch.float64):
        one = x[None].requires_grad_()
        (gradient,) = torch.autograd.grad(distance(pooled(exact, one)[0], rows, labels), one)
        moved.append(x - epsilon * gradient[0].sign())
    moved = torch.stack(moved).detach()
    expected, before = pooled(exact, moved), pooled(exact, normalised(IMAGES, torch.float64))
    assert close(found.features - train.features, expected - before, 0.02)  # signs of tiny gradients differ in float32
    assert close(found.features, expected, 1e-3)
    assert close(found.logits, exact(moved), 1e-3)


def test_it_lowers_the_score(fitted):
    network, train, detector = fitted
    before = detector.score(train)
    steps = [detector.score(backbone(network).extract(IMAGES, perturb=of.Perturb(detector, e))) for e in (5e-4, 2e-3)]
    assert bool((steps[0] < before).all())
    assert bool((steps[1] < steps[0]).double().mean() > 0.9)


def test_no_step_changes_nothing_but_what_the_set_says(fitted):
    network, train, detector = fitted
    found = backbone(network).extract(IMAGES, perturb=of.Perturb(detector, 0.0))
    for name, value in train.tensors().items():
        assert torch.equal(found.tensors()[name], value)
    assert found.about == {**train.about, "perturb": f"{detector.fingerprint()}, epsilon 0"}
    assert "perturb" not in train.about
    assert str(of.Perturb(detector)).endswith("epsilon 0.0014")
    assert inspect.signature(of.Perturb).parameters["epsilon"].default == 0.0014
    assert of.Odin() == of.Odin(temperature=1000.0, epsilon=0.0014)  # the papers'


@pytest.mark.parametrize("name", ["GaussianMixture", "RMDS", "EnergyCorrected"])
def test_other_detectors(fitted, name):
    network, train, _ = fitted
    small = {"network": of.MLP(8, 1), "training": of.Training(epochs=1, batch_size=16), "sampler": of.Langevin(2)}
    detector = of.DETECTORS[name](**(small if name == "EnergyCorrected" else {})).fit(train)
    found = backbone(network).extract(IMAGES, perturb=of.Perturb(detector, 0.001))
    assert float((detector.score(found) < detector.score(train)).double().mean()) > 0.9


def test_the_caller_s_modes_the_network_and_the_detector_are_left_alone(fitted):
    network, train, detector = fitted
    perturb = of.Perturb(detector, 0.01)
    expected, named = backbone(network).extract(IMAGES, perturb=perturb), detector.fingerprint()
    before, rows = {k: v.clone() for k, v in network.state_dict().items()}, network.rows
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(backbone(network).extract(IMAGES, perturb=perturb).features, expected.features)
    assert network.rows == rows + 2 * (2 * len(IMAGES) + len(IMAGES))  # and once more to find the features
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in network.parameters())
    assert not network.fc._forward_pre_hooks
    assert of.SSD().fit(train).fingerprint() == named


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_agrees(fitted, precision):
    network, train, detector = fitted
    perturb = of.Perturb(detector, 0.02)
    full, half = (backbone(network).extract(IMAGES, perturb=perturb, precision=p) for p in ("float32", precision))
    assert close(half.features - train.features, full.features - train.features, 0.6)
    assert float(detector.score(half).mean()) < 0.9 * float(detector.score(train).mean())


@pytest.mark.parametrize("device", DEVICES)
def test_a_detector_elsewhere(fitted, device):
    _, train, detector = fitted
    there = seeded(Plain).to(device)
    expected = backbone(seeded(Plain)).extract(IMAGES, perturb=of.Perturb(detector, 0.01))
    found = backbone(there).extract(
        IMAGES, perturb=of.Perturb(of.SSD().to("cpu").fit(train), 0.01), precision="float32"
    )
    assert close(found.features, expected.features, 1e-2)


class TestMistakes:
    def test_detectors(self, fitted):
        _, train, detector = fitted
        for bad in (None, 3, "SSD", of.SSD):
            with pytest.raises(of.InputError, match=r"detector is .*; it must be a fitted detector"):
                of.Perturb(bad)
        with pytest.raises(of.NotFittedError, match=r"SSD\(.* is not fitted"):
            of.Perturb(of.SSD())
        with pytest.raises(of.InputError, match="which scores logits; it must be one that scores features alone"):
            of.Perturb(of.MSP().fit(train))
        with pytest.raises(of.InputError, match="which scores spread"):
            of.Perturb(of.SSD(field="spread").fit(train))
        for epsilon in (-1e-9, "x", None):
            with pytest.raises(of.InputError, match="epsilon is"):
                of.Perturb(detector, epsilon)

    def test_a_score_without_a_gradient(self, fitted):
        network, train, _ = fitted

        class Constant(of.Detector):
            def _fit(self, train):
                pass

            def _score(self, batch):
                return batch["features"].detach().sum(1)

        with pytest.raises(of.InputError, match="whose score cannot be differentiated"):
            backbone(network).extract(IMAGES, perturb=of.Perturb(Constant().fit(train)))

    def test_a_network_without_a_gradient(self, fitted):
        _, _, detector = fitted
        network = seeded(Plain)
        network.register_forward_pre_hook(lambda module, args: (args[0].detach(),))
        with pytest.raises(of.InputError, match="Perturb needs the gradient of the features"):
            backbone(network).extract(IMAGES, perturb=of.Perturb(detector))

    def test_another_width(self, fitted):
        _, _, detector = fitted
        network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
        with pytest.raises(of.InputError, match="gives 3 features, but the detector of Perturb was fitted on 8"):
            backbone(network).extract(IMAGES, perturb=of.Perturb(detector))

    def test_what_is_no_perturbation(self, fitted):
        network, _, detector = fitted
        for bad in (True, "x", 1, detector):
            with pytest.raises(of.InputError, match="perturb is"):
                backbone(network).extract(IMAGES, perturb=bad)
        with pytest.raises(of.InputError, match="odin and perturb both move the images"):
            backbone(network).extract(IMAGES, perturb=of.Perturb(detector), odin=of.Odin())


# ODIN


def linear(classes=3, width=768):
    network = nn.Sequential(nn.Flatten(), nn.Linear(width, classes))
    with torch.no_grad():
        network[1].weight.copy_(0.05 * torch.randn(classes, width, generator=torch.Generator().manual_seed(0)))
        network[1].bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    return network


def closed_form(weight, bias, images, temperature, epsilon):
    """x + ε sign(W_c − Σ_k p_k W_k) with p = softmax(l / T) and c the largest logit: the gradient of log max p, times T."""
    logits = images.flatten(1) @ weight.T + bias
    shares = (logits / temperature).softmax(1)
    gradient = weight[logits.argmax(1)] - shares @ weight
    return images + epsilon * gradient.sign().view_as(images)


@pytest.mark.parametrize("temperature", [0.5, 20.0, 1000.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.0014, 0.3])
def test_the_step_is_the_closed_form(temperature, epsilon):
    network = linear().double()
    images = torch.randn(6, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found = of.Odin(temperature, epsilon).perturb(images, network(images))
    weight, bias = network[1].weight.detach(), network[1].bias.detach()
    expected = closed_form(weight, bias, images.detach(), temperature, epsilon)
    differs = (found - expected).abs() > 1e-9
    assert float(differs.double().mean()) < 0.02  # where the gradient vanishes its sign is rounding
    assert float((found - images.detach()).abs().max()) <= epsilon + 1e-12
    if epsilon:
        assert float(((found - images.detach()).abs() > 0).double().mean()) > 0.95
