"""A network's preprocessing given by hand: the whole, or parts of it."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

from outfield.backbone.input import Input, as_tuple
from outfield.backbone.preprocessing import TENSOR, Preprocessing
from outfield.errors import InputError

NAMES = ("size", "crop", "mean", "std", "interpolation")
"""What can be given."""


def plain(size: Any, mean: Any, std: Any) -> Preprocessing:
    """Images are resized to exactly a size, as the networks of ``outfield train`` take them."""
    expects = Input.of(size, mean, std)
    return Preprocessing(
        expects.size, interpolation=TENSOR, mean=expects.mean, std=expects.std, channels=len(expects.mean)
    )


def adapted(
    own: Preprocessing | None,
    *,
    size: Any = None,
    crop: Any = None,
    mean: Any = None,
    std: Any = None,
    interpolation: str | None = None,
) -> Preprocessing:
    """A network's own preprocessing, or None where it has none, with what is given in its place.

    Args:
        own: that of the network.
        size: one side or two. With a crop, one side is the shorter edge's; without, images are resized to exactly this.
        crop: one side or two of the part that is cut out of the middle.
        mean: a number for each channel.
        std: a number for each channel.
        interpolation: one of Pillow's; without it, and without a crop, a size is reached as :func:`plain` does it.

    Raises:
        InputError: something is missing, or cannot be.
    """
    if own is None:
        missing = [name for name, value in (("size", size), ("mean", mean), ("std", std)) if value is None]
        if missing:
            raise InputError(
                f"this network does not say how it takes images; give {', '.join(missing)} (on the command line "
                f"{', '.join(f'--{name}' for name in missing)}), or preprocessing"
            )
        own = plain(size, mean, std)
    expects = Input.of(own.size, own.mean if mean is None else mean, own.std if std is None else std)
    settings: dict[str, Any] = {"mean": expects.mean, "std": expects.std, "channels": len(expects.mean)}
    if interpolation is not None:
        settings["interpolation"] = interpolation
    if size is None and crop is None:
        return replace(own, **settings)
    if crop is None:
        if interpolation is None:
            return plain(size, expects.mean, expects.std)
        return Preprocessing(_pair(size), **settings)
    if own.interpolation != TENSOR:
        settings.setdefault("interpolation", own.interpolation)
    resize = own.resize if size is None else as_tuple(size)
    return Preprocessing(resize, _pair(crop), **settings)


def whole_or_plain(whole: Any, size: Any, mean: Any, std: Any) -> Preprocessing:
    """The preprocessing that is given, or that of a size and a normalisation.

    Args:
        whole: what :meth:`outfield.Preprocessing.of` takes, or None.
        size: see :func:`plain`, like the others; None, all of them, where ``whole`` is given.
        mean: a number for each channel.
        std: a number for each channel.

    Raises:
        InputError: both are given, or neither.
    """
    said = _said({"size": size, "mean": mean, "std": std})
    if whole is not None and said:
        raise InputError(f"give either preprocessing or {', '.join(said)}")
    if whole is not None:
        return Preprocessing.of(whole)
    if len(said) < 3:
        raise InputError("a backbone needs size, mean and std, or preprocessing: how the network takes images")
    return plain(size, mean, std)


def whole_or_adapted(own: Preprocessing | None, whole: Any, parts: dict[str, Any]) -> Preprocessing:
    """The preprocessing that is given, or the network's own with the parts that are given; see :func:`adapted`.

    Args:
        own: that of the network, or None.
        whole: what :meth:`outfield.Preprocessing.of` takes, or None.
        parts: by name (:data:`NAMES`), None where they are not given.

    Raises:
        InputError: both are given, something is missing, or cannot be.
    """
    if whole is None:
        return adapted(own, **parts)
    said = _said(parts)
    if said:
        raise InputError(f"give either preprocessing or {', '.join(said)}")
    return Preprocessing.of(whole)


def _said(parts: dict[str, Any]) -> list[str]:
    return [name for name, value in parts.items() if value is not None]


def _pair(given: Any) -> Any:
    sides = as_tuple(given)
    return (sides, sides) if isinstance(sides, Integral) else sides
