"""Training a classifier on images: epochs, accuracy, checkpoints. No printing.

Epoch e of a run draws its order, crops and flips from a generator seeded with (seed, e), so that a run that was killed goes on
with the draws it would have made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outfield.backbone import Classifier, check_size, for_small_images, save_classifier, split_name
from outfield.classifier.learner import Learner
from outfield.classifier.pixels import Pixels, split_off
from outfield.classifier.recipe import Recipe
from outfield.config import require, require_number, to_plain
from outfield.errors import DivergenceError, FileFormatError, InputError, as_ours
from outfield.files import RECORD_ENDINGS, PathLike, Record, as_path, check_output, read_record, write_record
from outfield.images import ImageSource, check_source
from outfield.modes import resolve_device
from outfield.percent import percent


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Where a running training is kept so that a killed one can go on.

    Args:
        path: a ``.safetensors`` file, replaced atomically at the end of an epoch.
        seconds: how long ago the last one must have been written.
    """

    path: PathLike
    seconds: float = 60.0

    def __post_init__(self) -> None:
        as_path(self.path)
        require_number("seconds", self.seconds, least=0)


@dataclass
class Curve:
    """What each epoch gave: mean loss and accuracy on the augmented training images, accuracy on the test images, seconds.

    Without labels ``train_accuracy`` is the share of pairs found; the test accuracy is None where it was not looked at.
    """

    loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)

    def last(self, counts: str = "training accuracy") -> str:
        """The last epoch in words; ``counts`` is what the loss calls the share of training images that are right."""
        if not len(self):
            return "no epoch yet"
        tested = self.test_accuracy[-1]
        said = f"loss {self.loss[-1]:.4f}, {counts} {percent(self.train_accuracy[-1], 2)}"
        return said if tested is None else f"{said}, test accuracy {percent(tested, 2)}"


