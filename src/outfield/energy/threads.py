"""Threads that keep to one core each, or to a few, however many the rest of the program uses.

``torch.set_num_threads`` is no help: it also changes what threads that start later get. OpenMP and MKL know a number of threads
for each thread that calls them, and are told it directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll", "libiomp5md.dll")
"""Where PyTorch keeps OpenMP's and MKL's functions, or names the libraries that have them."""


def limited_worker(name: str, threads: int = 1) -> ThreadPoolExecutor:
    """A pool of one thread, whose operations run on this many cores wherever :func:`can_limit` says so."""
    return ThreadPoolExecutor(1, name, lambda: _limit_this_thread(threads))


def on_one_core(work: Callable[[], T]) -> T:
    """The result of ``work``, done on one core where that can be had."""
    with one_core():
        return work()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread's operations run on one core in the block, afterwards on as many as before; other threads see nothing of it.

    For work that is done before another core has woken up.
    """
    before = torch.get_num_threads()
    if before == 1 or not can_limit():
        yield
        return
    found = _setters()
    of_mkl = found.get("MKL_Set_Num_Threads_Local", lambda threads: 0)
    mkl_before = of_mkl(1)
    found["omp_set_num_threads"](1)
    try:
        yield
    finally:
        found["omp_set_num_threads"](before)
        of_mkl(mkl_before)


def can_limit() -> bool:
    """Whether a thread can be kept to one core here."""
    return "omp_set_num_threads" in _setters()


def _limit_this_thread(threads: int) -> None:
    torch.get_num_threads()  # PyTorch sets a new thread's number when it is first asked, which must not come later
    for setter in _setters().values():
        setter(threads)


@functools.cache
def _setters() -> dict[str, Any]:
    """OpenMP's and MKL's functions that set the calling thread's number of threads."""
    folder = Path(torch.__file__).parent / "lib"
    found: dict[str, Any] = {}
    for path in (folder / name for name in LIBRARIES):
        if not path.exists():
            continue
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
            if name not in found and hasattr(library, name):
                found[name] = getattr(library, name)
                found[name].argtypes = [ctypes.c_int]
    return found
