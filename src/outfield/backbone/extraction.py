"""One pass of a network over images: read and decoded in batches; precision, memory, modes and the way back are cared for."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from outfield.backbone.hooks import Observer, logits_of
from outfield.backbone.perturbation import Odin, Perturb
from outfield.backbone.preprocessing import TENSOR, Preprocessing, resize
from outfield.backbone.views import Views
from outfield.config import require, require_choice, require_number
from outfield.errors import InputError, MissingExtraError, OutfieldError, OutfieldWarning, StorageError, as_ours, reason
from outfield.features import MOST_STAGES
from outfield.files import as_tensor
from outfield.images import ImageArray, ImageSource, check_image
from outfield.modes import WITHOUT_TF32, Seeded
from outfield.progress import bar

if TYPE_CHECKING:
    from outfield.backbone.backbone import Backbone

Fields = dict[str, Tensor]
BYTES_AT_ONCE = 256 * 2**20  # Pixels of an array that are copied together, at most
# Pixels that a worker process hands over together; they lie in shared memory, which is often small
BYTES_OF_A_WORKER = 32 * 2**20
FEW = 256  # So many images are decoded before worker processes have started
ROWS = 512  # Images that are resized together where all of a source are read
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Of the images that a CPU is given at once, at most: more are no faster there, and progress would not show
PIXELS_ON_A_CPU = 2**19
# What a RuntimeError says that is not of the type it should be
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "ALLOC_FAILED", "out of memory")

# A lock for each network: a second thread's modes and hooks must not come in between
IN_USE: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


# Reading


def read(
    images: ImageSource,
    way: Preprocessing,
    rows: int,
    workers: int | None,
    pinned: bool,
    skipped: dict[int, str] | None = None,
) -> Generator[Tensor, None, None]:
    """The images in consecutive batches of bytes on the CPU, at most ``rows`` (n, h, w, channels).

    An array that needs no work of Pillow keeps its height and width: the device resizes it. ``skipped`` gets the numbers of
    images that cannot be read, and why; if None, the first of them is an error.
    """
    if workers is not None:
        require_number("workers", workers, least=0, most=1024, whole=True)
    if isinstance(images, ImageArray) and (way.interpolation == TENSOR or way.keeps(images.size)):
        return _slices(images.images, _at_most(BYTES_AT_ONCE, images.size, rows), pinned)
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = 0 if len(images) < FEW else min(8, cores)
    rows = _at_most(BYTES_AT_ONCE, way.size, rows)
    if workers:
        rows = _at_most(BYTES_OF_A_WORKER, way.size, min(rows, max(32, math.ceil(len(images) / workers))))
    return _decoded(_Batches(images, way, rows, skipped), workers, pinned)


def read_all(images: ImageSource, size: tuple[int, int], workers: int | None = None) -> Tensor:
    """All images as bytes (N, 3, h, w) on the CPU, channels last, resized; an array of this size is handed out uncopied."""
    if isinstance(images, ImageArray) and images.size == tuple(size):
        return as_tensor("images", np.ascontiguousarray(images.images)).permute(0, 3, 1, 2)
    way = Preprocessing(size, interpolation=TENSOR)
    pixels = torch.empty(len(images), *size, 3, dtype=torch.uint8, device="cpu")
    done = 0
    with (
        bar(f"reading {images.name}", len(images), "images") as advance,
        contextlib.closing(read(images, way, ROWS, workers, pinned=False)) as batches,
    ):
        for batch in batches:
            pixels[done : done + len(batch)] = resize(batch, size)
            done += len(batch)
            advance(done)
    return pixels.permute(0, 3, 1, 2)


def _at_most(bytes_: int, size: tuple[int, int], rows: int) -> int:
    """So many images, or as many as go into so many bytes."""
    return min(rows, max(1, bytes_ // (3 * math.prod(size))))


def _slices(images: np.ndarray, rows: int, pinned: bool) -> Generator[Tensor, None, None]:
    for start in range(0, len(images), rows):
        piece = images[start : start + rows]
        batch = torch.empty(piece.shape, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        np.copyto(batch.numpy(), piece)
        yield batch


class _Batches(Dataset[Any]):
    """Whole batches by number, decoded and resized, each with the numbers of images that it lacks, and why."""

    def __init__(self, images: ImageSource, way: Preprocessing, rows: int, skipped: dict[int, str] | None) -> None:
        self.images, self.way, self.rows, self.skipped = images, way, rows, skipped

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, dict[int, str]] | Exception:
        chosen = range(number * self.rows, min((number + 1) * self.rows, len(self.images)))
        batch = torch.empty(len(chosen), *self.way.size, self.way.channels, dtype=torch.uint8, device="cpu")
        missing: dict[int, str] = {}
        for index in chosen:
            try:
                batch[index - chosen.start - len(missing)] = self._image(index)
            except OutfieldError as error:
                if self.skipped is None or isinstance(error, MissingExtraError):
                    return error  # as a value: raised, it would be handed on wrapped in the traceback of a worker
                missing[index] = str(error)
        return batch[: len(chosen) - len(missing)], missing

    def _image(self, index: int) -> Tensor:
        what = f"image {index} of {self.images.name}"
        with as_ours(f"{what} cannot be read", StorageError):  # a source may be anybody's
            image = self.images[index]
        check_image(image, what)
        with as_ours(what, InputError, InputError):
            return torch.from_numpy(self.way.pixels(image))


def _decoded(batches: _Batches, workers: int, pinned: bool) -> Generator[Tensor, None, None]:
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pinned,
        worker_init_fn=_leave_interrupts,
        generator=torch.Generator(),  # it draws a seed, which must not come from the global random state
    )
    try:
        for found in loader:
            if isinstance(found, Exception):
                raise found
            batch, missing = found
            if batches.skipped is not None:
                batches.skipped.update(missing)
            if len(batch):
                yield batch
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        what = "a process that decodes images died, perhaps for lack of (shared) memory"
        raise StorageError(f"{what}; use fewer workers than {workers}, or none (--workers 0)") from error


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches the whole group of processes; the one that waits for the others ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# The pass


class _Flight(NamedTuple):
    """A batch that the device works on; its fields on the CPU are complete once it has arrived."""

    start: int
    pixels: Tensor
    fields: Fields
    finite: Tensor
    arrived: torch.cuda.Event | None


class Extraction:
    """A backbone's network over many images; the settings are those of :meth:`outfield.Backbone.extract`."""

    def __init__(
        self,
        backbone: Backbone,
        odin: Odin | None = None,
        precision: str = "auto",
        stages: bool = False,
        views: Views | None = None,
        perturb: Perturb | None = None,
    ) -> None:
        require(odin is None or isinstance(odin, Odin), "odin", odin, "an outfield.Odin, or None")
        require(perturb is None or isinstance(perturb, Perturb), "perturb", perturb, "an outfield.Perturb, or None")
        require(isinstance(stages, bool | np.bool_), "stages", stages, "True or False")
        if odin is not None and perturb is not None:
            raise InputError("odin and perturb both move the images; extract twice, with one of them each")
        self.network, self.device, self.expects = backbone.network, backbone.device, backbone.preprocessing
        self.odin, self.perturb, self.views = odin, perturb, views or Views.of(1)
        if (odin is not None or perturb is not None) and not getattr(self.network, "gives_gradients", True):
            what = f"{'perturb' if odin is None else 'odin'} needs gradients, which {backbone.name} does not give"
            raise InputError(f"{what}: ONNX Runtime only runs forward")
        self._type = next((p.dtype for p in self.network.parameters() if p.is_floating_point()), torch.float32)
        self._half = _autocast_type(precision, self._type, self.device)
        self._prepare = self.expects.preparation(self.device, self._type, layout_of(self.network))
        self._observe = Observer(self.network, backbone.head, bool(stages))
        self._rows = 0
        self._warned: set[str] = set()
        self._random: Seeded | None = Seeded()

    def at_once(self, rows: int) -> int:
        """How many images are best given to the network at once, of at most so many."""
        if self.device.type != "cpu":
            return rows
        # with one thread PyTorch leaves 1 × 1 convolutions of up to 16 images to a slow loop: half the speed of a MobileNet
        least = 17 if torch.get_num_threads() == 1 else 1
        return min(rows, max(least, PIXELS_ON_A_CPU // math.prod(self.expects.size)))

    def run(self, batches: Iterable[Tensor], rows: int) -> Generator[tuple[int, Fields], None, None]:
        """The number of the first image and the fields, in float32 on the CPU, piece by piece; ``rows`` halve where memory ends.

        Batches are bytes (n, H, W, 3) or (n, H, W, 1), or what the network takes, floating numbers (n, C, h, w).
        """
        self._rows = rows
        flying: _Flight | None = None
        start = 0
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        gradients = self.odin is not None or self.perturb is not None
        with evaluation_mode(self.network, gradients), on_device:
            for pixels in batches:
                for flight in self._launch(start, pixels, self._half):
                    if flying is not None:  # the device has work while the batch before is looked at
                        yield from self._land(flying, self._half)
                    flying = flight
                start += len(pixels)
            if flying is not None:
                yield from self._land(flying, self._half)

    def last_layer(self) -> Fields:
        """``head_weight`` (K, D) and ``head_bias`` (K,) once the network has run, where logits are that layer of the features."""
        found = zip(("head_weight", "head_bias"), self._observe.last_layer or (), strict=False)
        return {name: value for name, value in found if value is not None}

    def only(self, names: Collection[str]) -> None:
        """Once the network has run: give of the spread and the stages those of these names alone."""
        known = ("spread", *(f"stage{i}" for i in range(1, MOST_STAGES + 1)))
        self._observe.only({number for number, name in enumerate(known) if name in names})

    def about(self) -> dict[str, str]:
        """What is known of the fields once the network has run: the views, the perturbation, the module behind each stage."""
        stages = {f"stage{i}": name for i, name in enumerate(self._observe.stage_names, 1)}
        perturbed = {} if self.perturb is None else {"perturb": str(self.perturb)}
        return {"views": str(self.views), **perturbed, **stages}

    def _launch(self, start: int, pixels: Tensor, half: torch.dtype | None) -> Iterator[_Flight]:
        """Start the network on a batch, in pieces that memory holds."""
        done = 0
        while done < len(pixels):
            piece = pixels[done : done + self._rows]
            flight = self._try(start + done, piece, half)
            if flight is None:
                self._halve(len(piece))
            else:
                yield flight
                done += len(piece)

    def _try(self, start: int, pixels: Tensor, half: torch.dtype | None) -> _Flight | None:
        """One piece, or None if memory ended."""
        try:
            with arithmetic(self.device, half), self._random or contextlib.nullcontext():
                fields = self.fields(pixels)
            if self._random is not None and not self._random.drew:
                self._random = None  # a network that draws does so in its first pass
            # What is not finite is not 0 after this; isfinite takes three times as long.
            finite = torch.cat([value.flatten() for value in fields.values()]).mul(0).sum() == 0
            if self.device.type != "cuda":
                return _Flight(start, pixels, {name: value.cpu() for name, value in fields.items()}, finite, None)
            here = {name: _copied_back(value) for name, value in fields.items()}
            finite, arrived = _copied_back(finite), torch.cuda.Event()
            arrived.record()
            return _Flight(start, pixels, here, finite, arrived)
        except OutfieldError:
            raise
        except Exception as error:  # a network may be anybody's
            if not is_out_of_memory(error):
                shape = (len(pixels), len(self.expects.mean), *self.expects.size)
                said = f"{type(error).__name__}: {reason(error)}"
                raise InputError(f"{type(self.network).__name__} fails on images of shape {shape}: {said}") from error
        return None  # outside of the handler, which would hold on to the memory

    def fields(self, pixels: Tensor) -> Fields:
        """Every field of a batch, on the device: the mean over its views. :meth:`run` is what to call; an export traces this."""
        total: Fields = {}
        if pixels.is_floating_point():  # images that are normalised already
            images = pixels.to(self.device, self._type, copy=True, memory_format=layout_of(self.network))
        else:
            images = self._prepare(pixels)
        for view in self.views.each(images):
            fields = self._fields_of(view)
            # A field that a batch which is not finite lacks is not missed: the batch is done again.
            total = {name: total[name] + fields[name] for name in total if name in fields} or fields
        return {name: value / len(self.views) for name, value in total.items()} if len(self.views) > 1 else total

    def _perturbed(self, images: Tensor) -> Tensor:
        """Images moved as :class:`Perturb` does; as they are where features are not finite, and the batch is done again."""
        if self.perturb is None:
            return images
        with torch.enable_grad():
            features = self._observe.features_of(images.requires_grad_())
            if features is None:
                return images.detach()
            with torch.autocast(self.device.type, enabled=False):
                return self.perturb.perturb(images, features).detach()

    def _fields_of(self, images: Tensor) -> Fields:
        images = self._perturbed(images)
        with torch.enable_grad() if self.odin else contextlib.nullcontext():
            seen = self._observe(images.requires_grad_() if self.odin else images)
        fields = {"features": seen.features.detach(), "logits": seen.logits.detach().float()}
        if seen.spread is not None:
            fields["spread"] = seen.spread
        fields |= {f"stage{i}": stage for i, stage in seen.stages.items()}
        if self.odin is not None:
            with torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
                perturbed = self.odin.perturb(images, seen.logits).detach()
            fields["odin_logits"] = logits_of(self.network(perturbed), len(images)).float()
        return fields

    def _halve(self, rows: int) -> None:
        if rows == 1:
            height, width = self.expects.size
            what = f"the network and one image of {height} × {width}"
            raise InputError(f"the memory of {self.device} is too small for {what}; choose a smaller size or network")
        self._rows = (rows + 1) // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        told = f"the memory of {self.device} is too small for {rows} images at once; going on with {self._rows}"
        self._warn("memory", told)

    def _land(self, flight: _Flight, half: torch.dtype | None) -> Iterator[tuple[int, Fields]]:
        """Wait for a batch, and do it again in full precision if half precision was not enough."""
        if flight.arrived is not None:
            flight.arrived.synchronize()
        if bool(flight.finite):
            yield flight.start, flight.fields
        elif half is None:
            for name, value in flight.fields.items():
                bad = (~value.isfinite()).any(1).nonzero()
                if len(bad):
                    what = f"{name} that are not finite for image {flight.start + int(bad[0])}"
                    raise InputError(f"the network gives {what}; check its weights, mean and std")
        else:
            self._warn(
                "finite",
                f"outputs of the network are not finite in {str(half).removeprefix('torch.')}; such batches are done again in "
                "float32 (in Python precision='float32' does all of them so)",
            )
            for again in self._launch(flight.start, flight.pixels, None):
                yield from self._land(again, None)

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, OutfieldWarning, stacklevel=2)


def layout_of(network: nn.Module) -> torch.memory_format:
    """Channels last if the network's convolutions are so laid out; others may rely on the usual order (``x.view(N, -1)``)."""
    for parameter in network.parameters():
        channels_last = parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
        if channels_last and not parameter.is_contiguous():
            return torch.channels_last
    return torch.contiguous_format


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or this machine, had too little memory."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY))


def _autocast_type(precision: str, own: torch.dtype, device: torch.device) -> torch.dtype | None:
    require_choice("precision", precision, ("auto", *PRECISIONS))
    if own != torch.float32:
        if precision != "auto" and PRECISIONS[precision] != own:
            raise InputError(f"precision is {precision!r}, but the weights are {own}; use 'auto', or network.float()")
        return None
    if precision == "auto":
        return torch.float16 if device.type == "cuda" else None
    return None if precision == "float32" else PRECISIONS[precision]


def _copied_back(value: Tensor) -> Tensor:
    """A copy in pinned memory on the CPU, which is complete once the device has come that far."""
    return torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True).copy_(value, non_blocking=True)


