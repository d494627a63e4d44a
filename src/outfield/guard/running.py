"""A network that is kept ready: where to look into it is found once, and every image then takes the shortest way through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from outfield.backbone.backbone import Backbone
from outfield.backbone.extraction import Extraction
from outfield.backbone.odin import Odin
from outfield.backbone.views import Views
from outfield.errors import InputError
from outfield.features.about import NETWORK, network_text
from outfield.features.set import FeatureSet

ROWS = 512
"""Images that the network is given at once, at most."""
PROBES = 2
"""Images of noise that show where to look into a network: their maps are unlike each other, as those of a black image are not."""


class Runner:
    """A network that turns bytes into the fields that a detector scores.

    Args:
        backbone: the network.
        stages: give what its blocks give, too.
        views: over which fields are averaged.
        odin: give ``odin_logits``, too.
        precision: see :meth:`outfield.Backbone.extract`.
        fingerprint: of the backbone, which its rows carry with them; None where nobody looks.

    Attributes:
        about: what the rows say of themselves.

    Raises:
        InputError: the network cannot be looked into, or has no stages.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        stages: bool,
        views: Views,
        odin: bool = False,
        precision: str = "float32",
        fingerprint: str | None = None,
    ) -> None:
        self.backbone, self.stages = backbone, stages
        given = Odin() if odin else None
        self.extraction = Extraction(
            backbone.network, backbone.device, backbone.input, backbone.head, given, precision, stages, views
        )
        self.rows = self.extraction.at_once(ROWS)
        self.probe()
        self.about = self.extraction.about()
        if fingerprint is not None:
            self.about[NETWORK] = network_text(backbone.name, fingerprint)

    def probe(self) -> dict[str, Tensor]:
        """All fields of images of noise, always the same ones; the first time, where to look is found on the way."""
        rng = torch.Generator().manual_seed(0)
        height, width = self.backbone.input.size
        channels = len(self.backbone.input.mean)
        noise = torch.randint(0, 256, (PROBES, height, width, channels), generator=rng, dtype=torch.uint8)
        _, fields = next(iter(self.extraction.run([noise], PROBES)))
        return fields

    def features(self, batches: Iterable[Tensor], names: Sequence[str]) -> Iterator[FeatureSet]:
        """Chosen fields of images, piece by piece.

        Args:
            batches: bytes (n, H, W, C), or what the network takes, floating (n, C, h, w).
            names: of the fields.
        """
        for _, fields in self.extraction.run(batches, self.rows):
            yield FeatureSet._of(
                {name: fields[name] for name in names}, self.about
            )  # which are finite, as they must be


def look_into(backbone: Backbone, stages: bool) -> tuple[bool, int]:
    """Whether a network has blocks whose outputs can be had beside its features, if they are wanted; and how many classes.

    Raises:
        InputError: the network cannot be looked into.
    """
    try:
        found = Runner(backbone, stages=stages, views=Views.of(None))
    except InputError:
        if not stages:
            raise
        return look_into(backbone, False)  # whatever else is wrong with it is said there
    return stages, found.probe()["logits"].shape[1]
