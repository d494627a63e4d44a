"""Classifiers by name, and the files they are kept in: architecture, normalisation and weights together."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn

from outfield.backbone.preprocessing import check_names, check_normalisation, check_size
from outfield.config import configurable, from_plain, require, require_number, to_plain
from outfield.errors import FileFormatError, InputError, OutfieldWarning, UnknownNameError, as_ours
from outfield.extras import library
from outfield.files import PathLike, Record, read_record, write_record
from outfield.modes import building
from outfield.version import __version__

LIBRARIES = ("timm", "torchvision")
MOST_CLASSES = 10**7
SMALL = (32, 32)  # Height and width that a stem for small images is meant for
# That all names in a state dict may have: none, that of data-parallel training, that of a network inside of another
PREFIXES = ("", "module.", "model.")


@configurable
@dataclass(frozen=True)
class Classifier:
    """What is needed, besides weights, to turn images into logits.

    Args:
        architecture: a model's name in timm, or "torchvision:NAME".
        classes: how many.
        small_images: for images of about 32 × 32 pixels: the stem of a ResNet becomes a 3 × 3 convolution of stride 1 without
            max-pooling; a vision transformer of timm takes patches of 4 × 4, a ConvNeXt of timm every pixel.
        size: height and width of the input; images of another size are resized to it.
        mean: of each channel, in [0, 1], subtracted from the images.
        std: of each channel, by which they are then divided.
        names: of the classes, or empty.
        projects: it was trained without labels: its outputs are a projection and no logits, ``classes`` is their number.
        outliers: kinds of stand-ins that it saw in training; they neither choose nor judge its detectors.
    """

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"projects": False, "outliers": ()})

    architecture: str = "resnet34"
    classes: int = 10
    small_images: bool = True
    size: tuple[int, int] = (32, 32)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    names: tuple[str, ...] = ()
    projects: bool = False
    outliers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        good = isinstance(self.architecture, str) and bool(self.architecture)
        require(good, "architecture", self.architecture, "the name of a model")
        require_number("classes", self.classes, least=1, most=MOST_CLASSES, whole=True)
        for name in ("small_images", "projects"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        check_size(self.size)
        check_normalisation(self.mean, self.std)
        check_names(self.names)
        check_names(self.outliers)
        require(len(self.names) in (0, self.classes), "names", self.names, f"{self.classes} names or none")

    def build(self, seed: int = 0) -> nn.Module:
        """A fresh network; its first weights come from ``seed``, and the global random state is not touched.

        Raises:
            UnknownNameError: the library has no model of that name.
            InputError: ``small_images`` with a network that has no such stem, or a seed that is none.
        """
        with building(seed):
            return create(self.architecture, self.classes, self.size if self.small_images else None)


def create(architecture: Any, classes: int | None = None, small: Sequence[int] | None = None) -> nn.Module:
    """A fresh network of timm or torchvision, for ``small`` images of this height and width."""
    owner, name = split_name(architecture)
    known: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    patches = {} if small is None else patch_settings(architecture, small)
    wanted = "" if classes is None else f" with {classes} classes"
    network: nn.Module
    with as_ours(f"{architecture} cannot be built{wanted}", InputError):
        if owner == "timm":
            network = library("timm", extra="images").create_model(name, **known, **patches)
        else:
            network = library("torchvision.models", extra="images").get_model(name, **known)
    if small is not None and not patches:
        use_small_stem(network, architecture)
    return network


def patch_settings(architecture: str, small: Sequence[int]) -> dict[str, Any]:
    """What timm is told so that a network which cuts images into patches suits small ones; nothing for other networks."""
    owner, name = split_name(architecture)
    if owner != "timm":
        return {}
    home = library("timm", extra="images").model_entrypoint(name).__module__
    if home == "timm.models.vision_transformer":
        return {"img_size": tuple(small), "patch_size": 4}
    fixed = name.endswith("_ols")  # convolutions of fixed stride
    return {"patch_size": 1} if home == "timm.models.convnext" and not fixed else {}


def split_name(architecture: str) -> tuple[str, str]:
    """The library and the name in it, of an architecture that it has."""
    require(isinstance(architecture, str), "architecture", architecture, "the name of a model")
    owner, colon, name = architecture.partition(":")
    owner, name = (owner, name) if colon else ("timm", architecture)
    if owner not in LIBRARIES:
        raise UnknownNameError(f"unknown library {owner!r} in {architecture!r}; known: {', '.join(LIBRARIES)}")
    if owner == "timm":
        timm = library("timm", extra="images")
        known = [name] if timm.is_model(name) else timm.list_models()
    else:
        models = library("torchvision.models", extra="images")
        # Of classifiers alone: others fetch the weights of their backbone by themselves, and unpickle them.
        known = models.list_models(module=models) + models.list_models(module=models.quantization)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        similar = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UnknownNameError(f"{owner} has no model {name!r}{similar}")
    return owner, name


def has_small_stem(network: nn.Module) -> bool:
    """Whether a network has the stem of a ResNet, which :func:`use_small_stem` can replace."""
    found = hasattr(network, "conv1") and hasattr(network, "maxpool")
    return found and isinstance(getattr(network, "bn1", None), nn.BatchNorm2d)


def use_small_stem(network: nn.Module, name: str) -> None:
    """Give a ResNet of timm or torchvision a 3 × 3 stem of stride 1 without max-pooling, in place."""
    if not has_small_stem(network):
        raise InputError(f"{name} has another stem than a ResNet; use --large-images, in Python small_images=False")
    norm: Any = network.bn1
    stem = nn.Conv2d(3, norm.num_features, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    network.conv1 = stem
    network.maxpool = nn.Identity()


def for_small_images(classifier: Classifier) -> Classifier:
    """The form for small images where the network has one; where not, a warning if next to nothing is left of them."""
    if patch_settings(classifier.architecture, SMALL):
        return replace(classifier, small_images=True)
    network = classifier.build()
    if has_small_stem(network):
        return replace(classifier, small_images=True)
    stages = getattr(network, "feature_info", None)  # of timm's networks
    reduction = stages[-1].get("reduction", 1) if isinstance(stages, list) and stages else 1
    if min(classifier.size) < 2 * reduction:
        height, width = classifier.size
        small = f"{height} × {width} pixels become one place behind the last stage of {classifier.architecture}"
        advice = f"take larger images (--size {4 * reduction}), or a ResNet, vision transformer or ConvNeXt of timm"
        warnings.warn(f"{small}, and it will classify badly; {advice}", OutfieldWarning, stacklevel=3)
    return classifier


def save_classifier(
    path: PathLike, classifier: Classifier, weights: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None
) -> None:
    """Write a classifier and a state dict of its network to one safetensors file, atomically.

    Args:
        path: ``.safetensors``.
        classifier: what :func:`load_classifier` will build.
        weights: the state dict.
        notes: what else the file should tell (recipe, accuracy), ready for JSON.
    """
    header = {"classifier": to_plain(classifier), "notes": dict(notes or {}), "outfield": __version__}
    write_record(path, "classifier", Record(header, dict(weights)))


def load_classifier(path: PathLike) -> tuple[nn.Module, Classifier, dict[str, Any]]:
    """The network in evaluation mode on the CPU, its description, and the notes of a file that ``outfield train`` wrote.

    Raises:
        StorageError: there is no such file.
        FileFormatError: truncated, changed, or not a classifier.
    """
    header, weights = read_record(path, "classifier", {"classifier": dict, "notes": dict})
    with as_ours(f"{path} holds a classifier that cannot be built here", FileFormatError, InputError):
        classifier: Classifier = from_plain(header["classifier"])
        network = classifier.build()
    load_weights(network, weights, str(path))
    return network.eval(), classifier, header["notes"]


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Put a state dict, whose names may have one of :data:`PREFIXES`, into a network."""
    wanted, found = network.state_dict(), dict(weights)
    for prefix in PREFIXES:
        short = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        if len(short) == len(weights) and short.keys() & wanted.keys():
            found = short
            break
    try:
        network.load_state_dict(found)
    except RuntimeError as error:
        misfits = [name for name in wanted if name not in found or found[name].shape != wanted[name].shape]
        more = [name for name in found if name not in wanted]
        unknown = f", {len(more)} more are unknown" if more else ""
        names = ", ".join([*misfits[:2], *more[:2]])
        what = f"{source} does not fit: {len(misfits)} of {len(wanted)} tensors are missing or of another shape{unknown}: {names}"
        raise FileFormatError(f"{what}; is it another architecture, or another number of classes?") from error
    for name, value in found.items():
        if not bool(value.isfinite().all()):
            raise FileFormatError(f"{source} holds numbers that are not finite, in {name}")
