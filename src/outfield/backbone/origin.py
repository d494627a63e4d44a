"""Where a network comes from, and how it is built again from its tensors alone.

A file that carries a network with it (:class:`outfield.Guard`) keeps the origin as JSON and the tensors beside it. A network
without an origin, an ``nn.Module`` that was handed over in Python or a program of ``torch.export``, can only be recognised, by
its fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from outfield.backbone.architectures import (
    LIBRARIES,
    PREFIXES,
    SMALL,
    create,
    load_classifier,
    load_weights,
    patch_settings,
    split_name,
    use_small_stem,
)
from outfield.backbone.preprocessing import PARTS, TENSOR, Preprocessing, check_size, whole_or_adapted
from outfield.backbone.pretrained import PICKLES, Weights, timm_pretrained, torchvision_pretrained
from outfield.config import require, require_number
from outfield.errors import FileFormatError, InputError, UnknownNameError
from outfield.extras import library
from outfield.files import HEADER_NAME, PathLike, as_path, find_tensors, read_tensors
from outfield.modes import building

if TYPE_CHECKING:
    from outfield.backbone.onnx_network import FileNetwork

KINDS = ("library", "hf", "onnx")


@dataclass(frozen=True)
class Origin:
    """Where a network comes from, without its weights.

    Attributes:
        kind: one of :data:`KINDS`.
        settings: what that kind needs to build the network, ready for JSON.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_library(
        cls, architecture: str, classes: int | None, small_images: bool, size: Sequence[int] | None = None
    ) -> Origin:
        """A network of timm or torchvision by name.

        Args:
            architecture: "resnet34", "timm:resnet34" or "torchvision:resnet18".
            classes: outputs of its last layer; the library's own number if None.
            small_images: whether it is made for small images, see :class:`outfield.Classifier`.
            size: of these; told only where the network's weights depend on it.
        """
        settings: dict[str, Any] = {"architecture": architecture, "classes": classes, "small_images": small_images}
        if small_images and size is not None and "img_size" in patch_settings(architecture, size):
            settings["size"] = list(size)
        return cls("library", settings)

    @classmethod
    def of_json(cls, plain: Any) -> Origin:
        """What :meth:`to_json` gave.

        Raises:
            FileFormatError: it is none, or of a kind that this version does not know.
        """
        kind = plain.get("kind") if isinstance(plain, dict) else plain
        if kind == "pt2":
            raise FileFormatError(
                "its network is a program of torch.export, which Outfield 0.1 kept in a guard and this version does not run; "
                "build the guard anew"
            )
        if kind not in KINDS or not isinstance(plain.get("settings"), dict):
            raise FileFormatError(f"there is no kind of network {kind!r:.100}; known are {', '.join(KINDS)}")
        return cls(kind, plain["settings"])

    def to_json(self) -> dict[str, Any]:
        """The same as a plain dictionary."""
        return {"kind": self.kind, "settings": dict(self.settings)}

    def state(self, network: nn.Module) -> dict[str, Tensor]:
        """The tensors of the network from which, and from the settings, :meth:`build` makes it again."""
        found = {name: value.detach() for name, value in network.state_dict().items() if isinstance(value, Tensor)}
        return {"model": found["model"]} if self.kind == "onnx" else found

    def build(self, state: Mapping[str, Tensor], source: str) -> nn.Module:
        """The network on the CPU, in evaluation mode.

        Args:
            state: what :meth:`state` gave.
            source: where it comes from, for messages.

        Raises:
            OutfieldError: the library is not installed or lacks the architecture, or the tensors do not fit.
        """
        if self.kind == "library":
            return self._of_library(state, source).eval()
        if self.kind == "hf":
            from outfield.backbone import hugging_face

            return hugging_face.build(self.settings, state, source).eval()
        from outfield.backbone import onnx_network

        return onnx_network.build(state, source).eval()

    def _of_library(self, state: Mapping[str, Tensor], source: str) -> nn.Module:
        architecture, classes = self.settings.get("architecture"), self.settings.get("classes")
        require(isinstance(architecture, str), "architecture", architecture, "the name of a model")
        if classes is not None:
            require_number("classes", classes, least=1, whole=True)
        size = self.settings.get("size", SMALL)
        size = tuple(size) if isinstance(size, list) else size
        check_size(size)
        with building():
            network = create(str(architecture), classes, size if self.settings.get("small_images") else None, state)
        load_weights(network, state, source)
        return network


