"""Commands on images: train, extract, benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from outfield.classifier.recipe import Recipe
from outfield.cli.app import Device, app, finishing_first, for_seed
from outfield.cli.console import err, out, plain
from outfield.config import construct_from_text
from outfield.devices import resolve_device
from outfield.errors import InputError, UnknownNameError
from outfield.files import atomic
from outfield.images.source import ImageSource
from outfield.progress import Advance, bar

DATA = "Folder that holds the data sets (NAME_train.npz, NAME_test.npz, NAME.npz, torchvision's layout, or folders of images)."
Download = Annotated[bool, typer.Option("--download", help="Get sets that are not there, where torchvision can.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="A setting of the recipe, NAME=VALUE, such as epochs=20 or augmentation.flip=0."),
]


@app.command(
    epilog="Examples:\n\noutfield train cifar10 --data data --out cifar10.safetensors\n\noutfield train photos/train --test "
    "photos/test --out photos.safetensors --architecture resnet18 --size 64 --set epochs=60\n\noutfield train digits.npz --out "
    "digits.safetensors --architecture test_resnet --set epochs=5 --set batch_size=128 --device cpu"
)
def train(
    images: Annotated[
        str, typer.Argument(help="A data set's name (with --data), a folder with a sub-folder for each class, or .npz.")
    ],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the classifier goes (.safetensors).")],
    data: Annotated[Path | None, typer.Option(help=DATA)] = None,
    download: Download = False,
    test: Annotated[
        str | None, typer.Option(help="Images to tell the accuracy on; a named set brings its own.")
    ] = None,
    architecture: Annotated[str, typer.Option(help="A timm model, or torchvision:NAME.")] = "resnet34",
    small_images: Annotated[
        bool | None,
        typer.Option("--small-images/--large-images", help="3 × 3 stem without max-pool; by default below 64 pixels."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=8, help="Height and width of the input; those of the images if absent.")
    ] = None,
    setting: Settings = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and everything drawn.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train this many, from --seed on; write {seed} into the names of files.")
    ] = 1,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Keep the running training here, and go on from it if it exists; beside --out if absent."),
    ] = None,
    test_every: Annotated[int, typer.Option(min=1, help="Epochs between two looks at the test images.")] = 1,
    device: Device = "auto",
) -> None:
    """Train a classifier on images with the paper's recipe: SGD with Nesterov momentum, random resized crops and flips."""
    from outfield.classifier.train import Curve, TrainingCheckpoint, classifier_for, train_classifier

    _check_training_places(output, checkpoint, several=seeds > 1)
    recipe: Recipe = construct_from_text(Recipe, dict(item.partition("=")[::2] for item in setting or []))
    place = resolve_device(device)
    source, held_out = _training_images(images, test, data, download)
    classifier, pixels = classifier_for(source, architecture, size, small_images)
    about = f"{architecture} on {len(pixels):,} images of {classifier.classes} classes"
    for number in range(seed, seed + seeds):
        target = for_seed(output, number)
        kept = target.with_suffix(".checkpoint.safetensors") if checkpoint is None else for_seed(checkpoint, number)
        err.print(plain(f"training {about} for {recipe.epochs} epochs on {place}, seed {number}"))
        if kept.exists():
            err.print(f"going on from {plain(kept)}")
        with bar("training", recipe.epochs, "epochs") as advance, finishing_first("this epoch") as check:

            def progress(curve: Curve, advance: Advance = advance, check: Callable[[], None] = check) -> None:
                advance(len(curve), note=curve.last())
                if not err.is_terminal:
                    err.print(f"epoch {len(curve)} of {recipe.epochs}: {curve.last()}")
                check()

            trained = train_classifier(
                pixels,
                held_out,
                classifier,
                recipe,
                seed=number,
                device=place,
                test_every=test_every,
                checkpoint=TrainingCheckpoint(kept),
                progress=progress,
            )
        trained.save(target, images=source)
        if checkpoint is None:
            kept.unlink(missing_ok=True)
        out.print(plain(f"{target}: {trained.curve.last()}, {sum(trained.curve.seconds):.0f} s"))


def _check_training_places(output: Path, checkpoint: Path | None, several: bool) -> None:
    """Find out before long work whether what is trained can be written after it."""
    if output == checkpoint:
        raise InputError(f"--out and --checkpoint are both {output}; give the checkpoint a name of its own, or none")
    for path in (output, *([] if checkpoint is None else [checkpoint])):
        if path.suffix != ".safetensors":
            raise InputError(f"{path}: classifiers and their checkpoints are saved as .safetensors")
        if several and "{seed}" not in path.name:
            raise InputError(f"{path}: with --seeds every seed gets its own file; put {{seed}} into its name")
        atomic.check_writable(path)


def _training_images(
    images: str, test: str | None, data: Path | None, download: bool
) -> tuple[ImageSource, ImageSource | None]:
    from outfield.images.files import open_images
    from outfield.images.finding import find

    train = open_images(images) if data is None else find(images, "train", data, download)
    if test is not None:
        held_out = open_images(test)
    elif data is not None:
        held_out = find(images, "test", data, download)
    else:
        return train, None
    if train.classes and held_out.classes and train.classes != held_out.classes:
        others = sorted(set(train.classes) ^ set(held_out.classes))
        raise InputError(
            f"training and test images are of different classes: {', '.join(others[:5])} only in one of them"
        )
    return train, held_out


