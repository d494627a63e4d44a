"""Losses against their formulas, and trainings that use them."""

import math
from dataclasses import replace

import pytest
import torch
from tests.helpers.pictures import make_pictures
from torch.nn import functional

import outfield as of
from outfield.backbone import Backbone, Classifier
from outfield.benchmark import Protocol, run_benchmark
from outfield.classifier import (
    AUGMENTATIONS,
    LOSSES,
    Augmentation,
    CrossEntropy,
    LogitNorm,
    PadAndShift,
    Recipe,
    Recoloured,
    SimCLR,
    TrainingCheckpoint,
    classifier_for,
    train_classifier,
)
from outfield.config import construct_from_text, from_plain, to_plain
from outfield.errors import InputError

GENTLE = Augmentation(scale=(0.6, 1.0))


def outputs_and_labels(n=12, classes=5):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, classes, generator=generator) * 3, torch.randint(classes, (n,), generator=generator)


def test_cross_entropy_is_the_mean_surprise_at_the_label():
    outputs, labels = outputs_and_labels()
    loss, right = CrossEntropy()(outputs, labels)
    p = outputs.double().softmax(1)
    assert float(loss) == pytest.approx(-float(p[torch.arange(12), labels].log().mean()), rel=1e-5)
    assert int(right) == int((outputs.argmax(1) == labels).sum()) > 0
    smoothed = CrossEntropy(smoothing=0.1)(outputs, labels)[0]
    wanted = 0.9 * p[torch.arange(12), labels].log() + 0.1 * p.log().mean(1)
    assert float(smoothed) == pytest.approx(-float(wanted.mean()), rel=1e-5)


def test_logitnorm_does_not_see_how_long_logits_are():
    outputs, labels = outputs_and_labels()
    loss, right = LogitNorm()(outputs, labels)
    unit = outputs.double() / outputs.double().norm(dim=1, keepdim=True)
    wanted = functional.cross_entropy(unit / 0.04, labels)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    assert float(LogitNorm()(outputs * 7, labels)[0]) == pytest.approx(float(loss), rel=1e-5)
    assert float(LogitNorm(temperature=1.0)(outputs, labels)[0]) < float(loss)
    assert int(right) == int((outputs.argmax(1) == labels).sum())


def test_simclr_asks_each_copy_for_the_other_one():
    z = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    unit = z / z.norm(dim=1, keepdim=True)
    total = 0.0
    for i in range(8):
        partner = (i + 4) % 8
        among = sum(math.exp(float(unit[i] @ unit[k]) / 0.5) for k in range(8) if k != i)
        total -= math.log(math.exp(float(unit[i] @ unit[partner]) / 0.5) / among)
    loss, _ = SimCLR()(z, torch.zeros(4, dtype=torch.int64))
    assert float(loss) == pytest.approx(total / 8, rel=1e-9)
    same = torch.eye(4).repeat(2, 1)
    assert float(SimCLR()(same, torch.zeros(4, dtype=torch.int64))[1]) == 4  # images, not copies
    assert (SimCLR.views, SimCLR.supervised) == (2, False)


