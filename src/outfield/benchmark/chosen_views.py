"""Which views of each image a benchmark averages over where nobody says: on each backbone those that stand-ins choose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch

from outfield.backbone.views import Views
from outfield.benchmark.fitting import TRAIN, Say
from outfield.benchmark.held_out import HELD_OUT, STAND_IN
from outfield.benchmark.sets import ExtractedSets
from outfield.benchmark.stages import Stage, Stages
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.choosing_views import CHOICES, Rows, ViewsChoice, choose_views
from outfield.errors import FileFormatError, InputError
from outfield.files import storage
from outfield.stand_in import StandIns


def check_can_choose(detectors: Iterable[Detector], held_out: int) -> None:
    """Views are chosen by the stand-ins that Auto has.

    Raises:
        InputError: there are none.
    """
    if not held_out or not any(isinstance(one, Auto) for one in detectors):
        raise InputError(
            "views are chosen by stand-ins, which Auto has, made of held-out images; run Auto, too, or name the views: "
            f"{', '.join(CHOICES)}"
        )


def chosen_views(
    sets_with: Callable[[Views], ExtractedSets],
    name: str,
    fields: Collection[str],
    stages: Stages,
    device: str,
    say: Say,
) -> ViewsChoice:
    """Extract training, held-out and stand-in images with each views, or find what an earlier run left, and choose.

    Args:
        sets_with: a backbone's sets of these images with views.
        name: of the backbone.
        fields: that detectors need.
        stages: keeps the choice.
        device: where to choose.
        say: told what is being done.
    """

    def rows_of(views: str) -> Rows:
        say(f"{name}: trying views {views}")
        sets = sets_with(Views.of(views))
        made = {part.removeprefix(STAND_IN): sets[part] for part in sets.stand_ins}
        levels = {part.removeprefix(STAND_IN): level for part, level in sets.stand_ins.items()}
        return Rows(sets[TRAIN], sets[HELD_OUT], StandIns(made, levels))

    def identity(views: str) -> list[str]:
        sets = sets_with(Views.of(views))
        return [sets.identity(part, fields) for part in (TRAIN, HELD_OUT, *sets.stand_ins)]

    stage = Stage("views", {"backbone": name}, {views: identity(views) for views in CHOICES})
    return stages.run(stage, lambda: choose_views(rows_of, device), _save, _load)


def _save(choice: ViewsChoice, path: Path) -> None:
    losses = torch.tensor([*choice.losses.values()], dtype=torch.float64)
    storage.write(path, "views", {"views": choice.views, "tried": [*choice.losses]}, {"losses": losses})


def _load(path: Path) -> ViewsChoice:
    header, tensors = storage.read(path, "views")
    try:
        losses = dict(zip(header["tried"], tensors["losses"].tolist(), strict=True))
        best = min(losses, key=lambda name: losses[name])
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is no choice of views: {error}") from error
    if header.get("views") != best:
        raise FileFormatError(f"{path} chose {header.get('views')!r}, but the best views are {best}")
    return ViewsChoice(best, losses)
