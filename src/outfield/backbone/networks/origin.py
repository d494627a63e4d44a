"""Where a network comes from, and how it is built again from its tensors alone.

A file that carries a network with it (:class:`outfield.Guard`) keeps the origin as JSON and the tensors beside it. A network
without an origin, an ``nn.Module`` that was handed over in Python or a program of ``torch.export``, can only be recognised, by
its fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from outfield.backbone.networks.architectures import SMALL, create, load_weights, patch_settings
from outfield.backbone.preprocessing.normalisation import check_size
from outfield.backbone.preprocessing.preprocessing import Preprocessing
from outfield.config import require, require_number
from outfield.errors import FileFormatError
from outfield.modes import building

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
            from outfield.backbone.networks import hugging_face

            return hugging_face.build(self.settings, state, source).eval()
        from outfield.backbone.networks import onnx_network

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
