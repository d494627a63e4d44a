"""Made-up images as outliers of a training: what they are, what their loss is, and that they are kept apart from the choice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.helpers.pictures import make_pictures
from torch.nn import functional

import outfield as of
from outfield.backbone import Backbone
from outfield.classifier import (
    Augmentation,
    Outliers,
    Recipe,
    SimCLR,
    TrainingCheckpoint,
    classifier_for,
    train_classifier,
)
from outfield.classifier.outliers import CHANGES, joined, parted
from outfield.config import construct_from_text
from outfield.errors import InputError
from outfield.images import KINDS, stand_ins

GENTLE = Augmentation(scale=(0.6, 1.0))
QUICK = Recipe(epochs=2, batch_size=32, small_batch=16, augmentation=GENTLE, outliers=Outliers())


def batch(n=16, side=32):
    """Images of which every pixel is another number, and their labels: two classes."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (n, 3, side, side), generator=generator).float(), torch.arange(n) % 2


def made_of(name, images, labels):
    return Outliers(kinds=(name,)).made(images, labels, len(images), torch.Generator().manual_seed(1))


def test_every_kind_of_stand_in_has_one_for_batches():
    assert CHANGES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", ["turned90", "turned180", "inverted", "blocks"])
def test_kinds_of_one_image_are_those_of_stand_ins(name):
    """Each batch image is what the kind of this name makes of one of the images, whatever side a quarter turn takes."""
    images, labels = batch()
    found = made_of(name, images, labels)
    arrays = images.permute(0, 2, 3, 1).byte().numpy()
    wanted = [stand_ins(arrays, [name], seed=seed)[name][i] for seed in range(8) for i in range(len(arrays))]
    for one in found.permute(0, 2, 3, 1).numpy():
        assert min(np.abs(one - other).max() for other in wanted) <= 0.5  # bytes are rounded


@pytest.mark.parametrize(("name", "grid"), [("jigsaw2", 2), ("jigsaw8", 8)])
def test_no_tile_of_a_jigsaw_stays_where_it_was(name, grid):
    images, labels = batch()
    found = made_of(name, images, labels)
    cut = lambda x: functional.unfold(x, 32 // grid, stride=32 // grid).transpose(1, 2)  # noqa: E731
    whole, moved = cut(images), cut(found)
    for one in moved:
        source = next(tiles for tiles in whole if any(torch.equal(tiles[i], one[0]) for i in range(len(tiles))))
        order = [next(i for i in range(len(source)) if torch.equal(source[i], tile)) for tile in one]
        assert sorted(order) == list(range(grid * grid))
        assert all(i != place for place, i in enumerate(order))


@pytest.mark.parametrize(("name", "parts"), [("mixed", 2), ("halves", 2), ("quarters", 4)])
def test_mixed_kinds_are_of_different_classes(name, parts):
    images = torch.arange(16.0)[:, None, None, None].expand(16, 3, 32, 32) * 16  # one colour an image
    labels = torch.arange(16) // 8
    found = made_of(name, images, labels)
    for one in found:
        inside = one.unique() / 16
        if name == "mixed":
            assert len(inside) == 1
            assert float(inside * 2 % 1) == 0
            assert 4 <= float(inside) <= 11  # the mean of one of 0 … 7 and of one of 8 … 15
        else:
            assert len(inside) == parts
            assert {int(number) // 8 for number in inside} == {0, 1}


def test_phase_keeps_amplitudes():
    images, labels = batch(4)
    images = 64 + images / 2  # so that little is cut off
    found = made_of("phase", images, labels)
    amplitude = lambda x: torch.fft.rfft2(x).abs().flatten(1).sort(1).values  # noqa: E731
    mine, theirs = amplitude(found), amplitude(images)
    for one in mine:
        assert min(float((one - other).norm() / other.norm()) for other in theirs) < 0.05
    assert float((found - images).abs().mean()) > 10


def test_losses():
    generator = torch.Generator().manual_seed(0)
    known, made = (torch.randn(n, 5, generator=generator).double() * 4 for n in (6, 9))
    uniform = Outliers(weight=0.5).loss(known, made)
    assert float(uniform) == pytest.approx(-0.5 * float(made.softmax(1).log().mean()))
    even = Outliers(weight=1.0).loss(known, torch.zeros(3, 5))
    assert float(even) == pytest.approx(np.log(5))  # the least it can be
    energy = Outliers(form="energy", weight=2.0, margins=(-6.0, -4.0)).loss(known, made)
    low, high = -known.exp().sum(1).log(), -made.exp().sum(1).log()
    wanted = 2 * (((low + 6).clamp(min=0) ** 2).mean() + ((-4 - high).clamp(min=0) ** 2).mean())
    assert float(energy) == pytest.approx(float(wanted))
    assert float(energy) > 0


def test_every_part_of_a_batch_has_both():
    whole = joined(torch.arange(8), -torch.arange(1, 5), 2)
    assert whole.tolist() == [0, 1, 2, 3, -1, -2, 4, 5, 6, 7, -3, -4]
    assert [one.tolist() for one in parted(whole, 4, 2)] == [list(range(8)), [-1, -2, -3, -4]]


def trained(recipe, tmp_path, seed=0, **more):
    source = make_pictures(96, classes=3)
    classifier, pixels = classifier_for(source, "test_resnet", small_images=None)
    return source, train_classifier(pixels, None, classifier, recipe, seed=seed, device="cpu", **more)


def test_a_training_with_outliers_is_the_same_again_and_goes_on(tmp_path):
    _, whole = trained(QUICK, tmp_path)
    kept = TrainingCheckpoint(tmp_path / "c.safetensors", seconds=0)

    def stop(curve):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(QUICK, tmp_path, checkpoint=kept, progress=stop)
    again = trained(QUICK, tmp_path, checkpoint=kept)[1]
    plain = trained(replace(QUICK, outliers=None), tmp_path)[1]
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
    assert whole.curve.loss == again.curve.loss
    assert whole.curve.loss[0] > plain.curve.loss[0]


def test_kinds_that_a_network_saw_do_not_choose(tmp_path):
    source, network = trained(QUICK, tmp_path)
    network.save(tmp_path / "n.safetensors", images=source)
    opened = Backbone.load(tmp_path / "n.safetensors", device="cpu")
    assert opened.outliers == Outliers().kinds
    left = stand_ins(make_pictures(8, classes=2), seen=opened.outliers)
    assert set(left) == set(KINDS) - set(Outliers().kinds)
    assert set(left.levels.values()) == {"near", "far"}
    guard = of.Guard.build(opened, make_pictures(120, classes=3), detector="SSD", device="cpu")
    assert set(guard.provenance["caught"]) == {"near", "far"}


@pytest.mark.parametrize(
    "settings",
    [
        {"kinds": ("blurred",)}, {"kinds": ()}, {"kinds": tuple(KINDS)}, {"share": 0}, {"share": 1.5}, {"weight": -1},
        {"form": "margin"}, {"margins": (1.0, -1.0)}, {"margins": (1.0,)},
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Outliers(**settings)


def test_a_recipe_without_labels_has_no_outliers():
    with pytest.raises(InputError, match="outliers"):
        Recipe(loss=SimCLR(), outliers=Outliers())
    made = construct_from_text(Recipe, {"outliers": "Outliers", "outliers.weight": "0.3", "epochs": "3"})
    assert made.outliers == Outliers(weight=0.3)
