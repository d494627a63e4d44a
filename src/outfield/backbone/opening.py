"""What a name or one line of text asks for: a network with trained weights, and how it is to take images."""

from __future__ import annotations

import os
from typing import Any

from outfield.backbone.architectures import LIBRARIES
from outfield.backbone.given import NAMES, whole_or_adapted
from outfield.backbone.preprocessing import Preprocessing
from outfield.backbone.weights import (
    PICKLES,
    Trained,
    Weights,
    from_hugging_face,
    from_library,
    from_onnx,
    from_pt2,
    from_weights,
)
from outfield.errors import InputError, UnknownNameError

EXPORTED = (".pt2", ".ep")
"""Endings of files of torch.export."""


def by_name(
    architecture: str, weights: Weights | None, pretrained: bool, classes: int | None, small_images: bool | None
) -> Trained:
    """A network of timm or torchvision; the arguments are those of :meth:`outfield.Backbone.named`.

    Raises:
        InputError: they contradict each other.
        OutfieldError: the network cannot be built, or its weights not be had.
    """
    if weights is None and pretrained:
        if classes is not None or small_images:
            raise InputError("pretrained weights come with their own classes and stem; give neither")
        return from_library(architecture)
    if weights is not None and not pretrained:
        return from_weights(architecture, weights, classes, small_images)
    raise InputError("give either weights or pretrained=True: a network needs one set of trained weights")


def whole_network(spec: str, settings: dict[str, Any]) -> Trained | None:
    """The network behind ``hf:FOLDER``, ``FILE.onnx`` or ``FILE.pt2``, whose layers need no name; None behind any other text.

    Args:
        spec: the text.
        settings: parts of its preprocessing, or the whole, and its head.

    Raises:
        InputError: a setting that it does not have.
        OutfieldError: the network cannot be read.
    """
    if spec.startswith("hf:"):
        return _adapted(from_hugging_face(spec.removeprefix("hf:")), settings)
    if spec.lower().endswith(".onnx"):
        trained = from_onnx(spec)
    elif spec.lower().endswith(EXPORTED):
        trained = from_pt2(spec)
    else:
        return None
    size = None if trained.takes is None else trained.takes.size
    if size is not None and not any(settings.get(name) for name in ("size", "crop", "preprocessing")):
        settings = {**settings, "size": size}
    return _adapted(trained, settings)


def check_images(spec: str, trained: Trained, way: Preprocessing) -> None:
    """Refuse a preprocessing whose images a network cannot take, where its file says which those are.

    Raises:
        InputError: their size or channels are others.
    """
    if trained.takes is None:
        return
    size, channels = trained.takes
    if way.channels != channels or (size is not None and way.size != size):
        height, width = size or way.size
        raise InputError(
            f"{spec} takes images of {height} × {width} with {channels} channels, but its preprocessing gives "
            f"{way.size[0]} × {way.size[1]} with {way.channels}"
        )


def of_a_library(spec: str) -> tuple[str, dict[str, Any]] | None:
    """The architecture in ``timm:NAME`` or ``timm:NAME@FILE``, and which weights; None where the text names no library.

    Raises:
        InputError: there is an @ and no file.
    """
    if spec.partition(":")[0] not in LIBRARIES:
        return None
    architecture, at, path = spec.partition("@")
    if at and not path:
        raise InputError(f"{spec!r} names no file after the @")
    return architecture, {"weights": path} if at else {"pretrained": True}


def check_file(spec: str, settings: dict[str, Any]) -> None:
    """Refuse what cannot be a file that ``outfield train`` wrote, and settings beside those that it carries.

    Raises:
        UnknownNameError: it is no such file by its name, and there is none.
        InputError: there are settings.
    """
    if not spec.endswith((".safetensors", *PICKLES)) and not os.path.isfile(spec):
        raise UnknownNameError(
            f"{spec!r} is no backbone; write FILE.safetensors, timm:NAME, timm:NAME@FILE.safetensors, the same with "
            "torchvision:, hf:FOLDER, FILE.onnx or FILE.pt2"
        )
    if settings:
        raise InputError(f"{spec} carries its settings with it; {', '.join(settings)} cannot be given")


def _adapted(trained: Trained, settings: dict[str, Any]) -> Trained:
    """A network of a file or folder, with the preprocessing and head that are given."""
    rest = dict(settings)
    parts = {name: rest.pop(name, None) for name in NAMES}
    whole, head = rest.pop("preprocessing", None), rest.pop("head", trained.head)
    if rest:
        raise InputError(f"{trained.name} has no setting {', '.join(rest)}; give {', '.join(NAMES)} or head")
    return trained._replace(expects=whole_or_adapted(trained.expects, whole, parts), head=head)
