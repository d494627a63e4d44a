"""Which views of each image a guard averages over where its maker leaves it to stand-ins."""

from __future__ import annotations

import logging
from typing import Any

from outfield.backbone.backbone import Backbone
from outfield.backbone.views import Views
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.choosing_views import Rows, choose_views
from outfield.features.set import FeatureSet
from outfield.guard.asked import no_choice
from outfield.guard.parts import Parts, labelled, means_the_same, that_were_read
from outfield.guard.running import look_into
from outfield.images.source import ImageSource
from outfield.images.stand_ins import stand_ins

log = logging.getLogger(__name__)


def chosen_views(
    backbone: Backbone, parts: Parts, detector: Detector, seed: int, count: int, extraction: dict[str, Any]
) -> Views:
    """The views with which the sum that is chosen tells ID images best from stand-ins; the calibration's images are not used.

    Args:
        backbone: the network.
        parts: the images.
        detector: the guard's; views are chosen for Auto alone.
        seed: of stand-ins.
        count: images of each kind of stand-in, at most.
        extraction: settings of :meth:`outfield.Backbone.extract`.

    Raises:
        InputError: the detector is another one.
    """
    if not isinstance(detector, Auto) or parts.choose is None:
        raise no_choice(type(detector).__name__)
    held_out = parts.choose
    stages, classes = look_into(backbone, True)
    known = means_the_same(parts.train, classes)

    def rows_of(views: str) -> Rows:
        def extract(images: ImageSource, labels: bool = False) -> FeatureSet:
            return backbone.extract(images, stages=stages, views=views, labels=labels, **extraction)

        log.info("trying views %s", views)
        rows = extract(held_out)
        good = that_were_read(held_out, rows)
        made = stand_ins(good, seed=seed, count=min(count, len(good))).map(extract)
        return Rows(labelled(extract(parts.train, known)), labelled(rows), made)

    found = choose_views(rows_of, str(backbone.device))
    log.info("views %s", found)
    return Views.of(found.views)
