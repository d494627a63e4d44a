"""The preprocessing of timm, torchvision and transformers, read out of their configurations and transforms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from outfield.backbone.preprocessing import Preprocessing, as_pair, as_tuple, check_normalisation
from outfield.config import require_number
from outfield.errors import InputError
from outfield.extras import library

STANDARD = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
CLIP = {"image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)}
# Steps of a transform that change no number, or do what is always done: colour images of bytes become floats in [0, 1]
NOTHING = {"ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ToPureTensor", "ToRGB", "RGB"}


def from_timm(given: Any) -> Preprocessing:
    """See :meth:`Preprocessing.of_timm`."""
    channels = None
    if isinstance(given, nn.Module):
        # timm's config does not say that a network was built for grey images
        first = next((module for module in given.modules() if isinstance(module, nn.Conv2d)), None)
        channels = 3 if first is None or first.in_channels not in (1, 3) else first.in_channels
        given = library("timm.data", extra="images").resolve_model_data_config(given)
    if not isinstance(given, Mapping) or "input_size" not in given:
        raise InputError(f"of_timm takes a network of timm or its config with input_size, not {type(given).__name__}")
    sides = as_pair(given["input_size"])
    if channels is None:
        channels = sides[0] if len(sides) == 3 else 3
    settings: dict[str, Any] = {"interpolation": given.get("interpolation") or "bilinear", "channels": channels}
    for name in ("mean", "std"):
        values = as_tuple(given.get(name, IMAGENET[f"image_{name}"]))
        if channels == 1 and isinstance(values, tuple) and len(values) == 3:
            values = (sum(values) / 3,)  # as timm averages the weights of the first convolution
        settings[name] = values
    crop, share, mode = sides[-2:], given.get("crop_pct") or 0.875, given.get("crop_mode") or "center"
    scaled: Any = tuple(math.floor(side / share) for side in crop)
    if mode == "squash":
        return Preprocessing(scaled, crop, **settings)
    if mode == "border":
        fill = tuple(round(255 * value) for value in settings["mean"])
        return Preprocessing(scaled, crop, fit="contain", fill=fill, **settings)
    if mode != "center":
        raise InputError(f"crop_mode is {mode!r}; timm's are center, squash and border")
    if scaled[0] == scaled[1]:
        return Preprocessing(scaled[0], crop, **settings)
    return Preprocessing(scaled, crop, fit="cover", **settings)


def from_torchvision(given: Any) -> Preprocessing:
    """See :meth:`Preprocessing.of_torchvision`."""
    found: dict[str, Any]
    if all(hasattr(given, name) for name in ("resize_size", "crop_size", "mean", "std")):
        interpolation = _interpolation(getattr(given, "interpolation", "bilinear"))
        found = {"interpolation": interpolation, "mean": tuple(given.mean), "std": tuple(given.std)}
        return Preprocessing(_side(given.resize_size), as_pair(_side(given.crop_size)), **found)
    found = {"resize": None, "channels": 3}
    for step in _steps(given):
        _read(step, found)
    plain = {"mean": (0.0,) * found["channels"], "std": (1.0,) * found["channels"]}
    return Preprocessing(**{**plain, **found})


def _steps(given: Any) -> Iterator[Any]:
    inner = list(given) if isinstance(given, nn.Sequential) else getattr(given, "transforms", None)
    if not isinstance(inner, list | tuple):
        yield given
        return
    for step in inner:
        yield from _steps(step)


def _read(step: Any, found: dict[str, Any]) -> None:
    """Take one step of a transform into the settings of a Preprocessing."""
    name = type(step).__name__
    first = found["resize"] is None and "crop" not in found
    if name == "Resize" and first and getattr(step, "max_size", None) is None:
        found |= {"resize": _side(step.size), "interpolation": _interpolation(step.interpolation)}
    elif name == "ResizeKeepRatio" and first and step.longest in (0.0, 1.0):  # timm's own, as the next
        fit = "contain" if step.longest else "cover"
        found |= {"resize": tuple(step.size), "interpolation": _interpolation(step.interpolation), "fit": fit}
    elif name in ("CenterCrop", "CenterCropOrPad") and "crop" not in found:
        found["crop"] = as_pair(_side(step.size))
        if fill := getattr(step, "fill", 0):
            found["fill"] = tuple(fill) if isinstance(fill, list | tuple) else (fill,) * found["channels"]
    elif name == "Grayscale" and step.num_output_channels == 1 and "mean" not in found and found["resize"] is None:
        found["channels"] = 1
    elif name == "Normalize" and "mean" not in found:
        found |= {"mean": as_tuple(step.mean), "std": as_tuple(step.std)}
    elif not (name in NOTHING or _gives_floats(name, step)):
        known = "Grayscale, then one Resize, then one CenterCrop, then ToTensor and Normalize"
        raise InputError(f"a Preprocessing cannot say the step {name} of a transform at its place; known are {known}")


def _gives_floats(name: str, step: Any) -> bool:
    """Whether a step makes floats in [0, 1] of bytes."""
    scaled = name == "ConvertImageDtype" or (name == "ToDtype" and bool(getattr(step, "scale", False)))
    return scaled and str(getattr(step, "dtype", None)) == "torch.float32"


def _interpolation(given: Any) -> str:
    return str(getattr(given, "value", given)).replace("nearest-exact", "nearest")


def _side(given: Any) -> Any:
    """A side, or two; torchvision writes one as a list of one too."""
    sides = as_tuple(given)
    return sides[0] if isinstance(sides, tuple) and len(sides) == 1 else sides


# Image processors of transformers


RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers of its methods
SQUARE = {"size": {"height": 224, "width": 224}, "resample": 3}
CROPPED = {"size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True, "crop_size": 224}
MOBILE = {**CROPPED, "size": {"shortest_edge": 256}, "resample": 2, **STANDARD}
# What the processors of image classifiers do where their file does not say
KINDS: dict[str, dict[str, Any]] = {
    "ViT": {**SQUARE, "resample": 2, **STANDARD},
    "DeiT": {**CROPPED, "size": {"height": 256, "width": 256}, **STANDARD}, "Beit": {**SQUARE, **STANDARD},
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": 3, "crop_pct": 224 / 256, **STANDARD},
    "CLIP": {**CROPPED, **CLIP}, "Pvt": {**SQUARE, **IMAGENET}, "Siglip": {**SQUARE, **STANDARD},
    "Bit": {**CROPPED, **CLIP}, "MobileNetV1": MOBILE, "MobileNetV2": MOBILE, "Levit": {**CROPPED, **IMAGENET},
}  # fmt: skip
# Of these a size that is one number is the shorter edge's; of the others, both edges'
BY_SHORTER_EDGE = tuple(kind for kind, usual in KINDS.items() if "shortest_edge" in usual["size"])
# Steps that a Preprocessing cannot say; most processors of classifiers have none of them
REFUSED = ("pad", "reduce_labels", "flip_channel_order", "color_quantize", "thumbnail", "align_long_axis")


def from_processor(given: Any) -> Preprocessing:
    """See :meth:`Preprocessing.of_processor`."""
    if not isinstance(given, Mapping):
        raise InputError(f"of_processor takes the content of a preprocessor_config.json, not {type(given).__name__}")
    kind = str(given.get("image_processor_type") or given.get("feature_extractor_type") or "").removesuffix("Fast")
    kind = kind.removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind and kind not in KINDS:
        raise InputError(f"the image processor {kind} is unknown; give preprocessing=, or one of {', '.join(KINDS)}")
    found = {**KINDS.get(kind, {}), **{name: value for name, value in given.items() if value is not None}}
    for name in (f"do_{step}" for step in REFUSED):
        if found.get(name):
            raise InputError(f"the image processor has {name} = {found[name]!r}, which is not known here")
    settings = _resizing(found, kind) if found.get("do_resize", True) else {"resize": None, "crop": None}
    if found.get("do_center_crop"):
        settings["crop"] = _sides(_need(found, "crop_size"), "crop_size")
    return Preprocessing(**settings, **_normalisation(found), place="down")


def _resizing(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Resize, crop and interpolation."""
    code = found.get("resample", 2)
    require_number("resample", code, least=0, most=len(RESAMPLE) - 1, whole=True)
    known: dict[str, Any] = {"interpolation": RESAMPLE[code], "crop": None}
    size = _need(found, "size")
    if not isinstance(size, Mapping) and kind in BY_SHORTER_EDGE:
        size = {"shortest_edge": size}  # as files of early versions have it
    if not isinstance(size, Mapping) or set(size) != {"shortest_edge"}:
        return {**known, "resize": _sides(size, "size")}
    edge = size["shortest_edge"]
    if kind == "Levit":
        edge = int(256 / 224 * edge)
    if kind != "ConvNext":
        return {**known, "resize": edge}
    if edge >= 384:
        return {**known, "resize": (edge, edge)}
    return {**known, "resize": int(edge / found["crop_pct"]), "crop": (edge, edge)}