@contextlib.contextmanager
def evaluation_mode(network: nn.Module, gradients: bool = True) -> Iterator[None]:
    """Evaluation mode without gradients of parameters, by one thread at a time; afterwards every module is as before."""
    with IN_USE.setdefault(network, threading.RLock()), torch.inference_mode(False), torch.no_grad():
        modules = _modules(network)
        modes = [module for module in modules if module.training]
        own = [p for module in modules for p in module._parameters.values()] if gradients else []
        learned = [parameter for parameter in own if parameter is not None and parameter.requires_grad]
        try:
            for module in modes:
                module.training = False  # one by one: ``network.eval()`` may be overridden to do more
            for parameter in learned:
                parameter.requires_grad_(False)
            yield
        finally:
            for module in modes:
                module.training = True
            for parameter in learned:
                parameter.requires_grad_(True)


def _modules(network: nn.Module) -> list[nn.Module]:
    """All modules of a network, each once; ``network.modules()`` would take a tenth of the time of one small image."""
    found = {network: None}
    left = [network]
    while left:
        for child in left.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                left.append(child)
    return [*found]


@contextlib.contextmanager
def arithmetic(device: torch.device, half: torch.dtype | None) -> Iterator[None]:
    """Autocast to ``half``; or, for None, full precision: on a GPU without TF32."""
    full = half is None and device.type == "cuda"
    with (
        WITHOUT_TF32.held() if full else contextlib.nullcontext(),
        torch.autocast(device.type, dtype=half, enabled=half is not None),
    ):
        yield
