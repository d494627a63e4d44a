"""What an exported guard says of itself, as texts by name."""

from __future__ import annotations

import json

from outfield.guard.guard import Guard
from outfield.version import __version__

PREFIX = "outfield."


def about(guard: Guard, takes: str) -> dict[str, str]:
    """How images are made into what a graph takes, what it was made of, and the threshold.

    Args:
        guard: which.
        takes: what the graph takes, one of :data:`outfield.adapters.graph.INPUTS`.
    """
    threshold, backbone = guard.threshold, guard.backbone
    said = {
        "version": __version__,
        "takes": takes,
        "preprocessing": json.dumps(backbone.preprocessing.to_json()),
        "network": backbone.name,
        "network_fingerprint": guard.fingerprint,
        "detector": repr(guard.detector),
        "detector_fingerprint": guard.detector.fingerprint(),
        "members": json.dumps(guard.members),
        "class_names": json.dumps(guard.names),
        "views": str(guard.views),
        "threshold": repr(threshold.value),
        "keep": repr(threshold.keep),
        "held_out": str(len(threshold.reference)),
    }
    return {f"{PREFIX}{name}": text for name, text in said.items()}
