"""Work handed out to the workers of a Ray cluster by Ray Data: each holds what it needs, and one that dies is replaced."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from outfield import errors
from outfield.errors import OutfieldError, StorageError
from outfield.extras import library

BLOCKS = 4096
"""Ray Data hands items out in at most so many pieces."""
AHEAD = 2
"""Items that a worker has at a time where there are many: Ray Data waits a tenth of a second for all that are under way before it
hands out more, and meanwhile a worker goes on with its second."""
MANY = 4
"""From so many items a worker on there are many. Where there are fewer, the second is left to a worker that starts later."""


def mapped(
    ray: Any,
    worker: type,
    arguments: Sequence[Any],
    items: Sequence[Mapping[str, Any]],
    *,
    workers: int,
    cpus: int = 1,
    gpus: int = 0,
) -> Iterator[dict[str, Any]]:
    """What workers say of items, as it comes.

    A worker that dies is started again by Ray, as often as it takes, and the items that it had are done again, the one that
    waited included.

    Args:
        ray: the library, connected.
        worker: a class; called with columns of one item, it gives columns of results; ``error`` among them is empty, or an error
            that is meant for people, see :func:`told`.
        arguments: of its constructor.
        items: rows of plain values.
        workers: how many there are, at most.
        cpus: cores that each of them uses.
        gpus: GPUs that each of them uses.

    Raises:
        OutfieldError: what a worker told.
        StorageError: the cluster failed.
    """
    data = library("ray.data", extra="ray")
    count = min(workers, len(items))
    with _quiet(data), _as_ours(ray):
        work = data.from_items([*items], override_num_blocks=min(len(items), BLOCKS)).map_batches(
            worker,
            batch_size=1,
            compute=data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=at_a_time(len(items), count)),
            fn_constructor_args=tuple(arguments),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        for row in work.iter_rows():
            if row["error"]:
                raise raised(row["error"])
            yield row


def at_a_time(items: int, workers: int) -> int:
    """How many items a worker is given at a time.

    >>> at_a_time(items=16, workers=2), at_a_time(items=7, workers=2)
    (2, 1)
    """
    return AHEAD if items >= MANY * workers else 1


def told(error: OutfieldError) -> str:
    """An error as a worker hands it on."""
    return f"{type(error).__name__}: {error}"


def raised(text: str) -> OutfieldError:
    """The error that a worker told.

    >>> raised(told(errors.InputError("k is 0")))
    InputError('k is 0')
    """
    kind, _, message = text.partition(": ")
    found = getattr(errors, kind, StorageError)
    return found(message) if issubclass(found, OutfieldError) else StorageError(message)


@contextmanager
def _as_ours(ray: Any) -> Iterator[None]:
    """Errors of the cluster as one of ours."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise StorageError(
            f"workers died or failed: {error!s:.500}; what they wrote is kept: run the same command again to go on"
        ) from error


@contextmanager
def _quiet(data: Any) -> Iterator[None]:
    """Ray Data without its own lines of progress; ours tells how far the work is."""
    context = data.DataContext.get_current()
    names = ("enable_progress_bars", "enable_auto_log_stats")
    before = {name: getattr(context, name) for name in names}
    logger = logging.getLogger("ray.data")
    level = logger.level
    for name in names:
        setattr(context, name, False)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
