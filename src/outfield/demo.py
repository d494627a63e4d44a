"""The main job end to end on images that ship with scikit-learn: digits, a small network, every detector.

The network learns to tell eight of the ten digits. The other two are near-OOD; patches of scikit-learn's two photographs
are far-OOD. Settings were chosen beforehand: the paper's, scaled to 64 features and under a thousand training images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from outfield.detectors import DETECTORS, Detector
from outfield.energy import MLP
from outfield.evaluation import Result, evaluate
from outfield.features import FeatureSet
from outfield.langevin import Langevin
from outfield.steps import Training
from outfield.threshold import Threshold

NEAR = (8, 9)
"""Digits that the network never sees."""
FEATURES = 64
ODIN_TEMPERATURE, ODIN_EPSILON = 1000.0, 0.0014

NETWORK = MLP(hidden=128)
SETTINGS: dict[str, dict[str, object]] = {
    "KNN": {"k": 10},
    "EBM": {
        "network": NETWORK,
        "training": Training(epochs=40, batch_size=128, learning_rate=1e-4, l2=0.1),
        "sampler": Langevin(steps=200, step_size=(1e-2, 1e-3), noise_std=(1e-2, 1e-3)),
    },
    "EnergyCorrected": {
        "network": NETWORK,
        "training": Training(epochs=200, batch_size=128, learning_rate=5e-5),
        "prior_temperature": 500.0 * FEATURES / 512,
    },
}
"""What differs from the defaults: few samples need few neighbours, a smaller network and a faster optimiser."""


class DigitNet(nn.Module):
    """Three convolutions, spatial mean, one linear layer: (N, 1, 8, 8) → (N, K)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, FEATURES, 3, padding=1),
            nn.BatchNorm2d(FEATURES),
            nn.ReLU(),
        )
        self.head = nn.Linear(FEATURES, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images).mean((2, 3)))
        return logits


@dataclass(frozen=True)
class DigitImages:
    """Grey images (N, 1, 8, 8) in [0, 1] of each set; labels for the ID sets."""

    train: Tensor
    train_labels: Tensor
    held_out: Tensor
    test: Tensor
    test_labels: Tensor
    near: Tensor
    far: Tensor


@dataclass(frozen=True)
class DemoRun:
    """Everything that the demo found."""

    images: DigitImages
    accuracy: float
    detectors: dict[str, Detector]
    sets: dict[str, FeatureSet]
    thresholds: dict[str, Threshold]
    results: list[Result]


def digit_images(seed: int = 0) -> DigitImages:
    """Digits split into train, held-out and test; the near digits; patches of photographs."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div(16)[:, None]
    labels = torch.tensor(digits.target)
    known = ~torch.isin(labels, torch.tensor(NEAR))
    rows = known.nonzero()[:, 0].numpy()
    train, rest = train_test_split(rows, test_size=0.5, random_state=seed, stratify=labels[rows])
    held_out, test = train_test_split(rest, test_size=0.5, random_state=seed, stratify=labels[rest])
    return DigitImages(
        train=images[train],
        train_labels=labels[train],
        held_out=images[held_out],
        test=images[test],
        test_labels=labels[test],
        near=images[~known],
        far=photo_patches(300, seed),
    )


def photo_patches(each: int, seed: int) -> Tensor:
    """``each`` square pieces of either photograph, grey, shrunk to 8 × 8 (2 · each, 1, 8, 8)."""
    rng = np.random.default_rng(seed)
    patches = []
    for photo in load_sample_images().images:
        grey = torch.tensor(photo, dtype=torch.float32).mean(2).div(255)
        for _ in range(each):
            side = int(rng.integers(24, 65))
            top, left = (int(rng.integers(0, limit - side)) for limit in grey.shape)
            piece = grey[None, top : top + side, left : left + side]
            patches.append(functional.adaptive_avg_pool2d(piece, 8))
    return torch.stack(patches)


def train_network(images: Tensor, labels: Tensor, seed: int = 0, epochs: int = 40) -> DigitNet:
    """A network trained with Adam and shifts of a pixel, in seconds on a CPU."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = DigitNet(int(labels.max()) + 1)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=generator).split(64):
            shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
            shifted = torch.roll(images[index], shift, dims=(2, 3))
            loss = functional.cross_entropy(network(shifted), labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    return network.eval()


def extract(network: DigitNet, images: Tensor, labels: Tensor | None = None) -> FeatureSet:
    """Features, spread, logits and ODIN logits of a set of images."""
    inputs = images.clone().requires_grad_()
    maps = network.body(inputs)
    features = maps.mean((2, 3))
    logits = network.head(features)
    log_top = functional.log_softmax(logits / ODIN_TEMPERATURE, dim=1).amax(1)
    (gradient,) = torch.autograd.grad(log_top.sum(), inputs)
    with torch.no_grad():
        odin_logits = network(images + ODIN_EPSILON * gradient.sign())
    return FeatureSet(
        features.detach(),
        labels=labels,
        logits=logits.detach(),
        spread=maps.detach().std((2, 3), correction=0),
        odin_logits=odin_logits,
    )


def run_demo(seed: int = 0, say: Callable[[str], None] = lambda text: None) -> DemoRun:
    """Train the network, fit every detector on its features, evaluate on both OOD sets.

    Args:
        seed: of everything.
        say: told what is being done.
    """
    say("training a small network on eight of scikit-learn's ten digits")
    images = digit_images(seed)
    network = train_network(images.train, images.train_labels, seed)
    sets = {
        "train": extract(network, images.train, images.train_labels),
        "held-out": extract(network, images.held_out),
        "test": extract(network, images.test, images.test_labels),
        f"digits {NEAR[0]} and {NEAR[1]} (near)": extract(network, images.near),
        "photo patches (far)": extract(network, images.far),
    }
    logits = sets["test"].logits
    accuracy = 0.0 if logits is None else float((logits.argmax(1) == images.test_labels).float().mean())
    say(f"its accuracy on held-out digits is {accuracy:.1%}; fitting {len(DETECTORS)} detectors on its features")
    detectors = {}
    for name, cls in DETECTORS.items():
        detector = cls(**SETTINGS.get(name, {}))
        detectors[name] = detector.fit(sets["train"])
    thresholds = {
        name: Threshold.fit(detector.score(sets["held-out"]), source=detector.fingerprint())
        for name, detector in detectors.items()
    }
    ood = {name: data for name, data in sets.items() if name.endswith(")")}
    return DemoRun(images, accuracy, detectors, sets, thresholds, evaluate(detectors, sets["test"], ood))
