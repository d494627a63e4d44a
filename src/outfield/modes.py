"""Where and how PyTorch computes and draws while our code, or a network of somebody else's, runs.

* A caller's modes (autocast, inference mode, default device), which belong to a thread, are set aside. The default type cannot
  be set for a thread, so our code names its types.
* Foreign networks draw from a generator of our own. PyTorch's global one belongs to the whole process: to set it to a seed and
  put it back would disturb other threads, and be disturbed by them.
* TF32 and bfloat16 inside of products of float32, and cuDNN's choice of algorithms, can only be set for the process: they are
  while a block of ours runs, see :class:`Switch`.
* A thread keeps to one core, or a few: OpenMP and MKL know a number of threads for each thread that calls them, and are told it
  directly. ``torch.set_num_threads`` would also change what threads that start later get.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outfield.config import require, require_number
from outfield.errors import InputError, as_ours

T = TypeVar("T")
Undo = Callable[[], None]
# Operations that make a new tensor of the default type where no type is given
FLOATING = ("empty", "eye", "linspace", "logspace", "ones", "rand", "randn", "zeros")
# Where PyTorch keeps OpenMP's and MKL's functions, or names the libraries that have them
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll", "libiomp5md.dll")


@contextlib.contextmanager
def own_modes(device: torch.device) -> Iterator[None]:
    """No autocast, no inference mode, and the CPU as the default device, while the block runs; ``device`` is where it works."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for kind in {"cpu", device.type}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        # a default device is a mode of functions, and it takes longer to ask for it than for such modes
        if torch._C._len_torch_function_stack() and torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def products(device: torch.device, precision: str = "float32") -> contextlib.AbstractContextManager[None]:
    """With "float32", its products on ``device`` in full while the block runs; with another precision as the process has them."""
    needed = precision == "float32" and (WITHOUT_TF32.holders or rounded_products(device))
    return WITHOUT_TF32.held() if needed else contextlib.nullcontext()


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
        self.holders = 0
        self._undo: Undo = lambda: None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self.holders:
                self._undo = self._change()
            self.holders += 1
        try:
            yield
        finally:
            with self._lock:
                self.holders -= 1
                if not self.holders:
                    self._undo()


def _changed(name: str, value: Any, *places: Any) -> Undo:
    """Make this setting where it is not so; what puts it back."""
    undo = contextlib.ExitStack()
    for place in places:
        if (before := getattr(place, name)) != value:
            undo.callback(setattr, place, name, before)
            setattr(place, name, value)
    return undo.close


def _turn_off_tf32() -> Undo:
    """Convolutions on a GPU, and matrix products anywhere, in full float32."""
    backends: Any = torch.backends
    cudnn = backends.cudnn
    if hasattr(backends, "fp32_precision"):
        # From the general to the special: what is not set reads as what is above it, so only what was set is written to.
        places = (backends, cudnn, cudnn.conv, cudnn.rnn, backends.cuda.matmul, backends.mkldnn, backends.mkldnn.matmul)
        return _changed("fp32_precision", "ieee", *places)
    undo = contextlib.ExitStack()  # before torch 2.9
    undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    undo.callback(_changed("allow_tf32", False, cudnn))
    torch.set_float32_matmul_precision("highest")
    return undo.close


WITHOUT_TF32 = Switch(_turn_off_tf32)
# cuDNN tries its algorithms for a convolution and chooses the fastest
FASTEST_CONVOLUTIONS = Switch(lambda: _changed("benchmark", True, torch.backends.cudnn))


def resolve_device(device: str | torch.device) -> torch.device:
    """A device by its name, which must keep numbers and compute in float64; "auto" is a GPU where there is one, else the CPU."""
    if not isinstance(device, str | torch.device):
        raise InputError(f'device is {device!r}; it must be a name, such as "cpu", "cuda" or "auto", or a torch.device')
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with as_ours(f"device {str(device)!r} cannot be used here", InputError, after="; use cpu, auto, or cuda"):
        found = torch.device(device)
        if found.type == "cpu":
            return torch.device("cpu")  # an index has no meaning there
        torch.ones(1, dtype=torch.float64, device=found).item()
        return found


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
    found: dict[str, Any] = {}
    for name in LIBRARIES:
        with contextlib.suppress(OSError):  # not of this system
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            for setter in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
                if hasattr(library, setter):
                    found.setdefault(setter, getattr(library, setter))
    return found
