"""What is mutated: the package, its rooms, and the tests beside it."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

KERNELS = {"kernels.py", "triton_operations.py"}  # run on a GPU; a CPU runs only a few of them, slowly


@dataclass(frozen=True)
class Project:
    """A package below `src/` and the tests in `tests/`, which mirror its folders.

    Args:
        root: The folder that holds both.
        package: Folder of the package, relative to `root`.
        tests: Files and folders whose tests may be run; everything below `tests/` and the package by default.
    """

    root: Path
    package: str = "src/outfield"
    tests: tuple[str, ...] = ()
    _texts: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def source_root(self) -> Path:
        """The folder that has to be on the import path."""
        return (self.root / self.package).parent

    @property
    def work(self) -> Path:
        """Where measurements and results are kept; ignored by git."""
        return self.root / "build" / "mutants"

    def read(self, file: str) -> bytes:
        """The bytes of a file, the same throughout a run, even if somebody edits it meanwhile."""
        if file not in self._texts:
            self._texts[file] = (self.root / file).read_bytes()
        return self._texts[file]

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def room_files(self, room: str) -> list[str]:
        """The source files of a room, without kernels in Triton's language."""
        folder = self.root / self.package / room
        files = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
        return sorted(self.relative(path) for path in files if path.name not in KERNELS)

    def room_of(self, file: str) -> str:
        """The folder of the package that a source file is in; the module itself where it is in none."""
        return Path(file).relative_to(self.package).parts[0].removesuffix(".py")

    def module(self, file: str) -> str:
        """The name under which a source file is imported."""
        parts = (self.root / file).relative_to(self.source_root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def source_files(self) -> list[str]:
        return sorted(self.relative(path) for path in (self.root / self.package).rglob("*.py"))

    @cached_property
    def test_files(self) -> list[str]:
        """Files with tests: `test_*.py`, and modules of the package with examples in their docstrings."""
        found = [self.relative(path) for path in (self.root / "tests").rglob("test_*.py")]
        found = [file for file in found if not file.startswith("tests/tools/")]  # they run nothing of the package
        found += [file for file in self.source_files if b">>>" in self.read(file)]
        if self.tests:
            found = [file for file in found if any(file == part or file.startswith(f"{part}/") for part in self.tests)]
        return sorted(found)

    @cached_property
    def shared_digest(self) -> str:
        """Digest of what every test depends on: settings, fixtures and helpers."""
        helpers = (self.root / "tests").rglob("*.py")
        files = [self.relative(path) for path in helpers if not path.name.startswith("test_")]
        path = self.root / "pyproject.toml"
        settings = tomllib.loads(path.read_text()).get("tool", {}).get("pytest", {}) if path.exists() else {}
        return self.digest(files) + hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    @cached_property
    def whole_digest(self) -> str:
        """Digest of all sources and all tests that are used."""
        return self.digest([*self.source_files, *self.test_files]) + self.shared_digest

    def digest(self, files: list[str]) -> str:
        whole = hashlib.sha256()
        for file in sorted(set(files)):
            whole.update(file.encode() + b"\0" + hashlib.sha256(self.read(file)).digest())
        return whole.hexdigest()[:16]
