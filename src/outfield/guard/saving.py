"""The file of a guard: network, preprocessing, detector, threshold and class names, as tensors and one JSON header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outfield.backbone.backbone import Backbone
from outfield.backbone.origin import Origin
from outfield.backbone.preprocessing import Preprocessing
from outfield.backbone.views import Views
from outfield.config import from_plain, to_plain
from outfield.detectors.base import NARROWER, Detector
from outfield.detectors.registry import DETECTORS
from outfield.devices import resolve_device
from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.files import storage
from outfield.files.paths import PathLike
from outfield.scores.threshold import Threshold
from outfield.version import __version__

ENDINGS = (".guard", ".safetensors")
"""Of a guard's file."""
VERSION = 1
"""Of what the header says; a file of a later one is refused."""
ENTRIES: dict[str, type | tuple[type, ...]] = {
    "guard": int,
    "network": dict,
    "preprocessing": dict,
    "views": dict,
    "precision": str,
    "half": bool,
    "detector": dict,
    "threshold": dict,
    "provenance": dict,
}
"""What the header holds."""


class Content(NamedTuple):
    """What a guard is made of, and its file holds."""

    backbone: Backbone
    fingerprint: str
    detector: Detector
    threshold: Threshold
    views: Views
    precision: str
    half: bool
    provenance: Mapping[str, Any]


def narrowed(state: Mapping[str, Tensor], half: bool) -> dict[str, Tensor]:
    """Tensors with half as many bits where that is wanted.

    Raises:
        InputError: a number is too large for half as many bits.
    """
    if not half:
        return dict(state)
    found = {name: value.to(NARROWER.get(value.dtype, value.dtype)) for name, value in state.items()}
    for name, value in found.items():
        if not bool(value.isfinite().all()):
            raise InputError(f"half is True, but {name} holds numbers that are too large for float16; leave half out")
    return found


def round_network(network: nn.Module) -> None:
    """Round the floating tensors of a network to half as many bits, in place, so that a file with half as many holds them."""
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if isinstance(value, Tensor):
                value.copy_(narrowed({name: value}, True)[name].to(value.dtype))


def rounded(detector: Detector) -> Detector:
    """A fitted detector of numbers with half as many bits."""
    header = detector._header()
    try:
        made: Detector = type(detector)._rebuilt(header, narrowed(detector._state(), True))
    except OutfieldError as error:
        raise InputError(f"half is True, but {type(detector).__name__} cannot be kept so: {error}") from error
    return made.to(detector._device)


def check_origin(backbone: Backbone) -> None:
    """Find out before long work whether a file can hold the network: whether it can be built again as it is.

    Raises:
        InputError: its library builds it otherwise, as it does with networks that change once they have their weights.
    """
    origin = backbone.origin
    if origin is None:
        return
    state = {name: value.cpu() for name, value in origin.state(backbone.network).items()}
    why = "some of its layers have other settings"
    try:
        again = origin.build(state, backbone.name)
        same = _settings_of(again) == _settings_of(backbone.network)
    except OutfieldError as error:
        same, why = False, str(error)
    if not same:
        raise InputError(
            f"a guard cannot hold {backbone.name}, because its library does not build the same network from its weights ({why}); "
            "build the guard in Python, of outfield.Backbone(network, preprocessing=…), and pass the network when it is loaded"
        )


def _settings_of(network: nn.Module) -> list[tuple[str, str, list[tuple[str, Any]]]]:
    """Every module of a network with its type and those of its attributes that are plain values."""
    return [
        (
            name,
            type(module).__qualname__,
            sorted(
                (key, value)
                for key, value in vars(module).items()
                if isinstance(value, bool | int | float | str) and key != "training"
            ),
        )
        for name, module in network.named_modules()
    ]


