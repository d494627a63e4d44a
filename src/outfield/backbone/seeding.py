"""Random numbers of a library's or user's network from a generator of our own, and never from PyTorch's global one.

That one belongs to the whole process: to set it to a seed and put it back would disturb other threads, and be disturbed by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outfield.config import require_number

FLOATING = ("empty", "eye", "linspace", "logspace", "ones", "rand", "randn", "zeros")
"""What makes a new tensor of the default type where none is asked for."""


class Seeded(TorchDispatchMode):
    """While the block runs, random numbers of this thread come from generators of their own, one for each device.

    Every operation that draws is handed such a generator; with equal seeds it gives what the global one would.

    Args:
        seed: Of the generators, from 0.

    Attributes:
        drew: Whether anything has been drawn.

    Raises:
        InputError: There is no such seed.

    >>> with Seeded(3):
    ...     drawn = torch.rand(2)
    >>> bool((drawn == torch.rand(2, generator=torch.Generator().manual_seed(3))).all())
    True
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        require_number("seed", seed, least=0, most=2**63 - 1, whole=True)
        self.seed, self.drew = int(seed), False
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to keep compilers out of this mode PyTorch would import its own, which takes seconds

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave what a network has compiled as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            taking, device = _with_generator(func), _device(args, kwargs)
            if taking is not None and device.type != "meta":  # where there are no numbers to be drawn
                self.drew = True
                kwargs["generator"] = self._generator(device)
                return taking(*args, **kwargs)
        return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]


def _device(args: Any, kwargs: Any) -> torch.device:
    """Where an operation makes its result."""
    first = next((value for value in args if isinstance(value, Tensor)), None)
    return torch.device(kwargs.get("device") or "cpu") if first is None else first.device


def _with_generator(func: Any) -> Any:
    """An operation that draws, in the form that takes a generator; None if there is none (it can draw, but need not)."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = func._overloadname
    return getattr(func.overloadpacket, "generator" if name == "default" else f"{name}_generator", None)


class _Building(Seeded):
    """New tensors are float32 besides, whatever the default type, which belongs to the whole process too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.overloadpacket.__name__ in FLOATING and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextlib.contextmanager
def building(seed: int = 0) -> Iterator[None]:
    """What a network needs while it is built: a seed, float32, the CPU as the default device, and no inference mode."""
    with _Building(seed), torch.device("cpu"), torch.inference_mode(False):
        yield
