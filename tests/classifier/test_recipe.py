"""The learning rate over the epochs, and large batches that imitate small ones."""

import copy
import math

import numpy as np
import pytest
import torch

from outfield.backbone import Classifier
from outfield.classifier import Augmentation, Recipe
from outfield.classifier.learner import Learner, Split, join_batch_norms, split_batch_norms
from outfield.config import to_plain
from outfield.errors import InputError


def test_the_rate_climbs_and_falls_in_steps():
    recipe = Recipe(epochs=20, batch_size=512, warm_up=0.15)
    rates = [recipe.rate(epoch) for epoch in range(20)]
    assert rates[:5] == pytest.approx([0.04, 0.16, 0.28, 0.4, 0.4])
    assert rates[9:11] == pytest.approx([0.4, 0.04])
    assert rates[14:16] == pytest.approx([0.04, 0.004])
    assert [Recipe(epochs=epochs).climb for epochs in (1, 2, 3, 20, 200, 201)] == [0, 0, 1, 1, 5, 6]
    paper = Recipe(batch_size=128)
    assert [paper.rate(epoch) for epoch in (0, 99, 100, 150)] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    for share in (0.5, 1, 5):
        with pytest.raises(InputError, match="below the first milestone"):
            Recipe(warm_up=share)


def test_the_rate_falls_along_half_a_cosine():
    recipe = Recipe(epochs=20, batch_size=512, warm_up=0.15, schedule="cosine")
    rates = [recipe.rate(epoch) for epoch in range(20)]
    assert rates[:3] == pytest.approx([0.04, 0.16, 0.28])  # the warm-up is that of the other schedule
    after = [0.4 * 0.5 * (1 + math.cos(math.pi * step / 17)) for step in range(17)]
    assert rates[3:] == pytest.approx(after)
    assert rates[3] == pytest.approx(0.4)
    assert 0 < rates[-1] < 0.4 * 0.01
    assert recipe.rate(20) == pytest.approx(0)
    short = Recipe(epochs=4, batch_size=128, schedule="cosine")
    assert [short.rate(epoch) for epoch in range(4)] == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447], abs=1e-6)


def test_milestones_say_nothing_to_a_cosine():
    assert Recipe(schedule="cosine", warm_up=0.6, epochs=10).climb == 6  # past the first milestone of the steps
    assert [Recipe(schedule="cosine", epochs=epochs).climb for epochs in (1, 2, 3, 200)] == [0, 1, 1, 5]
    few, many = (Recipe(schedule="cosine", milestones=shares) for shares in ((), (0.1, 0.2, 0.3)))
    assert [few.rate(epoch) for epoch in range(200)] == [many.rate(epoch) for epoch in range(200)]
    for share in (1, 1.5):
        with pytest.raises(InputError, match=r"warm_up is .* below 1$"):
            Recipe(warm_up=share, schedule="cosine")


