"""What detectors that are made of others share: their members' needs, checks and scores."""

from __future__ import annotations

import contextlib
import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from outfield.config import arguments, construct, require
from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.detectors.once import shared
from outfield.energy.priors.workers import one_core
from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.features.set import FeatureSet, FeatureSource

LITTLE = 2**25
"""Products of a row with what was learned, over all rows, that one core alone has done in a few milliseconds."""
Names = tuple[tuple[str, str], ...]


def fresh(detector: Detector, device: str) -> Detector:
    """One with the same settings, not fitted."""
    made: Detector = construct(type(detector), arguments(detector))
    return made.to(device)


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


def needs_of(members: Sequence[Detector]) -> tuple[str, ...]:
    """Fields that fit of a detector of these members uses besides the features."""
    found = [name for one in members for name in (one.on, *one.needs_to_fit, *one.needs_to_score)]
    return tuple(name for name in dict.fromkeys(found) if name != "features")


class OfMembers(Detector):
    """Base of detectors that score with several fitted ones.

    Attributes:
        members_: the fitted members.
    """

    fits_in_pieces = True

    members_: tuple[Detector, ...]

    _known: tuple[tuple[Detector, ...] | None, tuple[Names, ...]] = (None, ())
    """The fitted members, and what each reads: asking all of them would take longer than some of them take to score a row."""
    _weight: tuple[tuple[Detector, ...] | None, int] = (None, 0)
    """The fitted members, and how many numbers they have learned."""
    _accepted: tuple[object, ...] = ()
    """What the rows were like that were looked at last and can be scored, and who looked."""

    @abstractmethod
    def _all(self) -> Sequence[Detector]:
        """The members, fitted where this detector is."""

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self._all() for name in member.needs_to_score))

    def _rows(self) -> int:
        return max(member._rows() for member in self.members_)

    def _read_to_score(self) -> tuple[str, ...]:
        return self.needs_to_score

    def _check_to_score(self, test: FeatureSource) -> None:
        """Refuse what a member refuses; members are not asked about rows like the last, in widths and where they come from."""
        if not self._fitted or not isinstance(test, FeatureSet):
            super()._check_to_score(test)
            return
        # Whoever is fitted again has another _about, which is kept here, so that no other can take its place.
        found = (*self.members_, *(member._about for member in self.members_))
        like = ({name: shape[1:] for name, shape in test.shapes.items()}, test.about)
        same = len(found) + 1 == len(self._accepted) and all(map(operator.is_, found, self._accepted))
        if not (same and self._accepted[-1] == like):
            super()._check_to_score(test)
            self._accepted = (*found, like)

    def _member_scores(self, batch: Batch) -> Tensor:
        """(n, M), float64; each member takes as many rows at once as it would alone, what several make of them is made once."""
        rows = len(next(iter(batch.values())))
        with one_core() if self._is_little(rows) else contextlib.nullcontext():
            return self._scores_of(batch)

    def _is_little(self, rows: int) -> bool:
        """Whether so many rows are compared with what was learned sooner than several cores begin and end their shares of it."""
        if self._weight[0] is not self.members_:
            numbers = sum(value.numel() for member in self.members_ for value in member._state().values())
            self._weight = self.members_, numbers
        return self.device.type == "cpu" and rows * self._weight[1] <= LITTLE

    def _scores_of(self, batch: Batch) -> Tensor:
        sizes = [member._rows() for member in self.members_]
        columns: list[list[Tensor]] = [[] for _ in sizes]
        for size in dict.fromkeys(sizes):
            for piece in _pieces(batch, size):
                for column, member, own, names in zip(columns, self.members_, sizes, self._names(), strict=True):
                    if own == size:
                        column.append(member._score({name: piece[field] for name, field in names}))
        scores = torch.stack([column[0] if len(column) == 1 else torch.cat(column) for column in columns], dim=1)
        return scores.clamp(-LARGEST, LARGEST).float().double()

    def _names(self) -> tuple[Names, ...]:
        """For each fitted member the fields that it scores, after the names that it knows them by."""
        if self._known[0] is not self.members_:
            self._known = self.members_, tuple(_names_of(member) for member in self.members_)
        return self._known[1]

    def _check_width(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_width(data)

    def _check_about(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_about(data)

    def _moved(self) -> None:
        for member in getattr(self, "members_", ()):
            if member._device != self._device:
                member.to(self._device)

    def _rebuilt_member(
        self, number: int, cls: type[Detector], header: dict[str, object], state: dict[str, Tensor], begin: str
    ) -> Detector:
        """A member from a file: its header, and the tensors whose names begin so.

        Raises:
            FileFormatError: they are not what such a detector writes.
        """
        part = {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
        try:
            return cls._rebuilt(header, part)
        except (OutfieldError, KeyError, TypeError) as error:
            raise FileFormatError(f"member {number}, {cls.__name__}: {error}") from error

    def _check_first_width(self) -> None:
        if self._width != self.members_[0]._width:
            raise FileFormatError(f"width is {self._width}, but {self.members_[0]._width} in its first member")


def check_same(number: int, member: Detector, said: Detector) -> None:
    """Refuse a member from a file that has other settings than the file's own say.

    Raises:
        FileFormatError: it has.
    """
    if repr(member) != repr(said):
        raise FileFormatError(f"member {number} is {member!r:.100}, but the settings say {said!r:.100}")


def _pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """The fields of a batch in pieces of so many rows, which keep what members make of them."""
    rows = len(next(iter(batch.values())))
    for start in range(0, rows, size):
        yield {name: shared(value, start, start + size) for name, value in batch.items()}


def _names_of(member: Detector) -> Names:
    return tuple(("features" if name == member.on else name, name) for name in member.needs_to_score)