class Trained(NamedTuple):
    """A network on the CPU, how it takes images, what to call it and its classes, and how it is built again.

    ``takes`` are the height and width (None where they are free) and the channels of the images that a file's network takes.
    """

    network: nn.Module
    expects: Preprocessing | None
    name: str
    classes: int | None = None
    names: tuple[str, ...] = ()
    origin: Origin | None = None
    head: str | None = None
    projects: bool = False
    takes: tuple[tuple[int, int] | None, int] | None = None


# What a name or one line of text asks for


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
    from outfield.backbone import hugging_face

    network, config = hugging_face.read_network(folder)
    names = hugging_face.class_names(config)
    expects, origin = hugging_face.read_preprocessing(folder), Origin("hf", {"config": config})
    return Trained(network, expects, folder.resolve().name, len(names) or None, names, origin)


def _of_onnx(path: Path) -> Trained:
    from outfield.backbone.onnx_network import OnnxNetwork, read_model

    return _of_file(path, OnnxNetwork(read_model(path), str(path)), Origin("onnx"))


def _of_exported_program(path: Path, device: torch.device) -> Trained:
    from outfield.backbone.exported_program import read_program

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


def from_our_file(path: PathLike, **asked: Any) -> Trained:
    """What ``outfield train`` wrote.

    Args:
        path: the file.
        asked: settings of its classifier that are expected, or None.

    Raises:
        StorageError: there is no such file.
        FileFormatError: truncated, changed, not a classifier, or not the one that is expected.
    """
    if not _is_ours(path):
        raise FileFormatError(
            f"{path} holds weights and nothing else; say of which architecture: timm:resnet34@{path}, or in Python "
            f"Backbone.named('resnet34', weights='{path}')"
        )
    network, made, _ = load_classifier(path)
    for name, value in asked.items():
        found = getattr(made, name)
        if value is not None and str(value).removeprefix("timm:") != str(found).removeprefix("timm:"):
            raise FileFormatError(f"{path} holds a classifier with {name} = {found!r}, not {value!r}")
    expects = Preprocessing(made.size, interpolation=TENSOR, mean=made.mean, std=made.std)
    origin = Origin.of_library(made.architecture, made.classes, made.small_images, made.size)
    return Trained(network, expects, Path(path).stem, made.classes, made.names, origin, projects=made.projects)