@dataclass(frozen=True)
class HeldOut:
    """Accuracy on training images that were kept out of the training: a share of each class, so many images."""

    share: float
    images: int
    accuracy: float

    def __str__(self) -> str:
        return f"held-out accuracy {percent(self.accuracy, 2)} on {self.images:,} training images"


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained network in evaluation mode, on the device it was trained on, and how it came about."""

    network: nn.Module
    classifier: Classifier
    curve: Curve
    recipe: Recipe
    seed: int
    held_out: HeldOut | None = None

    def save(self, path: PathLike, images: ImageSource) -> None:
        """Write weights, architecture and where they come from to one file, atomically."""
        device = next(self.network.parameters()).device
        notes: dict[str, Any] = {
            "recipe": to_plain(self.recipe), "seed": self.seed,
            "images": {"name": images.name, "n": len(images), "sha256": images.fingerprint()},
            "curve": asdict(self.curve), "seconds": round(sum(self.curve.seconds), 1), "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        }  # fmt: skip
        if self.held_out is not None:
            notes["held_out"] = asdict(self.held_out)
        save_classifier(path, self.classifier, self.network.state_dict(), notes)


def train_classifier(
    train: ImageSource | Pixels,
    test: ImageSource | Pixels | None,
    classifier: Classifier,
    recipe: Recipe = Recipe(),
    *,
    seed: int = 0,
    device: torch.device | str = "auto",
    test_every: int = 1,
    checkpoint: TrainingCheckpoint | None = None,
    progress: Callable[[Curve], None] | None = None,
    hold_out: float | None = None,
) -> TrainedClassifier:
    """Train a classifier from fresh weights.

    On the CPU equal seeds give equal bits, also across a resume; on a GPU equal draws, up to rounding.

    Args:
        train: training images and labels.
        test: images on which the accuracy is told; nothing is chosen by it.
        classifier: what to train; see :func:`classifier_for`.
        recipe: how.
        seed: of the first weights and of everything drawn.
        device: where.
        test_every: epochs between two looks at the test images; also after the last.
        checkpoint: a file in which the running training is kept, and from which it goes on if it exists. Also written when
            ``progress`` raises.
        progress: called after every epoch with the curve so far.
        hold_out: share of the training images of each class, above 0 and below 1, that is kept out of the training. The
            accuracy on them is told at the end (``held_out`` of the result), so that recipes can be compared without a look
            at the test images. Which images these are does not depend on ``seed``.

    Raises:
        InputError: images and classifier do not fit, ``hold_out`` is not such a share or leaves a class without images, or
            the checkpoint belongs to another training.
        DivergenceError: the loss is no longer finite.
    """
    require(isinstance(classifier, Classifier), "classifier", classifier, "an outfield.Classifier")
    require(isinstance(recipe, Recipe), "recipe", recipe, "an outfield.Recipe")
    require_number("seed", seed, least=0, most=2**63 - 1, whole=True)
    seed = int(seed)
    labelled = not classifier.projects
    if recipe.outliers is not None:
        classifier = replace(classifier, outliers=tuple(recipe.outliers.kinds))
    pixels = train if isinstance(train, Pixels) else Pixels.of(train, classifier.size, labelled=labelled)
    tested = test if isinstance(test, Pixels | None) else Pixels.of(test, classifier.size, labelled=labelled)
    pixels, held_out = (pixels, None) if hold_out is None else split_off(pixels, hold_out)
    if labelled != recipe.loss.supervised:
        kind = "has classes to tell apart" if labelled else "is trained without labels: choose the loss SimCLR"
        raise InputError(f"the classifier {kind}, but the loss is {type(recipe.loss).__name__}")
    _check(pixels, [data for data in (tested, held_out) if data is not None], classifier, recipe, test_every)
    steps = recipe.epochs * (len(pixels) // recipe.batch_size)
    learner = Learner(classifier, recipe, seed, resolve_device(device), steps)
    curve, identity = Curve(), {}
    if checkpoint is not None:
        check_output(checkpoint.path, RECORD_ENDINGS, "checkpoint")
        identity = {  # what must be equal for a checkpoint to belong to a training
            "classifier": to_plain(classifier),
            "recipe": to_plain(recipe),
            "seed": seed,
            "images": pixels.fingerprint(),
            "test images": None if tested is None else tested.fingerprint(),
            "hold_out": None if hold_out is None else float(hold_out),
        }
        if Path(checkpoint.path).exists():
            curve = _restore(learner, checkpoint, identity)

    def keep() -> None:
        if checkpoint is not None:
            header = {"identity": identity, "curve": asdict(curve)}
            write_record(checkpoint.path, "classifier training", Record(header, learner.state()))

    pixels = pixels.to(learner.device)
    tested = None if tested is None else tested.to(learner.device)
    written = time.monotonic()
    while len(curve) < recipe.epochs:
        _one_epoch(learner, pixels, tested, curve, test_every)
        if checkpoint is not None and (len(curve) == recipe.epochs or time.monotonic() - written >= checkpoint.seconds):
            keep()
            written = time.monotonic()
        if progress is not None:
            try:
                progress(curve)
            except BaseException:
                keep()
                raise
    judged = None
    if hold_out is not None and held_out is not None and recipe.loss.supervised:
        judged = HeldOut(float(hold_out), len(held_out), learner.accuracy(held_out))
    return TrainedClassifier(learner.finish(), classifier, curve, learner.recipe, seed, judged)


def _one_epoch(learner: Learner, train: Pixels, test: Pixels | None, curve: Curve, test_every: int) -> None:
    began, epoch, recipe = time.monotonic(), len(curve), learner.recipe
    try:
        loss, accuracy = learner.epoch(train, epoch, recipe.rate(epoch))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        if epoch > 0 or isinstance(error, torch.OutOfMemoryError):
            raise
        made, (height, width) = learner.classifier.architecture, learner.classifier.size
        what = f"{made} cannot be trained on images of {height} × {width} in batches of {recipe.batch_size}"
        raise InputError(f"{what}: {str(error).splitlines()[0]}") from error
    if not loss < float("inf"):
        rate = f"now {recipe.learning_rate:g}" + (f", times {recipe.parts} for the batch" if recipe.parts > 1 else "")
        raise DivergenceError(f"the loss became {loss} in epoch {epoch + 1}; lower learning_rate ({rate})")
    curve.loss.append(loss)
    curve.train_accuracy.append(accuracy)
    looks = recipe.loss.supervised and (len(curve) % test_every == 0 or len(curve) == recipe.epochs)
    curve.test_accuracy.append(learner.accuracy(test) if test is not None and looks else None)
    curve.seconds.append(time.monotonic() - began)


def classifier_for(
    images: ImageSource,
    architecture: str = "resnet34",
    size: int | None = None,
    small_images: bool | None = None,
    outputs: int | None = None,
) -> tuple[Classifier, Pixels]:
    """A classifier of a source's classes, with the mean and standard deviation of its pixels; and the pixels.

    Args:
        images: training images.
        architecture: see :class:`Classifier`.
        size: height and width of the input; those of the images if None.
        small_images: see :class:`Classifier`; by default below 64 pixels, where the network has such a form.
        outputs: for a training without labels, how many outputs the projection has; labels need not be there then.

    Raises:
        InputError: the images have no labels, or differ in size and ``size`` is None.

    Warns:
        OutfieldWarning: the network has no form for small images, and divides their height and width until one place is left.
    """
    check_source(images)
    split_name(architecture)
    shape = images.size if size is None else (size, size)
    if shape is None:
        raise InputError(f"{images.name} has images of different sizes; say which size the network takes (--size)")
    check_size(shape)
    pixels = Pixels.of(images, shape, labelled=outputs is None)
    mean, std = pixels.statistics()
    names = (images.classes or ()) if outputs is None else ()
    classes = (len(names) or int(pixels.labels.max()) + 1) if outputs is None else outputs
    made = Classifier(architecture, classes, bool(small_images), shape, mean, std, names, projects=outputs is not None)
    if small_images is None and min(shape) < 64:
        made = for_small_images(made)
    return made, pixels


def _check(train: Pixels, looked_at: Sequence[Pixels], classifier: Classifier, recipe: Recipe, test_every: int) -> None:
    for data in (train, *looked_at):
        top = int(data.labels.max())
        if top >= classifier.classes:
            raise InputError(f"{data.name} has labels up to {top} but the classifier has {classifier.classes} classes")
    if len(train) < recipe.batch_size:
        raise InputError(f"batch_size is {recipe.batch_size} but there are only {len(train)} training images; lower it")
    for data in looked_at:
        if tuple(data.images.shape[2:]) != tuple(classifier.size):
            shape = tuple(data.images.shape[2:])
            raise InputError(f"{data.name} has images of {shape} but the network takes {classifier.size}")
    require_number("test_every", test_every, least=1, whole=True)


def _restore(learner: Learner, checkpoint: TrainingCheckpoint, identity: dict[str, Any]) -> Curve:
    header, tensors = read_record(checkpoint.path, "classifier training", {"identity": dict, "curve": dict})
    theirs = header["identity"]
    other = [_difference(name, theirs.get(name), mine) for name, mine in identity.items() if theirs.get(name) != mine]
    if other:
        what = f"{checkpoint.path} belongs to another training (not the same: {', '.join(other)})"
        raise InputError(f"{what}; remove it or name another checkpoint")
    with as_ours(f"{checkpoint.path} cannot be continued", FileFormatError, KeyError, RuntimeError):
        learner.load_state(tensors)
        return Curve(*(header["curve"][name] for name in vars(Curve())))


def _difference(name: str, theirs: Any, mine: Any) -> str:
    """A name, with the settings that differ where it has some."""
    if not (isinstance(theirs, dict) and isinstance(mine, dict)):
        return name
    keys = sorted(key for key in theirs.keys() | mine.keys() if theirs.get(key) != mine.get(key))
    return f"{', '.join(keys)} of the {name}"
