"""Training is SGD as it is written: against a loop by hand, with the rate, momentum, decay and normalisation spelled out."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.helpers.pictures import make_pictures
from torch.nn import functional

from outfield.backbone import Classifier
from outfield.classifier import Augmentation, Pixels, Recipe, train_classifier

MEAN, STD = (0.3, 0.5, 0.6), (0.2, 0.3, 0.4)
CLASSIFIER = Classifier("test_resnet", classes=4, small_images=False, size=(16, 16), mean=MEAN, std=STD)
FLIPPED = Augmentation(scale=(1, 1), ratio=(1, 1), flip=1.0)
RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=0.005, momentum=0.8, weight_decay=0.03, augmentation=FLIPPED)
SEED = 3


@pytest.fixture(scope="module")
def images():
    return Pixels.of(make_pictures(16), (16, 16))


def batches(images, epoch):
    """Two batches of eight: the order of the seed and epoch, flipped, normalised."""
    order = torch.randperm(16, generator=torch.Generator().manual_seed(SEED * 1_000_003 + epoch))
    pixels = images.images[order].flip(3).float() / 255
    normal = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return zip(normal.split(8), images.labels[order].split(8), strict=True)


def by_hand(images, recipe, rates, parts=1):
    """SGD: g ← ∇ + λ w, v ← μ v + g, w ← w − η (g + μ v); the loss is the mean of the parts', each normalised by itself."""
    network = CLASSIFIER.build(SEED).train()
    velocity = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    losses = []
    for epoch, rate in enumerate(rates):
        total = 0.0
        for inputs, labels in batches(images, epoch):
            loss = sum(
                functional.cross_entropy(network(piece), target) / parts
                for piece, target in zip(inputs.chunk(parts), labels.chunk(parts), strict=True)
            )
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            total += float(loss.detach()) / 2
            with torch.no_grad():
                for (name, weight), gradient in zip(network.named_parameters(), gradients, strict=True):
                    gradient = gradient + recipe.weight_decay * weight
                    velocity[name] = recipe.momentum * velocity[name] + gradient
                    step = gradient + recipe.momentum * velocity[name] if recipe.momentum else gradient
                    weight -= rate * step
        losses.append(total)
    return network, losses


def distance(network, other, buffers=True):
    ours, theirs = network.state_dict(), other.state_dict()
    names = ours if buffers else dict(network.named_parameters())
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in names)


def trained(images, recipe):
    done = train_classifier(images, None, CLASSIFIER, recipe, seed=SEED, device="cpu")
    return done.network, done.curve


def test_it_is_sgd_with_nesterov_momentum_weight_decay_and_steps_of_the_rate(images):
    network, curve = trained(images, RECIPE)
    expected, losses = by_hand(images, RECIPE, [0.005, 0.005, 5e-4, 5e-5])
    assert distance(network, expected) < 1e-5
    assert curve.loss == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize(("change", "rates"), [
    ({"momentum": 0.0}, [0.005, 0.005, 5e-4, 5e-5]),
    ({"weight_decay": 0.0}, [0.005, 0.005, 5e-4, 5e-5]),
    ({"milestones": ()}, [0.005] * 4),
    ({"milestones": (0.25,)}, [0.005, 5e-4, 5e-4, 5e-4]),
    ({"learning_rate": 0.01}, [0.01, 0.01, 1e-3, 1e-4]),
])  # fmt: skip
def test_each_setting_changes_what_it_should(images, change, rates):
    recipe = replace(RECIPE, **change)
    network, _ = trained(images, recipe)
    assert distance(network, by_hand(images, recipe, rates)[0]) < 1e-5
    assert distance(network, trained(images, RECIPE)[0]) > 1e-4  # and is no small matter


def test_a_batch_that_imitates_small_ones_is_their_mean_at_a_multiplied_rate_after_a_warm_up(images):
    # Two parts; 0.3 × 4 epochs, rounded up. At larger rates so small batches would blow up the rounding.
    recipe = replace(RECIPE, learning_rate=5e-4, small_batch=4, warm_up=0.3, milestones=(0.75,))
    rates = [1e-4, 1e-3 * (0.1 + 0.9 / 2), 1e-3, 1e-4]
    network, curve = trained(images, recipe)
    expected, losses = by_hand(images, recipe, rates, parts=2)
    assert distance(network, expected, buffers=False) < 1e-5
    assert curve.loss == pytest.approx(losses, abs=1e-5)
    assert distance(network, by_hand(images, recipe, rates)[0], buffers=False) > 1e-3


def test_statistics_of_the_batch_norms_are_those_of_training(images):
    """The running mean moves a tenth of the way to each batch's, of the images as the network sees them."""
    recipe = replace(RECIPE, epochs=1, milestones=(), learning_rate=1e-12, momentum=0.0)
    network, _ = trained(images, recipe)
    fresh = CLASSIFIER.build(SEED)
    stem, norm = fresh.conv1, fresh.bn1
    running_mean, running_var = torch.zeros(norm.num_features), torch.ones(norm.num_features)
    with torch.no_grad():
        for inputs, _ in batches(images, 0):
            seen = stem(inputs)
            running_mean = 0.9 * running_mean + 0.1 * seen.mean((0, 2, 3))
            running_var = 0.9 * running_var + 0.1 * seen.var((0, 2, 3))
    torch.testing.assert_close(network.bn1.running_mean, running_mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(network.bn1.running_var, running_var, atol=1e-5, rtol=1e-4)
    assert int(network.bn1.num_batches_tracked) == 2


def test_the_accuracies_are_those_of_the_network(images):
    recipe = replace(RECIPE, epochs=1, milestones=(), learning_rate=1e-12)
    done = train_classifier(images, images, CLASSIFIER, recipe, seed=SEED)
    fresh = CLASSIFIER.build(SEED).train()
    with torch.no_grad():
        right = [fresh(inputs).argmax(1) == labels for inputs, labels in batches(images, 0)]
        plain = (images.images.float() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        tested = (copy.deepcopy(done.network).eval()(plain).argmax(1) == images.labels).double().mean()
    assert done.curve.train_accuracy == [pytest.approx(float(torch.cat(right).double().mean()))]
    assert done.curve.test_accuracy == [pytest.approx(float(tested))]


def test_a_network_with_dropout_repeats_and_leaves_the_global_generator(images):
    dropping = Classifier("torchvision:squeezenet1_1", classes=4, small_images=False, size=(32, 32))
    pixels = Pixels.of(make_pictures(16, size=32), (32, 32))
    recipe = replace(RECIPE, epochs=2)
    before = torch.get_rng_state()
    first, second = (train_classifier(pixels, None, dropping, recipe, seed=1, device="cpu") for _ in range(2))
    other = train_classifier(pixels, None, replace(dropping), recipe, seed=2, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert distance(first.network, second.network) == 0
    assert first.curve.loss == second.curve.loss != other.curve.loss
