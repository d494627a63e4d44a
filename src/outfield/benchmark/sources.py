"""What code decides a stage's result: the package's own files, and the libraries that numbers come from.

Its digest is part of the stage's, so that after a change nothing older is taken for a result of the code as it is. Stages that
build on another (scores on a fit) have its digest, and with it its code.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

from outfield.provenance import version_of

PACKAGE = Path(__file__).parent.parent
EXTRACTION = (
    "backbone",
    "batches",
    "classifiers",
    "extraction",
    "feature_maps",
    "hooks",
    "imagefiles",
    "images",
    "weights",
)
FITTING = (
    "detectors",
    "energy",
    "engine",
    "gaussian",
    "langevin",
    "moments",
    "prior",
    "projection",
    "rows",
    "starts",
    "steps",
    "streams",
    "training",
)
SOURCES: dict[str, tuple[str, ...]] = {
    "features": EXTRACTION,
    "odin": (*EXTRACTION, "odin"),
    "detector": FITTING,
    "view": ("benchmark/view", "projection"),
}
"""Modules and packages by kind of stage. Those that only check, store or tell of things are left out."""
LIBRARIES: dict[str, tuple[str, ...]] = {
    "features": ("torch", "torchvision", "timm", "pillow"),
    "odin": ("torch", "torchvision", "timm", "pillow"),
    "detector": ("torch",),
    "view": ("scikit-learn",),
}


@functools.cache
def code(what: str) -> dict[str, str | None]:
    """Digest of the sources and versions of the libraries behind a kind of stage; empty where it has none of its own."""
    if what not in SOURCES:
        return {}
    digest = hashlib.sha256()
    for name in SOURCES[what]:
        for file in sorted((PACKAGE / name).glob("*.py")) or [PACKAGE / f"{name}.py"]:
            digest.update(f"{file.relative_to(PACKAGE)}|".encode() + file.read_bytes())
    return {"sources": digest.hexdigest(), **{name: version_of(name) for name in LIBRARIES[what]}}


def code_of(obj: object) -> str | None:
    """Digest of the file that the object's class is written in, which may be the user's own; None where there is no file."""
    file = getattr(sys.modules.get(type(obj).__module__), "__file__", None)
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