def _normalisation(found: Mapping[str, Any]) -> dict[str, Any]:
    """Mean and std for pixels in [0, 1], whatever they are multiplied by before: (f·x − m) / s = (x/255 − m/255f) / (s/255f)."""
    factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0
    require_number("rescale_factor", factor, above=0)
    scale = 1.0 if abs(255 * factor - 1) < 1e-6 else 255 * factor
    mean, std = (0.0,) * 3, (1.0,) * 3
    if found.get("do_normalize", True):
        mean, std = (as_tuple(_need(found, name)) for name in ("image_mean", "image_std"))
    channels = 1 if isinstance(mean, tuple) and len(mean) == 1 else 3
    check_normalisation(mean, std, channels)
    scaled = {"mean": tuple(one / scale for one in mean), "std": tuple(one / scale for one in std)}
    return {**scaled, "channels": channels}


def _need(found: Mapping[str, Any], name: str) -> Any:
    if name not in found:
        raise InputError(f"the image processor has no {name}, and its type does not tell; give preprocessing=")
    return found[name]


def _sides(given: Any, name: str) -> Any:
    """A height and a width, of one number or a dictionary."""
    if isinstance(given, Mapping):
        if set(given) != {"height", "width"}:
            raise InputError(f"{name} is {dict(given)!r}; known are height and width, or shortest_edge")
        return given["height"], given["width"]
    return as_tuple(given) if isinstance(given, list | tuple) else (given, given)