@app.command(
    epilog="Examples:\n\noutfield extract cifar10.safetensors photos --out photos.safetensors\n\noutfield extract "
    "timm:resnet50 images.npz --out features.safetensors --odin"
)
def extract(
    backbone: Annotated[
        str, typer.Argument(help="A file of outfield train, or timm:NAME[@WEIGHTS.safetensors], torchvision:NAME[@…].")
    ],
    images: Annotated[str, typer.Argument(help="A folder of images, .npz, or a data set's name with --data.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the features go (.safetensors or .npz).")],
    data: Annotated[Path | None, typer.Option(help=DATA)] = None,
    download: Download = False,
    split: Annotated[str, typer.Option(help="train or test, of a named set.")] = "test",
    odin: Annotated[
        bool, typer.Option("--odin", help="Also the logits that ODIN needs (three times the work).")
    ] = False,
    labels: Annotated[
        bool | None,
        typer.Option("--labels/--no-labels", help="Keep the images' labels; by default those of --split train alone."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once; halved where memory runs out.")] = 512,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that decode images.")] = None,
    device: Device = "auto",
) -> None:
    """Run images through a classifier once: features, spread and logits, for fit, score and evaluate."""
    from outfield.backbone.backbone import Backbone, Odin
    from outfield.images.files import open_images
    from outfield.images.finding import find

    if output.suffix not in (".safetensors", ".npz"):
        raise InputError(f"{output}: features are saved as .safetensors or .npz")
    atomic.check_writable(output)
    source = open_images(images) if data is None else find(images, split, data, download)
    if labels and source.labels is None:
        raise InputError(f"{source.name} has no labels; leave out --labels")
    kept = (data is not None and split == "train") if labels is None else labels
    network = Backbone.open(backbone, device)
    err.print(plain(network))
    began = time.monotonic()
    found = network.extract(source, odin=Odin() if odin else None, batch_size=batch_size, workers=workers, labels=kept)
    seconds = time.monotonic() - began
    found.save(output)
    err.print(plain(f"{len(found):,} images in {seconds:.1f} s ({len(found) / seconds:,.0f}/s) → {output}"))


@app.command(
    epilog="Examples:\n\noutfield benchmark cifar10 --data data --backbone a.safetensors --backbone b.safetensors --seeds 3\n\n"
    "outfield benchmark cifar10 --data data --backbone a.safetensors --detector SSD --detector KNN --ood far=noise"
)
def benchmark(
    protocol: Annotated[str, typer.Argument(help="cifar10 or cifar100: the ID set, and with it the paper's OOD sets.")],
    data: Annotated[Path, typer.Option(help=DATA)],
    backbone: Annotated[
        list[str], typer.Option(help="A file of outfield train, or timm:NAME@WEIGHTS.safetensors; any number of times.")
    ],
    download: Download = False,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for results and what is kept; benchmark-PROTOCOL if absent."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the detectors that are trained.")] = 3,
    detector: Annotated[list[str] | None, typer.Option(help="Only these detectors, any number of times; without it, those of the paper.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A detector's setting, such as KNN.k=20 or EBM.training.epochs=5."),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="One more OOD set, LEVEL=NAME with LEVEL near, mid or far; any number of times."),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on without OOD sets that are not there; the tables say so.")
    ] = False,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Tables, figures and page; outfield report makes them later.")
    ] = True,
    device: Device = "auto",
) -> None:
    """From images to the paper's tables: extract, fit, evaluate. Run again, it goes on where it stopped."""
    from outfield.benchmark import detectors_from_text, run_benchmark
    from outfield.benchmark.protocol import PROTOCOLS
    from outfield.benchmark.saved import save_run
    from outfield.cli.results import write_results

    if protocol not in PROTOCOLS:
        raise UnknownNameError(f"there is no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    plan = PROTOCOLS[protocol]
    for item in ood or []:
        level, equals, name = item.partition("=")
        if not equals:
            raise InputError(f"--ood {item}: write LEVEL=NAME, such as far=noise")
        plan = plan.with_ood(level, name)
    chosen = detectors_from_text(plan, detector, _settings_by_detector(setting or []))
    folder = Path(f"benchmark-{protocol}") if output is None else output
    run = run_benchmark(
        plan,
        data,
        backbone,
        folder,
        detectors=chosen,
        seeds=seeds,
        device=device,
        allow_missing=allow_missing,
        download=download,
        say=lambda text: err.print(plain(text)),
    )
    save_run(run, folder / "run.safetensors")
    if with_report:
        write_results(run, folder)


def _settings_by_detector(items: list[str]) -> dict[str, dict[str, str]]:
    """KNN.k=20 → {"KNN": {"k": "20"}}."""
    found: dict[str, dict[str, str]] = {}
    for item in items:
        path, equals, value = item.partition("=")
        detector, dot, name = path.partition(".")
        if not equals or not dot:
            raise InputError(f"--set {item}: write DETECTOR.NAME=VALUE, such as KNN.k=20")
        found.setdefault(detector, {})[name] = value
    return found


@app.command(epilog="Example:\n\noutfield report benchmark-cifar10/run.safetensors --out elsewhere")
def report(
    run: Annotated[Path, typer.Argument(help="A benchmark's folder, or its run.safetensors.")],
    output: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; the file's own if absent.")] = None,
) -> None:
    """Tables, figures and the page of a benchmark once more, from the results it kept."""
    from outfield.benchmark.saved import load_run
    from outfield.cli.results import write_results

    run = run / "run.safetensors" if run.is_dir() else run
    folder = run.parent if output is None else output
    atomic.make_folder(folder)
    write_results(load_run(run), folder)
