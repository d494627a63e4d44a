"""Where numbers come from: the code, the libraries, the machine, the command. No path, host or user of the machine is kept."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from outfield.config import arguments, to_plain
from outfield.modes import resolve_device
from outfield.version import __version__

COMMIT = "OUTFIELD_COMMIT"  # environment variable that names the commit where the code was copied without its history
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn")
CHANGES = {True: " with changes", False: "", None: ", changes unknown"}  # by whether files differ from it
# An absolute path, up to whatever may end it in a sentence: folders may have spaces in their names.
_ABSOLUTE = re.compile(r"(?<![^\s=@,:'\"(])(?:file://|~\w*|[A-Za-z]:)?[/\\](?![/\\\s])[^'\",;\n]*")


def about_this_run(device: str = "auto") -> dict[str, Any]:
    """Commit, versions, machine, command and time, ready for JSON."""
    program, *rest = sys.argv or [""]
    return {
        **commit(), "versions": versions(), "machine": machine(device),
        "command": [Path(program).name, *(without_paths(word) for word in rest)],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def commit() -> dict[str, Any]:
    """``commit`` of the checkout that this package lies in, and whether its files differ from it; None where it is in none."""
    folder = Path(__file__).parent.parent
    # A package installed below somebody else's repository must not be given that repository's commit.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"commit": os.environ.get(COMMIT), "dirty": None}
    status = _git(folder, "status", "--porcelain", "--", ".")
    return {"commit": _git(folder, "rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def commit_in_words(about: Mapping[str, Any]) -> str:
    """What :func:`commit` found, in words; "no commit" where it is not known.

    >>> commit_in_words({"commit": "0123456789abcdef", "dirty": None})
    'commit 0123456789ab, changes unknown'
    """
    if not about.get("commit"):
        return "no commit"
    return f"commit {str(about['commit'])[:12]}{CHANGES[about.get('dirty')]}"


def _git(folder: Path, *command: str) -> str | None:
    """What a git command prints in ``folder``; None where it fails or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str | None]:
    """Of Python, Outfield, the libraries that numbers depend on, and CUDA; None for what is not installed."""
    libraries = {name: version_of(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "outfield": __version__, **libraries, "cuda": torch.version.cuda}


def version_of(library: str) -> str | None:
    """The installed version of a library; None where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def made_by() -> dict[str, str | None]:
    """What a result was made with, in three words: version, commit and torch."""
    found = commit()
    name = None if found["commit"] is None else found["commit"][:12] + CHANGES[found["dirty"]]
    return {"outfield": __version__, "commit": name, "torch": version_of("torch")}


def machine(device: str = "auto") -> dict[str, Any]:
    """Device in use, its name if it is a GPU, number of processors, system and architecture."""
    place = resolve_device(device)
    return {
        "device": str(place), "gpu": torch.cuda.get_device_name(place) if place.type == "cuda" else None,
        "cpus": os.cpu_count(), "system": platform.system(), "architecture": platform.machine(),
    }  # fmt: skip


def without_paths(value: Any) -> Any:
    """JSON-ready ``value`` in which every absolute path is cut down to its last part.

    >>> without_paths({"data": "/home/someone/data/cifar10.npz", "share": "1/2", "spec": "timm:resnet18@/tmp/w.safetensors"})
    {'data': 'cifar10.npz', 'share': '1/2', 'spec': 'timm:resnet18@w.safetensors'}
    """
    if isinstance(value, str):
        return _ABSOLUTE.sub(_last_part, value)
    if isinstance(value, Mapping):
        return {without_paths(key): without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return value


def _last_part(found: re.Match[str]) -> str:
    path = found[0].rstrip("/\\")
    return "~" if path == str(Path.home()) else re.split(r"[/\\]", path)[-1]  # the last part of home is the user's name


def settings_of(obj: Any) -> dict[str, Any]:
    """Class and constructor arguments of a detector or another object with settings, ready for JSON."""
    return {"type": type(obj).__name__, **{name: to_plain(value) for name, value in arguments(obj).items()}}
