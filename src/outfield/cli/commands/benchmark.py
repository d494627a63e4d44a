"""outfield benchmark, of a published protocol or of one's own folders and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outfield.cli.app import Device, command, going_on_from, write_results
from outfield.cli.options import (
    DATA_FOLDER,
    RUN,
    Download,
    Input,
    Output,
    backbone_file,
    check_places,
    check_report,
    feature_file,
    image_files,
)
from outfield.errors import InputError, UnknownNameError
from outfield.files import make_folder

if TYPE_CHECKING:
    from outfield.benchmark import Protocol
    from outfield.features import FeatureSource
    from outfield.images import ImageSource

TAKEN = ("near", "mid", "far", "average")
"""Columns of the tables, after which no set can be called."""
OWN = "Sets of your own"
"""Where help lists the options that make a protocol of one's own."""
Ood = Annotated[
    list[str] | None, typer.Option(help="An OOD set at this distance, NAME=FOLDER or NAME=FILE.", rich_help_panel=OWN)
]


@command(
    "outfield benchmark cifar10 --data data --backbone a.safetensors --backbone b.safetensors --seeds 3",
    "outfield benchmark cifar10 --data data --backbone a.safetensors --detector SSD --detector KNN --ood far=noise",
    "outfield benchmark cats --id-train train --id-test test --near dogs=dogs --far cars=cars --backbone a.safetensors",
)
def benchmark(
    protocol: Annotated[str, typer.Argument(help="A published protocol, such as cifar10; or a name for your own.")],
    backbone: Annotated[
        list[str] | None, typer.Option(help="A file of outfield train, or timm:NAME@WEIGHTS; any number of times.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help=DATA_FOLDER)] = None,
    download: Download = False,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of results. Default: benchmark-PROTOCOL.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the detectors that are trained.")] = 3,
    detector: Annotated[
        list[str] | None, typer.Option(help="Detectors to use, or all. Default: Auto and those of the paper.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A detector's setting, such as KNN.k=20.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="One more OOD set, LEVEL=NAME with LEVEL near, mid or far.")
    ] = None,
    id_train: Annotated[
        str | None, typer.Option(help="ID training images: a folder of classes, or .npz.", rich_help_panel=OWN)
    ] = None,
    id_test: Annotated[str | None, typer.Option(help="ID test images.", rich_help_panel=OWN)] = None,
    near: Ood = None,
    mid: Ood = None,
    far: Ood = None,
    features: Annotated[
        bool, typer.Option("--features", help="These sets are files of features; no --backbone.", rich_help_panel=OWN)
    ] = False,
    fraction: Annotated[
        str | None, typer.Option(help="Fit also on these fractions of the training rows.", metavar="F,F,…")
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(help="Views of each image to average over; auto: stand-ins choose.", metavar="flip|six|N|auto"),
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(min=0, help="ID test images that calibrate Auto and Fused. Default: a tenth, at most 1,000."),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on without OOD sets that are not there.")
    ] = False,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write tables, figures and page.")] = True,
    device: Device = "auto",
) -> None:
    """From images to the paper's tables: extract, fit, evaluate. Run again, it goes on where it stopped."""
    from outfield.benchmark import benchmark_features, detectors_from_text, run_benchmark, save_run

    own = own_sets(protocol, id_train, id_test, {"near": near, "mid": mid, "far": far}, data, features)
    if own is not None and ood:
        raise InputError("--ood adds to a published protocol; with --id-train write --near, --mid or --far NAME=FOLDER")
    if features and views is not None:
        raise InputError("--views are views of images; features have theirs already, from outfield extract --views")
    plan = published_protocol(protocol, ood or []) if own is None else own.protocol()
    networks, fractions = _networks(backbone, features), _fractions(fraction)
    chosen = detectors_from_text(plan, detector, _settings_by_detector(setting or []))
    folder = Path(f"benchmark-{protocol}") if output is None else output
    inputs = [place for each in networks for place in backbone_file(each)] + ([] if own is None else own.inputs())
    if own is None and data is None:
        raise InputError(f"--data is missing: the folder in which {', '.join((plan.id, *plan.ood))} lie")
    if with_report:
        check_report(inputs, folder)
    check_places(inputs, [Output("--out", folder / RUN, (".safetensors",), "runs", makes_folder=True)])
    with going_on_from(folder):
        if own is not None and features:
            make_folder(folder)  # which the stages of a run from images do
            rows = {"features": own.rows()}
            run = benchmark_features(
                plan, rows, detectors=chosen, seeds=seeds, device=device, fractions=fractions, held_out=held_out
            )
        else:
            run = run_benchmark(
                plan,
                (data or "") if own is None else own.images(download),
                networks,
                folder,
                detectors=chosen,
                seeds=seeds,
                device=device,
                allow_missing=allow_missing,
                download=download,
                fractions=fractions,
                views=views,
                held_out=held_out,
            )
        save_run(run, folder / RUN)
    if with_report:
        write_results(run, folder)


def _fractions(text: str | None) -> list[float]:
    """0.01,0.1,1 as numbers."""
    from outfield.benchmark import checked_fractions

    try:
        return checked_fractions(float(part) for part in text.split(",")) if text is not None else []
    except ValueError as error:
        said = f" ({error})" if isinstance(error, InputError) else ""
        raise InputError(f"--fraction {text}: write numbers above 0 and at most 1, such as 0.01,0.1,1{said}") from error


def _networks(backbone: list[str] | None, features: bool) -> list[str]:
    """The backbones, without which there are only features."""
    if features and backbone:
        raise InputError("--features are a network's already; leave out --backbone")
    if not features and not backbone:
        raise InputError("--backbone is missing: a file of outfield train, or timm:NAME; any number of times")
    return backbone or []


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


@dataclass(frozen=True)
class OwnSets:
    """A protocol of one's own: what ``--id-train``, ``--id-test``, ``--near``, ``--mid`` and ``--far`` say.

    Args:
        name: What to call the protocol and its ID set.
        id_train: Where the ID training set is.
        id_test: Where the ID test set is.
        levels: By level, each OOD set as NAME=PLACE, or as the name of a published set that lies in the folder ``data``.
        data: Folder of published sets, or None.
        features: Whether places hold features, not images.
    """

    name: str
    id_train: str
    id_test: str
    levels: Mapping[str, Sequence[str]]
    data: Path | None = None
    features: bool = False

    def protocol(self) -> Protocol:
        """The sets by level.

        Raises:
            InputError: a name that cannot be, one that comes twice, or no OOD set.
        """
        from outfield.benchmark import PROTOCOLS, Protocol

        if self.name in PROTOCOLS:
            raise InputError(
                f"{self.name} is a published protocol, whose ID set is found in --data; with --id-train choose another name"
            )
        if not self.name or {*self.name} & {"/", "\\", "\0"}:
            raise InputError(f"the protocol is called {self.name!r}; a name of your own has letters, and no slash")
        if not any(self.levels.values()):
            raise InputError(
                "there is no OOD set; name at least one, such as --near NAME=FOLDER, --mid NAME=FOLDER or --far NAME=FOLDER"
            )
        names = {level: tuple(self._named(level, item)[0] for item in items) for level, items in self.levels.items()}
        return Protocol(self.name, names["near"], names["mid"], names["far"])

    def inputs(self) -> list[Input]:
        """Files that are read, which nothing may overwrite."""
        listed = feature_file if self.features else image_files
        return [place for part, (_, source) in self._places().items() if source for place in listed(part, source)]

    def images(self, download: bool = False) -> dict[str, ImageSource]:
        """Images of every set: "train" and "test" of the ID set, and OOD sets by name.

        Raises:
            OutfieldError: they are not there, or no images.
        """
        from outfield.images import find, open_images

        return {
            part: open_images(source) if source else find(name, "test", self.data or "", download)
            for part, (name, source) in self._places().items()
        }

    def rows(self) -> dict[str, FeatureSource]:
        """Features of every set, in the same way."""
        from outfield.features import open_or_read

        return {part: open_or_read(source) for part, (_, source) in self._places().items()}

    def _places(self) -> dict[str, tuple[str, str]]:
        """Name and place of each set; no place for a published one."""
        named = [self._named(level, item) for level, items in self.levels.items() for item in items]
        sets = {"train": (self.name, self.id_train), "test": (self.name, self.id_test)}
        return sets | {name: (name, source) for name, source in named}

    def _named(self, level: str, item: str) -> tuple[str, str]:
        name, equals, source = item.partition("=")
        if not name or (equals and not source):
            raise InputError(f"--{level} {item}: write {self._example()}")
        if not equals and (self.data is None or self.features):
            hint = "" if self.features else ", or give --data for a set that is known by name"
            raise InputError(f"--{level} {item}: write {self._example()}{hint}")
        if name in TAKEN:
            raise InputError(f"--{level} {item}: {name} is a column of the tables; call the set something else")
        return name, source

    def _example(self) -> str:
        return "NAME=FILE, such as cats=cats.npz" if self.features else "NAME=FOLDER, such as cats=photos/cats"


def own_sets(
    name: str,
    id_train: str | None,
    id_test: str | None,
    levels: Mapping[str, Sequence[str] | None],
    data: Path | None,
    features: bool,
) -> OwnSets | None:
    """The user's own sets, or None where a published protocol is meant.

    Raises:
        InputError: options that belong to one's own sets come without all of them.
    """
    given = {"--id-train": id_train, "--id-test": id_test}
    lacks = [option for option, value in given.items() if value is None]
    extras = [f"--{level}" for level, items in levels.items() if items] + ["--features"] * features
    if len(lacks) == 2 and not extras:
        return None
    if id_train is None or id_test is None:
        said = ", ".join([*(option for option in given if option not in lacks), *extras])
        more = "; to a published protocol, --ood LEVEL=NAME adds a set" if len(lacks) == 2 else ""
        raise InputError(f"{said} without {' and '.join(lacks)}: sets of your own need both{more}")
    return OwnSets(name, id_train, id_test, {level: items or [] for level, items in levels.items()}, data, features)


def published_protocol(name: str, ood: Sequence[str]) -> Protocol:
    """The protocol of that name, with more OOD sets, each LEVEL=NAME.

    Raises:
        UnknownNameError: there is no such protocol or level.
        InputError: a set that is not written like that, or comes twice.
    """
    from outfield.benchmark import PROTOCOLS

    if name not in PROTOCOLS:
        raise UnknownNameError(
            f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}, and your own with --id-train, --id-test and "
            "--near, --mid or --far"
        )
    plan = PROTOCOLS[name]
    for item in ood:
        level, equals, added = item.partition("=")
        if not equals:
            raise InputError(f"--ood {item}: write LEVEL=NAME, such as far=noise")
        plan = plan.with_ood(level, added)
    return plan
