"""The service without HTTP: guards, room and time for requests, decoding, and the thread that looks after files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError, OutfieldError
from outfield.features import FeatureSet
from outfield.guard import Guard, ImageVerdict, Verdict
from outfield.images import size_of
from outfield.serve.batcher import Job
from outfield.serve.body import AT_ONCE, Bodies, Rows, Upload, rows_of, together
from outfield.serve.inference_protocol import inputs_of
from outfield.serve.limits import Limits, Refused, Settings, busy
from outfield.serve.models import Model, load_models
from outfield.serve.telemetry import Counts, Otlp

Image = bytes | np.ndarray
LOOKS_BEFORE_SAVING = 5
T = TypeVar("T")


class Work:
    """Turns requests into verdicts."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._decoders, self._parser = ThreadPoolExecutor(2, "outfield decode"), ThreadPoolExecutor(1, "outfield parse")

    def stop(self) -> None:
        self._decoders.shutdown()
        self._parser.shutdown()

    async def aside(self, function: Callable[..., T], size: int, *given: object) -> T:
        """What a function makes of so many bytes; of many in another thread, since all clients would wait for it here."""
        if size <= AT_ONCE:
            return function(*given)
        return await asyncio.get_running_loop().run_in_executor(self._parser, function, *given)

    async def judge(self, model: Model, given: list[Image] | Rows | Upload) -> list[Verdict]:
        """Verdicts on what the inference protocol brings: images, rows, or a file of rows."""
        if isinstance(given, Upload):
            return await self.upload(model, given)
        if isinstance(given, list):
            return await self.images(model, [(None, one) for one in given])
        return await self.rows(model, given)

    async def images(self, model: Model, images: Sequence[tuple[str | None, Image]]) -> list[Verdict]:
        """A verdict on each image, by the name of its file where there is one, or why it could not be read."""
        guard, prepared, loop = model.guard, [], asyncio.get_running_loop()
        if guard.takes != "images":
            what, names = f"the guard {model.name} looks at {guard.reader.unit}, not at images", inputs_of(guard)
            given = f"send them as text/csv or application/json, with {', '.join(one['name'] for one in names):.200}"
            raise InputError(f"{what}; {given}")
        with self._room(model, len(images)):
            model.batcher.announce(len(images))
            try:
                await loop.run_in_executor(self._decoders, self._bound, images)
                for number, (name, image) in enumerate(images):  # one by one: other requests have their turn
                    where = name or f"image {number}"
                    prepared.append(await loop.run_in_executor(self._decoders, self._prepare, guard, image, where))
                good = [one for one in prepared if isinstance(one, Tensor)]
                if good:
                    rows = good if guard.reader.scored == "boxes" else torch.stack(good)
                    answer = model.batcher.submit(Job(guard, rows))
            finally:
                model.batcher.announce(-len(images))
            judged = await asyncio.wrap_future(answer) if good else []
        found = iter(judged)
        kind = ImageVerdict if guard.reader.scored == "boxes" else Verdict
        verdicts = [
            replace(next(found), file=name) if isinstance(one, Tensor) else kind.failed(name, str(one))
            for (name, _), one in zip(images, prepared, strict=True)
        ]
        if model.queue is not None:
            model.queue.offer(guard, [image for _, image in images], verdicts)
        return verdicts

    async def rows(self, model: Model, rows: Rows, why: bool = False) -> list[Verdict]:
        """Verdicts on rows of features or of a table; of a table also why a row cannot be used."""
        count = len(rows) if isinstance(rows, FeatureSet) else max(map(len, rows.values()), default=0)
        with self._room(model, count):
            guard = model.guard
            verdicts = await asyncio.wrap_future(model.batcher.submit(Job(guard, rows, why)))
        if model.queue is not None:
            model.queue.offer(guard, rows, verdicts)
        return verdicts

    async def upload(self, model: Model, upload: Upload, why: bool = False) -> list[Verdict]:
        """Verdicts on the rows of a file; a file that has none to be read is an error of its own."""
        guard, before = model.guard, "" if upload.name is None else f"{upload.name} "
        try:
            rows = await self.aside(rows_of, len(upload.content), upload, guard)
            good = [row for row in rows if not isinstance(row, InputError)]
            found = iter(await self.rows(model, together(good, guard), why) if good else [])
        except InputError as error:
            if upload.name is None:
                raise
            return [Verdict.failed(upload.name, str(error))]
        failed = (Verdict.failed(None, str(row)) if isinstance(row, InputError) else next(found) for row in rows)
        return [replace(one, file=f"{before}row {number}") for number, one in enumerate(failed, 1)]

    @contextlib.contextmanager
    def _room(self, model: Model, count: int) -> Iterator[None]:
        unit = model.guard.reader.unit
        if count > (most := self.limits.images):
            advice = f"send at most {most} at once, or serve with a larger --max-images"
            raise Refused(413, f"there are {count} {unit} in the request; {advice}")
        if model.accepted + count > self.limits.queue:
            raise busy(f"{model.accepted} {unit} are waiting for {model.name}")
        model.accepted += count
        try:
            yield
        finally:
            model.accepted -= count

    def _bound(self, images: Sequence[tuple[str | None, Image]]) -> None:
        """Refuse too many pixels in all before any image is decoded; those that nobody will decode do not count."""
        left = most = 4 * self.limits.pixels
        for _, image in images:
            with contextlib.suppress(OutfieldError):
                left -= size if (size := math.prod(_shape(image, ""))) <= self.limits.pixels else 0
        if left < 0:
            raise Refused(413, f"the images of a request may have {most:,} pixels in all; send fewer, or smaller ones")

    def _prepare(self, guard: Guard, image: Image, where: str) -> Tensor | OutfieldError:
        """An image as the guard takes it, or why it cannot be used."""
        try:
            if math.prod(size := _shape(image, where)) > (most := self.limits.pixels):
                shown = " × ".join(map(str, size))
                raise InputError(f"{where} is too large: it has {shown} pixels; at most {most:,} are taken")
            return guard.prepare(image)
        except OutfieldError as error:
            return type(error)(str(error).replace("the image", where))


