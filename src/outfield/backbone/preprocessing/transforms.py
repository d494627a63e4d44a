"""The preprocessing of timm and torchvision, read out of their configurations and transforms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from outfield.backbone.preprocessing.normalisation import as_tuple
from outfield.backbone.preprocessing.preprocessing import INTERPOLATIONS, Preprocessing
from outfield.errors import InputError
from outfield.extras import library

# Steps of a transform that change no number, or do what is always done: colour images of bytes become floats in [0, 1]
NOTHING = {"ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ToPureTensor", "ToRGB", "RGB"}


def from_timm(given: Any) -> Preprocessing:
    """See :meth:`Preprocessing.of_timm`.

    Raises:
        InputError: It is no network or config of timm, or asks for something that is not known here.
    """
    channels = None
    if isinstance(given, nn.Module):
        channels = _channels(given)
        given = library("timm.data", extra="images").resolve_model_data_config(given)
    if not isinstance(given, Mapping) or "input_size" not in given:
        raise InputError(
            f"of_timm takes a network of timm, or its data config with input_size, mean and std, not {type(given).__name__}"
        )
    sides = as_tuple(given["input_size"])
    if not isinstance(sides, tuple) or len(sides) not in (2, 3):
        raise InputError(f"input_size is {sides!r}; timm's is (channels, height, width)")
    if channels is None:
        channels = sides[0] if len(sides) == 3 else 3
    mean, std = (_of_channels(name, as_tuple(given.get(name, usual)), channels) for name, usual in USUAL.items())
    share = given.get("crop_pct") or 0.875
    return _of_mode(
        given.get("crop_mode") or "center",
        sides[-2:],
        tuple(math.floor(side / share) for side in sides[-2:]),
        {"interpolation": given.get("interpolation") or "bilinear", "mean": mean, "std": std, "channels": channels},
    )


USUAL = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}  # What timm normalises by where a config says nothing


def _of_mode(mode: str, crop: tuple[int, int], scaled: tuple[int, ...], settings: dict[str, Any]) -> Preprocessing:
    """One of the three ways in which timm resizes and crops."""
    if mode == "squash":
        return Preprocessing(scaled, crop, **settings)  # type: ignore[arg-type]
    if mode == "border":
        fill = tuple(round(255 * value) for value in settings["mean"])
        return Preprocessing(scaled, crop, fit="contain", fill=fill, **settings)  # type: ignore[arg-type]
    if mode != "center":
        raise InputError(f"crop_mode is {mode!r}; timm's are center, squash and border")
    if scaled[0] == scaled[1]:
        return Preprocessing(scaled[0], crop, **settings)
    return Preprocessing(scaled, crop, fit="cover", **settings)  # type: ignore[arg-type]


def _channels(network: nn.Module) -> int:
    """How many channels the first convolution takes: timm's config does not say that a network was built for grey images."""
    first = next((module for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    return 3 if first is None or first.in_channels not in (1, 3) else first.in_channels


def _of_channels(name: str, values: Any, channels: Any) -> Any:
    """For one channel the mean over three, as timm averages the weights of the first convolution."""
    if channels == 1 and isinstance(values, tuple) and len(values) == 3:
        return (sum(values) / 3,)
    return values


def from_torchvision(given: Any) -> Preprocessing:
    """See :meth:`Preprocessing.of_torchvision`.

    Raises:
        InputError: A step that a Preprocessing cannot say.
    """
    if all(hasattr(given, name) for name in ("resize_size", "crop_size", "mean", "std")):
        found: dict[str, Any] = {
            "resize": _side(given.resize_size),
            "crop": _pair(given.crop_size),
            "interpolation": _interpolation(getattr(given, "interpolation", "bilinear")),
            "mean": tuple(given.mean),
            "std": tuple(given.std),
        }
        return Preprocessing(**found)
    found = {"resize": None, "mean": None, "std": None, "channels": 3}
    for step in _steps(given):
        _read(step, found)
    plain = {"mean": (0.0,) * found["channels"], "std": (1.0,) * found["channels"]}
    return Preprocessing(
        **{name: plain[name] if value is None and name in plain else value for name, value in found.items()}
    )


def _steps(given: Any) -> Iterator[Any]:
    inner = getattr(given, "transforms", None)
    if isinstance(given, nn.Sequential):
        inner = list(given)
    if not isinstance(inner, list | tuple):
        yield given
        return
    for step in inner:
        yield from _steps(step)


def _read(step: Any, found: dict[str, Any]) -> None:
    """Take one step of a transform into the settings of a Preprocessing."""
    name = type(step).__name__
    if name == "Resize" and found["resize"] is None and "crop" not in found and getattr(step, "max_size", None) is None:
        found |= {"resize": _side(step.size), "interpolation": _interpolation(step.interpolation)}
    elif name == "ResizeKeepRatio" and found["resize"] is None and "crop" not in found and step.longest in (0.0, 1.0):
        fit = "contain" if step.longest else "cover"
        found |= {"resize": tuple(step.size), "interpolation": _interpolation(step.interpolation), "fit": fit}
    elif name in ("CenterCrop", "CenterCropOrPad") and "crop" not in found:
        found["crop"] = _pair(step.size)
        fill = getattr(step, "fill", 0)
        if fill:
            found["fill"] = tuple(fill) if isinstance(fill, list | tuple) else (fill,) * found["channels"]
    elif name == "Grayscale" and step.num_output_channels == 1 and found["mean"] is None and found["resize"] is None:
        found["channels"] = 1
    elif name == "Normalize" and found["mean"] is None:
        found |= {"mean": as_tuple(step.mean), "std": as_tuple(step.std)}
    elif not (name in NOTHING or _gives_floats(name, step)):
        raise InputError(
            f"the step {name} of a transform cannot be told as a Preprocessing, at least not at its place; known are Grayscale, "
            "then one Resize, then one CenterCrop, then ToTensor and Normalize"
        )


def _gives_floats(name: str, step: Any) -> bool:
    """Whether a step makes floats in [0, 1] of bytes."""
    kind = getattr(step, "dtype", None)
    scaled = name == "ConvertImageDtype" or (name == "ToDtype" and bool(getattr(step, "scale", False)))
    return scaled and str(kind) == "torch.float32"


def _interpolation(given: Any) -> str:
    name = str(getattr(given, "value", given)).replace("nearest-exact", "nearest")
    if name not in INTERPOLATIONS:
        raise InputError(f"interpolation is {given!r}; known are {', '.join(INTERPOLATIONS)}")
    return name


def _side(given: Any) -> Any:
    """A side, or two; torchvision writes one as a list of one too."""
    sides = as_tuple(given)
    return sides[0] if isinstance(sides, tuple) and len(sides) == 1 else sides


def _pair(given: Any) -> Any:
    side = _side(given)
    return side if isinstance(side, tuple) else (side, side)
