"""Detector: fit learns from features, score gives one number per row (higher = more OOD)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import torch
from torch import Tensor

from outfield.config import (
    arguments,
    construct,
    from_plain,
    require_choice,
    require_number,
    said_settings,
    shown,
    to_plain,
)
from outfield.detectors.registry import DETECTORS
from outfield.errors import (
    FileFormatError,
    InputError,
    MissingFieldError,
    NotFittedError,
    OutfieldError,
    OutfieldWarning,
    as_ours,
)
from outfield.features import (
    FIELDS,
    HEAD,
    NETWORK,
    TWO_CLASSES,
    FeatureSet,
    FeatureSource,
    agree,
    checked_about,
    has_head,
    spaces,
)
from outfield.files import PathLike, Record, fingerprint, read_record, write_record
from outfield.modes import own_modes, products, resolve_device
from outfield.progress import bar
from outfield.scores import marked
from outfield.version import __version__

if TYPE_CHECKING:
    from outfield.energy import Checkpoint
    from outfield.partners import StandIns

# scores are cut off here, so that a huge float64 logit gives a finite float32 score
LARGEST = torch.finfo(torch.float32).max

# what the header of a detector's file holds
ENTRIES: dict[str, type | tuple[type, ...]] = {
    "detector": str, "settings": dict, "width": (int, NoneType), "notes": dict,
}  # fmt: skip

Batch = dict[str, Tensor]


class Detector(ABC):
    """Base of all detectors. Constructor arguments are settings and are only stored; what is learned ends in ``_``.

    A subclass gives ``_fit``, ``_score`` for one piece of rows, and names what it learns in ``learned``; checking, chunking,
    devices and files are done here.
    """

    learned: ClassVar[tuple[str, ...]] = ()
    """The tensors that fit learns, with type and shape: ``"means float64 K D"`` is ``means_``, on the device.

    D is the width of what is scored, a digit stands for itself, and any other letter for one number wherever it stands. A type
    with a plus, ``float64+``, is of numbers that are all above 0.
    """
    fit_needs: ClassVar[tuple[str, ...]] = ()
    """Fields that fit uses besides features; what one detector needs may depend on its settings: :attr:`needs_to_fit`."""
    score_needs: ClassVar[tuple[str, ...]] = ("features",)
    """Fields that score uses."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Fields that fit may use where they are there, and score then."""
    rows_at_once: ClassVar[int] = 4096
    """Rows scored together: memory grows with this, not with the number of rows."""
    fits_in_pieces: ClassVar[bool] = False
    """Whether ``_fit`` takes any FeatureSource, reading it in batches; else it gets all in memory."""
    uses_held_out: ClassVar[bool] = False
    """Whether ``fit`` calibrates on ``held_out``, and ``threshold`` then needs no other rows."""
    uses_stand_ins: ClassVar[bool] = False
    """Whether ``fit`` chooses by ``stand_ins``; what it took is in ``choice_``."""
    uses_checkpoint: ClassVar[bool] = False
    """Whether a running ``fit`` is kept in ``checkpoint``."""
    trained: ClassVar[bool] = False
    """Whether it is trained by gradients: it has ``fit_seeds`` and, fitted, ``history_``."""
    combined: ClassVar[bool] = False
    """Whether it is made of other detectors, ``members_``."""

    added_settings: ClassVar[Mapping[str, Any]] = {"on": "features"}
    """Settings, by their names in files, that are not written down where they have this value."""
    renamed_settings: ClassVar[Mapping[str, str]] = {"on": "field"}
    """Settings that have an older name, which files keep and constructors still take: old → new."""
    field: str = "features"
    """The field that is taken for the features. A detector with a setting of this name works on any stage of a network."""

    _device: str = "auto"
    _fitted: bool = False
    _told: Mapping[str, Any]  # the notes of the file that it comes from
    _fingerprint: str | None = None  # kept from its first use on, until the next fit
    _width: int | None = None  # width of the first field in score_needs that fit saw, or None where fit saw none
    # what the training data said of the fields that are scored: the network, the views, and of a stage its name
    _about: Mapping[str, str] = MappingProxyType({})

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__init__" in cls.__dict__:
            cls.__init__ = _taking_old_names(cls.__init__)  # type: ignore[method-assign]

    @property
    def on(self) -> str:
        """``field`` as version 0.1 called it."""
        return self.field

    @on.setter
    def on(self, name: str) -> None:
        self.field = name

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        """Fields that fit of this detector, with its settings, uses besides the features (or what ``field`` names)."""
        return self.fit_needs

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        """Fields that score of this detector, with its settings, uses."""
        return tuple(self.field if name == "features" else name for name in self.score_needs)

    def to(self, device: str | torch.device) -> Self:
        """Fit and score on this device ("cpu", "cuda", "auto" for a GPU where there is one)."""
        resolve_device(device)
        self._device = str(device)
        self._moved()
        return self

    def _moved(self) -> None:
        """Move what was learned to the device; called when that changed and after loading."""
        for inner in self._inside().values():
            if inner._device != self._device:
                inner.to(self._device)
        for name in self._learned():
            if hasattr(self, name):
                setattr(self, name, getattr(self, name).to(self.device))

    def _inside(self) -> Mapping[str, Detector]:
        """The fitted detectors that it consists of, by what stands in front of their tensors' names in a file."""
        return {}

    def _learned(self) -> list[str]:
        """The attributes that ``learned`` names."""
        return [f"{said.split()[0]}_" for said in self.learned]

    @property
    def device(self) -> torch.device:
        """Where fit and score run."""
        return resolve_device("auto") if self._device == "auto" else torch.device(self._device)

    def fit(
        self,
        train: FeatureSource,
        *positional: Any,
        held_out: FeatureSource | None = None,
        stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]] | None = None,
        checkpoint: PathLike | Checkpoint | None = None,
    ) -> Self:
        """Learn from ID training data; returns self.

        What a detector has no use for, it ignores: ``uses_held_out``, ``uses_stand_ins`` and ``uses_checkpoint`` say which.

        Args:
            train: a FeatureSet, or a FeatureStream (:func:`outfield.open_features`), which detectors that need not hold all
                data read in pieces.
            held_out: ID rows that neither the detector nor, at best, the network was trained on, for calibration. A detector
                that needs some keeps a share of the training rows where there are none.
            stand_ins: what stands for OOD data, as :func:`outfield.choose` takes it. Without them nothing is chosen: those
                that can be made of features (:func:`outfield.feature_stand_ins`) tell too little.
            checkpoint: a file in which the running fit is kept: every 30 seconds, at the end, and when it is interrupted
                (Ctrl-C). If it exists, the fit goes on from there; on the CPU it ends with the same bits as one that was
                never interrupted.

        Raises:
            InputError: a setting of a wrong type or value, held-out rows that are training rows, or a checkpoint of another
                fit.
            MissingFieldError: ``train`` lacks a field that this detector learns from.
            TooFewSamplesError: too few rows to learn from, or to calibrate.
            DivergenceError: energies became non-finite or exploded; the message says what to change.
            FileFormatError: the checkpoint is damaged, or was written by another version.
            StorageError: the checkpoint cannot be written, which is found before any work.
        """
        if positional:
            warnings.warn("give held_out and stand_ins by their names", DeprecationWarning, stacklevel=2)
            held_out, stand_ins = (*positional, stand_ins)[:2]
        given = {"held_out": held_out, "stand_ins": stand_ins, "checkpoint": checkpoint}
        used = {name: value for name, value in given.items() if getattr(self, f"uses_{name}")}
        # Members of a combined detector, and training, take care of their own products.
        own = self.combined or self.trained
        with self._fitting(train, "fit") as data, contextlib.nullcontext() if own else products(self.device):
            self._fit(data if self.fits_in_pieces else data.in_memory(), **used)  # type: ignore[arg-type]
        return self

    @classmethod
    def suited(cls, smallest: int) -> Self:
        """One with default settings, for training rows of which the smallest class has so many: a detector that is named."""
        return cls()

    @final
    def fresh(self, **changed: Any) -> Self:
        """One with the same settings, but for those that are given, and not fitted."""
        made: Self = construct(type(self), arguments(self) | changed)
        return made

    @final
    def check_settings(self) -> None:
        """Refuse settings of a wrong type or value. A constructor only stores them; fit asks here before it looks at the data.

        Raises:
            InputError: names the setting, its value and what would be right.
        """
        require_choice("field", self.field, spaces())
        self._check_settings()
        self._settings()

    def _check_settings(self) -> None:
        """Refuse settings that this class does not take, with ``require_number`` and ``require``."""

    def _settings(self) -> dict[str, Any]:
        """The settings, ready for JSON."""
        plain = {}
        for name, value in said_settings(self).items():
            with as_ours(f"{name} is {shown(value)}", InputError, InputError):
                plain[name] = to_plain(value)
        return plain

    @contextlib.contextmanager
    def _fitting(self, data: FeatureSource, what: str, needs: Sequence[str] | None = None) -> Iterator[FeatureSource]:
        """Check settings and data, give the data with what ``field`` names called features, and undo a fit that fails."""
        self.check_settings()
        accept(type(self).__name__, data, (self.field, *self.needs_to_fit) if needs is None else tuple(needs), what)
        before = dict(self.__dict__)
        try:
            with own_modes(self.device):
                yield data.on(self.field)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        shape = data.shapes.get(self.needs_to_score[0])
        self._width = None if shape is None else shape[1]
        kept = ("views", NETWORK, *self.needs_to_score)
        self._about = {name: text for name, text in data.about.items() if name in kept}
        self._fitted, self._fingerprint = True, None

    @final
    def score(self, test: FeatureSource) -> Tensor:
        """One float32 score per row (N,), on the CPU; higher = more OOD.

        Args:
            test: a FeatureSet or a FeatureStream.

        Raises:
            NotFittedError: fit was not called.
            MissingFieldError: ``test`` lacks a field that this detector scores.
            InputError: features of another width than those it was fitted on.
        """
        self._check_to_score(test)
        done, title = 0, f"scoring with {type(self).__name__}"
        with self._scoring(), bar(title, len(test), "samples") as advance:
            # Filled in place: small results kept between large temporaries would split the heap.
            scores = torch.empty(len(test), dtype=torch.float32)
            for batch in self._batches(test):
                piece = self._score(batch).clamp(-LARGEST, LARGEST)
                scores[done : done + len(piece)] = piece
                done += len(piece)
                advance(done)
        return marked(scores, self.fingerprint())

    def _check_fitted(self) -> None:
        if not self._fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit(train) or load a saved one first")

    def _check_to_score(self, test: FeatureSource) -> None:
        """Refuse to score before fit, and rows that cannot be scored."""
        self._check_fitted()
        accept(type(self).__name__, test, self.needs_to_score, "score")
        self._check_rows(test)

    @contextlib.contextmanager
    def _scoring(self) -> Iterator[None]:
        device = self.device
        with own_modes(device), products(device), torch.no_grad():
            yield

    def _batches(self, data: FeatureSource) -> Iterator[Batch]:
        """Rows as ``_score`` takes them: on the device, what ``field`` names called features."""
        device = self.device
        for batch in data.batches(self._rows(), self.needs_to_score):
            yield {name: value.to(device) for name, value in self._own(batch).items()}

    def _own(self, batch: Batch) -> Batch:
        """What it scores of a batch, with what ``field`` names called features."""
        return {"features" if name == self.field else name: batch[name] for name in self.needs_to_score}

    def _read(self, data: FeatureSource, *names: str) -> Iterator[list[Tensor]]:
        """These fields of some rows at a time, on the device."""
        for piece in data.batches(self.rows_at_once, names):
            yield [piece[name].to(self.device) for name in names]

    def _rows(self) -> int:
        return self.rows_at_once

    def _widths(self) -> dict[str, int | None]:
        """The columns of the fields that it scores, where it knows them."""
        return {self.needs_to_score[0]: self._width}

    def _check_rows(self, data: FeatureSource) -> None:
        """Refuse rows of another width, and of another network, stage or view, as far as both sides name theirs."""
        for name, fitted in self._widths().items():
            width = data.shapes[name][1]
            if fitted not in (None, width):
                what = f"{name} has {width} columns but this {type(self).__name__} was fitted on {fitted}"
                raise InputError(f"{what}; use what the same backbone gave")
        for name, text in self._about.items():
            here = data.about.get(name, text)
            if not agree(name, here, text):
                what = f"{name} is {here!r:.200} here, but {text!r:.200} where this {type(self).__name__} was fitted"
                raise InputError(f"{what}; extract both in the same way, from the same network")

    @abstractmethod
    def _fit(self, train: FeatureSet) -> None:
        """Learn. With ``uses_held_out`` and so on, it also takes these arguments of ``fit``."""

    @abstractmethod
    def _score(self, batch: Batch) -> Tensor:
        """Scores (n,) of one batch: the fields in ``score_needs``, on ``self.device``, in the type they came in."""

    def _state(self) -> dict[str, Tensor]:
        """What was learned, as tensors by name."""
        inside = {at + name: value for at, one in self._inside().items() for name, value in one._state().items()}
        return {name.removesuffix("_"): getattr(self, name) for name in self._learned()} | inside

    def _load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`_state` gave, from a file, and check it; what :meth:`_notes` gave is in ``_told``."""
        sides: dict[str, int | None] = {"D": self._width}
        for said in self.learned:
            name, kind, *shape = said.split()
            wanted = tuple(int(side) if side.isdigit() else sides.get(side) for side in shape)
            value = take(state, name, wanted, getattr(torch, kind.removesuffix("+")))
            if kind.endswith("+") and not bool((value > 0).all()):
                raise FileFormatError(f"{name} has entries that are not above 0")
            sides |= zip(shape, value.shape, strict=True)
            setattr(self, f"{name}_", value)
        self._moved()

    def _notes(self) -> dict[str, Any]:
        """What else a file should tell, ready for JSON."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in arguments(self).items())})"

    @final
    def save(self, path: PathLike, *, float16: bool = False, half: bool | None = None) -> None:
        """Write settings and everything learned to one safetensors file, atomically.

        Args:
            path: ``.safetensors``.
            float16: round every number to half as many bits (networks and banks to float16, the mixture to float32): a file
                of half the size, whose scores are those of the rounded numbers.
            half: the old name of ``float16``.

        Raises:
            NotFittedError: there is nothing to save yet.
            InputError: ``float16``, and a number is too large or too small for half as many bits.
            StorageError: the file could not be written; what was there stays.
        """
        if half is not None:
            warnings.warn("half is called float16 now", DeprecationWarning, stacklevel=2)
            float16 = half
        record = self.record()
        if float16:
            with as_ours(f"this {type(self).__name__} cannot be saved in half precision", InputError, OutfieldError):
                record = record.narrowed()
                self.from_record(record)
        header = {**record.header, "outfield": __version__}
        write_record(path, "detector", Record(header, record.tensors), once=True)

    @final
    def record(self) -> Record:
        """Name, settings and everything learned, as files hold them.

        Raises:
            NotFittedError: fit was not called.
        """
        self._check_fitted()
        header = {"detector": type(self).__name__, "settings": self._settings(), "width": self._width}
        about = {"about": dict(self._about)} if self._about else {}
        return Record({**header, "notes": self._notes(), **about}, self._state())

    @final
    @classmethod
    def from_record(cls, record: Record) -> Self:
        """The fitted detector of a record; of ``Detector`` itself, one of the class that the record names.

        Raises:
            OutfieldError: it is not what :meth:`record` gives.
        """
        header, state = record.header, record.tensors
        if cls is Detector:
            return DETECTORS[header["detector"]].from_record(record)  # type: ignore[return-value]
        made: Self = construct(cls, {name: from_plain(value) for name, value in header["settings"].items()})
        made.check_settings()
        first = set(made.score_needs[:1])
        if header["width"] is not None or first & {"features", *made.needs_to_fit}:
            require_number("width", header["width"], least=1, whole=True)
        made._width = header["width"]
        made._about = checked_about(header.get("about"))
        for name, value in state.items():
            if not bool(torch.isfinite(value).all()):
                raise FileFormatError(f"{name} has entries that are not finite")
        made._told = header["notes"]
        made._load_state(state)
        unknown = sorted(set(state) - set(made._state()))
        if unknown:
            raise FileFormatError(f"{cls.__name__} has no use for {', '.join(unknown)}")
        made._fitted = True
        return made

    @final
    def fingerprint(self) -> str:
        """Name and a digest of settings and learned tensors, such as ``SSD 5f0c…``: equal for equal detectors."""
        self._check_fitted()
        if self._fingerprint is None:
            content = json.dumps(self._settings(), sort_keys=True) + fingerprint(self._state())
            self._fingerprint = f"{type(self).__name__} {hashlib.sha256(content.encode()).hexdigest()[:16]}"
        return self._fingerprint


