"""What stand-ins for OOD data have in common, be they images or features: a level each, and partners to mix with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np

from outfield.errors import InputError, UnknownNameError

LEVELS = ("near", "far")  # what a kind of stand-in stands for: OOD data that is like the ID data, or that is not

T = TypeVar("T")
S = TypeVar("S")


class StandIns(Mapping[str, T], Generic[T]):
    """Sets by the name of their kind, each of which stands for a level, "near" or "far".

    >>> made = StandIns({"turned90": [1, 2], "blocks": [3]}, {"turned90": "near", "blocks": "far"})
    >>> made.map(len).by_level()
    {'near': {'turned90': 2}, 'far': {'blocks': 1}}
    """

    def __init__(self, sets: Mapping[str, T], levels: Mapping[str, str]) -> None:
        self._sets = dict(sets)
        self.levels = {name: levels[name] for name in self._sets}

    def __getitem__(self, name: str) -> T:
        return self._sets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def __repr__(self) -> str:
        return f"StandIns({', '.join(f'{name} ({level})' for name, level in self.levels.items())})"

    def map(self, function: Callable[[T], S]) -> StandIns[S]:
        """What ``function`` makes of each set, at the same level: features of images, scores of features."""
        return StandIns({name: function(one) for name, one in self._sets.items()}, self.levels)

    def by_level(self) -> dict[str, dict[str, T]]:
        """The sets of each level by name, for :func:`outfield.choose`; levels without any are left out."""
        levels = [level for level in LEVELS if level in self.levels.values()]
        return {level: {name: one for name, one in self.items() if self.levels[name] == level} for level in levels}


class Partners:
    """Other samples of a set to mix a sample with: of another class where labels (N,) are known and differ, else any other."""

    def __init__(self, count: int, labels: np.ndarray | None) -> None:
        known = np.arange(count) if labels is None or len(np.unique(labels)) < 2 else np.asarray(labels)
        self.count = count
        self._order = np.argsort(known, kind="stable")
        ordered = known[self._order]
        self._begin, self._end = (np.searchsorted(ordered, known, side) for side in ("left", "right"))

    def choices(self, index: np.ndarray | int) -> np.ndarray:
        found: np.ndarray = self.count - (self._end[index] - self._begin[index])
        return found

    def of(self, index: np.ndarray | int, choice: np.ndarray) -> np.ndarray:
        """The numbers of partners: the choice, from 0 on, among the samples that each of these can be mixed with."""
        begin, end = self._begin[index], self._end[index]
        found: np.ndarray = self._order[np.where(choice < begin, choice, choice + end - begin)]
        return found


def chosen_kinds(kinds: Iterable[str] | None, known: Mapping[str, T]) -> dict[str, T]:
    """The kinds of these names; all if None."""
    if kinds is None:
        return dict(known)
    names = [kinds] if isinstance(kinds, str) else list(kinds) if isinstance(kinds, Iterable) else []
    if not names:
        raise InputError(f"kinds is {kinds!r:.100}; it must be names of stand-ins, any of {', '.join(known)}")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise UnknownNameError(f"there are no stand-ins of the kind {name!r:.100}; there are {', '.join(known)}")
    return {name: known[name] for name in names}
