"""Networks from seeds and networks that draw: equal draws in every thread, and nobody else's generator moves."""

import pytest
import timm
import torch
from tests.helpers.networks import Plain, backbone, seeded
from tests.helpers.pictures import make_pictures
from torchvision import models

from outfield.backbone import Classifier
from outfield.modes import Seeded


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "torchvision:squeezenet1_1"])
def test_weights_are_those_that_the_global_generator_would_give(name):
    library, _, plain = name.rpartition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        build = models.get_model if library else timm.create_model
        expected = build(plain, num_classes=7).state_dict()
    before = torch.get_rng_state()
    found = Classifier(name, 7, small_images=False)
    assert equal(found.build(5).state_dict(), expected)
    assert not equal(found.build(6).state_dict(), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_the_process_chose_for_itself_changes_no_network():
    made = Classifier("test_resnet", 3, small_images=False)
    expected = made.build(1).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.inference_mode():
            found = made.build(1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert equal(found.state_dict(), expected)
    assert not next(found.parameters()).is_inference()


@pytest.mark.parametrize(
    "draw",
    [
        lambda **more: torch.rand(3, **more),
        lambda **more: torch.randn(3, **more),
        lambda **more: torch.randint(2, 9, (3,), **more),
        lambda **more: torch.randperm(9, **more),
        lambda **more: torch.multinomial(torch.ones(9), 3, **more),
        lambda **more: torch.empty(3).uniform_(-1, 1, **more),
    ],
)
def test_every_way_to_draw(draw):
    before = torch.get_rng_state()
    with Seeded(4) as mode:
        found = draw()
    assert mode.drew
    assert torch.equal(found, draw(generator=torch.Generator().manual_seed(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_is_given_is_used():
    with Seeded(4) as mode:
        found = torch.rand(3, generator=torch.Generator().manual_seed(9))
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert not mode.drew


class Noisy(Plain):
    def map(self, images):
        return super().map(images + torch.randn_like(images))


def test_a_network_that_draws_gives_the_same_twice_and_draws_anew_for_each_batch():
    images = make_pictures(n=8)
    images.images[4:] = images.images[:4]
    before = torch.get_rng_state()
    first, second = (backbone(seeded(Noisy)).extract(images, batch_size=4) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.features, second.features)
    assert not torch.equal(first.features[:4], first.features[4:])
    quiet = backbone(seeded(Plain)).extract(images, batch_size=4)
    assert torch.equal(quiet.features[:4], quiet.features[4:])
