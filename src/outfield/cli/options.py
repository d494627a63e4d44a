"""Options that several commands share, the files that they name, and checks of these before any work.

A file is named as FILE, FILE#SET, NAME=FILE, timm:NAME@FILE, or as a data set in a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from outfield.errors import InputError, as_ours
from outfield.extras import check_installed
from outfield.percent import percent

if TYPE_CHECKING:
    from outfield.features import FeatureSource

FEATURES = "a FeatureSet: .safetensors, .npz, .npy (features alone), .csv or .parquet; FILE.npz#SET for one of several"
DATA = (".safetensors", ".npz", ".npy", ".parquet")  # endings of data and detectors, which no text may replace
LOCAL = "local"
RUN = "run.safetensors"
REPORT = ("report.html", "tables.md", "tables.tex", "results.csv", "results.json")  # beside a folder of figures

Text = str | None
Texts = list[str] | None
File = Path | None
Number = int | None
Share = float | None

Network = Annotated[
    str,
    Argument(
        help=r"A file of outfield train, timm:NAME\[@WEIGHTS.safetensors], torchvision:NAME\[@…], hf:FOLDER, FILE.onnx or "
        "FILE.pt2 (with --trust)."
    ),
]
DataFolder = Annotated[File, Option(help="Folder of data sets: NAME.npz, torchvision's, or folders of images.")]
Download = Annotated[bool, Option("--download", help="Download sets that are not there, where this is possible.")]
AutoViews = Annotated[Text, Option(help="Views of each image to average; auto chooses.", metavar="flip|six|N|auto")]
Split = Annotated[str, Option(help="train or test, of a named set.")]
Settings = Annotated[Texts, Option("--set", "-s", help="A setting, NAME=VALUE; outfield detectors NAME lists them.")]
Fdr = Annotated[
    Share,
    Option(min=0, max=1, help="Share of those called OOD that may be ID, such as 0.1, if inputs are independent."),
]
Keep = Annotated[float, Option(help="Share of ID samples to accept.")]
Near = Annotated[Texts, Option(help=f"Stand-ins for near OOD, FILE or NAME=FILE ({FEATURES}).")]
Far = Annotated[Texts, Option(help="Stand-ins for far OOD, FILE or NAME=FILE.")]
OnError = Annotated[str, Option(help="Images that cannot be read: skip goes on without, fail ends.")]
Decoders = Annotated[Number, Option(min=0, help="Processes that decode images.")]
MaxTrain = Annotated[int, Option("--max-train", "--most", min=1, help="Samples to fit the detector on, at most.")]
Engine = Annotated[str, Option(help="local: this process. ray: a Ray cluster.", metavar="local|ray")]
Workers = Annotated[Number, Option(min=1, help="Workers on Ray. Default: one for each core.")]
Address = Annotated[str, Option(help="Ray cluster: local starts one, auto finds one.", metavar="auto|local|HOST:PORT")]
Size = Annotated[Text, Option(help="Resize to N or HxW; with --crop, N is the shorter edge.", metavar="N|HxW")]
Crop = Annotated[Text, Option(help="Cut N or HxW out of the middle.", metavar="N|HxW")]
Mean = Annotated[Text, Option(help="Mean of each channel in [0, 1]; one number for grey.", metavar="R,G,B")]
Std = Annotated[Text, Option(help="Standard deviation of each channel.", metavar="R,G,B")]
Interpolation = Annotated[Text, Option(help="nearest, bilinear, bicubic, lanczos, box or hamming, as in Pillow.")]
Trust = Annotated[bool, Option("--trust", help="Open a .pt2 network, which may run code (ONNX does not).")]


# what is read, to the user, and its path: FILE, FILE#SET, NAME@FILE, or the name of a set in a folder
Input = tuple[str, str | Path | None]


class Output(NamedTuple):
    """A file that will be written: its option, path (may hold {seed}), endings (none: text); its folder may be made, too."""

    option: str
    path: Path | None
    endings: tuple[str, ...] = ()
    makes_folder: bool = False
    for_all_seeds: bool = False


def check_places(
    inputs: Iterable[Input], outputs: Sequence[Output], seeds: Iterable[int] | None = None, folder: Path | None = None
) -> None:
    """Find out before long work whether its results can be written, and would destroy nothing.

    With seeds, a file of its own is written for each. Sets that are named lie in the folder.

    Raises:
        InputError: An ending is wrong, {seed} is missing, or an output is the same file as an input or another output, be it by
            another name or through a link.
        StorageError: An output cannot be written where it should go.
    """
    from outfield.files import check_output

    taken = [(what, path) for what, source in inputs if source is not None for path in _files(str(source), folder)]
    for option, wanted, endings, makes_folder, for_all_seeds in outputs:
        if wanted is None:
            continue
        own = None if for_all_seeds else seeds
        if own is not None and "{seed}" not in wanted.name:
            raise InputError(f"{wanted}: with --seeds every seed gets its own file; put {{seed}} into its name")
        if not endings and wanted.suffix in DATA:
            raise InputError(f"{option} {wanted} is a text file; {wanted.suffix} is for data and detectors")
        if wanted.suffix == ".parquet":
            check_installed("tables", "pyarrow")
        paths = [wanted] if own is None else [for_seed(wanted, seed) for seed in own]
        for path in paths:
            place = path.parent
            while makes_folder and not os.path.lexists(place):  # the root is there
                place = place.parent
            check_output(place / path.name, endings or None, option)
            for what, other in taken:
                if _same_file(path, other):
                    said = f"and {what} are both" if what.startswith("-") else f"would overwrite {what},"
                    raise InputError(f"{option} {said} {other}; give it a name of its own")
        taken += [(option, path) for path in paths]


def check_report(inputs: Sequence[Input], folder: Path) -> None:
    """Find out before long work whether a report can be made, and written into ``folder``."""
    check_installed("report", "matplotlib", "jinja2")
    check_places(inputs, [Output("--out", folder / name, makes_folder=True) for name in REPORT])


def for_seed(path: Path, seed: int) -> Path:
    """The path with the seed where {seed} stands."""
    return path.with_name(path.name.replace("{seed}", str(seed)))


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same file, or would once it is there: spelled otherwise, through links, or by hard links."""
    try:
        return os.path.realpath(one) == os.path.realpath(other) or os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return False


