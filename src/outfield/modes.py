"""What a caller may have chosen for PyTorch code of its own and must not change ours, set aside for this thread alone.

Nothing process-wide is changed: autocast, inference mode, the default device and the way products are taken (a dispatch
mode) belong to a thread. The default type cannot be set for a thread, so that our code names its types.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outfield.config import require

Product = Callable[[Tensor, Tensor], Tensor]


def own_modes(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """No autocast, no inference mode, and the CPU as the default device, while the block runs; ``device`` is where it works."""
    kinds = ("cpu",) if device.type == "cpu" else ("cpu", device.type)
    autocast = any(torch.is_autocast_enabled(kind) for kind in kinds)
    # A default device is a mode of functions, and it takes longer to ask for it than for such modes.
    if not (autocast or torch.is_inference_mode_enabled() or torch._C._len_torch_function_stack()):
        return contextlib.nullcontext()
    return _own_modes(kinds)


@contextlib.contextmanager
def _own_modes(kinds: Sequence[str]) -> Iterator[None]:
    """The same, with modes on these kinds of devices that may have to be set aside."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def products(device: torch.device, precision: str = "float32") -> contextlib.AbstractContextManager[Any]:
    """Matrix products of float32 tensors on ``device`` in this precision while the block runs, whatever the process allows.

    "float32" is float32: where the process allows TF32 or bfloat16 inside products, the operands are split so that nothing
    is lost (three products for one), and on a CPU they are taken in float64. "tf32" has TF32's rounding on a GPU; its speed
    too where the process allows it (``torch.set_float32_matmul_precision("high")``). Any other name leaves all as it is.
    """
    less = rounded_products(device)
    if precision == "float32" and less:
        return _Products(_in_double if device.type == "cpu" else _in_parts)
    if precision == "tf32" and not less and device.type == "cuda":
        return _Products(_of_rounded)
    return contextlib.nullcontext()


def in_full(method: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A method of one tensor, with the caller's modes set aside and its products in full where the tensor is."""

    @functools.wraps(method)
    def undisturbed(self: Any, z: Tensor) -> Tensor:
        require(isinstance(z, Tensor), "z", z, "a tensor")
        with own_modes(z.device), products(z.device):
            return method(self, z)

    return undisturbed


def rounded_products(device: torch.device) -> bool:
    """Whether the process allows products of float32 tensors on this device to round their operands."""
    room: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    chosen = getattr(getattr(room, "matmul", None), "fp32_precision", None)
    if chosen is None:  # PyTorch before 2.9 has one setting for all devices
        return torch.get_float32_matmul_precision() != "highest"
    return chosen in ("tf32", "bf16")


class _Products(TorchDispatchMode):
    """Takes products of float32 matrices by a function (A, B) → A B that is given to it."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.product = product

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        matrices = args[-2:] if name in ("mm", "bmm") else args[1:3]
        if name not in ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_") or matrices[0].dtype != torch.float32:
            return func(*args, **kwargs)
        result = self.product(*matrices)
        if name not in ("mm", "bmm"):
            result, beta = result.mul_(kwargs.get("alpha", 1)), kwargs.get("beta", 1)
            result = result.add_(args[0], alpha=beta) if beta else result
        out = args[0] if name.endswith("_") else kwargs.get("out")
        return result if out is None else out.resize_(result.shape).copy_(result)


def _in_double(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).float()


def _in_parts(a: Tensor, b: Tensor) -> Tensor:
    """A = A₁ + A₂ with A₁ the leading bits that TF32 keeps; A₂ B₂ is 2⁻²² of the whole and left out."""
    a_high, b_high = _leading_bits(a), _leading_bits(b)
    return (a - a_high) @ b_high + a_high @ (b - b_high) + a_high @ b_high


def _of_rounded(a: Tensor, b: Tensor) -> Tensor:
    """TF32's product: each operand rounded to ten bits after the point, sums in float32."""
    return _leading_bits(a, round_off=True) @ _leading_bits(b, round_off=True)


def _leading_bits(x: Tensor, round_off: bool = False) -> Tensor:
    """x (float32) with the last 13 bits of its fraction cut, or rounded, off."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 4096 if round_off else bits) & -8192).view(torch.float32)
