"""outfield fit."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import Device, command, going_on_from, log
from outfield.cli.options import File, Number, Text
from outfield.errors import InputError
from outfield.percent import counted
from outfield.progress import bar

if TYPE_CHECKING:
    from outfield.detectors import Auto, Detector, LearnedEnergy
    from outfield.features import FeatureSource


@command(
    "outfield fit auto train.safetensors --out detector.safetensors --held-out val.safetensors --near turned.safetensors --far "
    "blocks.safetensors",
    "outfield fit SSD train.npz --out ssd.safetensors",
    "outfield fit KNN train.csv -o knn.safetensors --set k=200",
    "outfield fit EnergyCorrected train.safetensors -o ours.safetensors --seed 1 --set training.epochs=10 --checkpoint "
    "fit.safetensors --held-out val.npz --threshold-out threshold.safetensors",
    "outfield fit EnergyCorrected train.npz -o 'ours-{seed}.safetensors' --seeds 4",
    "outfield fit SSD s3://bucket/train --engine ray --address auto --out ssd.safetensors",
)
def fit(
    detector: Annotated[str, Argument(help="Detector to fit (see: outfield detectors), or auto.")],
    train: Annotated[str, Argument(help=f"Training data, {opt.FEATURES}.")],
    output: Annotated[Path, Option("--out", "-o", help="File of the fitted detector (.safetensors).")],
    setting: opt.Settings = None,
    seed: Annotated[Number, Option(help="Seed of a detector that is trained.")] = None,
    seeds: Annotated[
        Number, Option(min=1, help="Seeds to train, from --seed on; write {seed} into file names.")
    ] = None,
    checkpoint: Annotated[File, Option(help="File in which a running training is kept; it goes on from there.")] = None,
    held_out: Annotated[Text, Option(help="Held-out ID data, for the threshold and for auto and Fused.")] = None,
    near: opt.Near = None,
    far: opt.Far = None,
    keep: opt.Keep = 0.95,
    threshold_out: Annotated[File, Option(help="File of the threshold (.safetensors).")] = None,
    engine: opt.Engine = opt.LOCAL,
    workers: opt.Workers = None,
    address: opt.Address = opt.LOCAL,
    device: Device = "auto",
) -> None:
    """Fit a detector on ID training data and save it. With --engine ray, SSD and GaussianMixture learn from Parquet in shares."""
    from outfield.config import construct_from_text
    from outfield.detectors import DETECTORS
    from outfield.features import open_or_read
    from outfield.scores import Threshold, check_keep

    name = next((one for one in DETECTORS if one.lower() == detector.lower()), detector)
    kind = DETECTORS[name]
    if not kind.uses_held_out and (held_out is None) != (threshold_out is None):
        raise InputError("--held-out and --threshold-out go together: one names the data, the other the file to write")
    check_keep(keep)
    stand_ins = {"near": opt.named_sets("--near", near), "far": opt.named_sets("--far", far)}
    if (near or far) and not kind.uses_stand_ins:
        raise InputError(f"--near and --far are for auto, which chooses by them; {name} chooses nothing")
    given = " and ".join(option for option, value in {"--checkpoint": checkpoint, "--seeds": seeds}.items() if value)
    if given and kind.uses_stand_ins:
        raise InputError(f"{given} cannot be used with auto, which tries many detectors; name one of them")
    if given and not kind.trained:
        raise InputError(f"{given} is for detectors that are trained; {name} is fitted at once")
    settings = opt.setting_texts(setting) | ({} if seed is None else {"seed": str(seed)})
    model: Detector = construct_from_text(kind, settings)
    numbers = None if seeds is None else range(first := getattr(model, "seed", 0), first + seeds)
    inputs: list[opt.Input] = [("the training data", train), ("the held-out data", held_out)]
    inputs += [(f"the set {one} of --{level}", file) for level, sets in stand_ins.items() for one, file in sets.items()]
    named = {"--out": output, "--threshold-out": threshold_out}
    outputs = [opt.Output(option, path, (".safetensors",)) for option, path in named.items()]
    if checkpoint is not None:
        outputs.append(opt.Output("--checkpoint", checkpoint, (checkpoint.suffix,), for_all_seeds=True))
    opt.check_places(inputs, outputs, numbers)
    own = None if held_out is None else open_or_read(held_out)
    if opt.on_ray(engine, workers):
        from outfield.scale import fit_mixture

        rows = fit_mixture(model, train, workers=workers, address=address)  # type: ignore[arg-type]  # it looks
        fitted = [model]
    else:
        data = open_or_read(train)
        sets = {level: opt.opened(named) for level, named in stand_ins.items() if named}
        rows, fitted = len(data), _fitted(model.to(device), data, own, sets, numbers, checkpoint)
    for one in fitted:
        number = getattr(one, "seed", 0)
        one.save(place := opt.for_seed(output, number))
        log.info("fitted %s on %s → %s", name, counted(rows, "sample"), place)
        if threshold_out is not None:
            if kind.uses_held_out:
                threshold = one.threshold(keep)  # type: ignore[attr-defined]
            else:
                threshold = Threshold.fit(one.score(own), keep=keep, source=one.fingerprint())  # type: ignore[arg-type]
            threshold.save(place := opt.for_seed(threshold_out, number))
            log.info("%s → %s", threshold, place)


def _fitted(
    model: Detector,
    data: FeatureSource,
    held_out: FeatureSource | None,
    stand_ins: dict[str, dict[str, FeatureSource]],
    seeds: range | None,
    checkpoint: Path | None,
) -> list[Detector]:
    if model.trained:
        trained: LearnedEnergy = model  # type: ignore[assignment]
        if checkpoint is not None and checkpoint.exists():
            log.info("going on from %s", checkpoint)
        data = data.in_memory() if _small(data) else data
        with contextlib.nullcontext() if checkpoint is None else going_on_from(checkpoint):
            return [*trained.fit_seeds(data, [trained.seed] if seeds is None else seeds, checkpoint=checkpoint)]
    if model.uses_stand_ins and not stand_ins:
        log.warning("no stand-ins were named with --near or --far (see: outfield stand-ins), so nothing is chosen")
    if model.uses_stand_ins and held_out is not None:
        held_out = held_out.in_memory()
    with bar(f"fitting {type(model).__name__}"):
        model.fit(data, held_out=held_out, stand_ins=stand_ins or None)
    if model.uses_stand_ins:
        auto: Auto = model  # type: ignore[assignment]
        tried = "" if auto.choice_ is None else f" of {len(auto.choice_.singles)} candidates"
        log.info("chose %s%s", " + ".join(auto.names), tried)
    return [model]


def _small(data: FeatureSource) -> bool:
    """Whether all fields and the normalised features surely fit half of the free memory; else they stay on disk."""
    wanted = 4 * math.prod(data.shapes["features"]) + 8 * sum(math.prod(shape) for shape in data.shapes.values())
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        free = 2**32
    return wanted < free / 2