def _shape(image: Image, where: str) -> tuple[int, ...]:
    return size_of(io.BytesIO(image), where) if isinstance(image, bytes) else image.shape[:2]


class Service:
    """Guards that are served; clients who name none get the first."""

    def __init__(self, paths: Sequence[Path], settings: Settings = Settings()) -> None:
        self.settings, self.counts = settings, Counts()
        self.otlp = None if settings.otlp is None else Otlp(settings.otlp, self.counts.registry)
        self.models = load_models(paths, settings, self.counts)
        self.bodies, self.work = Bodies(settings.limits), Work(settings.limits)
        self.ready = True
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="outfield files", daemon=True)
        self._keeper.start()

    def model(self, name: str | None) -> Model:
        """The guard of that name; the first where no name is given."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refused(404, f"there is no guard {name[:100]!r}; there are {', '.join(self.models)}")
        return self.models[name]

    def reload(self) -> dict[str, bool]:
        """Read every guard's file again; tells for each whether it could be read."""
        return {name: bool(model.reload(even_unchanged=True)) for name, model in self.models.items()}

    def stop(self) -> None:
        self.ready = False
        self._ended.set()
        self._keeper.join()
        self.work.stop()
        for model in self.models.values():
            model.stop()
        if self.otlp is not None:
            self.otlp.stop()

    def _keep(self) -> None:
        """Look for files that have changed, and write what was seen."""
        look = 0
        while not self._ended.wait(self.settings.look_every):
            look += 1
            for model in self.models.values():
                model.reload()
                if look % LOOKS_BEFORE_SAVING == 0:
                    model.save()
