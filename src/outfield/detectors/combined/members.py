"""Detectors that are made of others: their members are fitted, scored together, and kept in files in one way."""

from __future__ import annotations

import contextlib
import operator
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from outfield.config import require, settings_of
from outfield.detectors.base import LARGEST, Batch, Detector, shared
from outfield.energy import one_core
from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.features import FeatureSet, FeatureSource
from outfield.files import Record

LITTLE = 2**25
"""Products of a row with what was learned, over all rows, that one core alone has done in a few milliseconds."""
ABOUT = operator.attrgetter("_about")


def check_members(members: object) -> None:
    """Refuse a setting ``members`` that is no list of detectors with settings that can be.

    Raises:
        InputError: names the member and what is wrong with it.
    """
    good = isinstance(members, tuple | list) and len(members) > 0 and all(isinstance(one, Detector) for one in members)
    require(good, "members", members, "a list of detectors, at least one")
    for member in members:  # type: ignore[attr-defined]
        try:
            member.check_settings()
        except InputError as error:
            raise InputError(f"members is {members!r:.200}; {type(member).__name__}: {error}") from error


def names_of(detectors: Sequence[Detector]) -> tuple[str, ...]:
    """Each detector in words: its class, what it works on, and the settings in which it differs from others of its kind.

    >>> import outfield as of
    >>> names_of([of.MSP(), of.KNN(k=5), of.KNN(k=50), of.SSD(), of.SSD(on="stage2"), of.SSD()])
    ('MSP', 'KNN k=5', 'KNN k=50', 'SSD', 'SSD on stage2', 'SSD 2')
    """
    kinds = [type(one).__name__ + ("" if one.on == "features" else f" on {one.on}") for one in detectors]
    settings = [settings_of(one) for one in detectors]
    found: list[str] = []
    for kind, own in zip(kinds, settings, strict=True):
        others = [other for other, at in zip(settings, kinds, strict=True) if at == kind]
        words = [f"{name}={value}" for name, value in own.items() if any(o.get(name) != value for o in others)]
        found.append(" ".join([kind, *words]))
    again = Counter[str]()
    for i, name in enumerate(found):
        again[name] += 1
        found[i] = name if again[name] == 1 else f"{name} {again[name]}"
    return tuple(found)


@dataclass(frozen=True)
class Lineup:
    """What scoring looks up of fitted members, asked once: asking each takes longer than some of them take to score a row.

    Attributes:
        members: the members.
        about: what each says of its training data; whoever is fitted again has another.
        names: the members in words.
        needs: the fields that they score.
        fields: for each member the fields that it scores, after the names that it knows them by.
        numbers: how many numbers they have learned.
    """

    members: tuple[Detector, ...]
    about: tuple[object, ...]
    names: tuple[str, ...]
    needs: tuple[str, ...]
    fields: tuple[tuple[tuple[str, str], ...], ...]
    numbers: int

    @classmethod
    def of(cls, members: tuple[Detector, ...]) -> Lineup:
        """Of fitted members."""
        needs = [member.needs_to_score for member in members]
        fields = [
            tuple(("features" if name == member.on else name, name) for name in own)
            for member, own in zip(members, needs, strict=True)
        ]
        return cls(
            members,
            tuple(member._about for member in members),
            names_of(members),
            tuple(dict.fromkeys(name for own in needs for name in own)),
            tuple(fields),
            sum(value.numel() for member in members for value in member._state().values()),
        )

    @property
    def is_current(self) -> bool:
        """Whether no member was fitted again."""
        return all(map(operator.is_, map(ABOUT, self.members), self.about))


