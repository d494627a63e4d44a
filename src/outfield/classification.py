"""Training a classifier on images: epochs, accuracy, checkpoints. No printing.

Epoch e of a run draws its order, crops and flips from a generator seeded with (seed, e), so that a run that was killed goes on
with the draws it would have made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outfield import storage
from outfield.classifiers import Classifier
from outfield.config import require_number, to_plain
from outfield.errors import DivergenceError, FileFormatError, InputError
from outfield.learner import Learner, Pixels
from outfield.recipe import Recipe


@dataclass
class Curve:
    """What each epoch gave: mean loss and accuracy on the augmented training images, accuracy on the test images, seconds.

    The test accuracy is None in epochs after which it was not looked at.
    """

    loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)

    def last(self) -> str:
        """The last epoch in words."""
        if not len(self):
            return "no epoch yet"
        tested = self.test_accuracy[-1]
        said = f"loss {self.loss[-1]:.4f}, training accuracy {self.train_accuracy[-1]:.2%}"
        return said if tested is None else f"{said}, test accuracy {tested:.2%}"


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Where a running training is kept so that a killed one can go on.

    Args:
        path: a ``.safetensors`` file, replaced atomically at the end of an epoch.
        seconds: how long ago the last one must have been written.
    """

    path: storage.PathLike
    seconds: float = 60.0


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained network in evaluation mode, on the device it was trained on, and how it came about."""

    network: nn.Module
    classifier: Classifier
    curve: Curve


def train_classifier(
    train: Pixels,
    test: Pixels | None,
    classifier: Classifier,
    recipe: Recipe = Recipe(),
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    test_every: int = 1,
    checkpoint: TrainingCheckpoint | None = None,
    progress: Callable[[Curve], None] | None = None,
) -> TrainedClassifier:
    """Train a classifier from fresh weights.

    On the CPU equal seeds give equal bits, also across a resume; on a GPU equal draws, up to rounding.

    Args:
        train: training images and labels.
        test: images on which the accuracy is told; nothing is chosen by it.
        classifier: what to train. Its mean and std are used as they are; see :meth:`Pixels.statistics`.
        recipe: how.
        seed: of the first weights and of everything drawn.
        device: where.
        test_every: epochs between two looks at the test images; also after the last.
        checkpoint: a file in which the running training is kept, and from which it goes on if it exists.
        progress: called after every epoch with the curve so far.

    Raises:
        InputError: images and classifier do not fit, or the checkpoint belongs to another training.
        DivergenceError: the loss is no longer finite.
    """
    _check(train, test, classifier, recipe, test_every)
    steps = recipe.epochs * (len(train) // recipe.batch_size)
    learner = Learner(classifier, recipe, seed, torch.device(device), steps)
    curve = Curve()
    identity: dict[str, Any] = {}
    if checkpoint is not None:
        identity = {
            "classifier": to_plain(classifier),
            "recipe": to_plain(recipe),
            "seed": seed,
            "images": train.fingerprint(),
        }
        if Path(checkpoint.path).exists():
            curve = _restore(learner, checkpoint, identity)
    train, test = train.to(learner.device), None if test is None else test.to(learner.device)
    written = time.monotonic()
    while len(curve) < recipe.epochs:
        began, epoch = time.monotonic(), len(curve)
        loss, accuracy = learner.epoch(train, epoch, recipe.rate(epoch))
        if not loss < float("inf"):
            raise DivergenceError(
                f"the loss became {loss} in epoch {epoch + 1}; lower learning_rate (now {recipe.learning_rate:g})"
            )
        curve.loss.append(loss)
        curve.train_accuracy.append(accuracy)
        looks = test is not None and (len(curve) % test_every == 0 or len(curve) == recipe.epochs)
        curve.test_accuracy.append(learner.accuracy(test) if test is not None and looks else None)
        curve.seconds.append(time.monotonic() - began)
        if checkpoint is not None and (len(curve) == recipe.epochs or time.monotonic() - written >= checkpoint.seconds):
            header = {"identity": identity, "curve": asdict(curve)}
            storage.write(checkpoint.path, "classifier training", header, learner.state())
            written = time.monotonic()
        if progress is not None:
            progress(curve)
    return TrainedClassifier(learner.finish(), classifier, curve)


def _check(train: Pixels, test: Pixels | None, classifier: Classifier, recipe: Recipe, test_every: int) -> None:
    for data in (train, test):
        if data is not None and int(data.labels.max()) >= classifier.classes:
            top = int(data.labels.max())
            raise InputError(f"{data.name} has labels up to {top} but the classifier has {classifier.classes} classes")
    if len(train) < recipe.batch_size:
        raise InputError(f"batch_size is {recipe.batch_size} but there are only {len(train)} training images; lower it")
    require_number("test_every", test_every, least=1, whole=True)


def _restore(learner: Learner, checkpoint: TrainingCheckpoint, identity: dict[str, Any]) -> Curve:
    header, tensors = storage.read(checkpoint.path, "classifier training")
    theirs = header.get("identity", {})
    other = [name for name in identity if theirs.get(name) != identity[name]]
    if other:
        raise InputError(
            f"{checkpoint.path} belongs to another training: its {' and '.join(other)} differ; "
            "remove it or name another checkpoint"
        )
    try:
        learner.load_state(tensors)
        return Curve(**header["curve"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise FileFormatError(f"{checkpoint.path} cannot be continued: {error}") from error
