"""What every detector is: fit learns from features, score gives one number per row (higher = more OOD)."""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self, final

import numpy as np
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
from outfield.detectors.data import accept
from outfield.detectors.registry import register as register  # for files that were written when it lived here
from outfield.devices import resolve_device
from outfield.errors import FileFormatError, InputError, NotFittedError, OutfieldError
from outfield.features.about import NETWORK, agree, checked_about
from outfield.features.fields import spaces
from outfield.features.set import FeatureSet, FeatureSource
from outfield.files import atomic, storage
from outfield.modes import own_modes, products
from outfield.progress import bar
from outfield.scores.vectors import marked
from outfield.version import __version__

LARGEST = torch.finfo(torch.float32).max
"""Scores are cut off here, so that a huge float64 logit gives a finite float32 score."""
NARROWER = {torch.float32: torch.float16, torch.float64: torch.float32}
"""The types of half as many bits."""

Batch = dict[str, Tensor]


class Detector(ABC):
    """Base of all detectors. Constructor arguments are settings and are only stored; what is learned ends in ``_``.

    A subclass gives ``_fit``, ``_score`` for one piece of rows, and its learned tensors through ``_state`` and
    ``_load_state``; checking, chunking, devices and files are done here.
    """

    fit_needs: ClassVar[tuple[str, ...]] = ()
    """Fields that fit uses besides features; what one detector needs may depend on its settings: :attr:`needs_to_fit`."""
    score_needs: ClassVar[tuple[str, ...]] = ("features",)
    """Fields that score uses."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Fields that fit may use where they are there, and score then."""
    rows_at_once: ClassVar[int] = 4096
    """Rows scored together; memory grows with this, not with the number of rows."""
    fits_in_pieces: ClassVar[bool] = False
    """Whether ``_fit`` takes any FeatureSource, reading it in batches; else it gets all in memory."""

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"on": "features"})
    """Settings that are not written down where they have this value: see :func:`outfield.config.said_settings`."""
    on: str = "features"
    """The field that is taken for the features. A detector with a setting of this name works on any stage of a network."""

    _device: str = "auto"
    _fitted: bool = False
    _fingerprint: str | None = None
    """Kept from its first use on, until the next fit."""
    _width: int | None = None
    """Width of the first field in ``score_needs`` that fit saw, or None where fit saw none."""
    _about: Mapping[str, str] = MappingProxyType({})
    """What the training data said of the fields that are scored: the network, the views, and of a stage its name."""

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        """Fields that fit of this detector, with its settings, uses besides the features (or what ``on`` names)."""
        return self.fit_needs

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        """Fields that score of this detector, with its settings, uses."""
        return tuple(self.on if name == "features" else name for name in self.score_needs)

    def to(self, device: str | torch.device) -> Self:
        """Fit and score on this device ("cpu", "cuda", "auto" for a GPU where there is one)."""
        resolve_device(device)
        self._device = str(device)
        self._moved()
        return self

    def _moved(self) -> None:
        """Called when the device changed after fitting; a subclass moves what it keeps there."""

    @property
    def device(self) -> torch.device:
        """Where fit and score run."""
        return resolve_device("auto") if self._device == "auto" else torch.device(self._device)

    def fit(self, train: FeatureSource) -> Self:
        """Learn from ID training data; returns self.

        Args:
            train: a FeatureSet, or a FeatureStream (:func:`outfield.open_features`), which detectors that need not hold all
                data read in pieces.

        Raises:
            InputError: a setting of a wrong type or value.
            MissingFieldError: ``train`` lacks a field that this detector learns from.
        """
        with self._fitting(train, "fit") as data, products(self.device):
            self._fit(data if self.fits_in_pieces else data.in_memory())  # type: ignore[arg-type]  # as fits_in_pieces says
        return self

    @final
    def check_settings(self) -> None:
        """Refuse settings of a wrong type or value. A constructor only stores them; fit asks here before it looks at the data.

        Raises:
            InputError: names the setting, its value and what would be right.
        """
        require_choice("on", self.on, spaces())
        self._check_settings()
        self._settings()

    def _check_settings(self) -> None:
        """A subclass that has settings says here what they must be, with ``require_number`` and ``require``."""

    def _settings(self) -> dict[str, Any]:
        """The settings, ready for JSON."""
        plain = {}
        for name, value in said_settings(self).items():
            try:
                plain[name] = to_plain(value)
            except InputError as error:
                raise InputError(f"{name} is {shown(value)}: {error}") from error
        return plain

    @contextlib.contextmanager
    def _fitting(self, data: FeatureSource, what: str, needs: Sequence[str] | None = None) -> Iterator[FeatureSource]:
        """Around whatever learns from ``data``: settings and data are looked at first, and a fit that fails leaves all as it was.

        Gives the data to learn from, in which the field that ``on`` names is called features.

        Args:
            data: what is learned from.
            what: the method that learns, for messages.
            needs: the fields that it reads; what ``on`` names and :attr:`needs_to_fit` if None.
        """
        self.check_settings()
        accept(type(self).__name__, data, (self.on, *self.needs_to_fit) if needs is None else tuple(needs), what)
        before = dict(self.__dict__)
        try:
            with own_modes(self.device):
                yield data.on(self.on)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        shape = data.shapes.get(self.needs_to_score[0])
        self._width = None if shape is None else shape[1]
        self._about = self._said_by(data)
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
        rows, title, done = self._rows(), f"scoring with {type(self).__name__}", 0
        test = test.on(self.on)
        bar_of_rows = bar(title, len(test), "samples")
        with own_modes(self.device), products(self.device), torch.no_grad(), bar_of_rows as advance:
            # Filled in place: small results kept between large temporaries would split the heap.
            scores = torch.empty(len(test), dtype=torch.float32)
            for batch in test.batches(rows, self._read_to_score()):
                moved = {name: value.to(self.device) for name, value in batch.items()}
                piece = self._score(moved).clamp(-LARGEST, LARGEST)
                scores[done : done + len(piece)] = piece
                done += len(piece)
                advance(done)
        return marked(scores, self.fingerprint())

    def _check_to_score(self, test: FeatureSource) -> None:
        """Refuse to score before fit, and rows that cannot be scored."""
        if not self._fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit(train) or load a saved one first")
        accept(type(self).__name__, test, self.needs_to_score, "score")
        self._check_width(test)
        self._check_about(test)

    def _rows(self) -> int:
        return self.rows_at_once

    def _read_to_score(self) -> tuple[str, ...]:
        """The fields that ``_score`` gets, what ``on`` names being called features."""
        return self.score_needs

    def _check_width(self, data: FeatureSource) -> None:
        """Refuse rows of another width; a detector that knows the width of a second field asks for that, too."""
        self._check_columns(data, self.needs_to_score[0], self._width)

    def _check_columns(self, data: FeatureSource, name: str, fitted: int | None) -> None:
        width = data.shapes[name][1]
        if fitted is not None and width != fitted:
            raise InputError(
                f"{name} has {width} columns but this {type(self).__name__} was fitted on {fitted}; "
                "use what the same backbone gave"
            )

    def _said_by(self, data: FeatureSource) -> dict[str, str]:
        kept = ("views", NETWORK, *self.needs_to_score)
        return {name: text for name, text in data.about.items() if name in kept}

    def _check_about(self, data: FeatureSource) -> None:
        """Refuse rows of another network, another stage of it, and other views, where both sides know what they have."""
        said = self._said_by(data)
        for name, text in self._about.items():
            if not agree(name, said.get(name, text), text):
                raise InputError(
                    f"{name} is {said[name]!r:.200} here, but {text!r:.200} where this {type(self).__name__} was fitted; "
                    "extract both in the same way, from the same network"
                )

    @abstractmethod
    def _fit(self, train: FeatureSet) -> None:
        """Learn."""

    @abstractmethod
    def _score(self, batch: Batch) -> Tensor:
        """Scores (n,) of one piece: the fields in ``score_needs``, on ``self.device``, in the type they came in."""

    def _state(self) -> dict[str, Tensor]:
        """What was learned, as tensors by name."""
        return {}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`_state` gave, from a file: each tensor with :func:`outfield.detectors.state.take`."""

    def _notes(self) -> dict[str, Any]:
        """What else a file should tell, ready for JSON."""
        return {}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        """Take back what :meth:`_notes` gave, from a file."""

    def __repr__(self) -> str:
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in arguments(self).items()
        }
        inside = ", ".join(f"{name}={value!r}" for name, value in plain.items())
        return f"{type(self).__name__}({inside})"

    @final
    def save(self, path: atomic.PathLike, *, half: bool = False) -> None:
        """Write settings and everything learned to one safetensors file, atomically.

        Args:
            path: ``.safetensors``.
            half: round every number to half as many bits (networks and banks to float16, the mixture to float32): a file of
                half the size, whose scores are those of the rounded numbers.

        Raises:
            NotFittedError: there is nothing to save yet.
            InputError: ``half``, and a number is too large or too small for half as many bits.
            StorageError: the file could not be written; what was there stays.
        """
        if not self._fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted; there is nothing to save")
        name = type(self).__name__
        header = self._header()
        state = self._state()
        if half:
            state = {name: value.to(NARROWER.get(value.dtype, value.dtype)) for name, value in state.items()}
            try:
                self._rebuilt(header, state)
            except OutfieldError as error:
                raise InputError(f"this {name} cannot be saved in half precision: {error}") from error
        storage.write(path, "detector", {"detector": name, **header, "outfield": __version__}, state, once=True)

    def _header(self) -> dict[str, Any]:
        """What a file says of this detector besides its name and tensors."""
        header = {"settings": self._settings(), "width": self._width, "notes": self._notes()}
        return {**header, "about": dict(self._about)} if self._about else header

    @classmethod
    def _rebuilt(cls, header: dict[str, Any], state: dict[str, Tensor]) -> Self:
        """The fitted detector that a file with this header and these tensors holds.

        Raises:
            OutfieldError: they are not what :meth:`save` writes.
        """
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
        made._load_notes(header["notes"])
        made._load_state(state)
        unknown = sorted(set(state) - set(made._state()))
        if unknown:
            raise FileFormatError(f"{cls.__name__} has no use for {', '.join(unknown)}")
        made._fitted = True
        return made

    @final
    def fingerprint(self) -> str:
        """Name and a digest of settings and learned tensors, such as ``SSD 5f0c…``: equal for equal detectors."""
        if not self._fitted:
            raise NotFittedError(f"this {type(self).__name__} is not fitted; it has no fingerprint yet")
        if self._fingerprint is None:
            content = json.dumps(self._settings(), sort_keys=True) + storage.fingerprint(self._state())
            self._fingerprint = f"{type(self).__name__} {hashlib.sha256(content.encode()).hexdigest()[:16]}"
        return self._fingerprint