def save(path: PathLike, content: Content) -> None:
    """Write a guard to one file, atomically.

    Raises:
        InputError: its name has another ending.
        StorageError: the file could not be written; what was there stays.
    """
    backbone, detector, threshold = content.backbone, content.detector, content.threshold
    network: dict[str, Any] = {
        "name": backbone.name,
        "origin": None if backbone.origin is None else backbone.origin.to_json(),
        "fingerprint": content.fingerprint,
        "head": backbone.head,
        "classes": backbone.classes,
        "names": list(backbone.names),
    }
    header = {
        "guard": VERSION,
        "outfield": __version__,
        "network": network,
        "preprocessing": backbone.preprocessing.to_json(),
        "views": to_plain(content.views),
        "precision": content.precision,
        "half": content.half,
        "detector": {"detector": type(detector).__name__, **detector._header()},
        "threshold": {"value": threshold.value, "keep": threshold.keep, "source": threshold.source},
        "provenance": dict(content.provenance),
    }
    state = {} if backbone.origin is None else backbone.origin.state(backbone.network)
    parts = {"network": narrowed(state, content.half), "detector": narrowed(detector._state(), content.half)}
    tensors = {f"{part}.{name}": value for part, own in parts.items() for name, value in own.items()}
    storage.write(path, "guard", header, {**tensors, "threshold.reference": threshold.reference}, ENDINGS, once=True)


def checked_header(path: PathLike, header: dict[str, Any]) -> dict[str, Any]:
    """The header of a guard's file, if it is complete.

    Raises:
        FileFormatError: it is of a later version, or lacks something.
    """
    version = header.get("guard")
    if isinstance(version, int) and version > VERSION:
        raise FileFormatError(
            f"{path} is a guard of version {version}, written by Outfield {header.get('outfield')}; this is Outfield "
            f"{__version__}, which reads versions up to {VERSION}: install a newer one"
        )
    for name, kind in ENTRIES.items():
        if not isinstance(header.get(name), kind):
            raise FileFormatError(f"{path} is not a complete guard: {name} is {header.get(name)!r:.100}")
    return header


def load(path: PathLike, device: str | torch.device, network: nn.Module | None) -> Content:
    """Read what :func:`save` wrote.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, changed, no guard, or one of a later version.
        InputError: the network must be given and is not, or is another one.
    """
    target = resolve_device(device)
    header, tensors = storage.read(path, "guard", {"guard": int})
    checked_header(path, header)
    parts = {
        part: {name.partition(".")[2]: value for name, value in tensors.items() if name.partition(".")[0] == part}
        for part in ("network", "detector", "threshold")
    }
    backbone = _network(path, header, parts["network"], network, target)
    try:
        cls = DETECTORS[header["detector"]["detector"]]
        detector = cls._rebuilt(header["detector"], parts["detector"]).to(str(target))
        said = header["threshold"]
        threshold = Threshold(said["value"], said["keep"], parts["threshold"]["reference"], said["source"])
        views: Views = from_plain(header["views"])
        if threshold.source != detector.fingerprint() or not isinstance(views, Views):
            raise FileFormatError("its threshold was chosen for another detector")
    except (
        Exception
    ) as error:  # classes may be anybody's: whatever they make of such a file, it is the file that is wrong
        raise FileFormatError(f"{path} holds a guard that this version of Outfield cannot build: {error}") from error
    about = [header[name] for name in ("precision", "half", "provenance")]
    return Content(backbone, header["network"]["fingerprint"], detector, threshold, views, *about)


def _network(
    path: PathLike, header: dict[str, Any], state: dict[str, Tensor], given: nn.Module | None, device: torch.device
) -> Backbone:
    said, expects = header["network"], header["preprocessing"]
    try:
        origin = None if said["origin"] is None else Origin.of_json(said["origin"])
        if origin is not None and given is None:
            built = origin.build(state, str(path)).requires_grad_(False).to(device)
            built = built.to(memory_format=torch.channels_last) if device.type == "cuda" else built
        elif given is not None:
            built = given
        else:
            raise InputError(
                f"{path} is the guard of a network that was given in Python, {said['name']}, and does not hold it; pass it: "
                "Guard.load(path, network=MODULE)"
            )
        about = {name: said[name] for name in ("head", "name", "classes", "names")}
        backbone = Backbone(built, preprocessing=Preprocessing.of_json(expects), **about)
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is not a complete guard: {error!r} in its network") from error
    backbone.origin = origin
    found = backbone.fingerprint()
    if found != said["fingerprint"]:
        if given is not None:
            raise InputError(
                f"this network is not the one that {path} was built with: its fingerprint is {found[:16]}…, not "
                f"{str(said['fingerprint'])[:16]}…; weights, layers and their settings must be the same"
            )
        raise FileFormatError(
            f"{path} holds a network that is built otherwise here: update the library that it comes from"
        )
    return backbone
