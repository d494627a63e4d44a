"""A command that ``torchrun`` started in several processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from outfield.cli.messages import log
from outfield.errors import InputError
from outfield.progress import show_progress


def started() -> int:
    """How many processes ``torchrun`` started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


@contextmanager
def together(device: str) -> Iterator[tuple[bool, str]]:
    """Connect the processes; whether this is the one that writes and speaks, and the device that it has.

    Raises:
        InputError: There are fewer GPUs than processes of this machine.
    """
    if started() == 1:
        yield True, device
        return
    from torch import cuda, distributed

    from outfield.energy.shares import data_parallel

    local = int(os.environ["LOCAL_RANK"])
    on_gpu = device == "cuda" or (device == "auto" and cuda.is_available())
    if on_gpu:
        if cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
            raise InputError(
                f"there are {cuda.device_count()} GPUs for {os.environ['LOCAL_WORLD_SIZE']} processes; start fewer"
            )
        device = f"cuda:{local}"
        cuda.set_device(local)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        with data_parallel() as share:
            if share.rank:
                log.setLevel(logging.ERROR)
                show_progress(False)
            yield share.rank == 0, device
    finally:
        distributed.destroy_process_group()