def _files(source: str, folder: Path | None) -> list[Path]:
    """The files that a source may be."""
    paths = [Path(name) for name in (source, source.rpartition("#")[0], source.partition("@")[2])]
    if folder is not None:
        paths += [folder / f"{source}{end}" for end in ("_train.npz", "_test.npz", ".npz")]
    return [path for path in paths if os.path.isfile(path)]


def named_sets(option: str, sources: list[str] | None) -> dict[str, str]:
    """Sources ``NAME=FILE`` or ``FILE`` by name; a file whose own name has a = in it is found first."""
    from outfield.features import split_source

    found: dict[str, str] = {}
    for source in sources or []:
        path, part = split_source(source)
        name, equals, file = source.partition("=")
        if not equals or os.path.isfile(path):
            name, file = part or path.stem, source
        if name in found:
            raise InputError(f"two sets of {option} have the same name, {name}; use NAME=FILE")
        found[name] = file
    return found


def opened(sets: dict[str, str]) -> dict[str, FeatureSource]:
    """The sets, opened."""
    from outfield.features import open_or_read

    return {name: open_or_read(source) for name, source in sets.items()}


def on_ray(engine: str, workers: int | None) -> bool:
    """Whether a Ray cluster does the work; it must be installed then."""
    if engine not in (LOCAL, "ray"):
        raise InputError(f"--engine is {engine!r}; it must be local or ray")
    if engine == "ray":
        check_installed("ray", "ray", "fsspec", "pyarrow")
    elif workers is not None:
        raise InputError(f"--workers is {workers}, but workers are for --engine ray; without it there is this process")
    return engine == "ray"


def setting_texts(items: list[str] | None) -> dict[str, str]:
    """``["NAME=VALUE", …]`` as a dictionary."""
    return dict(item.partition("=")[::2] for item in items or [])


def preprocessing_settings(
    size: str | None, crop: str | None, mean: str | None, std: str | None, interpolation: str | None
) -> dict[str, Any]:
    """Settings of a network's preprocessing as ``Backbone.open`` takes them, without those that are not given.

    >>> preprocessing_settings("256", "224x192", "0.5,0.5,0.5", None, None)
    {'size': 256, 'crop': (224, 192), 'mean': (0.5, 0.5, 0.5)}
    """
    sides = {name: _sides(f"--{name}", text) for name, text in (("size", size), ("crop", crop)) if text is not None}
    numbers = {name: _numbers(f"--{name}", text) for name, text in (("mean", mean), ("std", std)) if text is not None}
    return {**sides, **numbers, **({} if interpolation is None else {"interpolation": interpolation})}


def _sides(option: str, text: str) -> int | tuple[int, ...]:
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and len(side) < 6 for side in sides):
        raise InputError(f"{option} is {text!r}; it must be N or HEIGHTxWIDTH, such as 224 or 224x160")
    return int(sides[0]) if len(sides) == 1 else tuple(map(int, sides))


def _numbers(option: str, text: str) -> tuple[float, ...]:
    told = f"{option} is {text!r}; it must be a number for each channel, such as 0.5,0.5,0.5"
    with as_ours(told, InputError, ValueError):
        return tuple(map(float, text.split(",")))


def fdr_in_words(rate: float) -> str:
    """What ``--fdr`` promises."""
    return f"at most {percent(rate)} of those called OOD are ID, in expectation, if inputs are independent"
