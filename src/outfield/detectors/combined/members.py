"""Detectors that are made of others: their members are fitted, scored together, and kept in files in one way."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from outfield.config import require, settings_of
from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.errors import FileFormatError, InputError, as_ours
from outfield.features import FeatureSource
from outfield.files import Record, tensors_under
from outfield.modes import one_core

# products of rows with learned numbers that one core has done in a few milliseconds, before other threads have started
LITTLE = 2**25


def check_members(members: object) -> None:
    """Refuse a setting ``members`` that is no list of detectors, or has one with a wrong setting."""
    good = isinstance(members, tuple | list) and len(members) > 0 and all(isinstance(one, Detector) for one in members)
    require(good, "members", members, "a list of detectors, at least one")
    for member in members:  # type: ignore[attr-defined]
        with as_ours(f"members is {members!r:.200}; {type(member).__name__}", InputError, InputError):
            member.check_settings()


def names_of(detectors: Sequence[Detector]) -> tuple[str, ...]:
    """Each detector in words: its class, its field, and the settings in which it differs from others of its class."""
    kinds = [type(one).__name__ + ("" if one.field == "features" else f" on {one.field}") for one in detectors]
    settings = [settings_of(one) for one in detectors]
    found: list[str] = []
    again = Counter[str]()
    for kind, own in zip(kinds, settings, strict=True):
        others = [other for other, at in zip(settings, kinds, strict=True) if at == kind]
        words = [f"{name}={value}" for name, value in own.items() if any(o.get(name) != value for o in others)]
        name = " ".join([kind, *words])
        again[name] += 1
        found.append(name if again[name] == 1 else f"{name} {again[name]}")
    return tuple(found)


class CombinedDetector(Detector):
    """Base of detectors that score with fitted ``members_``, which ``_fit`` of a subclass sets before it calls ``_moved``."""

    fits_in_pieces = combined = True

    member_prefix: ClassVar[str] = ""  # what stands between a member's number and its tensors' names in a file

    _names: tuple[str, ...] | None = None

    @abstractmethod
    def _recipe(self) -> Sequence[Detector]:
        """The members as the settings say, not fitted; none where fit finds them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The members in words, each once: see :func:`names_of`."""
        if self._names is None or not self._fitted:
            self._names = names_of(self.members_ if self._fitted else self._recipe())
        return self._names

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        found = [name for one in self._recipe() for name in (one.field, *one.needs_to_fit, *one.needs_to_score)]
        return tuple(name for name in dict.fromkeys(found) if name != "features")

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        members = getattr(self, "members_", None) or self._recipe()
        return tuple(dict.fromkeys(name for one in members for name in one.needs_to_score))

    def _rows(self) -> int:
        return min(member._rows() for member in self.members_)

    def _check_rows(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_rows(data)

    def _member_scores(self, batch: Batch) -> Tensor:
        """(n, M), float64."""
        count = len(next(iter(batch.values())))
        alone = self.device.type == "cpu" and count * self._numbers <= LITTLE
        with one_core() if alone else contextlib.nullcontext():
            columns = [one._score(one._own(batch)) for one in self.members_]
            return torch.stack(columns, dim=1).clamp(-LARGEST, LARGEST).float().double()

    def _moved(self) -> None:
        super()._moved()
        if hasattr(self, "members_"):
            self._names = None
            self._numbers = sum(value.numel() for member in self.members_ for value in member._state().values())

    def _inside(self) -> dict[str, Detector]:
        return {f"{i}.{self.member_prefix}": member for i, member in enumerate(getattr(self, "members_", ()))}

    def _notes(self) -> dict[str, Any]:
        headers = [member.record().header for member in self.members_]
        if self._recipe():  # the settings tell their classes
            headers = [{name: value for name, value in header.items() if name != "detector"} for header in headers]
        return {"members": headers}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        headers = self._told["members"]
        names = [{"detector": type(one).__name__} for one in self._recipe()] or [{}] * len(headers)
        parts = [tensors_under(state, f"{i}.{self.member_prefix}") for i in range(len(headers))]
        records = [Record({**name, **said}, part) for name, said, part in zip(names, headers, parts, strict=True)]
        self.members_ = tuple(Detector.from_record(record) for record in records)
        if self._width != self.members_[0]._width:
            raise FileFormatError(f"width is {self._width}, but {self.members_[0]._width} in its first member")
        super()._load_state(state)
