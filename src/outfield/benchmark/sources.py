"""What code decides a stage's result: the modules that compute it, and the libraries that numbers come from.

Its digest is part of the stage's, so that after a change nothing older is taken for a result of the code as it is. The modules
are found by following imports from where the work begins, so that a result depends on what computed it and on nothing else: a
fit of KNN does not know how energies are trained. Stages that build on another (scores on a fit) have its digest, and with it
its code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from outfield.benchmark.provenance import version_of
from outfield.config import CONFIGURABLE, arguments

PACKAGE = Path(__file__).parent.parent
ROOTS: dict[str, tuple[str, ...]] = {
    "features": ("backbone.extraction", "backbone.backbone", "images.files"),
    "blocks": ("backbone.extraction", "backbone.backbone", "images.files"),
    "odin": ("backbone.extraction", "backbone.backbone", "images.files", "backbone.odin"),
    "view": ("benchmark.view",),
    "views": ("detectors.choosing_views",),
}
"""Where the work of a kind of stage begins. A detector's begins in its own file: :func:`code_of`."""
INERT = (
    "errors",
    "version",
    "config",
    "devices",
    "extras",
    "progress",
    "files",
    "features",
    "detectors.base",
    "detectors.data",
    "detectors.registry",
    "detectors.saved",
    "detectors.state",
)
"""Modules and rooms that only check, store or tell of things: they decide no number."""
DECIDING = ("features.head", "features.part", "features.seen")
"""Modules of such rooms that decide numbers all the same."""
APART = {"features": ("backbone.odin",), "blocks": ("backbone.odin",)}
"""Modules whose work is a stage of its own."""
LIBRARIES: dict[str, tuple[str, ...]] = {
    "features": ("torch", "torchvision", "timm", "pillow"),
    "blocks": ("torch", "torchvision", "timm", "pillow"),
    "odin": ("torch", "torchvision", "timm", "pillow"),
    "detector": ("torch",),
    "view": ("scikit-learn",),
    "views": ("torch",),
}


@functools.cache
def code(what: str) -> dict[str, str | None]:
    """Digest of the sources and versions of the libraries behind a kind of stage; empty where it has none of its own."""
    found: dict[str, str | None] = {name: version_of(name) for name in LIBRARIES.get(what, ())}
    if what in ROOTS:
        modules = modules_behind(ROOTS[what]) - set(APART.get(what, ()))
        found["sources"] = _digest(_file(name) for name in sorted(modules))
    return found


def code_of(obj: object) -> str | None:
    """Digest of the code behind an object: the file of its class, which may be the user's own, those of its settings' classes,
    and every module of ours that they use. None where a class has no file."""
    files: set[Path] = set()
    roots: set[str] = set()
    for cls in _classes(obj):
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is None:
            return None
        if cls.__module__.startswith("outfield."):
            roots.add(cls.__module__.removeprefix("outfield."))
        else:
            files.add(Path(file))
            roots |= _imports(Path(file))
    return _digest([*sorted(files), *(_file(name) for name in sorted(modules_behind(roots)))])


def _classes(obj: object) -> set[type]:
    """The class of an object, and of those settings that have settings of their own."""
    found = {type(obj)}
    for value in arguments(obj).values():
        for one in value if isinstance(value, tuple | list) else [value]:
            if type(one).__name__ in CONFIGURABLE:
                found |= _classes(one)
    return found


def modules_behind(roots: Iterable[str]) -> set[str]:
    """The modules ``roots`` of this package, and those they import, directly or not, that may decide a number."""
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in seen and not _inert(name):
            seen.add(name)
            todo += _imports(_file(name))
    return seen


def _inert(name: str) -> bool:
    return name not in DECIDING and any(name == inert or name.startswith(f"{inert}.") for inert in INERT)


def _imports(file: Path) -> frozenset[str]:
    """Modules of this package that a file imports anywhere, without the package's own name."""
    return _imported(file.read_bytes(), PACKAGE)


@functools.lru_cache(maxsize=1024)
def _imported(source: bytes, package: Path) -> frozenset[str]:
    """The same of a file's content, parsed once: every detector is asked for, and most use the same files."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _is_module(name) else node.module for name in inside]
        else:
            continue
        found |= {name.removeprefix("outfield.") for name in names if name.startswith("outfield.")}
    return frozenset(found)


def _is_module(name: str) -> bool:
    return name.startswith("outfield.") and _file(name.removeprefix("outfield.")).is_file()


def _file(name: str) -> Path:
    place = PACKAGE.joinpath(*name.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        place = file.relative_to(PACKAGE) if file.is_relative_to(PACKAGE) else Path(file.name)
        digest.update(f"{place}|".encode() + file.read_bytes())
    return digest.hexdigest()
