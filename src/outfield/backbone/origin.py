"""How a network is built again from its tensors alone: by the name of its architecture, or as another kind of network says.

A file that carries a network with it (:class:`outfield.Guard`) keeps the origin as JSON and the tensors beside it. A network
without an origin, an ``nn.Module`` that was handed over in Python, can only be recognised, by its fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from outfield.backbone.architectures import SMALL, create, load_weights, patch_settings
from outfield.backbone.input import check_size
from outfield.backbone.seeding import building
from outfield.config import require, require_number
from outfield.errors import FileFormatError

State = dict[str, Tensor]


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
        good = isinstance(plain, dict) and isinstance(plain.get("settings"), dict)
        if not good or plain.get("kind") not in KINDS:
            shown = plain.get("kind") if isinstance(plain, dict) else plain
            raise FileFormatError(f"there is no kind of network {shown!r:.100}; known are {', '.join(KINDS)}")
        return cls(plain["kind"], plain["settings"])

    def to_json(self) -> dict[str, Any]:
        """The same as a plain dictionary."""
        return {"kind": self.kind, "settings": dict(self.settings)}

    def state(self, network: nn.Module) -> State:
        """The tensors of the network from which, and from the settings, :meth:`build` makes it again."""
        return KINDS[self.kind].state(network)

    def build(self, state: Mapping[str, Tensor], source: str) -> nn.Module:
        """The network on the CPU, in evaluation mode.

        Args:
            state: what :meth:`state` gave.
            source: where it comes from, for messages.

        Raises:
            OutfieldError: the library is not installed or lacks the architecture, or the tensors do not fit.
        """
        return KINDS[self.kind].build(self.settings, state, source).eval()


@dataclass(frozen=True)
class Kind:
    """A kind of origin: how a network is built of settings and tensors, and which tensors that takes."""

    build: Callable[[Mapping[str, Any], Mapping[str, Tensor], str], nn.Module]
    state: Callable[[nn.Module], State]


def state_of(network: nn.Module) -> State:
    """The tensors of a network's state dict."""
    return {name: value.detach() for name, value in network.state_dict().items() if isinstance(value, Tensor)}


def _from_library(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    architecture, classes = settings.get("architecture"), settings.get("classes")
    require(isinstance(architecture, str), "architecture", architecture, "the name of a model")
    if classes is not None:
        require_number("classes", classes, least=1, whole=True)
    size = settings.get("size", SMALL)
    size = tuple(size) if isinstance(size, list) else size
    check_size(size)
    with building():
        network = create(str(architecture), classes, size if settings.get("small_images") else None, state)
    load_weights(network, state, source)
    return network


def _from_hugging_face(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    from outfield.backbone import hugging_face

    return hugging_face.build(settings, state, source)


def _from_onnx(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    from outfield.backbone import onnx_network

    return onnx_network.build(settings, state, source)


def _from_pt2(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    from outfield.backbone import pt2_network

    return pt2_network.build(settings, state, source)


def _pt2_state(network: nn.Module) -> State:
    from outfield.backbone import pt2_network

    return pt2_network.kept(state_of(network))


KINDS: dict[str, Kind] = {
    "library": Kind(_from_library, state_of),
    "hf": Kind(_from_hugging_face, state_of),
    "onnx": Kind(_from_onnx, lambda network: {"model": state_of(network)["model"]}),
    "pt2": Kind(_from_pt2, _pt2_state),
}
"""Every kind of network that can be built again, by name."""
