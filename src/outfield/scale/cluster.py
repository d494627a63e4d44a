"""A Ray cluster, that runs already or is started here, and work for its workers by Ray Data."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outfield import errors
from outfield.config import require_number
from outfield.errors import InputError, OutfieldError, StorageError, as_ours
from outfield.extras import library

LOCAL = "local"
STORE = 256 * 2**20  # bytes of shared memory of a new cluster, besides what has to lie there: results go through files
RETRIES = 4  # how often work is done again whose worker died: what kills one worker would kill every worker after it
BLOCKS = 4096  # pieces in which Ray Data hands items out, at most


@contextmanager
def connected(address: str = LOCAL, cpus: int | None = None, content: int = 0) -> Iterator[Any]:
    """The module ``ray``, connected while the context lasts. A connection that is there already is used, and stays.

    The address "local" starts a cluster of ``cpus`` cores on this machine, by default of all, for ``content`` bytes in shared
    memory; "auto" finds one that runs; else it is where one listens.
    """
    ray = library("ray", extra="ray")
    if ray.is_initialized():
        yield ray
        return
    _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    wrong = f"there is no Ray cluster at {address}"
    if address == LOCAL:
        settings |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE + 2 * content}
        settings["_temp_dir"], wrong = os.environ.get("RAY_TMPDIR"), "no Ray cluster could be started here"
    with as_ours(wrong, StorageError):
        ray.init(address=address, **settings)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Find out whether anything listens at ``HOST:PORT``; Ray would go on trying for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not address or (":" in address and not (host and port.isdecimal() and 0 < int(port) < 2**16)):
        right = "it must be local, auto, or where a cluster listens, such as host:6379"
        raise InputError(f"address is {address!r}; {right}")
    if host:
        with as_ours(f"there is no Ray cluster at {address}", StorageError, OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def worker_count(ray: Any, workers: int | None, threads: int = 1) -> int:
    """How many workers of this many threads there will be; by default as many as the cluster has cores for."""
    cores = int(ray.cluster_resources().get("CPU", 0))
    most = max(1, cores // threads)
    count = most if workers is None else workers
    require_number("workers", count, least=1, whole=True)
    if count * threads > cores:
        what = f"workers is {count}, of {threads} threads each, but the cluster has {cores} cores"
        raise InputError(f"{what}; take {most} workers or fewer")
    return count


def mapped(
    worker: type, arguments: tuple[Any, ...], items: list[dict[str, Any]], workers: int, cpus: int = 1, gpus: int = 0
) -> Iterator[dict[str, Any]]:
    """What workers say of items (rows of plain values), as it comes. Ray Data starts a worker that died, and its item, again.

    ``worker`` is a class: made with the arguments and called with columns of one item, it gives columns of results, ``error``
    among them: empty, or an :func:`error_text`, which is raised here. Each uses ``cpus`` cores and ``gpus`` GPUs.
    """
    data = library("ray.data", extra="ray")
    count = min(workers, len(items))
    # Ray Data waits a tenth of a second for all that is under way before it hands out more; meanwhile a worker goes on with its
    # second item. Where there are few, the second is left to a worker that starts later.
    at_a_time = 2 if len(items) >= 4 * count else 1
    context = data.DataContext.get_current()
    context.enable_progress_bars = context.enable_auto_log_stats = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    work = data.from_items(items, override_num_blocks=min(len(items), BLOCKS)).map_batches(
        worker, batch_size=1, compute=data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=at_a_time),
        fn_constructor_args=arguments, num_cpus=cpus, num_gpus=gpus, max_task_retries=RETRIES,
    )  # fmt: skip
    for row in work.iter_rows():
        if row["error"]:
            raise error_of(row["error"])
        yield row


def error_text(error: OutfieldError) -> str:
    """An error as a worker hands it on."""
    return f"{type(error).__name__}: {error}"


def error_of(text: str) -> OutfieldError:
    """The error that a worker handed on.

    >>> error_of(error_text(errors.InputError("k is 0")))
    InputError('k is 0')
    """
    kind, _, message = text.partition(": ")
    found: OutfieldError = getattr(errors, kind, StorageError)(message)
    return found
