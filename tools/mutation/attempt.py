"""Tests run with the source of one module replaced, up to the first that fails."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation import hook
from mutation.child import Work


@dataclass(frozen=True)
class Attempt(Work):
    """Tests to run, in this order, with this source in place of a module's own."""

    module: str
    source: bytes
    tests: tuple[str, ...]

    def run(self, folder: Path) -> tuple[int, dict[str, Any]]:
        source = folder / "source"
        source.write_bytes(self.source)
        os.environ.update({hook.MODULE: self.module, hook.SOURCE: str(source)})  # for processes that tests start
        plugin = _Chosen(self.tests, hook.install(self.module, self.source))
        places = list(dict.fromkeys(test.partition("[")[0] for test in self.tests))
        code = self.pytest(folder, ["-x", *places], plugin)
        return code, plugin.note


class _Chosen:
    """A pytest plugin that runs the chosen tests in their order and notes the first failure."""

    def __init__(self, tests: tuple[str, ...], finder: hook.MutantFinder) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.finder: Any = finder
        self.note: dict[str, Any] = {}

    def pytest_sessionstart(self) -> None:
        # pytest puts its own hook first, which would load a module whose examples are asked for.
        sys.meta_path.remove(self.finder)
        sys.meta_path.insert(0, self.finder)
        _search_without_shrinking()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        known = [item for item in items if item.nodeid in self.order]
        known.sort(key=lambda item: self.order[item.nodeid])
        # A mutant can change the parameters of a test; then what is there now is run, too.
        others = [item for item in items if item.nodeid not in self.order]
        items[:] = known if len(known) == len(self.order) else known + others

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.note:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.note |= {"test": report.nodeid, "reason": str(getattr(crash, "message", report.longrepr))[:300]}


def _search_without_shrinking() -> None:
    """A property that fails is enough; the smallest example that fails would take its time."""
    with contextlib.suppress(ImportError):
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", parent=settings(), phases=phases, report_multiple_bugs=False)
        settings.load_profile("mutants")
