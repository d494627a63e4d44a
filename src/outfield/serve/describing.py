"""What the service tells about guards and verdicts, as plain data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from outfield.features.fields import FIELDS
from outfield.guard.rows import RowGuard
from outfield.guard.verdict import Verdict
from outfield.serve.columns import inputs_of
from outfield.serve.models import Model
from outfield.serve.protocol import OUTPUTS

BINS = 40
"""Of the histogram of calibration scores."""
SCORES = 1001
"""Calibration scores that are told, at most: evenly spaced among all of them, with the least and the largest."""

_OBJECT = {"application/json": {"schema": {"type": "object"}}}
INFER: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {**_OBJECT, "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_FILE = {"type": "string", "format": "binary"}
_FILES = {"type": "object", "properties": {"file": {"type": "array", "items": _FILE}}}
CHECK: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FILES}, "image/*": {"schema": _FILE}},
    }
}


def metadata(model: Model) -> dict[str, Any]:
    """A guard's inputs and outputs, as the Open Inference Protocol asks for them: a request brings one kind of input."""
    inputs: list[dict[str, Any]] = [
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
    ]
    widths = model.guard.widths
    if isinstance(model.guard, RowGuard):
        inputs = [*inputs_of(model.guard).values()]
    elif all(FIELDS[name].per_row and len(FIELDS[name].axes) == 2 for name in widths):
        inputs += [{"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in widths.items()]
    outputs = [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in OUTPUTS.items()]
    return {"name": model.name, "versions": ["1"], "platform": "outfield_guard", "inputs": inputs, "outputs": outputs}


def about(model: Model) -> dict[str, Any]:
    """What the page shows of a guard."""
    guard = model.guard
    scores = guard.threshold.reference.numpy()
    counts, edges = np.histogram(scores, BINS)
    places = np.unique(np.linspace(0, len(scores) - 1, SCORES).round().astype(int))
    return {
        "name": model.name,
        "network": repr(guard) if isinstance(guard, RowGuard) else guard.backbone.name,
        "inputs": [*inputs_of(guard).values()] if isinstance(guard, RowGuard) else None,
        "fingerprint": guard.fingerprint[:16],
        "classes": [*guard.names],
        "members": [*guard.members],
        "threshold": guard.threshold.value,
        "keep": guard.threshold.keep,
        "calibration": len(scores),
        "scores": scores[places].tolist(),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def verdict(one: Verdict) -> dict[str, Any]:
    """A verdict ready for JSON, which knows no infinite numbers: null stands for those."""
    told = one.to_dict()
    if isinstance(told["score"], float) and not math.isfinite(told["score"]):
        told["score"] = None
    return told
