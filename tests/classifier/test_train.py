"""Training a classifier: it learns, it repeats, it goes on after a kill, it says what is wrong."""

import math
from dataclasses import replace

import pytest
import torch
from tests.helpers.pictures import make_pictures

from outfield.backbone import Classifier
from outfield.classifier import Augmentation, Pixels, Recipe, TrainingCheckpoint, classifier_for, train_classifier
from outfield.classifier.learner import Learner, Split
from outfield.errors import DivergenceError, FileFormatError, InputError, OutfieldWarning, UnknownNameError
from outfield.files import Record, read_record, write_record

GENTLE = Augmentation(scale=(0.6, 1.0))
RECIPE = Recipe(epochs=4, batch_size=24, learning_rate=0.05, augmentation=GENTLE)
TINY = Classifier("test_resnet", classes=4, size=(16, 16))


@pytest.fixture(scope="module")
def train():
    return Pixels.of(make_pictures(96), (16, 16))


@pytest.fixture(scope="module")
def test():
    return Pixels.of(make_pictures(40, seed=1), (16, 16))


def weights(trained):
    return trained.network.state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def trained(train, test):
    return train_classifier(train, test, TINY, RECIPE, seed=3)


def test_it_learns_and_tells_the_accuracy(train, test, trained):
    curve = train_classifier(train, test, TINY, replace(RECIPE, epochs=12), test_every=5).curve
    assert curve.test_accuracy[-1] > 0.7  # four classes
    assert curve.loss[-1] < curve.loss[0]
    assert [value is None for value in curve.test_accuracy] == [epoch not in (5, 10, 12) for epoch in range(1, 13)]
    assert len(trained.curve) == len(trained.curve.seconds) == 4


