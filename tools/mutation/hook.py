"""An import hook that gives one module other source; no file is changed.

It is installed in the process that runs the tests and, by `startup/sitecustomize.py`, in every Python process
that a test starts. It imports next to nothing, for some tests look at what a process has imported.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE = "MUTANT_MODULE"  # environment variables of processes that tests start
SOURCE = "MUTANT_SOURCE"


class MutantLoader(SourceFileLoader):
    """Loads a module from its file's place, but from other source."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code


class MutantFinder:
    """Finds the one mutated module, and leaves all others to the usual finders."""

    def __init__(self, module: str, source: bytes) -> None:
        self.module = module
        self.source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        for finder in sys.meta_path:
            if finder is not self and (found := finder.find_spec(fullname, path, target)) is not None:
                if found.origin is not None:
                    found.loader = MutantLoader(fullname, found.origin, self.source)
                    found.cached = None
                return found
        return None


def install(module: str, source: bytes) -> MutantFinder:
    """Put the hook before all others."""
    finder = MutantFinder(module, source)
    sys.meta_path.insert(0, finder)
    return finder


def install_from_environment() -> None:
    """Install the hook that the process which started this one asks for."""
    module, path = os.environ.get(MODULE), os.environ.get(SOURCE)
    if module and path:
        with open(path, "rb") as file:
            install(module, file.read())
