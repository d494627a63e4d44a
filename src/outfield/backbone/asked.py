"""What :meth:`outfield.Backbone.extract` is asked for: checked, before any image is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from outfield.backbone.extraction import Extraction
from outfield.backbone.input import Input
from outfield.backbone.odin import Odin
from outfield.backbone.perturb import Perturb
from outfield.backbone.views import Views
from outfield.config import require, require_choice, require_number
from outfield.errors import InputError
from outfield.images.skipped import ON_ERROR
from outfield.images.source import ImageSource


@dataclass(frozen=True)
class Asked:
    """Arguments of :meth:`outfield.Backbone.extract`, by their names there."""

    stages: bool
    views: Views | str | int | None
    odin: Odin | None
    perturb: Perturb | None
    labels: bool | None
    batch_size: int
    precision: str
    on_error: str

    def check(self, images: ImageSource, network: nn.Module, name: str) -> None:
        """Refuse what cannot be.

        Args:
            images: of which rows are asked for.
            network: that is to give them.
            name: what errors call it.

        Raises:
            InputError: no images, a setting that cannot be, or gradients of a network that gives none.
        """
        if not isinstance(images, ImageSource):
            raise InputError(
                f"images is a {type(images).__name__}; wrap an array, outfield.ImageArray(array), or open a folder or file, "
                "outfield.open_images(path)"
            )
        if not len(images):
            raise InputError(f"there is no image in {images.name}")
        require_number("batch_size", self.batch_size, least=1, whole=True)
        self._check_moves(network, name)
        labels, stages = self.labels, self.stages
        require(labels is None or isinstance(labels, bool | np.bool_), "labels", labels, "True, False or None")
        require(isinstance(stages, bool | np.bool_), "stages", stages, "True or False")
        require_choice("on_error", self.on_error, ON_ERROR)

    def _check_moves(self, network: nn.Module, name: str) -> None:
        """Refuse moves of the images along a gradient that contradict each other, or that a network cannot do."""
        odin, perturb = self.odin, self.perturb
        require(odin is None or isinstance(odin, Odin), "odin", odin, "an outfield.Odin, or None")
        require(perturb is None or isinstance(perturb, Perturb), "perturb", perturb, "an outfield.Perturb, or None")
        if odin is not None and perturb is not None:
            raise InputError(
                "odin and perturb both move the images, each in its own way; extract twice, with one of them each"
            )
        if (odin is not None or perturb is not None) and not getattr(network, "gives_gradients", True):
            asked = "odin" if odin is not None else "perturb"
            raise InputError(
                f"{asked} needs gradients, which {name} does not give: ONNX Runtime only runs forward; choose "
                "detectors that need none, or give the network as a module"
            )

    def extraction(self, network: nn.Module, device: torch.device, expects: Input, head: str | None) -> Extraction:
        """The pass over images that gives what is asked for.

        Raises:
            InputError: views or a precision that cannot be.
        """
        views = Views.of(self.views)
        return Extraction(
            network, device, expects, head, self.odin, self.precision, bool(self.stages), views, self.perturb
        )
