"""The preprocessing of an image processor of transformers, read out of its ``preprocessor_config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfield.backbone.preprocessing.normalisation import as_tuple
from outfield.backbone.preprocessing.preprocessing import Preprocessing
from outfield.config import require_number
from outfield.errors import InputError

RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers of its methods
STANDARD = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
CLIP = {"image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)}
SQUARE = {"size": {"height": 224, "width": 224}, "resample": 3}
CROPPED = {"size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True, "crop_size": 224}
MOBILE = {**CROPPED, "size": {"shortest_edge": 256}, "resample": 2, **STANDARD}
# What the processors of image classifiers do where their file does not say
KINDS: dict[str, dict[str, Any]] = {
    "ViT": {**SQUARE, "resample": 2, **STANDARD},
    "DeiT": {**CROPPED, "size": {"height": 256, "width": 256}, **STANDARD},
    "Beit": {**SQUARE, **STANDARD},
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": 3, "crop_pct": 224 / 256, **STANDARD},
    "CLIP": {**CROPPED, **CLIP},
    "Pvt": {**SQUARE, **IMAGENET},
    "Siglip": {**SQUARE, **STANDARD},
    "Bit": {**CROPPED, **CLIP},
    "MobileNetV1": MOBILE,
    "MobileNetV2": MOBILE,
    "Levit": {**CROPPED, **IMAGENET},
}
# Of these a size that is one number is the shorter edge's; of the others, both edges'
BY_SHORTER_EDGE = tuple(kind for kind, usual in KINDS.items() if "shortest_edge" in usual["size"])
# Steps that a Preprocessing cannot say; most processors of classifiers have none of them
REFUSED = ("pad", "reduce_labels", "flip_channel_order", "color_quantize", "thumbnail", "align_long_axis")


def from_processor(given: Any) -> Preprocessing:
    """See :meth:`Preprocessing.of_processor`.

    Raises:
        InputError: It is no such configuration, or asks for something that a Preprocessing cannot say.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"of_processor takes the content of a preprocessor_config.json, not {type(given).__name__}")
    kind = str(given.get("image_processor_type") or given.get("feature_extractor_type") or "").removesuffix("Fast")
    kind = kind.removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind and kind not in KINDS:
        raise InputError(
            f"the image processor {kind} is not known here; known are {', '.join(KINDS)}: give preprocessing="
        )
    said = {name: value for name, value in given.items() if value is not None}
    found = {**KINDS.get(kind, {}), **said}
    for name in (f"do_{step}" for step in REFUSED):
        if found.get(name):
            raise InputError(f"the image processor has {name} = {found[name]!r}, which is not known here")
    settings = _resizing(found, kind) if found.get("do_resize", True) else {"resize": None, "crop": None}
    if found.get("do_center_crop"):
        if settings["crop"] is not None:
            raise InputError(
                "the image processor crops twice, by crop_pct and by do_center_crop, which is not known here"
            )
        settings["crop"] = _pair(_need(found, "crop_size"), "crop_size")
    return Preprocessing(**settings, **_normalisation(found), place="down")


def _resizing(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Resize, crop and interpolation."""
    code = found.get("resample", 2)
    require_number("resample", code, least=0, most=len(RESAMPLE) - 1, whole=True)
    known: dict[str, Any] = {"interpolation": RESAMPLE[code], "crop": None}
    size = _need(found, "size")
    if isinstance(size, Mapping) and "shortest_edge" in size and set(size) != {"shortest_edge"}:
        raise InputError(f"size is {dict(size)!r}; the shortest edge is understood alone")
    if not isinstance(size, Mapping) and kind in BY_SHORTER_EDGE:
        size = {"shortest_edge": size}  # as files of early versions have it
    if not isinstance(size, Mapping) or "shortest_edge" not in size:
        return {**known, "resize": _pair(size, "size")}
    edge = size["shortest_edge"]
    require_number("shortest_edge", edge, least=1, whole=True)
    if kind == "Levit":
        edge = int(256 / 224 * edge)
    if kind != "ConvNext":
        return {**known, "resize": edge}
    if edge >= 384:
        return {**known, "resize": (edge, edge)}
    require_number("crop_pct", found["crop_pct"], above=0)
    return {**known, "resize": int(edge / found["crop_pct"]), "crop": (edge, edge)}


def _normalisation(found: Mapping[str, Any]) -> dict[str, Any]:
    """Mean and std for pixels in [0, 1], whatever they are multiplied by before: (f·x − m) / s = (x/255 − m/255f) / (s/255f)."""
    factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0
    require_number("rescale_factor", factor, above=0)
    scale = 1.0 if abs(255 * factor - 1) < 1e-6 else 255 * factor
    mean, std = (0.0,) * 3, (1.0,) * 3
    if found.get("do_normalize", True):
        mean, std = (as_tuple(_need(found, name)) for name in ("image_mean", "image_std"))
    for name, values in (("image_mean", mean), ("image_std", std)):
        if not isinstance(values, tuple) or not values:
            raise InputError(f"{name} is {values!r}; it must be a number for each channel")
        for value in values:
            require_number(name, value)
    return {
        "mean": tuple(value / scale for value in mean),
        "std": tuple(value / scale for value in std),
        "channels": len(mean),
    }


def _need(found: Mapping[str, Any], name: str) -> Any:
    if name not in found:
        raise InputError(
            f"the image processor's configuration has no {name}, and its type does not tell; give preprocessing="
        )
    return found[name]


def _pair(given: Any, name: str) -> Any:
    """A height and a width, of one number or a dictionary."""
    if isinstance(given, Mapping):
        if set(given) != {"height", "width"}:
            raise InputError(f"{name} is {dict(given)!r}; known are height and width, or shortest_edge")
        return given["height"], given["width"]
    return as_tuple(given) if isinstance(given, list | tuple) else (given, given)
