"""What data a detector takes: a source of features that has every field it needs."""

from __future__ import annotations

from typing import Any

from outfield.errors import InputError, MissingFieldError
from outfield.features.fields import FIELDS
from outfield.features.set import FeatureSet, FeatureSource


def accept(detector: str, data: Any, needs: tuple[str, ...], what: str) -> None:
    """Refuse data that the method ``what`` of a detector cannot use.

    Raises:
        InputError: it is no source of features.
        MissingFieldError: it lacks a field among ``needs``.
    """
    if not isinstance(data, FeatureSource):
        raise InputError(
            f"{what} takes an outfield.FeatureSet, not {type(data).__name__}; wrap it, FeatureSet(features), "
            "or open a file, open_features(path)"
        )
    missing = [name for name in needs if name not in data.shapes]
    if missing:
        source = "this FeatureSet" if isinstance(data, FeatureSet) else repr(data)
        raise MissingFieldError(
            f"{detector}.{what} needs {' and '.join(missing)}, which {source} lacks; "
            f"give it where the features come from: FeatureSet(features, {missing[0]}=...) or "
            f"open_features(path, {missing[0]}='{missing[0]}.npy'){_from_images(missing[0])}"
        )


def _from_images(name: str) -> str:
    """How a field is had where features are extracted on the command line."""
    field = FIELDS.get(name)
    return "" if field is None or field.option is None else f"; from images, outfield extract {field.option}"
