"""A Ray cluster: the one that this process is connected to, one that runs already, or a new one on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outfield.config import require_number
from outfield.errors import InputError, StorageError
from outfield.extras import library
from outfield.files.paths import reason

LOCAL = "local"
ANSWER = 10.0
"""Seconds that a cluster may take to answer at its address."""
STORE = 256 * 2**20
"""Bytes of shared memory of a new cluster, besides what has to lie there: work and results go through files."""


@contextmanager
def connected(address: str = LOCAL, cpus: int | None = None, content: int = 0) -> Iterator[Any]:
    """The module ``ray``, connected while the context lasts. A connection that is there already is used, and stays.

    Args:
        address: "local" starts a cluster on this machine; "auto" finds one that runs; else where one listens.
        cpus: cores of a new cluster; all of the machine if None.
        content: bytes that will lie in its shared memory.

    Raises:
        MissingExtraError: Ray is not installed.
        StorageError: there is no cluster at the address, or a new one does not start.
    """
    ray = library("ray", extra="ray")
    if ray.is_initialized():
        yield ray
        return
    if not isinstance(address, str) or not address:
        raise InputError(
            f"address is {address!r}; it must be local, auto, or where a cluster listens, such as host:6379"
        )
    if ":" in address:
        _answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE + 2 * content}
        settings |= {**own, "_temp_dir": os.environ.get("RAY_TMPDIR")}
    try:
        ray.init(address=address, **settings)
    except Exception as error:  # a cluster that cannot be had leads to errors of many kinds
        where = "no Ray cluster could be started here" if address == LOCAL else f"there is no Ray cluster at {address}"
        raise StorageError(f"{where}: {error!s:.500}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Find out whether somebody listens at ``HOST:PORT``; Ray would go on asking for minutes.

    Raises:
        InputError: it is no such address.
        StorageError: nobody does.
    """
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(
            f"address is {address!r}; it must be local, auto, or where a cluster listens, such as host:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except OSError as error:
        raise StorageError(f"there is no Ray cluster at {address}: {reason(error)}") from error


def workers_of(ray: Any, workers: int | None, threads: int) -> int:
    """How many workers of so many threads there will be: as many as the cluster has cores for, if nobody says.

    Raises:
        InputError: the cluster has fewer cores than they need.
    """
    cores = int(ray.cluster_resources().get("CPU", 0))
    if workers is None:
        workers = max(1, cores // threads)
    require_number("workers", workers, least=1, whole=True)
    if workers * threads > cores:
        raise InputError(
            f"workers is {workers}, of {threads} threads each, but the cluster has {cores} cores; take "
            f"{max(1, cores // threads)} workers or fewer"
        )
    return workers