def _taking_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that also takes ``renamed_settings`` by their old names, with a warning."""
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def constructor(self: Detector, *args: Any, **settings: Any) -> None:
        for old, new in self.renamed_settings.items():
            if old in settings and old not in known and new in known:
                warnings.warn(f"{old}= is now {new}=", DeprecationWarning, stacklevel=2)
                settings[new] = settings.pop(old)
        init(self, *args, **settings)

    return constructor


def load(path: PathLike) -> Detector:
    """Read a detector that ``save`` wrote: equal scores to the bit, no refit, nothing unpickled.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, changed, not a detector, or none that could have been fitted and saved.
    """
    with own_modes(torch.device("cpu")):
        record = read_record(path, "detector", ENTRIES)
        with as_ours(f"{path} holds a detector that Outfield cannot build", FileFormatError, Exception, OutfieldError):
            return Detector.from_record(record)


def accept(detector: str, data: Any, needs: tuple[str, ...], what: str) -> None:
    """Refuse data that the method ``what`` of a detector cannot use, and warn of logits of a single class."""
    if not isinstance(data, FeatureSource):
        what = f"{what} takes an outfield.FeatureSet, not {type(data).__name__}"
        raise InputError(f"{what}; wrap it, FeatureSet(features), or open a file, open_features(path)")
    missing = lacking(data, needs)
    if missing:
        source, name = "this FeatureSet" if isinstance(data, FeatureSet) else repr(data), missing[0]
        raise MissingFieldError(
            f"{detector}.{what} needs {' and '.join(missing)}, which {source} lacks; give it where the features come from: "
            f"FeatureSet(features, {name}=...) or open_features(path, {name}='{name}.npy'){_otherwise(name)}"
        )
    for name in ("logits", "odin_logits"):
        if name in needs and data.shapes[name][1] == 1:
            told = f"{detector}.{what}: {name} has one column, and a single class tells nothing of a row{TWO_CLASSES}"
            warnings.warn(told, OutfieldWarning, stacklevel=4)


def lacking(data: FeatureSource, needs: Iterable[str]) -> list[str]:
    """The fields among ``needs`` that are not here; "head" is there with ``head_weight``, or with logits to recover it from."""
    missing = [name for name in needs if not (has_head(data) if name == HEAD else name in data.shapes)]
    return ["head_weight" if name == HEAD else name for name in missing]


def labels_of(data: FeatureSource) -> Tensor:
    """The labels (N,) of all rows."""
    return torch.cat([piece["labels"] for piece in data.batches(Detector.rows_at_once, ["labels"])])


def smallest_class(data: FeatureSource) -> int:
    """Rows of the smallest class; of all where classes are not known."""
    return int(labels_of(data).unique(return_counts=True)[1].min()) if "labels" in data.shapes else len(data)


def _otherwise(name: str) -> str:
    """Where else a field can come from, as the end of a sentence."""
    if name == "head_weight":
        return "; or give logits, from which the classifier's last layer is recovered"
    if name == "labels":
        return "; from images, outfield extract --labels; without classes, of.clustered(rows, 10), or the detector Auto"
    field = FIELDS.get(name)
    return f"; from images, outfield extract {field.option}" if field and field.option else ""


def take(
    state: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The tensor ``name`` of a file, in ``dtype``; None in ``shape`` stands for any number from 1 on."""
    if name not in state:
        raise FileFormatError(f"{name} is missing")
    value = state[name]
    kind = value.dtype.is_floating_point if dtype.is_floating_point else value.dtype == dtype  # float16 files
    sides = [max(1, found) if wanted is None else wanted for found, wanted in zip(value.shape, shape, strict=False)]
    if not kind or value.ndim != len(shape) or [*value.shape] != sides:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise FileFormatError(f"{name} is {value.dtype} of {tuple(value.shape)}; it must be {dtype} of ({wanted})")
    return value.to(dtype)
