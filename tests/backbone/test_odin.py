"""ODIN's step against its closed form on a linear network: sign, length and temperature."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.networks import backbone, normalised
from tests.helpers.pictures import make_pictures
from torch import nn

from outfield.backbone.odin import Odin


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
    found = Odin(temperature, epsilon).perturb(images, network(images))
    weight, bias = network[1].weight.detach(), network[1].bias.detach()
    expected = closed_form(weight, bias, images.detach(), temperature, epsilon)
    differs = (found - expected).abs() > 1e-9
    assert float(differs.double().mean()) < 0.02  # where the gradient vanishes its sign is rounding
    assert float((found - images.detach()).abs().max()) <= epsilon + 1e-12
    if epsilon:
        assert float(((found - images.detach()).abs() > 0).double().mean()) > 0.95


def test_another_temperature_is_another_step():
    network = linear()
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    warm, cold = (Odin(temperature, 0.1).perturb(images, network(images)) for temperature in (1000.0, 0.5))
    assert float((warm != cold).float().mean()) > 0.05


def test_it_makes_the_classifier_more_certain():
    network, odin = linear(), Odin(temperature=1000.0, epsilon=0.01)
    images = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def certainty(x):
        return (network(x) / odin.temperature).softmax(1).max(1).values

    with torch.no_grad():
        before = certainty(images)
    moved = odin.perturb(images, network(images))
    with torch.no_grad():
        assert bool((certainty(moved) > before).all())


def test_a_pass_gives_the_logits_at_the_moved_images():
    network, images = linear(), make_pictures(n=5, classes=3)
    odin = Odin(temperature=2.0, epsilon=0.05)
    found = backbone(network).extract(images, odin=odin)
    inputs = normalised(images)
    weight, bias = network[1].weight.detach(), network[1].bias.detach()
    moved = closed_form(weight, bias, inputs, 2.0, 0.05)
    torch.testing.assert_close(found.odin_logits, (moved.flatten(1) @ weight.T + bias), atol=0.05, rtol=1e-3)
    torch.testing.assert_close(found.logits, inputs.flatten(1) @ weight.T + bias, atol=1e-3, rtol=1e-4)
    assert float((found.odin_logits - found.logits).abs().max()) > 0.5


def test_the_defaults_are_the_papers():
    assert Odin() == Odin(temperature=1000.0, epsilon=0.0014)
