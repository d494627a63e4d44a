"""Choosing over how many views of each image features are averaged, by stand-ins for OOD data, as members are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outfield.detectors.choosing import choose
from outfield.features.set import FeatureSource
from outfield.stand_in import StandIns

AUTO = "auto"
"""What a user says instead of views to have them chosen."""
CHOICES = ("one", "flip", "six")
"""Views that are tried: they cost 1, 2 and 6 passes."""


class Rows(NamedTuple):
    """What a choice is made by, all of the same views."""

    train: FeatureSource
    held_out: FeatureSource
    stand_ins: StandIns[Any]


@dataclass(frozen=True)
class ViewsChoice:
    """What :func:`choose_views` found.

    Attributes:
        views: the best ones.
        losses: :attr:`outfield.detectors.trials.Trial.loss` of the detector that is chosen with each, by the views' name.
    """

    views: str
    losses: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.views} ({', '.join(f'{name} {100 * loss:.1f}' for name, loss in self.losses.items())})"


def choose_views(rows_of: Callable[[str], Rows], device: str = "auto", names: Sequence[str] = CHOICES) -> ViewsChoice:
    """The views with which the chosen detector tells held-out ID rows best from stand-ins; of equal ones the first.

    Args:
        rows_of: gives the rows of views by their name; called once for each, so that rows of one are in memory at a time.
        device: where to fit and score.
        names: of the views to try, those that cost least first.
    """
    losses = {}
    for name in names:
        rows = rows_of(name)
        losses[name] = choose(rows.train, rows.held_out, rows.stand_ins, device=device).chosen.loss
    return ViewsChoice(min(losses, key=lambda name: losses[name]), losses)
