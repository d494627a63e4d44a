"""What a name or one line of text asks for: a network with trained weights, and how it is to take images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from outfield.backbone.networks.architectures import LIBRARIES
from outfield.backbone.networks.origin import Origin, Trained
from outfield.backbone.networks.pretrained import PICKLES, Weights, from_library, from_weights
from outfield.backbone.preprocessing.preprocessing import PARTS, Preprocessing, whole_or_adapted
from outfield.errors import InputError, UnknownNameError
from outfield.files import as_path

if TYPE_CHECKING:
    from outfield.backbone.networks.onnx_network import FileNetwork


def by_name(
    architecture: str, weights: Weights | None, pretrained: bool, classes: int | None, small_images: bool | None
) -> Trained:
    """A network of timm or torchvision; the arguments are those of :meth:`outfield.Backbone.named`."""
    if weights is None and pretrained:
        if classes is not None or small_images:
            raise InputError("pretrained weights come with their own classes and stem; give neither")
        return from_library(architecture)
    if weights is not None and not pretrained:
        return from_weights(architecture, weights, classes, small_images)
    raise InputError("give either weights or pretrained=True: a network needs one set of trained weights")


def whole_network(spec: str, settings: dict[str, Any], device: torch.device, trust: bool) -> Trained | None:
    """The network behind ``hf:FOLDER``, ``FILE.onnx`` or ``FILE.pt2``, whose layers need no name; None behind any other text.

    Args:
        spec: the text.
        settings: parts of its preprocessing, or the whole, and its head.
        device: where it will run.
        trust: whether the file may run its own code.

    Raises:
        InputError: a setting that it does not have, or code that is not trusted.
        OutfieldError: the network cannot be read.
    """
    if spec.startswith("hf:"):
        trained = _of_hugging_face(as_path(spec.removeprefix("hf:"), "the folder behind hf:"))
    elif spec.lower().endswith(".onnx"):
        trained = _of_onnx(as_path(spec, "the network"))
    elif spec.lower().endswith((".pt2", ".ep")):
        if not trust:
            raise InputError(
                f"{spec} is opened by torch.export.load, which may run code that is in the file; where you trust it, say so with "
                "--trust, in Python Backbone.open(path, trust=True), or export the network to ONNX instead, which runs no code"
            )
        trained = _of_exported_program(as_path(spec, "the network"), device)
    else:
        return None
    rest = dict(settings)
    parts = {name: rest.pop(name, None) for name in PARTS}
    whole, head = rest.pop("preprocessing", None), rest.pop("head", trained.head)
    if rest:
        raise InputError(f"{trained.name} has no setting {', '.join(rest)}; give {', '.join(PARTS)} or head")
    if trained.takes is not None and not (parts["size"] or parts["crop"] or whole):
        parts["size"] = trained.takes[0]
    return trained._replace(expects=whole_or_adapted(trained.expects, whole, parts), head=head)


def _of_hugging_face(folder: Path) -> Trained:
    from outfield.backbone.networks import hugging_face

    network, config = hugging_face.read_network(folder)
    names = hugging_face.class_names(config)
    expects, origin = hugging_face.read_preprocessing(folder), Origin("hf", {"config": config})
    return Trained(network, expects, folder.resolve().name, len(names) or None, names, origin)


def _of_onnx(path: Path) -> Trained:
    from outfield.backbone.networks.onnx_network import OnnxNetwork, read_model

    return _of_file(path, OnnxNetwork(read_model(path), str(path)), Origin("onnx"))


def _of_exported_program(path: Path, device: torch.device) -> Trained:
    from outfield.backbone.networks.exported_program import read_program

    return _of_file(path, read_program(path, device), None)


def _of_file(path: Path, network: FileNetwork, origin: Origin | None) -> Trained:
    head = None if isinstance(network.head, nn.Linear) else "head"
    return Trained(network.eval(), None, path.stem, origin=origin, head=head, takes=(network.size, network.channels))


def check_images(spec: str, trained: Trained, expects: Preprocessing) -> None:
    """Refuse a preprocessing whose images a network cannot take, where its file says which those are."""
    if trained.takes is None:
        return
    size, channels = trained.takes
    if expects.channels != channels or (size is not None and expects.size != size):
        height, width = size or expects.size
        raise InputError(
            f"{spec} takes images of {height} × {width} with {channels} channels, but its preprocessing gives "
            f"{expects.size[0]} × {expects.size[1]} with {expects.channels}"
        )


def of_a_library(spec: str) -> tuple[str, dict[str, Any]] | None:
    """The architecture in ``timm:NAME`` or ``timm:NAME@FILE``, and which weights; None where the text names no library."""
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
