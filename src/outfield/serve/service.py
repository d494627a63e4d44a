"""The service without HTTP: guards, their work, what is counted, and the thread that looks after files."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from outfield.serve.body import Bodies
from outfield.serve.counts import Counts
from outfield.serve.models import Model, load_models
from outfield.serve.refusals import Refused
from outfield.serve.settings import Settings
from outfield.serve.working import Work


class Service:
    """Guards that are served.

    Args:
        paths: Their files; the first is the one that clients get who name none.
        settings: Of the service.

    Raises:
        OutfieldError: A file is no guard, or two have the same name.
    """

    def __init__(self, paths: Sequence[Path], settings: Settings = Settings()) -> None:
        self.settings, self.counts = settings, Counts()
        self.models = load_models(paths, settings, self.counts)
        self.bodies, self.work = Bodies(settings.limits), Work(settings.limits)
        self.ready = True
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="outfield files", daemon=True)
        self._keeper.start()

    def model(self, name: str | None) -> Model:
        """The guard of that name; the first where no name is given.

        Raises:
            Refused: There is none.
        """
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refused(404, f"there is no guard {name[:100]!r}; there are {', '.join(self.models)}")
        return self.models[name]

    def reload(self) -> dict[str, bool]:
        """Read every guard's file again; tells for each whether it could be read."""
        return {name: bool(model.reload(even_unchanged=True)) for name, model in self.models.items()}

    def stop(self) -> None:
        """Finish what was accepted, and write what was seen."""
        self.ready = False
        self._ended.set()
        self._keeper.join()
        self.work.stop()
        for model in self.models.values():
            model.stop()

    def _keep(self) -> None:
        """Look for files that have changed, and write what was seen."""
        left = self.settings.save_every
        while not self._ended.wait(self.settings.look_every):
            left -= self.settings.look_every
            for model in self.models.values():
                model.reload()
                if left <= 0:
                    model.save()
            left = self.settings.save_every if left <= 0 else left