def test_a_seed_gives_the_same_bits_and_another_others(train, test, trained):
    state = torch.get_rng_state()
    assert same(weights(trained), weights(train_classifier(train, test, TINY, RECIPE, seed=3)))
    assert not same(weights(trained), weights(train_classifier(train, None, TINY, RECIPE, seed=4)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_killed_training_goes_on_to_the_same_bits(train, test, trained, tmp_path, epochs):
    def kill(curve):
        if len(curve) == epochs:
            raise KeyboardInterrupt

    checkpoint = TrainingCheckpoint(tmp_path / "c.safetensors", seconds=0)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(train, test, TINY, RECIPE, seed=3, checkpoint=checkpoint, progress=kill)
    seen = []
    again = train_classifier(
        train, test, TINY, RECIPE, seed=3, checkpoint=checkpoint, progress=lambda curve: seen.append(len(curve))
    )
    assert seen == list(range(epochs + 1, 5))
    assert same(weights(trained), weights(again))
    assert again.curve.loss == trained.curve.loss


def test_a_checkpoint_of_another_training_is_refused(train, test, tmp_path):
    path, short = tmp_path / "c.safetensors", replace(RECIPE, epochs=1)
    train_classifier(train, test, TINY, short, checkpoint=TrainingCheckpoint(path))
    written = path.read_bytes()
    for images, tested, recipe, seed, said in (
        (train, test, short, 1, r"seed\)"),
        (train, test, RECIPE, 0, "epochs of the recipe"),
        (train, test, replace(short, schedule="cosine"), 0, "schedule of the recipe"),
        (test, None, short, 0, "images, test images"),
        (train, Pixels.of(make_pictures(40, seed=9), (16, 16)), short, 0, "test images"),
    ):
        with pytest.raises(InputError, match=f"not the same: {said}"):
            train_classifier(images, tested, TINY, recipe, seed=seed, checkpoint=TrainingCheckpoint(path))
    assert path.read_bytes() == written
    write_record(path, "detector", Record({}, {}))
    with pytest.raises(FileFormatError, match="holds a detector"):
        train_classifier(train, test, TINY, short, checkpoint=TrainingCheckpoint(path))


@pytest.mark.parametrize(
    ("what", "value"),
    [("curve", {}), ("curve", None), ("curve", {"loss": [], "more": []}), ("network.fc.weight", torch.zeros(1)),
     ("network.fc.weight", None), ("momentum.fc.weight", torch.zeros(2, 3))],
)  # fmt: skip
def test_a_checkpoint_without_what_it_should_hold_is_refused(train, test, tmp_path, what, value):
    path, short = tmp_path / "c.safetensors", replace(RECIPE, epochs=1)
    train_classifier(train, test, TINY, short, checkpoint=TrainingCheckpoint(path))
    header, tensors = read_record(path, "classifier training")
    header = {name: header[name] for name in ("identity", "curve")}
    changed = {**(header if what == "curve" else tensors), what: value}
    if what == "curve":
        header = changed
    else:
        tensors = {name: tensor for name, tensor in changed.items() if tensor is not None}
    write_record(path, "classifier training", Record(header, tensors))
    with pytest.raises(FileFormatError, match=r"c\.safetensors"):
        train_classifier(train, test, TINY, short, checkpoint=TrainingCheckpoint(path))


def test_arguments_of_a_training(train, tmp_path):
    for change, said in (
        ({"train": None}, "images is a NoneType"),
        ({"train": make_pictures(4).images}, "images is a ndarray; wrap an array"),
        ({"test": "path"}, "images is a str"),
        ({"classifier": "resnet34"}, "classifier is"),
        ({"recipe": None}, "recipe is"),
        ({"seed": -1}, "seed is"),
        ({"seed": 1.5}, "seed is"),
        ({"test_every": 0}, "test_every is"),
        ({"device": "meta"}, "device"),
    ):
        given = {"train": train, "test": None, "classifier": TINY, "recipe": RECIPE, **change}
        with pytest.raises(InputError, match=said):
            train_classifier(**given)
    for change, said in (({"path": None}, "path"), ({"path": "a", "seconds": -1}, "seconds"), ({"path": ""}, "path")):
        with pytest.raises(InputError, match=said):
            TrainingCheckpoint(**change)
    for arguments in (
        (None,),
        (make_pictures(4), 3),
        (make_pictures(4), "none_such"),
        (make_pictures(4), "resnet18", "a"),
    ):
        with pytest.raises(InputError):
            classifier_for(*arguments)


def test_what_stops_a_training_between_epochs_loses_none_of_them(train, test, tmp_path):
    def interrupt(curve):
        if len(curve) == 2:
            raise KeyboardInterrupt

    checkpoint = TrainingCheckpoint(tmp_path / "c.safetensors", seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(train, test, TINY, RECIPE, checkpoint=checkpoint, progress=interrupt)
    seen = []
    train_classifier(train, test, TINY, RECIPE, checkpoint=checkpoint, progress=lambda curve: seen.append(len(curve)))
    assert seen == [3, 4]


def test_it_takes_sources_as_well(trained):
    again = train_classifier(make_pictures(96), make_pictures(40, seed=1), TINY, RECIPE, seed=3, device="cpu")
    assert same(weights(trained), weights(again))


def test_a_classifier_is_made_for_its_images():
    pictures = make_pictures(24, size=20)
    classifier, pixels = classifier_for(pictures, "test_resnet", size=12)
    assert (classifier.classes, classifier.size, classifier.small_images) == (4, (12, 12), True)
    assert pixels.images.shape == (24, 3, 12, 12)
    assert (classifier.mean, classifier.std) == pixels.statistics()
    assert classifier_for(pictures, "test_vit", size=160)[0].small_images is False
    assert classifier_for(pictures, "test_convnext")[0].small_images is True


@pytest.mark.parametrize("architecture", ["convnext_atto_ols", "test_efficientnet"])
def test_a_network_without_a_form_for_small_images_is_told_of(architecture, recwarn):
    said = f"63 × 63 pixels become one place behind the last stage of {architecture}"
    with pytest.warns(OutfieldWarning, match=said):
        classifier = classifier_for(make_pictures(24, size=20), architecture, size=63)[0]
    assert classifier.small_images is False
    silent = "torchvision:squeezenet1_1"  # tells nothing
    for name, size, small in ((architecture, 64, None), (architecture, 20, False), (silent, None, None)):
        assert classifier_for(make_pictures(24, size=20), name, size, small)[0].small_images is False
    assert not recwarn.list


class Recording:
    """An augmentation that changes nothing and keeps what it was given."""

    def __init__(self):
        self.given = []

    def __call__(self, images, size, generator):
        self.given.append(images.clone())
        return torch.nn.functional.interpolate(images, size)


def test_an_epoch_sees_each_image_once_in_an_order_of_its_own(train):
    seen = Recording()
    train_classifier(train, None, TINY, Recipe(epochs=2, batch_size=24, augmentation=seen))
    epochs = torch.cat(seen.given).split(96)
    orders = [torch.cdist(given.flatten(1), train.images.float().flatten(1)).argmin(1).tolist() for given in epochs]
    assert [sorted(order) for order in orders] == [list(range(96))] * 2
    assert orders[0] != orders[1]
    for given, order in zip(epochs, orders, strict=True):
        assert torch.equal(given, train.images[order].float())


def test_images_that_fill_no_batch_are_left_out(train):
    seen = Recording()
    train_classifier(train, None, TINY, Recipe(epochs=1, batch_size=40, augmentation=seen))
    assert sum(map(len, seen.given)) == 80


def test_what_a_network_cannot_take_is_told_with_its_name(train):
    alexnet = Classifier("torchvision:alexnet", classes=4, small_images=False, size=(16, 16))
    with pytest.raises(InputError, match="alexnet cannot be trained on images of 16 × 16 in batches of 24"):
        train_classifier(train, None, alexnet, RECIPE)


def test_what_cannot_be_trained_is_refused(train, test):
    with pytest.raises(InputError, match="labels up to 3 but the classifier has 2 classes"):
        train_classifier(train, None, Classifier("test_resnet", classes=2), RECIPE)
    with pytest.raises(InputError, match="only 40 training images"):
        train_classifier(test, None, TINY, Recipe(batch_size=64))
    with pytest.raises(InputError, match="no labels"):
        Pixels.of(type(make_pictures(4))(make_pictures(4).images, name="bare"), (16, 16))
    with pytest.raises(UnknownNameError, match="did you mean"):
        Classifier("resnet33").build()
    with pytest.raises(InputError, match="has another stem than a ResNet; use --large-images"):
        Classifier("test_efficientnet").build()


def test_a_loss_that_is_lost_stops_the_training(train):
    wild = Recipe(epochs=2, batch_size=24, learning_rate=1e30)
    with pytest.raises(DivergenceError, match="lower learning_rate"):
        train_classifier(train, None, TINY, wild)


def test_statistics_are_those_of_the_pixels(train):
    mean, std = train.statistics()
    pixels = train.images.double() / 255
    torch.testing.assert_close(torch.tensor(mean).double(), pixels.mean((0, 2, 3)), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.tensor(std).double(), pixels.std((0, 2, 3), correction=0), atol=1e-6, rtol=0)


def test_a_network_that_imitates_small_batches_ends_as_an_ordinary_one(train, test):
    recipe = replace(RECIPE, epochs=2, small_batch=8, learning_rate=0.05 / 3)
    done = train_classifier(train, test, TINY, recipe)
    assert done.recipe == recipe
    assert not any(isinstance(module, Split) for module in done.network.modules())
    large = train_classifier(train, test, TINY, replace(recipe, small_batch=0, learning_rate=0.05))
    assert not same(weights(done), weights(large))


@pytest.mark.gpu
class TestGPU:
    def test_the_recorded_step_follows_the_plain_one(self, train):
        recipe = Recipe(epochs=2, batch_size=24, small_batch=8, precision="float32", compile=False, augmentation=GENTLE)
        recorded = Learner(TINY, recipe, 0, torch.device("cuda"), 0)
        plain = Learner(TINY, recipe, 0, torch.device("cuda"), 0)
        plain.record = False
        data = train.to(torch.device("cuda"))
        for epoch in range(2):
            ours, reference = (one.epoch(data, epoch, 0.05) for one in (recorded, plain))
            assert ours == pytest.approx(reference, abs=2e-2)
        assert recorded.graph is not None
        assert math.isfinite(recorded.accuracy(data))

    def test_a_network_that_cannot_be_recorded_is_trained_all_the_same(self, train, monkeypatch):
        learner = Learner(TINY, RECIPE, 0, torch.device("cuda"), 0)
        monkeypatch.setattr(learner, "_begin_recording", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
        with pytest.warns(OutfieldWarning, match="recorded as a CUDA graph"):
            loss, _ = learner.epoch(train.to(torch.device("cuda")), 0, 0.05)
        assert math.isfinite(loss)
