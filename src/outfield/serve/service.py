"""The service without HTTP: guards, room and time for requests, decoding, and the thread that looks after files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError, OutfieldError
from outfield.features import FeatureSet
from outfield.guard import Guard, Verdict
from outfield.images import size_of
from outfield.serve.batcher import Job
from outfield.serve.body import AT_ONCE, Bodies
from outfield.serve.inference_protocol import column_of, inputs_of
from outfield.serve.limits import Limits, Refused, Settings, busy
from outfield.serve.models import Model, load_models
from outfield.serve.telemetry import Counts

Image = bytes | np.ndarray
T = TypeVar("T")


class Work:
    """Turns requests into verdicts, all within their time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pool = ThreadPoolExecutor(2, "outfield decode")

    def stop(self) -> None:
        self._pool.shutdown()

    async def aside(self, function: Callable[..., T], body: bytearray, *others: object) -> T:
        """What a function makes of a body; of a long one in another thread, since all clients would wait for it here."""
        if len(body) <= AT_ONCE:
            return function(body, *others)
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(body, *others))

    async def images(self, model: Model, images: Sequence[Image], deadline: float) -> list[Verdict | OutfieldError]:
        """For each image its verdict, or why it could not be read."""
        guard = model.guard
        if guard.takes != "images":
            where, inputs = f"/v2/models/{model.name}/infer", ", ".join(inputs_of(guard))
            message = f"the guard {model.name} looks at rows, not at images; POST them to {where}, whose inputs are {inputs:.200}"
            raise Refused(400, message)
        self._check_count(len(images), "images")
        with self._room(model, len(images)):
            model.batcher.announce(len(images))
            try:
                loop = asyncio.get_running_loop()
                prepared = loop.run_in_executor(self._pool, self._prepare, guard, images, deadline)
                pixels = await self._in_time(prepared, deadline)
                good = [one for one in pixels if isinstance(one, Tensor)]
                if not good:
                    return [one for one in pixels if isinstance(one, OutfieldError)]
                answer = model.batcher.submit(Job(guard, torch.stack(good), deadline))
            finally:
                model.batcher.announce(-len(images))
            found = await self._in_time(asyncio.wrap_future(answer), deadline)
        verdicts = iter(found)
        return [next(verdicts) if isinstance(one, Tensor) else one for one in pixels]

    async def rows(
        self, model: Model, fields: Mapping[str, np.ndarray | list[bytes]], deadline: float
    ) -> list[Verdict]:
        guard = model.guard
        try:
            if guard.table is None:
                rows = _features(guard.widths, fields)
            else:
                rows = guard.table({name: column_of(name, value) for name, value in fields.items()})
        except OutfieldError as error:
            raise Refused(400, str(error)) from error
        self._check_count(len(rows), "rows")
        with self._room(model, len(rows)):
            answer = model.batcher.submit(Job(guard, rows, deadline))
            try:
                return await self._in_time(asyncio.wrap_future(answer), deadline)
            except InputError as error:
                raise Refused(400, str(error)) from error

    def _check_count(self, count: int, what: str) -> None:
        if count > self.limits.images:
            raise Refused(413, f"there are {count} {what} in the request; send at most {self.limits.images} at once")

    @contextlib.contextmanager
    def _room(self, model: Model, count: int) -> Iterator[None]:
        if model.accepted + count > self.limits.queue:
            raise busy(f"{model.accepted} {model.guard.reader.unit} are waiting for {model.name}")
        model.accepted += count
        try:
            yield
        finally:
            model.accepted -= count

    async def _in_time(self, work: asyncio.Future[T], deadline: float) -> T:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await work
        except TimeoutError as error:
            raise Refused(504, f"there was no answer within {self.limits.timeout:g} s") from error

    def _prepare(self, guard: Guard, images: Sequence[Image], deadline: float) -> list[Tensor | OutfieldError]:
        found = []
        for number, image in enumerate(images):
            if time.monotonic() > deadline:
                raise TimeoutError  # nobody waits for them any more, and others need the thread
            found.append(self._prepare_one(guard, image, number))
        return found

    def _prepare_one(self, guard: Guard, image: Image, number: int) -> Tensor | OutfieldError:
        where = f"image {number}"
        try:
            if isinstance(image, bytes):
                height, width = size_of(io.BytesIO(image), where)
            else:
                height, width = image.shape[:2]
            if height * width > (most := self.limits.pixels):
                raise InputError(f"{where} is too large: it has {height} × {width} pixels; at most {most:,} are taken")
            return guard.prepare(image)
        except OutfieldError as error:
            return type(error)(str(error).replace("the image", where))


def _features(widths: Mapping[str, int], fields: Mapping[str, np.ndarray | list[bytes]]) -> FeatureSet:
    """Rows whose fields were sent as they are."""
    if not set(widths) - {"logits"} <= set(fields) <= {*widths, "features", "logits"}:
        raise Refused(400, f"inputs are {', '.join(fields)}; this guard scores {', '.join(widths)}")
    tensors = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in fields.items()}
    return FeatureSet(**{"features": next(iter(tensors.values())), **tensors})


class Service:
    """Guards that are served; clients who name none get the first."""

    def __init__(self, paths: Sequence[Path], settings: Settings = Settings()) -> None:
        self.settings, self.counts = settings, Counts()
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
