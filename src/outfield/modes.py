"""Where and how PyTorch computes and draws while our code, or a network of somebody else's, runs.

* A caller's modes (autocast, inference mode, default device) are set aside, and products of float32 are taken in full. These
  belong to a thread; nothing process-wide is changed. The default type cannot be set for a thread, so our code names its types.
* Foreign networks draw from a generator of our own. PyTorch's global one belongs to the whole process: to set it to a seed and
  put it back would disturb other threads, and be disturbed by them.
* TF32 inside of convolutions, and cuDNN's choice of algorithms, can only be set for the process: see :class:`Switch`.
* A thread keeps to one core, or a few: OpenMP and MKL know a number of threads for each thread that calls them, and are told it
  directly. ``torch.set_num_threads`` would also change what threads that start later get.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outfield.config import require, require_number
from outfield.errors import InputError

T = TypeVar("T")
Product = Callable[[Tensor, Tensor], Tensor]
Undo = Callable[[], None]
# Operations that make a new tensor of the default type where no type is given
FLOATING = ("empty", "eye", "linspace", "logspace", "ones", "rand", "randn", "zeros")
# Where PyTorch keeps OpenMP's and MKL's functions, or names the libraries that have them
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll", "libiomp5md.dll")


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


class Seeded(TorchDispatchMode):
    """In the block this thread draws from generators of its own, as the global one would; ``drew`` says whether it did."""

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
                if device not in self._generators:
                    self._generators[device] = torch.Generator(device).manual_seed(self.seed)
                return taking(*args, **(kwargs | {"generator": self._generators[device]}))
        return func(*args, **kwargs)


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


class Switch:
    """A process-wide setting that several threads may need: the first makes it by ``change``, the last calls what that gave."""

    def __init__(self, change: Callable[[], Undo]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._holders = 0
        self._undo: Undo | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._undo = self._change()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders and self._undo is not None:
                    self._undo()


def _changed(settings: Sequence[tuple[Any, str, Any]]) -> Undo:
    """Make settings (place, name, value) where they are not so; what puts them back."""
    before = []
    for place, name, value in settings:
        if getattr(place, name) != value:
            before.append((place, name, getattr(place, name)))
            setattr(place, name, value)

    def put_back() -> None:
        for one in reversed(before):
            setattr(*one)

    return put_back


def _turn_off_tf32() -> Undo:
    """Convolutions and matrix products in full float32 on a GPU."""
    backends: Any = torch.backends
    cudnn = backends.cudnn
    if hasattr(backends, "fp32_precision"):
        # From the general to the special: what is not set reads as what is above it, so only what was set is written to.
        places = (backends, cudnn, cudnn.conv, cudnn.rnn, backends.cuda.matmul)
        return _changed([(place, "fp32_precision", "ieee") for place in places])
    of_products = torch.get_float32_matmul_precision()  # before torch 2.9
    of_convolutions = _changed([(cudnn, "allow_tf32", False)])
    torch.set_float32_matmul_precision("highest")

    def put_back() -> None:
        of_convolutions()
        torch.set_float32_matmul_precision(of_products)

    return put_back


WITHOUT_TF32 = Switch(_turn_off_tf32)
# cuDNN tries its algorithms for a convolution and chooses the fastest
FASTEST_CONVOLUTIONS = Switch(lambda: _changed([(torch.backends.cudnn, "benchmark", True)]))


def resolve_device(device: str | torch.device) -> torch.device:
    """A device by its name, which must keep numbers and compute in float64; "auto" is a GPU where there is one, else the CPU."""
    if not isinstance(device, str | torch.device):
        raise InputError(f'device is {device!r}; it must be a name, such as "cpu", "cuda" or "auto", or a torch.device')
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        if found.type == "cpu":
            return torch.device("cpu")  # an index has no meaning there
        if torch.ones(1, dtype=torch.float64, device=found).add(1).item() == 2:
            return found
        reason = "it does not keep numbers"
    except Exception as error:  # every kind of device has kinds of errors of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise InputError(f"device {str(device)!r} cannot be used here ({reason[:200]}); use cpu, auto, or cuda")


def limited_worker(name: str, threads: int = 1) -> ThreadPoolExecutor:
    """A pool of one thread, whose operations run on this many cores wherever :func:`can_limit` says so."""
    return ThreadPoolExecutor(1, name, lambda: _limit_this_thread(threads))


def on_one_core(work: Callable[[], T]) -> T:
    """The result of ``work``, done on one core where that can be had."""
    with one_core():
        return work()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread's operations run on one core in the block: for work that is done before another core has woken up."""
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