class CombinedDetector(Detector):
    """Base of detectors that score with several fitted ones; ``_fit`` of a subclass gives them and calls ``_moved``.

    Attributes:
        members_: the fitted members.
    """

    fits_in_pieces = combined = True

    member_prefix: ClassVar[str] = ""
    """What stands between a member's number and its tensors' names in a file."""

    members_: tuple[Detector, ...]

    _lineup: Lineup | None = None
    _accepted: tuple[Lineup, object] | None = None
    """Whoever looked at rows last, and what these were like, which can be scored."""

    @abstractmethod
    def _recipe(self) -> Sequence[Detector]:
        """The members as the settings say, not fitted; none where fit finds them."""

    def _current(self) -> Lineup:
        if self._lineup is None or self._lineup.members is not self.members_ or not self._lineup.is_current:
            self._lineup = Lineup.of(self.members_)
        return self._lineup

    @property
    def names(self) -> tuple[str, ...]:
        """The members in words, each once: see :func:`names_of`."""
        return self._current().names if self._fitted else names_of(self._recipe())

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        found = [name for one in self._recipe() for name in (one.on, *one.needs_to_fit, *one.needs_to_score)]
        return tuple(name for name in dict.fromkeys(found) if name != "features")

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        if hasattr(self, "members_"):
            return self._current().needs
        return tuple(dict.fromkeys(name for member in self._recipe() for name in member.needs_to_score))

    def _rows(self) -> int:
        return max(member._rows() for member in self.members_)

    def _read_to_score(self) -> tuple[str, ...]:
        return self.needs_to_score

    def _check_to_score(self, test: FeatureSource) -> None:
        """Refuse what a member refuses; members are not asked about rows like the last, in widths and where they come from."""
        if not self._fitted or not isinstance(test, FeatureSet):
            super()._check_to_score(test)
            return
        lineup, like = self._current(), ({name: shape[1:] for name, shape in test.shapes.items()}, test.about)
        if self._accepted is None or self._accepted[0] is not lineup or self._accepted[1] != like:
            super()._check_to_score(test)
            self._accepted = lineup, like

    def _check_width(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_width(data)

    def _check_about(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_about(data)

    def _member_scores(self, batch: Batch) -> Tensor:
        """(n, M), float64; each member takes as many rows at once as it would alone, what several make of them is made once."""
        lineup, rows = self._current(), len(next(iter(batch.values())))
        # Few rows: starting threads would cost more than it saves.
        alone = self.device.type == "cpu" and rows * lineup.numbers <= LITTLE
        sizes = [member._rows() for member in lineup.members]
        columns: list[list[Tensor]] = [[] for _ in sizes]
        with one_core() if alone else contextlib.nullcontext():
            for size in dict.fromkeys(sizes):
                for piece in _pieces(batch, size):
                    for column, member, own, fields in zip(columns, lineup.members, sizes, lineup.fields, strict=True):
                        if own == size:
                            column.append(member._score({name: piece[field] for name, field in fields}))
            scores = torch.stack([column[0] if len(column) == 1 else torch.cat(column) for column in columns], dim=1)
            return scores.clamp(-LARGEST, LARGEST).float().double()

    def _moved(self) -> None:
        for member in getattr(self, "members_", ()):
            if member._device != self._device:
                member.to(self._device)
        self._lineup = None
        super()._moved()

    def _state(self) -> dict[str, Tensor]:
        found = super()._state()
        for i, member in enumerate(self.members_):
            found |= {f"{i}.{self.member_prefix}{name}": value for name, value in member._state().items()}
        return found

    def _notes(self) -> dict[str, Any]:
        headers = [member.record().header for member in self.members_]
        if self._recipe():  # the settings tell their classes
            headers = [{name: value for name, value in header.items() if name != "detector"} for header in headers]
        return {"members": headers}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        headers: Any = notes.get("members")
        said = self._recipe()
        good = isinstance(headers, list) and len(headers) == (len(said) or max(1, len(headers)))
        if not good or not all(isinstance(header, dict) for header in headers):
            raise FileFormatError(f"there must be notes on {len(said) or 'its'} members")
        names = [{"detector": type(one).__name__} for one in said] or [{}] * len(headers)
        self._headers = [{**name, **header} for name, header in zip(names, headers, strict=True)]

    def _load_state(self, state: dict[str, Tensor]) -> None:
        said = self._recipe()
        self.members_ = tuple(self._rebuilt(i, header, state) for i, header in enumerate(self._headers))
        for i, (member, wanted) in enumerate(zip(self.members_, said, strict=False)):
            if repr(member) != repr(wanted):
                raise FileFormatError(f"member {i} is {member!r:.100}, but the settings say {wanted!r:.100}")
        if self._width != self.members_[0]._width:
            raise FileFormatError(f"width is {self._width}, but {self.members_[0]._width} in its first member")
        super()._load_state(state)

    def _rebuilt(self, number: int, header: dict[str, Any], state: dict[str, Tensor]) -> Detector:
        begin = f"{number}.{self.member_prefix}"
        part = {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
        try:
            return Detector.from_record(Record(header, part))
        except (OutfieldError, KeyError, TypeError) as error:
            raise FileFormatError(f"member {number}, {header.get('detector')!s:.50}: {error}") from error


def _pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """The fields of a batch in pieces of so many rows, which keep what members make of them."""
    rows = len(next(iter(batch.values())))
    for start in range(0, rows, size):
        yield {name: shared(value, start, start + size) for name, value in batch.items()}