@pytest.mark.parametrize(("kind", "settings", "said"), [
    (CrossEntropy, {"smoothing": 1}, "below 1"),
    (CrossEntropy, {"smoothing": -0.1}, "smoothing"),
    (LogitNorm, {"temperature": 0}, "temperature"),
    (SimCLR, {"temperature": 0}, "temperature"),
    (SimCLR, {"width": 1}, "width"),
    *((Augmentation, {"scale": value}, "scale") for value in ((0.5, 0.2), (0, 1), 0.5, (0.5, 2), ("a", "b"), None)),
    *((Augmentation, {"ratio": value}, "ratio") for value in ((2, 1), (1, float("inf")), (True, 2), None)),
    *((Augmentation, {"flip": value}, "flip") for value in (1.5, "no", float("nan"), -0.1, None, True)),
    (PadAndShift, {"pad": -1}, "pad"),
    (PadAndShift, {"flip": 1.5}, "flip"),
    (Recoloured, {"strength": 2}, "strength"),
    (Recoloured, {"grey": -1}, "grey"),
    (Recoloured, {"crop": PadAndShift()}, "crop"),
    (Recipe, {"loss": "logitnorm"}, "CrossEntropy, LogitNorm, SimCLR"),
    (Recipe, {"optimiser": "adam"}, "sgd, adamw"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(kind, settings, said):
    with pytest.raises(InputError, match=said):
        kind(**settings)


def test_a_loss_travels_with_its_recipe_and_the_papers_says_nothing():
    plain = to_plain(Recipe())
    assert not {"loss", "optimiser"} & plain.keys()
    for name, settings in LOSSES.items():
        recipe = construct_from_text(Recipe, settings)
        assert from_plain(to_plain(recipe)) == recipe
        assert (recipe == Recipe()) == (name == "cross-entropy")
    for other in (Recipe(schedule="cosine"), Recipe(optimiser="adamw")):
        assert from_plain(to_plain(other)) == other
    assert construct_from_text(Recipe, LOSSES["smoothing"]).loss == CrossEntropy(0.1)
    assert construct_from_text(Recipe, LOSSES["simclr"]).augmentation == Recoloured()
    assert construct_from_text(Recipe, LOSSES["logitnorm"] | {"loss": "SimCLR"}).loss == SimCLR()
    kinds = [type(construct_from_text(Recipe, settings).augmentation) for settings in AUGMENTATIONS.values()]
    assert kinds == [Augmentation, PadAndShift, Recoloured]


def test_a_shift_moves_whole_pixels_and_leaves_black_behind():
    images = torch.arange(1.0, 65).view(1, 1, 8, 8).expand(500, 1, 8, 8)
    made = PadAndShift(pad=2, flip=0.0)(images, (8, 8), torch.Generator().manual_seed(0))
    padded = functional.pad(images[0, 0], (2, 2, 2, 2))
    found = set()
    for one in made[:, 0]:
        fits = [(i, j) for i in range(5) for j in range(5) if torch.equal(one, padded[i : i + 8, j : j + 8])]
        assert len(fits) == 1
        found |= set(fits)
    assert len(found) == 25  # every shift happens
    flipped = PadAndShift(pad=0, flip=0.3)(images, (8, 8), torch.Generator().manual_seed(0))[:, 0]
    turned = (flipped == images[:, 0].flip(2)).all(2).all(1)
    assert 0.2 < float(turned.float().mean()) < 0.4
    assert torch.equal(flipped[~turned][0], images[0, 0])
    larger = PadAndShift(pad=0, flip=0.0)(images[:2], (16, 16), torch.Generator().manual_seed(0))
    assert torch.equal(larger, functional.interpolate(images[:2], (16, 16), mode="bilinear", antialias=True))


def test_colours_change_and_grey_images_stay_grey():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(400, 3, 8, 8, generator=generator) * 255
    still = Augmentation(scale=(1, 1), ratio=(1, 1), flip=0)
    same = Recoloured(still, strength=0, grey=0)(images, (8, 8), generator)
    torch.testing.assert_close(same, images, atol=1e-2, rtol=0)
    never = Recoloured(still, strength=1, share=0, grey=0)(images, (8, 8), generator)
    torch.testing.assert_close(never, images, atol=1e-2, rtol=0)
    made = Recoloured(still, share=1)(images, (8, 8), generator)
    assert float(made.min()) >= 0
    assert float(made.max()) <= 255
    grey = ((made - made.mean(1, keepdim=True)).abs().amax((1, 2, 3)) < 1e-2).float().mean()
    assert 0.13 < float(grey) < 0.27
    plain = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    stays = Recoloured(still, share=1)(plain, (8, 8), generator)
    assert float((stays - stays.mean(1, keepdim=True)).abs().max()) < 1e-2  # hue and saturation of grey are nothing


@pytest.mark.parametrize("architecture", ["test_vit", "test_convnext", "test_resnet"])
def test_adamw_learns_with_networks_of_patches_too(architecture, tmp_path):
    pictures = make_pictures(96)
    classifier, pixels = classifier_for(pictures, architecture, size=32)
    assert classifier.small_images
    recipe = Recipe(
        epochs=6, batch_size=24, learning_rate=2e-3, weight_decay=0.05, optimiser="adamw", augmentation=GENTLE
    )
    trained = train_classifier(pixels, pixels, classifier, recipe, device="cpu")
    assert trained.curve.loss[-1] < trained.curve.loss[0]
    trained.save(tmp_path / "net.safetensors", pictures)
    backbone = of.Backbone.open(str(tmp_path / "net.safetensors"), "cpu")
    features = backbone.extract(pictures, stages=True)
    assert of.Backbone.load(tmp_path / "net.safetensors", "cpu").fingerprint() == backbone.fingerprint()
    assert float((features.logits.argmax(1) == features.labels).float().mean()) > 0.4
    assert backbone.origin is not None
    again = backbone.origin.build(backbone.origin.state(backbone.network), "the test")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), backbone.network.parameters(), strict=True))


