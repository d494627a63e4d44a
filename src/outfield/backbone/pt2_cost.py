"""What a program costs, found before it is run: a file is anybody's, and one step of it could ask for all memory there is.

The steps are run once on PyTorch's device ``meta``, where tensors have sizes and no numbers. So a step that would make 10¹²
numbers, or a view of as many, is refused while nothing has been made yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from outfield.backbone.pt2_steps import Named, Step
from outfield.errors import FileFormatError, InputError, OutfieldError

META = torch.device("meta")
MOST_NUMBERS = 2**28
"""In one value, views among them: 256 images of 224 pixels behind the first layer of a ResNet are 2**27.6."""
MOST_BYTES = 2**33
"""Of all values that are needed at a time."""
MOST_WORK = 2 * 10**13
"""Additions and multiplications for the images of one run: two images of 560 pixels in a network of 10⁹ weights are 8 · 10¹²."""
MOST_STEPS = 10_000
MOST_PARTS = 2**16
"""Into which a value may be split by one step."""
SPLIT = ("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_split")
SLACK = 2
"""By how much more than with the number of images a cost may grow."""


class Cost(NamedTuple):
    """What a program needs for one run.

    Attributes:
        numbers: in its largest value.
        bytes: of all values that are needed at a time; a view is counted as if it were a copy.
        work: additions, multiplications, and numbers that are read or written.
    """

    numbers: int
    bytes: int
    work: int


LIMIT = Cost(MOST_NUMBERS, MOST_BYTES, MOST_WORK)


def cost_of(
    steps: Sequence[Step], ends: Mapping[int, list[str]], known: Mapping[str, Tensor], limit: Cost, source: str
) -> Cost:
    """Go through a program without running it.

    Args:
        steps: the program.
        ends: behind which step which values are not needed any more.
        known: weights and images; only their sizes and types are looked at.
        limit: what it may cost.
        source: where it comes from, for errors.

    Raises:
        InputError: it costs more than the limit.
        FileFormatError: a step fails.
    """
    if len(steps) > MOST_STEPS:
        raise InputError(f"{source} has {len(steps):,} steps; a network may have {MOST_STEPS:,}")
    try:
        values: dict[str, Any] = {name: _without_numbers(one) for name, one in known.items()}
        stored = set(known)
        held = sum(map(_bytes, values.values()))
        found = Cost(max(map(_numbers, values.values()), default=0), held, 0)
        _compare(found, limit, source)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            for number, step in enumerate(steps):
                taken = [values[name] for name in step.uses()]
                _check_parts(step, values, source)
                before = counter.get_total_flops()
                step.run(values, META)
                made = [values[name] for name in step.outputs if name in values]
                size = sum(map(_numbers, taken + made))
                held += sum(map(_bytes, made))
                work = int(counter.get_total_flops() - before) + size * _window(step)
                found = Cost(max(found.numbers, *map(_numbers, made), 0), max(found.bytes, held), found.work + work)
                _compare(found, limit, source)
                for name in ends.get(number, ()):
                    if name not in stored:
                        held -= _bytes(values.pop(name, None))
    except OutfieldError:
        raise
    except NotImplementedError as error:
        raise InputError(
            f"{source} has a step whose result has no size before it is run ({str(error)[:100]}); export the network to ONNX"
        ) from error
    except Exception as error:  # of PyTorch, by a program that is anybody's
        said = (str(error).splitlines() or [""])[0][:300]
        raise FileFormatError(f"{source} cannot be run: {type(error).__name__}: {said}") from error
    return found


def grown(cost: Cost, rows: int) -> Cost:
    """What as many images may cost where two cost ``cost``: networks take each image by itself."""
    return Cost(*(SLACK * one * max(rows, 2) // 2 for one in cost))


def _without_numbers(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)


def _numbers(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_numbers, value))
    return value.numel() if isinstance(value, Tensor) else 1


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _window(step: Step) -> int:
    """How many numbers a step of pooling takes for each one that it gives."""
    kernel = step.given().get("kernel_size") if "pool" in step.name else None
    sizes = [one for one in kernel if isinstance(one, int)] if isinstance(kernel, list) else []
    return max(1, math.prod(sizes) ** (2 if len(sizes) == 1 else 1))


def _check_parts(step: Step, values: Mapping[str, Any], source: str) -> None:
    """Refuse to split a value into more parts than there is memory for their names."""
    if step.base not in SPLIT:
        return
    given = step.given()
    first, dim = step.args[0] if step.args else None, given.get("dim", 0)
    whole = values[first.name] if isinstance(first, Named) else None
    length = whole.shape[dim] if isinstance(whole, Tensor) and isinstance(dim, int) else 0
    if length > MOST_PARTS:
        raise InputError(f"{source} splits {length:,} numbers by {step.name}; {MOST_PARTS:,} may be split at most")


def _compare(found: Cost, limit: Cost, source: str) -> None:
    told = {
        "numbers": "a value of {:,} numbers, where {:,} are the most",
        "bytes": "{:,} bytes of memory at a time, where {:,} are the most",
        "work": "{:,} operations, where {:,} are the most",
    }
    for name, text in told.items():
        asked, most = getattr(found, name), getattr(limit, name)
        if asked > most:
            raise InputError(
                f"{source} asks for {text.format(asked, most)}; export a network that asks for less, or the same one to ONNX"
            )
