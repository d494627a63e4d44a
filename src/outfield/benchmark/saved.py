"""A benchmark's results in one file, so that tables, figures and the page can be made again without running it again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from outfield.benchmark.protocol import Protocol
from outfield.benchmark.records import BenchmarkRun, Key, LowData, Record, View
from outfield.energy.loop import History
from outfield.errors import FileFormatError, OutfieldError, OutfieldWarning
from outfield.files import atomic, storage

ENTRIES = {
    **dict.fromkeys(("protocol", "accuracies", "provenance"), dict),
    **dict.fromkeys(("records", "scores", "histories", "views"), list),
}
"""What the header of a run's file holds."""


def save_run(run: BenchmarkRun, path: atomic.PathLike) -> None:
    """Write records, scores, training curves, views and provenance to a ``.safetensors`` file, atomically.

    A warning tells what a run that is there already has and this one lacks.
    """
    lost = _lost(path, run)
    if lost:
        warnings.warn(
            f"the run in {path} had {lost}, which this one lacks: the results go on without; what was computed is kept and found "
            "when it is run again",
            OutfieldWarning,
            stacklevel=2,
        )
    tensors: dict[str, Tensor] = {}
    for number, scores in enumerate(run.scores.values()):
        tensors |= {f"scores.{number}.{name}": torch.from_numpy(values) for name, values in scores.items()}
    for number, view in enumerate(run.views):
        tensors[f"view.{number}.points"] = torch.from_numpy(view.points)
        tensors[f"view.{number}.labels"] = torch.from_numpy(view.labels)
    header = {
        "protocol": run.protocol.plain(),
        "records": [asdict(record) for record in run.records],
        "scores": [asdict(key) for key in run.scores],
        "histories": [[asdict(key), asdict(history)] for key, history in run.histories.items()],
        "views": [{"backbone": view.backbone, "sets": list(view.sets)} for view in run.views],
        "accuracies": run.accuracies,
        "provenance": run.provenance,
        "classes": list(run.classes),
        "low_data": [asdict(one) for one in run.low_data],
    }
    storage.write(path, "benchmark run", header, tensors)


def _lost(path: atomic.PathLike, run: BenchmarkRun) -> str:
    """Backbones, detectors, seeds and OOD sets that the run at ``path`` has and ``run`` lacks; none if there is none."""
    try:
        before = load_run(path)
    except OutfieldError:
        return ""
    lost = []
    for what in ("backbone", "detector", "seed", "ood"):
        there, here = (dict.fromkeys(getattr(record, what) for record in one.records) for one in (before, run))
        gone = [str(value) for value in there if value is not None and value not in here]
        name = "OOD set" if what == "ood" else what
        lost += [f"the {name}{'s' * (len(gone) > 1)} {', '.join(gone)}"] if gone else []
    return " and ".join(lost)


def load_run(path: atomic.PathLike) -> BenchmarkRun:
    """What :func:`save_run` wrote.

    Raises:
        StorageError: there is no such file.
        FileFormatError: truncated, changed, or not a benchmark's results.
    """
    header, tensors = storage.read(path, "benchmark run", ENTRIES)
    try:
        scores: dict[Key, Mapping[str, np.ndarray]] = {
            Key(**key): {
                name.split(".", 2)[2]: value.numpy()
                for name, value in tensors.items()
                if name.startswith(f"scores.{number}.")
            }
            for number, key in enumerate(header["scores"])
        }
        views = [
            View(
                view["backbone"],
                tensors[f"view.{number}.points"].numpy(),
                tuple(view["sets"]),
                tensors[f"view.{number}.labels"].numpy(),
            )
            for number, view in enumerate(header["views"])
        ]
        return BenchmarkRun(
            Protocol(**header["protocol"]),
            [Record(**record) for record in header["records"]],
            scores,
            {Key(**key): History(**history) for key, history in header["histories"]},
            views,
            header["accuracies"],
            header["provenance"],
            tuple(map(str, header.get("classes", ()))),  # files of earlier versions have none
            [LowData(**one) for one in header.get("low_data", ())],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} holds a run that this version of Outfield cannot read: {error!r}") from error