def test_the_rate_of_adamw_climbs_without_parts():
    recipe = Recipe(epochs=20, batch_size=64, warm_up=0.15, optimiser="adamw", learning_rate=0.001, schedule="cosine")
    assert [round(recipe.rate(epoch), 6) for epoch in range(4)] == [0.0001, 0.0004, 0.0007, 0.001]
    assert Recipe(epochs=20, batch_size=64, warm_up=0.15).climb == 0


def test_a_killed_training_with_adamw_goes_on_to_the_same_bits(tmp_path):
    pictures = make_pictures(48)
    classifier, pixels = classifier_for(pictures, "test_resnet", size=16)
    recipe = Recipe(epochs=3, batch_size=24, learning_rate=1e-3, optimiser="adamw", loss=LogitNorm())
    whole = train_classifier(pixels, None, classifier, recipe, device="cpu").network.state_dict()

    def stop(curve):
        if len(curve) == 2:
            raise KeyboardInterrupt

    kept = TrainingCheckpoint(tmp_path / "c.safetensors")
    with pytest.raises(KeyboardInterrupt):
        train_classifier(pixels, None, classifier, recipe, device="cpu", checkpoint=kept, progress=stop)
    again = train_classifier(pixels, None, classifier, recipe, device="cpu", checkpoint=kept).network.state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_without_labels_there_are_features_and_no_logits(tmp_path):
    pictures = make_pictures(48)
    bare = of.ImageArray(pictures.images, None, "bare")
    classifier, pixels = classifier_for(bare, "test_resnet", size=16, outputs=8)
    assert (classifier.projects, classifier.classes, classifier.names) == (True, 8, ())
    recipe = Recipe(epochs=2, batch_size=24, loss=SimCLR(width=8), augmentation=Recoloured())
    trained = train_classifier(pixels, pixels, classifier, recipe, device="cpu")
    assert trained.curve.test_accuracy == [None, None]
    trained.save(tmp_path / "net.safetensors", bare)
    backbone = of.Backbone.open(str(tmp_path / "net.safetensors"), "cpu")
    assert backbone.projects
    assert repr(backbone).endswith(", without classes)")
    features = backbone.extract(pictures, stages=True)
    assert features.logits is None
    assert features.labels is None
    assert "head_weight" not in features.shapes
    assert "stage1" in features.shapes
    assert backbone.extract(pictures, labels=True).labels is not None
    of.KNN(k=3).fit(features).score(features)


def test_what_needs_logits_is_refused_before_any_work(tmp_path, monkeypatch):
    half = (0.5, 0.5, 0.5)
    made = Classifier("test_resnet", 8, size=(16, 16), projects=True).build()
    network = Backbone(made, size=16, mean=half, std=half, name="net")
    network.projects = True

    def never(*_, **__):
        raise AssertionError("images were looked at")

    monkeypatch.setattr(Backbone, "extract", never)
    with pytest.raises(InputError, match=r"net was trained without labels: .*outfield guard rows"):
        of.Guard.build(network, make_pictures(200))
    sets = {"train": make_pictures(48), "test": make_pictures(40, seed=1), "noise": make_pictures(30, seed=2)}
    protocol = Protocol("mine", (), (), ("noise",))
    detectors = {"KNN": of.KNN(k=3), "MSP": of.MSP(), "ODIN": of.ODIN(), "ViM": of.ViM()}
    with pytest.raises(of.MissingFieldError, match=r"net was trained without labels: .* which MSP, ODIN, ViM need"):
        run_benchmark(protocol, sets, [network], tmp_path, detectors=detectors, layout=False, device="cpu")
    with pytest.raises(AssertionError, match="images were looked at"):
        run_benchmark(protocol, sets, [network], tmp_path, layout=False, detectors={"KNN": of.KNN(k=3)}, device="cpu")


def test_a_loss_without_labels_needs_a_network_that_projects():
    pictures = make_pictures(48)
    plain, recipe = Classifier("test_resnet", 8, size=(16, 16)), Recipe(batch_size=24)
    with pytest.raises(InputError, match="has classes to tell apart, but the loss is SimCLR"):
        train_classifier(pictures, None, plain, replace(recipe, loss=SimCLR()))
    with pytest.raises(InputError, match="without labels: choose the loss SimCLR, but the loss is CrossEntropy"):
        train_classifier(pictures, None, replace(plain, projects=True), recipe)
