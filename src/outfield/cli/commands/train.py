"""outfield train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import Device, command, finishing_first, going_on_from, log, say
from outfield.cli.options import File, Number, Share, Text, Texts
from outfield.errors import InputError
from outfield.percent import counted
from outfield.progress import Advance, bar, is_shown

if TYPE_CHECKING:
    from outfield.classifier import Curve, Recipe
    from outfield.images import ImageSource


@command(
    "outfield train cifar10 --data data --out cifar10.safetensors",
    "outfield train photos/train --test photos/test --out photos.safetensors --architecture resnet18 --size 64 --set epochs=60",
    "outfield train cifar10 --data data --out trial.safetensors --hold-out 0.1 --set schedule=cosine",
    "outfield train cifar10 --data data --out logitnorm.safetensors --loss logitnorm --augment shift",
    "outfield train cifar10 --data data --out guarded.safetensors --outliers stand-ins --set outliers.weight=0.3",
    "outfield train digits.npz --out digits.safetensors --architecture test_resnet --set epochs=5 --set batch_size=128 "
    "--device cpu",
)
def train(
    images: Annotated[str, Argument(help="A data set's name (with --data), a folder of classes, or .npz.")],
    output: Annotated[Path, Option("--out", "-o", help="File of the classifier (.safetensors).")],
    data: opt.DataFolder = None,
    download: opt.Download = False,
    test: Annotated[Text, Option(help="Test images. Default: those of a named set.")] = None,
    architecture: Annotated[str, Option(help="A timm model, or torchvision:NAME.")] = "resnet34",
    small_images: Annotated[
        bool | None,
        Option("--small-images/--large-images", help="3 × 3 stem without max-pool. Default: below 64 pixels."),
    ] = None,
    size: Annotated[Number, Option(min=8, help="Height and width of the input. Default: those of the images.")] = None,
    setting: Annotated[Texts, Option("--set", "-s", help="A setting of the recipe, such as epochs=20.")] = None,
    loss: Annotated[
        str, Option(help="cross-entropy, smoothing (of labels), logitnorm, or simclr (no labels).", metavar="NAME")
    ] = "cross-entropy",
    outliers: Annotated[
        str,
        Option(
            help="none, or stand-ins: made-up images that the network learns to be undecided about.", metavar="NAME"
        ),
    ] = "none",
    augment: Annotated[Text, Option(help="crops, shift or recoloured. Default: by the loss.", metavar="NAME")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the first weights and everything drawn.")] = 0,
    seeds: Annotated[int, Option(min=1, help="Number of seeds, from --seed on; write {seed} into file names.")] = 1,
    checkpoint: Annotated[File, Option(help="File that keeps the running training. Default: beside --out.")] = None,
    test_every: Annotated[int, Option(min=1, help="Epochs between two looks at the test images.")] = 1,
    hold_out: Annotated[Share, Option(help="Share of each class held out to test on.", metavar="SHARE")] = None,
    device: Device = "auto",
) -> None:
    """Train a classifier on images with the paper's recipe: SGD with Nesterov momentum, random resized crops and flips."""
    numbers = range(seed, seed + seeds)
    kept = checkpoint or Path(str(output).removesuffix(".safetensors") + ".checkpoint.safetensors")
    inputs = [("the training images", images), ("the test images", test)]
    outputs = [opt.Output("--out", output, (".safetensors",)), opt.Output("--checkpoint", kept, (".safetensors",))]
    opt.check_places(inputs, outputs, numbers if seeds > 1 else None, data)

    from outfield.classifier import (
        AUGMENTATIONS,
        LOSSES,
        OUTLIERS,
        Recipe,
        SimCLR,
        TrainingCheckpoint,
        check_share,
        classifier_for,
        train_classifier,
    )
    from outfield.config import construct_from_text, require_choice
    from outfield.modes import resolve_device

    named: dict[str, str] = {}
    given = (("--loss", loss, LOSSES), ("--outliers", outliers, OUTLIERS), ("--augment", augment, AUGMENTATIONS))
    for option, name, known in given:
        if name is not None:
            require_choice(option, name, known)
            named |= known[name]
    recipe: Recipe = construct_from_text(Recipe, named | opt.setting_texts(setting))
    if hold_out is not None:
        check_share(hold_out)
    place = resolve_device(device)
    with bar("reading the images"):
        source, tested = _training_images(images, test, data, download, with_test=hold_out is None)
        width = recipe.loss.width if isinstance(recipe.loss, SimCLR) else None
        classifier, pixels = classifier_for(source, architecture, size, small_images, width)
    about = f"{architecture} on {counted(len(pixels), 'image')}"
    about += " without labels" if width else f" of {counted(classifier.classes, 'class')}"
    about += "" if hold_out is None else f", {hold_out:g} of each held out,"
    for number in numbers:
        target, mine = opt.for_seed(output, number), opt.for_seed(kept, number)
        log.info("training %s for %s on %s, seed %d", about, counted(recipe.epochs, "epoch"), place, number)
        if mine.exists():
            log.info("going on from %s", mine)
        with (
            going_on_from(mine),
            bar("training", recipe.epochs, "epochs") as advance,
            finishing_first("this epoch") as check,
        ):
            trained = train_classifier(
                pixels, tested, classifier, recipe, seed=number, device=place, test_every=test_every,
                checkpoint=TrainingCheckpoint(mine), progress=_telling(recipe, advance, check), hold_out=hold_out,
            )  # fmt: skip
        trained.save(target, images=source)
        if checkpoint is None:
            mine.unlink(missing_ok=True)
        judged = "" if trained.held_out is None else f", {trained.held_out}"
        say(f"{target}: {trained.curve.last(recipe.loss.counts)}{judged}, {sum(trained.curve.seconds):.0f} s")


def _telling(recipe: Recipe, advance: Advance, check: Callable[[], None]) -> Callable[[Curve], None]:
    """What is done after an epoch: say how far it is, and stop if that was asked for."""

    def tell(curve: Curve) -> None:
        advance(len(curve), note=curve.last(recipe.loss.counts))
        if not is_shown():
            log.info("epoch %d of %d: %s", len(curve), recipe.epochs, curve.last(recipe.loss.counts))
        check()

    return tell


def _training_images(
    images: str, test: str | None, data: Path | None, download: bool, *, with_test: bool
) -> tuple[ImageSource, ImageSource | None]:
    """Training images and, where they are named, or asked for and known by the set's name, test images."""
    from outfield.images import find, open_images

    train = open_images(images) if data is None else find(images, "train", data, download)
    if test is not None:
        tested = open_images(test)
    elif data is not None and with_test:
        tested = find(images, "test", data, download)
    else:
        return train, None
    if train.classes and tested.classes and train.classes != tested.classes:
        others = sorted(set(train.classes) ^ set(tested.classes))
        raise InputError(f"training and test images differ in their classes: only one has {', '.join(others[:5])}")
    return train, tested
