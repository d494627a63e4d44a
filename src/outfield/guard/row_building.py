"""From ID rows to what a guard of rows is made of: parts, the detector, and the threshold."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from outfield.config import require
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.fused import Fused
from outfield.detectors.members import fresh
from outfield.detectors.registry import DETECTORS
from outfield.detectors.summed import Summed
from outfield.errors import FileFormatError, InputError, OutfieldWarning, TooFewSamplesError
from outfield.features.cells import columns_of, rows_of
from outfield.features.column_names import columns_by_field
from outfield.features.set import FeatureSet, FeatureSource
from outfield.features.table import TablePreprocessing
from outfield.features.table_files import ENDINGS, read_table
from outfield.guard.held_out import TO_CHOOSE, needed, split_off, stratified
from outfield.guard.judging import check_class_names
from outfield.guard.row_files import Content
from outfield.scores.threshold import Threshold

log = logging.getLogger(__name__)


def build(
    rows: Any,
    held_out: Any,
    settings: Mapping[str, Any],
    detector: Detector | str | None,
    keep: float,
    names: tuple[str, ...],
    seed: int,
    most: int | None,
    device: str | torch.device,
) -> Content:
    """What a guard of rows is made of; see :meth:`outfield.RowGuard.build`."""
    model = _detector(detector, seed).to(device)
    least = needed(keep, isinstance(model, Summed))
    features = _features(rows)
    table = None
    if features is None:
        table, train, held, split = _of_table(rows, held_out, settings, least, seed)
    else:
        _refuse_settings(settings)
        _tell_one_column(features, model)
        train, held, split = _of_features(features, held_out, least, seed)
    if len(held) < least:
        raise TooFewSamplesError(
            f"there are {len(held)} held-out rows; at least {least} are needed for a guard that keeps {keep:.4g} of ID rows"
        )
    if names and train.logits is None:
        raise InputError(
            f"names is {names!r:.100}, the classes that logits count, but the rows have no logits; leave it out, or give logits"
        )
    check_class_names(names, train)
    train = _labelled(train)
    if most is not None and len(train) > most:
        log.info("the detector is fitted on %s of %s rows", f"{most:,}", f"{len(train):,}")
        train = train[stratified(train.tensors()["labels"].numpy(), len(train), most, seed + 2)]
    choose = None
    if isinstance(model, Summed):
        first = stratified(None, len(held), TO_CHOOSE + (len(held) - least) // 2, seed + 1)
        choose, held = held[first], held[~first]
    if isinstance(model, Auto | Fused) and choose is not None:
        model.fit(train, choose)
    else:
        model.fit(train)
    threshold = Threshold.fit(model.score(held), keep=keep, source=model.fingerprint())
    notes = {
        "train": len(train),
        "choose": 0 if choose is None else len(choose),
        "calibrate": len(held),
        "split_off": split,
        "seed": seed,
        "widths": {name: train.shapes[name][1] for name in model.needs_to_score},
    }
    return Content(model, threshold, table, names, notes)


def _of_table(
    rows: Any, held_out: Any, settings: Mapping[str, Any], least: int, seed: int
) -> tuple[TablePreprocessing, FeatureSet, FeatureSet, bool]:
    """What is learned of the columns of the rows that are not held out, and both parts as features."""
    found = _columns(rows)
    if held_out is not None:
        table = TablePreprocessing.fit(found, **settings)
        return table, table(found), table(held_out), False
    total, label = len(next(iter(found.values()))), settings["label"]
    classes = None if label not in found else np.unique(np.asarray(found[label]).astype(str), return_inverse=True)[1]
    out = split_off(classes, total, least, seed, "rows")
    train = rows_of(found, ~out)
    table = TablePreprocessing.fit(train, **settings)
    return table, table(train), table(rows_of(found, out)), True


def _of_features(features: FeatureSet, held_out: Any, least: int, seed: int) -> tuple[FeatureSet, FeatureSet, bool]:
    if held_out is None:
        labels = None if features.labels is None else features.labels.numpy()
        out = split_off(labels, len(features), least, seed, "rows")
        return features[~out], features[out], True
    held = _features(held_out)
    if held is None:
        raise InputError(
            "the rows are features, so held_out must be features, too: a FeatureSet, an array or a file of them"
        )
    return features, held, False


def _columns(rows: Any) -> dict[str, Any]:
    return columns_of(read_table(rows) if isinstance(rows, str | os.PathLike) else rows)


def _features(rows: Any) -> FeatureSet | None:
    """Rows that are features; None where they are a table."""
    if isinstance(rows, FeatureSource):
        return rows.in_memory()
    if isinstance(rows, np.ndarray | torch.Tensor):
        return FeatureSet(rows)
    if not isinstance(rows, str | os.PathLike):
        return None
    if os.fspath(rows).endswith(ENDINGS) and not _has_fields(rows):
        return None
    return FeatureSet.load(rows)


def _has_fields(path: str | os.PathLike[str]) -> bool:
    """Whether the columns of a file are called as those of features are."""
    try:
        columns_by_field(path, [*read_table(path)])  # type: ignore[arg-type]  # which only names it
    except FileFormatError:
        return False
    return True


def _refuse_settings(settings: Mapping[str, Any]) -> None:
    given = [name for name in ("label", "columns") if settings[name] is not None]
    if given:
        raise InputError(f"{' and '.join(given)} are of tables, but the rows are features, which carry their labels")


def _tell_one_column(rows: FeatureSet, model: Detector) -> None:
    """Warn of rows that have no direction to speak of."""
    if model.on in model.needs_to_score and rows.shapes.get(model.on, (0, 0))[1] == 1:
        warnings.warn(
            f"{model.on} has one column, of which detectors that look at the direction of a row see the sign alone; as a table, "
            "{'x': column}, it is standardised and its size counts",
            OutfieldWarning,
            stacklevel=4,
        )


def _labelled(rows: FeatureSet) -> FeatureSet:
    """Rows with labels: the classifier's own predictions where there are none, or one class where there is no classifier."""
    if rows.labels is not None:
        return rows
    labels = torch.zeros(len(rows), dtype=torch.int64) if rows.logits is None else rows.logits.argmax(1)
    log.info(
        "there are no labels; %s", "all rows are one class" if rows.logits is None else "predictions take their place"
    )
    return FeatureSet(**{**rows.tensors(), "labels": labels}, about=rows.about, names=rows.names)


def _detector(given: Detector | str | None, seed: int) -> Detector:
    if given is None:
        return Auto(seed=seed)
    if isinstance(given, str):
        cls = DETECTORS[given]
        return cls()
    require(isinstance(given, Detector), "detector", given, "a detector, its name, or None")
    return fresh(given, "auto")