def from_weights(architecture: str, weights: Weights, classes: int | None, small_images: bool | None) -> Trained:
    """A network by name with weights of a safetensors file or a state dict; they say what is None.

    Raises:
        UnknownNameError: the library has no such model.
        InputError: ``weights`` is neither.
        FileFormatError: they do not fit, or would have to be unpickled.
        StorageError: there is no such file.
    """
    split_name(architecture)
    state, source, name = weights, "weights", architecture.removeprefix("timm:")
    if isinstance(weights, str | os.PathLike):
        if _is_ours(weights):
            return from_our_file(weights, architecture=architecture, classes=classes, small_images=small_images)
        state, source, name = read_tensors(weights)[1], str(weights), Path(weights).stem
    if not isinstance(state, Mapping) or not state:
        raise InputError(
            f"weights is {type(weights).__name__}; it must be a safetensors file or a state dict, not empty"
        )
    wrong = [key for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if wrong:
        raise InputError(f"{source} has no tensor under {wrong[0]!r}; a state dict has nothing but tensors, by name")
    network, small = _build(architecture, state, classes, small_images)
    load_weights(network, state, source)
    expects = library_preprocessing(architecture, network)
    if small:
        expects = replace(expects, resize=SMALL, crop=None, interpolation=TENSOR, fit="exact")
    return Trained(network.eval(), expects, name, origin=_origin(architecture, network, small))


def from_library(architecture: str) -> Trained:
    """A network with the weights that its library publishes, out of the library's cache or from the network.

    Raises:
        UnknownNameError: the library has no such model.
        InputError: it publishes no weights of it.
        FileFormatError: what lies in the cache, or came, is not what was published, or would have to be unpickled.
        StorageError: the weights cannot be had.
    """
    owner, name = split_name(architecture)
    with building():
        network = timm_pretrained(name) if owner == "timm" else torchvision_pretrained(name)
    origin = _origin(architecture, network, small=False)
    expects = library_preprocessing(architecture, network)
    return Trained(network.eval(), expects, architecture.removeprefix("timm:"), origin=origin)


def library_preprocessing(architecture: str, network: nn.Module) -> Preprocessing:
    """How the library prepares images for a network of its own."""
    owner, name = split_name(architecture)
    if owner == "timm":
        return Preprocessing.of_timm(network)
    models = library("torchvision.models", extra="images")
    return Preprocessing.of_torchvision(models.get_model_weights(name).DEFAULT.transforms())


def _is_ours(path: PathLike) -> bool:
    """Whether Outfield wrote a safetensors file.

    Raises:
        FileFormatError: its ending is that of a pickle, or it is no safetensors file.
    """
    if Path(path).suffix in PICKLES:
        safe = Path(path).with_suffix(".safetensors")
        raise FileFormatError(
            f"{path} would have to be unpickled, which can run any code; convert it once, where you trust it: "
            f'safetensors.torch.save_file(torch.load("{path}", weights_only=True), "{safe}")'
        )
    return HEADER_NAME in find_tensors(path).metadata


def _build(
    architecture: str, state: Mapping[str, Tensor], classes: int | None, small_images: bool | None
) -> tuple[nn.Module, bool]:
    """A fresh network of the shape that a state dict asks for, and whether it has the stem for small images."""
    with building():
        network = create(architecture, classes)
        wanted = _width(state, _head_name(network)) if classes is None else None
        if wanted is not None and wanted != _width(network.state_dict(), _head_name(network)):
            network = create(architecture, wanted)
        small = small_images if small_images is not None else _has_small_stem(state, network)
        if small:
            use_small_stem(network, architecture)
    return network, small


def _origin(architecture: str, network: nn.Module, small: bool) -> Origin:
    return Origin.of_library(architecture, _width(network.state_dict(), _head_name(network)), small)


def _head_name(network: nn.Module) -> str:
    """The name of what timm calls the classifier, or of the last linear layer."""
    timm_own = getattr(network, "get_classifier", None)
    classifier = timm_own() if callable(timm_own) else None
    named: list[str] = [name for name, module in network.named_modules() if module is classifier]
    linear: list[str] = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return (named or linear or [""])[-1]


def _entry(state: Mapping[str, Tensor], name: str) -> Tensor | None:
    """An entry of a state dict, whose names may all have a prefix."""
    return next((state[prefix + name] for prefix in PREFIXES if prefix + name in state), None)


def _width(state: Mapping[str, Tensor], layer: str) -> int | None:
    """How many outputs a layer has, going by its weight."""
    weight = _entry(state, f"{layer}.weight")
    return None if weight is None else len(weight)


def _has_small_stem(state: Mapping[str, Tensor], network: nn.Module) -> bool:
    """Whether the weights' first convolution is 3 × 3 where the network's is larger."""
    stem, weight = getattr(network, "conv1", None), _entry(state, "conv1.weight")
    return isinstance(stem, nn.Conv2d) and weight is not None and weight.shape[-1] == 3 < stem.kernel_size[-1]
