"""What data a detector takes: a source of features that has every field it needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from outfield.errors import InputError, MissingFieldError, OutfieldWarning
from outfield.features.fields import FIELDS, TWO_CLASSES
from outfield.features.head import HEAD, has_head
from outfield.features.set import FeatureSet, FeatureSource


def accept(detector: str, data: Any, needs: tuple[str, ...], what: str) -> None:
    """Refuse data that the method ``what`` of a detector cannot use, and warn of logits of a single class.

    Raises:
        InputError: it is no source of features.
        MissingFieldError: it lacks a field among ``needs``.
    """
    if not isinstance(data, FeatureSource):
        raise InputError(
            f"{what} takes an outfield.FeatureSet, not {type(data).__name__}; wrap it, FeatureSet(features), "
            "or open a file, open_features(path)"
        )
    missing = lacking(data, needs)
    if missing:
        source = "this FeatureSet" if isinstance(data, FeatureSet) else repr(data)
        raise MissingFieldError(
            f"{detector}.{what} needs {' and '.join(missing)}, which {source} lacks; "
            f"give it where the features come from: FeatureSet(features, {missing[0]}=...) or "
            f"open_features(path, {missing[0]}='{missing[0]}.npy'){_from_images(missing[0])}"
        )
    for name in ("logits", "odin_logits"):
        if name in needs and data.shapes[name][1] == 1:
            told = f"{detector}.{what}: {name} has one column, and a single class tells nothing of a row{TWO_CLASSES}"
            warnings.warn(told, OutfieldWarning, stacklevel=4)


def lacking(data: FeatureSource, needs: Iterable[str]) -> list[str]:
    """The names of the fields among ``needs`` that are not here.

    "head" stands for the classifier's last layer, for which logits will do; without either, ``head_weight`` is what is missing.
    """
    return [
        "head_weight" if name == HEAD else name
        for name in needs
        if not (has_head(data) if name == HEAD else name in data.shapes)
    ]


def _from_images(name: str) -> str:
    """How else a field is had: from logits, or where features are extracted on the command line."""
    if name == "head_weight":
        return "; or give logits, from which the classifier's last layer is recovered"
    field = FIELDS.get(name)
    if name == "labels":
        return "; from images, outfield extract --labels; without classes, of.clustered(rows, 10), or the detector Auto"
    return "" if field is None or field.option is None else f"; from images, outfield extract {field.option}"