def test_the_defaults_are_the_papers():
    """SGD with Nesterov momentum 0.9, weight decay 5e-4, rate 0.1 divided by ten after half and three quarters of 200 epochs."""
    augmentation = {"type": "Augmentation", "scale": [0.08, 1.0], "ratio": [3 / 4, 4 / 3], "flip": 0.5}
    assert to_plain(Recipe()) == {
        "type": "Recipe", "epochs": 200, "batch_size": 512, "small_batch": 128, "learning_rate": 0.1, "warm_up": 0.025,
        "momentum": 0.9, "weight_decay": 5e-4, "milestones": [0.5, 0.75], "augmentation": augmentation, "precision": "auto",
        "compile": "auto",
    }  # fmt: skip
    assert to_plain(Classifier()) == {
        "type": "Classifier", "architecture": "resnet34", "classes": 10, "small_images": True, "size": [32, 32],
        "mean": [0.5] * 3, "std": [0.5] * 3, "names": [],
    }  # fmt: skip


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("name", "values"), [
    ("epochs", [0, 1.5, "3", None, True, -1]),
    ("batch_size", [1, 0, 2.5, None, "8"]),
    ("small_batch", [1, -1, 0.5, None]),
    ("learning_rate", [0, -1, NAN, INF, "0.1", None]),
    ("warm_up", [-0.1, NAN, None, 0.5, 1]),
    ("momentum", [-0.1, 1.1, NAN, None]),
    ("weight_decay", [-1e-4, NAN, INF, None]),
    ("milestones", [0.5, (0.9, 0.1), (0, 0.5), (1.5,), (NAN,), ("a",), (True,), None, "0.5"]),
    ("augmentation", ["none", None, 3, Augmentation]),
    ("precision", ["half", None, 16, torch.float32, np.array(["auto", "float32"])]),
    ("schedule", ["step", "", None, 1, ("cosine",), np.array(["steps", "cosine"])]),
    ("compile", ["yes", None, 1, 0, np.array([True, False])]),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused_when_they_are_given(name, values):
    for value in values:
        with pytest.raises(InputError, match=name):
            Recipe(**{name: value})


def test_a_large_batch_imitates_small_ones():
    found = {size: Recipe(batch_size=size).parts for size in (32, 200, 300, 500, 509, 512)}
    assert found == {32: 1, 200: 1, 300: 2, 500: 2, 509: 1, 512: 4}
    for size, parts in found.items():
        assert Recipe(batch_size=size).height == pytest.approx(0.1 * parts)
    assert Recipe(batch_size=512, small_batch=64).parts == 8
    assert (Recipe(batch_size=512, small_batch=0).parts, Recipe(batch_size=512, small_batch=0).height) == (1, 0.1)
    with pytest.raises(InputError, match="at least 2, or 0"):
        Recipe(small_batch=1)


@pytest.mark.parametrize(
    ("architecture", "split"),
    [("test_resnet", True), ("test_efficientnet", True), ("test_vit", False), ("test_convnext", False)],
)
def test_only_a_network_whose_batch_norms_can_be_cut_imitates(architecture, split):
    recipe = Recipe(batch_size=24, small_batch=8)
    classifier = Classifier(architecture, classes=4, size=(32, 32), small_images=False)
    learner = Learner(classifier, recipe, 0, torch.device("cpu"), 0)
    norms = [module for module in learner.network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert learner.recipe.height == pytest.approx(0.3 if split else 0.1)
    assert bool(norms) == split
    assert all(isinstance(norm, Split) and norm.parts == 3 for norm in norms)
    join_batch_norms(learner.network)
    assert not any(isinstance(module, Split) for module in learner.network.modules())


class TestNormalisationOverParts:
    def layers(self):
        torch.manual_seed(0)
        whole = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
        with torch.no_grad():
            whole[0].weight.uniform_(0.5, 2)
            whole[0].bias.normal_()
        split = copy.deepcopy(whole)
        split_batch_norms(split, 4)
        return whole, split

    def test_each_part_is_normalised_by_itself(self):
        whole, split = self.layers()
        images = (3 * torch.randn(24, 3, 5, 4) + 2).to(memory_format=torch.channels_last).requires_grad_()
        parts = copy.deepcopy(whole)
        expected = torch.cat([parts(piece) for piece in images.split(6)])
        found = split(images)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert found.is_contiguous(memory_format=torch.channels_last)
        upstream = torch.randn_like(found)
        inputs = [images, *split.parameters()], [images, *parts.parameters()]
        ours = torch.autograd.grad(found, inputs[0], upstream)
        theirs = torch.autograd.grad(expected, inputs[1], upstream)
        for mine, reference in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, reference, atol=1e-4, rtol=1e-4)

    def test_running_statistics_move_towards_the_mean_of_the_parts(self):
        _, split = self.layers()
        images = torch.randn(24, 3, 5, 4)
        split(images)
        pieces = images.split(6)
        mean = torch.stack([piece.mean((0, 2, 3)) for piece in pieces]).mean(0)
        variance = torch.stack([piece.var((0, 2, 3)) for piece in pieces]).mean(0)
        torch.testing.assert_close(split[0].running_mean, 0.1 * mean)
        torch.testing.assert_close(split[0].running_var, 0.9 + 0.1 * variance)
        assert int(split[0].num_batches_tracked) == 1
