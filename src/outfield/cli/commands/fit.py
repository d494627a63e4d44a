"""outfield fit."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outfield.cli.app import Device, command
from outfield.cli.choosing import Far, Near, named_sets, opened, set_files
from outfield.cli.engines import LOCAL, Address, Engine, Workers, on_ray
from outfield.cli.interrupts import going_on_from
from outfield.cli.messages import log
from outfield.cli.places import Input, Output, check_places, for_seed
from outfield.cli.processes import started, together
from outfield.cli.sources import FEATURES, feature_file, setting_texts
from outfield.errors import InputError
from outfield.progress import bar

if TYPE_CHECKING:
    from outfield.detectors import Detector
    from outfield.detectors.auto import Auto
    from outfield.features.set import FeatureSource

AUTO = "Auto"
CALIBRATED = (AUTO, "Fused")
"""Detectors that calibrate themselves on held-out rows, and split some off where there are none."""


@command(
    "outfield fit auto train.safetensors --out detector.safetensors --held-out val.safetensors --near turned.safetensors --far "
    "blocks.safetensors",
    "outfield fit SSD train.npz --out ssd.safetensors",
    "outfield fit KNN train.csv -o knn.safetensors --set k=200",
    "outfield fit EnergyCorrected train.safetensors -o ours.safetensors --seed 1 --set training.epochs=10 --checkpoint "
    "fit.safetensors --held-out val.npz --threshold-out threshold.safetensors",
    "outfield fit EnergyCorrected train.npz -o 'ours-{seed}.safetensors' --seeds 4",
    "torchrun --nproc-per-node 2 -m outfield fit EBM train.npz -o ebm.safetensors",
    "outfield fit SSD s3://bucket/train --engine ray --address auto --out ssd.safetensors",
)
def fit(
    detector: Annotated[
        str,
        typer.Argument(
            help="Name of a detector (see: outfield detectors), or auto, which chooses several and fuses them."
        ),
    ],
    train: Annotated[str, typer.Argument(help=f"Training data, {FEATURES}.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the fitted detector goes (.safetensors).")],
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", help="A setting, NAME=VALUE, such as training.epochs=5; outfield detectors NAME lists them."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a detector that is trained.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train this many at once, from --seed (0) on; write {seed} into the names of files."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Keep the running fit here, and go on from it if it exists (EBM, EnergyCorrected)."),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(help="Held-out ID data on which to choose a threshold; auto and Fused also calibrate on it."),
    ] = None,
    near: Near = None,
    far: Far = None,
    keep: Annotated[float, typer.Option(help="Share of ID samples that the threshold keeps.")] = 0.95,
    threshold_out: Annotated[Path | None, typer.Option(help="Where the threshold goes (.safetensors).")] = None,
    engine: Engine = LOCAL,
    workers: Workers = None,
    address: Address = LOCAL,
    device: Device = "auto",
) -> None:
    """Fit a detector on ID training data and save it. With --engine ray, SSD and GaussianMixture learn from Parquet in shares."""
    from outfield.detectors.summed import Summed
    from outfield.features.stream import open_or_read
    from outfield.scores.threshold import Threshold, check_keep

    detector = _spelled(detector)
    if detector not in CALIBRATED and (held_out is None) != (threshold_out is None):
        raise InputError("--held-out and --threshold-out go together: one names the data, the other the file to write")
    check_keep(keep)
    stand_ins = {"--near": named_sets("--near", near), "--far": named_sets("--far", far)}
    if detector == AUTO:
        _refuse_with_auto({"--checkpoint": checkpoint, "--seeds": seeds})
    elif near or far:
        raise InputError(
            f"--near and --far name stand-ins to choose by; {detector} chooses nothing, outfield fit auto does"
        )
    model = _unfitted(detector, setting, seed, checkpoint, seeds)
    numbers = None if seeds is None else range(getattr(model, "seed", 0), getattr(model, "seed", 0) + seeds)
    others = [place for option, sets in stand_ins.items() for place in set_files(option, sets)]
    _check_places(train, held_out, others, output, threshold_out, checkpoint, numbers)
    shared = on_ray(engine, workers)
    data = None if shared else open_or_read(train)
    held_out_data = None if held_out is None else open_or_read(held_out)
    fitted: list[Detector]
    with together(device) as (writes, own):
        if data is None:
            fitted, rows = [model], _in_shares(model, train, workers, address)
        elif detector == AUTO:
            fitted = [_chosen(model.to(own), data, held_out_data, stand_ins)]  # type: ignore[arg-type]  # an Auto
        else:
            fitted = _fitted(model.to(own), data, held_out_data, numbers, checkpoint)
    rows = rows if data is None else len(data)
    for one in fitted if writes else ():
        number = getattr(one, "seed", 0)
        place = for_seed(output, number)
        one.save(place)
        log.info("fitted %s on %s samples → %s", detector, f"{rows:,}", place)
        if threshold_out is not None:
            if isinstance(one, Summed):
                threshold = one.threshold(keep)
            else:
                threshold = Threshold.fit(one.score(held_out_data), keep=keep, source=one.fingerprint())  # type: ignore[arg-type]
            threshold_place = for_seed(threshold_out, number)
            threshold.save(threshold_place)
            log.info("%s → %s", threshold, threshold_place)


def _spelled(name: str) -> str:
    """The name of a detector, however its letters are written."""
    from outfield.detectors import DETECTORS

    return name if name in DETECTORS else next((one for one in DETECTORS if one.lower() == name.lower()), name)


def _in_shares(model: Detector, train: str, workers: int | None, address: str) -> int:
    """Fit with the workers of a Ray cluster; how many rows there were."""
    from outfield.cluster.mixture import fit_mixture

    return fit_mixture(model, train, workers=workers, address=address)  # type: ignore[arg-type]  # it looks


def _refuse_with_auto(options: dict[str, object]) -> None:
    given = [option for option, value in options.items() if value]
    if given:
        raise InputError(
            f"{' and '.join(given)} cannot be used with auto, which tries many detectors; name one of them"
        )


def _chosen(
    model: Auto, train: FeatureSource, held_out: FeatureSource | None, stand_ins: dict[str, dict[str, str]]
) -> Auto:
    """Fitted: the sum that stand-ins choose, or one that needs no choice where none are named."""
    sets = {option.removeprefix("--"): opened(named) for option, named in stand_ins.items() if named}
    if not sets:
        log.warning(
            "no stand-ins were named with --near or --far (outfield stand-ins makes them), so nothing is chosen"
        )
    with bar("fitting Auto"):
        model.fit(train.in_memory(), None if held_out is None else held_out.in_memory(), sets or None)
    tried = "" if model.choice_ is None else f", as the best of {len(model.choice_.trials):,} sums vote"
    log.info("took %s%s", " + ".join(model.names), tried)
    return model


def _unfitted(
    name: str, setting: list[str] | None, seed: int | None, checkpoint: Path | None, seeds: int | None
) -> Detector:
    from outfield.config import construct_from_text
    from outfield.detectors import DETECTORS
    from outfield.detectors.learned import LearnedEnergy

    cls = DETECTORS[name]
    if (checkpoint is not None or seeds is not None) and not issubclass(cls, LearnedEnergy):
        option = "--checkpoint" if checkpoint is not None else "--seeds"
        raise InputError(f"{option} is for detectors that are trained; {name} is fitted at once")
    if started() > 1 and not issubclass(cls, LearnedEnergy):
        raise InputError(f"{name} is fitted at once, by one process; torchrun is for detectors that are trained")
    settings = setting_texts(setting)
    if seed is not None:
        settings["seed"] = str(seed)
    model: Detector = construct_from_text(cls, settings)
    return model


def _check_places(
    train: str,
    held_out: str | None,
    others: list[Input],
    output: Path,
    threshold_out: Path | None,
    checkpoint: Path | None,
    seeds: range | None,
) -> None:
    inputs = [*feature_file("the training data", train), *feature_file("the held-out data", held_out), *others]
    outputs = [Output("--out", output, (".safetensors",), "detectors")]
    if threshold_out is not None:
        outputs.append(Output("--threshold-out", threshold_out, (".safetensors",), "thresholds"))
    check_places(inputs, outputs, seeds)
    if checkpoint is not None:  # one for all seeds
        written = [
            Output(each.option, for_seed(each.path, seed), each.endings) for each in outputs for seed in seeds or [0]
        ]
        check_places(inputs, [*written, Output("--checkpoint", checkpoint, (checkpoint.suffix,))])


def _fitted(
    model: Detector, data: FeatureSource, held_out: FeatureSource | None, seeds: range | None, checkpoint: Path | None
) -> list[Detector]:
    from outfield.detectors.fused import Fused
    from outfield.detectors.learned import LearnedEnergy

    name = type(model).__name__
    if not isinstance(model, LearnedEnergy):
        with bar(f"fitting {name}"):
            return [model.fit(data, held_out) if isinstance(model, Fused) else model.fit(data)]
    if checkpoint is not None and checkpoint.exists():
        log.info("going on from %s", checkpoint)
    data = data.in_memory() if _small(data) else data
    with contextlib.nullcontext() if checkpoint is None else going_on_from(checkpoint):
        return [*model.fit_seeds(data, [model.seed] if seeds is None else seeds, checkpoint=checkpoint)]


def _small(data: FeatureSource) -> bool:
    """Whether all fields and the normalised features surely fit half of the free memory; else they stay on disk."""
    wanted = 4 * math.prod(data.shapes["features"]) + 8 * sum(math.prod(shape) for shape in data.shapes.values())
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        free = 2**32
    return wanted < free / 2
