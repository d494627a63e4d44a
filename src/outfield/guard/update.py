"""A new version of a guard: its threshold chosen anew on what arrives now, or all of it fitted again; what that changes.

A p-value compares a new input with others that were drawn as it is, so that only an unselected sample may choose the threshold:
the random sample of a service, once people have looked at all of it, or inputs of which somebody says so. What was refused is
selected by its score, and what people picked by people: it may train a detector, never calibrate one.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.backbone import match_labels
from outfield.errors import InputError, as_ours
from outfield.features import TEXT, FeatureSet, copies_of, read_columns
from outfield.files import PathLike, as_path
from outfield.guard.build import ImagePlan, RowPlan, as_columns, as_features, part
from outfield.guard.decision import GLOBAL, PER_CLASS, divided
from outfield.guard.guard import Guard
from outfield.guard.readers import ImageReader
from outfield.guard.review import ReviewFolder, classes_of, time_of
from outfield.guard.texts import LABEL, Texts
from outfield.images import ImageFiles, ImageSource, image_copies, open_images
from outfield.scores import Threshold

BIASED = (
    "others were chosen, by what the guard said of them or by people, and p-values would not hold for what arrives. Keep a "
    "random sample of all inputs and review all of it (outfield serve --keep FOLDER --keep-sample 0.01), or name known inputs "
    "of which none was chosen: --sample, in Python sample=…"
)


def read_reviews(guard: Guard, path: PathLike, until: str | None, whole: bool) -> dict[str, Any]:
    """Inputs that people looked at up to a time, as the guard takes them, with classes; those of any other place are known.

    ``sample`` are known ones of a random sample, ``known`` other known ones, ``unknown`` those that are not known, wherever they
    come from; any of them may be missing. ``window`` says when the first and the last of the sample came.

    With ``whole`` the random sample must be reviewed up to the last.
    """
    place = as_path(path, "reviewed")
    folder = ReviewFolder(place)
    if not place.is_dir() or not (ids := folder.ids()):
        if guard.takes != "images" and place.is_dir():
            what = f"{place} holds no kept inputs"
            raise InputError(f"{what}; outfield serve --keep FOLDER makes one for each guard in FOLDER")
        return {"known": _inputs(guard, place)}
    last = None if until is None else _time(until)
    ids = {own: seen for own, seen in ids.items() if last is None or time_of(own) <= last}
    sample = [own for own in ids if own[0] == "s"]
    if whole and (left := [own for own in sample if not ids[own]]):
        what = f"{len(left):,} of {len(sample):,} inputs of the random sample in {place} are not reviewed, the first {left[0]} of"
        why = f"{time_of(left[0]):%Y-%m-%dT%H:%M:%S}: a threshold would depend on which ones people looked at"
        how = "Review them, or name a time up to which all were reviewed: --until, in Python until=…"
        raise InputError(f"{what} {why}. {how}")
    groups: dict[str, list[dict[str, Any]]] = {"sample": [], "known": [], "unknown": []}
    for own in (own for own, seen in ids.items() if seen):
        item = folder.item(own)
        groups["unknown" if not item["review"]["known"] else "sample" if own[0] == "s" else "known"].append(item)
    window = [time_of(own).isoformat(timespec="seconds") for own in (sample[0], sample[-1])] if sample else None
    return {"window": window} | {name: _kept(guard, place, items) for name, items in groups.items() if items}


def updated(guard: Guard, reviewed: Any, sample: Any, train: Any, until: str | None, workers: int | None) -> Guard:
    """See :meth:`outfield.Guard.updated`."""
    if guard.reader.scored == "boxes":
        raise InputError("a guard of boxes is built anew, of images whose new boxes are annotated")
    found = {} if reviewed is None else read_reviews(guard, reviewed, until, sample is None)
    chosen, known = found.get("sample") if sample is None else _inputs(guard, sample), found.get("known")
    if chosen is None:
        what = "there are no known inputs of a random sample" + ("" if reviewed is None else f" in {reviewed}")
        raise InputError(f"{what}; only such may choose a threshold: {BIASED}")
    rows = _rows(guard, chosen, workers)
    told: dict[str, Any] = {
        "refitted": train is not None, "random": sample is None, "calibrate": len(rows),
        "before": [guard.threshold.value, len(guard.threshold.reference)], "window": found.get("window"),
    }  # fmt: skip
    if train is None:
        made = _recalibrated(guard, rows)
    else:
        whole = _inputs(guard, train) if known is None else _joined(guard, [_inputs(guard, train), known])
        new = _without_copies(guard, whole, chosen, len(rows))
        made = _refitted(guard, part(whole, new), chosen, workers)
        told |= {"trained": int(new.sum()), "copies": int((~new).sum())}
    changes, others = [], "others, known" + ", trained on" * (train is not None)
    for name, inputs in (("sample, known", chosen), (others, known), ("unknown", found.get("unknown"))):
        if inputs is not None:
            verdicts = (one.judge(_rows(one, inputs, workers)) for one in (guard, made))
            old, new = (np.array([not verdict.refused for verdict in own]) for own in verdicts)
            changes.append([name, len(old), *map(int, (old.sum(), new.sum(), (old & ~new).sum(), (new & ~old).sum()))])
    if train is None:
        scores = guard.threshold.reference
        old, new = ((scores <= limit).numpy() for limit in (guard.threshold.value, made.threshold.value))
        told["held_out"] = [len(old), int(old.sum()), int(new.sum())]
    made.provenance["updated"] = [*guard.provenance.get("updated", []), {**told, "changes": changes}]
    return made


def _recalibrated(guard: Guard, rows: FeatureSet) -> Guard:
    """The same detector with a threshold, and a decision, of these rows."""
    keep, rule = guard.threshold.keep, guard.decision
    limits, tests = divided(rows, keep, _accuracy(guard), 3)
    threshold = Threshold.fit(guard.detector.score(limits), keep, guard.detector.fingerprint())
    decision = None if rule is None else rule.recalibrated(guard.detector, threshold, limits, tests)
    stale = ("caught", "accuracy")  # of the threshold and the images before
    notes = {name: value for name, value in guard.provenance.items() if name not in stale} | {"calibrate": len(limits)}
    return Guard(guard.reader, guard.detector, threshold, provenance=notes, decision=decision)


def _refitted(guard: Guard, train: Any, sample: Any, workers: int | None) -> Guard:
    """A guard with the same settings, of other training inputs, calibrated on the sample."""
    rule, notes, table, reader = guard.decision, guard.provenance, guard.table, guard.reader
    settings: dict[str, Any] = {
        "detector": guard.detector.fresh(), "keep": guard.threshold.keep, "accuracy": _accuracy(guard),
        "threshold": GLOBAL if rule is None or rule.per_class is None else PER_CLASS, "seed": notes.get("seed", 0),
        "max_train": max(ImagePlan.max_train or 0, notes.get("train", 0)), "device": guard.device,
    }  # fmt: skip
    if isinstance(reader, ImageReader):
        settings |= {"views": reader.views, "precision": reader.precision, "float16": reader.float16}
        return ImagePlan(**settings, workers=workers).build(guard.backbone, train, sample)
    settings |= {"names": guard.names, "network_features": table is None}
    if table is not None:
        texts = [one.name for one in table.columns if one.kind == TEXT]
        settings |= {"label": table.label, "columns": [one.name for one in table.columns], "categories": texts}
        settings |= {"missing": table.missing, "ignore_extra": table.others}
    return RowPlan(**settings).build(train, sample, reader if isinstance(reader, Texts) else None)


def _accuracy(guard: Guard) -> float | None:
    rule = guard.decision
    return None if rule is None or rule.acceptance is None else rule.acceptance.accuracy


# Inputs of a guard: a source of images, features, or the columns of a table


def _inputs(guard: Guard, given: Any) -> Any:
    """What was given, opened."""
    if guard.takes == "images":
        return given if isinstance(given, ImageSource) else open_images(as_path(given, "images"))
    if guard.table is None:
        return guard.features(given)
    if (rows := as_features(given)) is not None:
        return as_columns(rows)
    return read_columns(given, {column.name: column.kind for column in guard.table.columns})


def _kept(guard: Guard, folder: Path, items: Sequence[dict[str, Any]]) -> Any:
    """Kept inputs, with the classes that people named."""
    classes, named = classes_of(guard), [one["review"]["class"] for one in items]
    if strange := [name for name in named if name is not None and name not in classes]:
        raise InputError(f"people named the class {strange[0]!r:.60}, which this guard does not have")
    labels = [classes.index(name) for name in named] if classes and None not in named else None
    images = [one["image"] for one in items if "image" in one]
    if bool(images) != (guard.takes == "images"):
        raise InputError(f"{folder} holds {'images' if images else 'rows'}, but this guard looks at {guard.takes}")
    if images:
        return ImageFiles(folder, images, labels, classes=None if labels is None else classes)
    rows = [one["row"] for one in items]
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    if isinstance(guard.reader, Texts):
        told = {} if labels is None else {guard.reader.label or LABEL: named}
        return guard.features({**columns, **told})
    if guard.table is None:
        return FeatureSet(**{name: np.array(values, np.float32) for name, values in columns.items()}, labels=labels)
    columns |= {} if guard.table.label is None or labels is None else {guard.table.label: named}
    return {name: np.array(values, object) for name, values in columns.items()}


def _joined(guard: Guard, parts: Sequence[Any]) -> Any:
    """Several inputs as one, with what all of them have."""
    if guard.takes == "images":
        return _Several(parts)
    fields = [part.tensors() if guard.table is None else part for part in parts]
    names = [name for name in fields[0] if all(name in own for own in fields)]
    if guard.table is None:
        return FeatureSet.join([FeatureSet(**{name: own[name] for name in names}) for own in fields])
    found = {name: [cell for own in fields for cell in np.asarray(own[name], object)] for name in names}
    if (label := guard.table.label) in found:  # classes are texts, also where they are written as numbers
        found[label] = [cell if isinstance(cell, str) or cell != cell else str(int(cell)) for cell in found[label]]
    return {name: np.array(cells, object) for name, cells in found.items()}


class _Several(ImageSource):
    """Images of several sources, one after the other; with labels where all have them."""

    name = "images"

    def __init__(self, parts: Sequence[ImageSource]) -> None:
        self._places = [(part, index) for part in parts for index in range(len(part))]
        known = [part for part in parts if part.classes is not None and part.labels is not None]
        labelled: list[Any] = [(part.classes, part.labels) for part in known]
        classes = tuple(dict.fromkeys(name for own, _ in labelled for name in own))
        labels = [classes.index(own[label]) for own, each in labelled for label in each.tolist()]
        self._set_labels(*((labels, classes) if len(labelled) == len(parts) else (None, None)))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> np.ndarray:
        part, place = self._places[index]
        return part[place]


def _without_copies(guard: Guard, train: Any, sample: Any, count: int) -> np.ndarray:
    """Which training inputs are not in the sample of so many: what was trained on is known too well to calibrate."""
    if guard.takes == "images":
        numbers = image_copies(_Several([sample, train]))
    else:
        numbers = copies_of(*(guard.features(one) for one in (sample, train))).numpy()
    new: np.ndarray = numbers[count:] >= count
    if not new.any():
        raise InputError("all training inputs are in the sample, too; train on others")
    return new


def _rows(guard: Guard, inputs: Any, workers: int | None) -> FeatureSet:
    """What the detector scores, with labels where they are known."""
    if guard.takes != "images":
        return guard.reader.complete(guard.features(inputs))
    batches = guard.reader.read(inputs, "fail", False, workers)[1]
    rows = FeatureSet.join([one.features for one in batches if one.features is not None])
    labels: Any = match_labels(inputs, guard.names, guard.widths["logits"])[0]
    return rows if labels is None else FeatureSet(**{**rows.tensors(), "labels": labels}, about=rows.about)


def _time(text: str) -> datetime.datetime:
    what = f"until is {text!r:.60}; it must be a time such as 2026-03-01 or 2026-03-01T18:00"
    with as_ours(what, InputError, ValueError):
        found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
