"""A benchmark on the features of one backbone: each detector is fitted once per seed, each set scored once by each."""

from __future__ import annotations

import functools
import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.backbone.backbone import accuracy
from outfield.benchmark.held_out import HELD_OUT, STAND_IN
from outfield.benchmark.provenance import settings
from outfield.benchmark.records import BenchmarkRun, Key, Record, View
from outfield.benchmark.sources import code_of
from outfield.benchmark.stages import Stage, Stages
from outfield.benchmark.view import lay_out
from outfield.config import arguments, construct
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.learned import LearnedEnergy
from outfield.detectors.saved import load
from outfield.detectors.summed import Summed
from outfield.energy.loop import History
from outfield.errors import FileFormatError, InputError, OutfieldWarning
from outfield.features.set import FeatureSource
from outfield.files import storage
from outfield.scores.metrics import Separation
from outfield.stand_in import StandIns

Say = Callable[[str], None]
log = logging.getLogger(__name__)
"""Told what is being done."""
TRAIN, TEST = "train", "test"
"""How the ID sets are called among a backbone's sets; OOD sets go by their own names."""


class Sets(ABC):
    """Features of every set of one backbone, by name: "train" and "test" of the ID set, and the OOD sets.

    Attributes:
        ood: names of the OOD sets.
        has_held_out: whether there are held-out ID rows, too (:mod:`outfield.benchmark.held_out`).
        stand_ins: the level of each set that stands for OOD data, by its name.
    """

    ood: tuple[str, ...]
    has_held_out: bool = False
    stand_ins: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def __getitem__(self, name: str) -> FeatureSource:
        """The features of a set."""

    @abstractmethod
    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        """What is different for different features of a set, or of other fields that are used; for results that are kept."""


@dataclass
class OneBackbone:
    """What is needed to fit and score on one backbone's features.

    Args:
        name: of the backbone.
        sets: its features.
        run: where results go.
        stages: runs, and perhaps keeps, each piece of work.
        device: for detectors.
        say: told what is being done; logged if absent.
    """

    name: str
    sets: Sets
    run: BenchmarkRun
    stages: Stages
    device: str = "auto"
    say: Say = log.info

    def accuracy(self) -> float | None:
        """Share of the ID test set that the classifier gets right; None where labels or logits are not known."""
        test = self.sets[TEST]
        return accuracy(test.in_memory()) if {"labels", "logits"} <= set(test.shapes) else None

    def add(
        self, name: str, detector: Detector, seeds: Iterable[int], given: Mapping[int | None, Detector] | None = None
    ) -> None:
        """Fit a detector, from every seed where it is random, score every set, and put scores and records into the run.

        Args:
            name: what to call it in records.
            detector: its settings; itself left as it is.
            seeds: of a learned detector.
            given: fitted ones by seed, which are scored instead of fitting any.
        """
        learned = isinstance(detector, LearnedEnergy)
        wanted: list[int | None] = [*given] if given else [*seeds] if learned else [None]
        fits = {seed: self._fit_stage(name, detector, seed) for seed in wanted}
        # Where scores and curves are found from an earlier run, the detector is not needed, nor the features.
        fitted = functools.cache(lambda: dict(given) if given else self._fitted(detector, fits))
        for seed in wanted:
            key = Key(self.name, name, seed)
            needs = (*detector.needs_to_score, *detector.uses)
            scores = {
                self._shown(part): self._scores(key, part, needs, fits[seed], lambda seed=seed: fitted()[seed])  # type: ignore[misc]
                for part in (TEST, *self.sets.ood)
            }
            self.run.scores[key] = scores
            self.run.records += [self._record(key, scores, ood) for ood in self.sets.ood]
            if learned:
                self.run.histories[key] = self._history(key, fits[seed], lambda seed=seed: fitted()[seed])  # type: ignore[misc]
            if isinstance(detector, Auto):
                members = self._members(key, fits[seed], lambda seed=seed: fitted()[seed])  # type: ignore[misc]
                self.run.provenance.setdefault("chosen", {}).setdefault(name, {})[self.name] = members
        if not fitted.cache_info().currsize:
            for fit in fits.values():
                self.stages.mention(fit)

    def _history(self, key: Key, fit: Stage, detector: Callable[[], Detector]) -> History:
        stage = Stage("history", asdict(key), {"fit": fit.digest})
        found = self.stages.find(stage, _load_history)
        if found is None:
            found = detector().history_  # type: ignore[attr-defined]
            self.stages.keep(stage, found, _save_history, 0.0)
        return found

    def _members(self, key: Key, fit: Stage, detector: Callable[[], Detector]) -> list[str]:
        """What a detector chose, in words."""
        stage = Stage("members", asdict(key), {"fit": fit.digest})
        found = self.stages.find(stage, _load_members)
        if found is None:
            found = list(detector().names)  # type: ignore[attr-defined]
            self.stages.keep(stage, found, _save_members, 0.0)
        return found

    def _shown(self, part: str) -> str:
        return self.run.protocol.id if part == TEST else part

    def _fit_stage(self, name: str, detector: Detector, seed: int | None) -> Stage:
        built = settings(detector) | ({} if seed is None else {"seed": seed})
        about = asdict(Key(self.name, name, seed))
        learned = (detector.on, *detector.needs_to_fit, *detector.uses)
        depends = {"train": self.sets.identity(TRAIN, learned), "settings": built, "class": code_of(detector)}
        beside = {part: self.sets.identity(part, learned) for part in self._beside(detector)}
        return Stage("detector", about, depends | ({"beside": beside} if beside else {}))

    def _beside(self, detector: Detector) -> list[str]:
        """The sets that a detector is given when it is fitted, besides the training rows."""
        if not isinstance(detector, Summed) or not self.sets.has_held_out:
            return []
        return [HELD_OUT, *(self.sets.stand_ins if isinstance(detector, Auto) else ())]

    def _fit(self, detector: Detector, train: FeatureSource) -> Detector:
        beside = {part: self.sets[part] for part in self._beside(detector)}
        given: dict[str, Any] = {"held_out": beside.pop(HELD_OUT)} if beside else {}
        if beside:
            named = {part.removeprefix(STAND_IN): rows for part, rows in beside.items()}
            levels = {part.removeprefix(STAND_IN): self.sets.stand_ins[part] for part in beside}
            given["stand_ins"] = StandIns(named, levels)
        return detector.fit(train, **given)

    def _fitted(self, detector: Detector, fits: Mapping[int | None, Stage]) -> dict[int | None, Detector]:
        """Fitted detectors by seed, found or fitted."""
        fresh: Detector = construct(type(detector), arguments(detector)).to(self.device)
        if isinstance(fresh, LearnedEnergy):
            return self._fit_seeds(fresh, {seed: fit for seed, fit in fits.items() if seed is not None})

        found = self.stages.find(fits[None], self._load)
        if found is None:
            train = self.sets[TRAIN]  # a stage of its own: its time is not counted twice
            self.say(f"{self.name}: fitting {type(fresh).__name__}")
            found = self.stages.make(fits[None], lambda: self._fit(fresh, train), _save_detector)
        return {None: found}

    def _fit_seeds(self, fresh: LearnedEnergy, fits: Mapping[int, Stage]) -> dict[int | None, Detector]:
        found = {seed: self.stages.find(fit, self._load) for seed, fit in fits.items()}
        missing = [seed for seed, one in found.items() if one is None]
        if missing:
            # A checkpoint of all seeds is nearer to the end than a fresh fit of those that are missing.
            whole = self.stages.path(_checkpoint(fits.values()))
            group = [*fits] if whole is not None and whole.exists() else missing
            self.say(f"{self.name}: fitting {type(fresh).__name__}, seed{'s' * (len(group) > 1)} {str(group)[1:-1]}")
            kept = _checkpoint(fits[seed] for seed in group)
            trained, seconds = self._train(fresh, group, kept)
            found |= dict(zip(group, trained, strict=True))
            share = None if seconds is None else seconds / len(group)  # of fits side by side, each has its share
            for seed in missing:
                self.stages.keep(fits[seed], found[seed], _save_detector, share)
            self.stages.drop(kept)
        return {seed: one for seed, one in found.items() if one is not None}

    def _train(self, fresh: LearnedEnergy, seeds: list[int], kept: Stage) -> tuple[list[LearnedEnergy], float | None]:
        """Fit all seeds side by side, from the checkpoint if it is one of this fit; with the seconds of all of the fit.

        They are None where an earlier part of it was killed before it could note its own.
        """
        train, path = self.sets[TRAIN], self.stages.path(kept)
        if path is not None and path.exists():
            try:
                return self._timed(lambda: fresh.fit_seeds(train, seeds, checkpoint=path), kept)
            except (FileFormatError, InputError) as error:
                warnings.warn(f"a fit begins anew: {error}", OutfieldWarning, stacklevel=2)
                self.stages.drop(kept)
        return self._timed(lambda: fresh.fit_seeds(train, seeds, checkpoint=path), kept)

    def _timed(self, fit: Callable[[], list[LearnedEnergy]], kept: Stage) -> tuple[list[LearnedEnergy], float | None]:
        """A fit, and its seconds with those that are noted beside its checkpoint, where it leaves the new sum if cut off."""
        path = self.stages.path(kept)
        before = self.stages.noted(kept)["seconds"] if path is not None and path.exists() else 0.0
        self.stages.write_note(kept, None)  # what stays if this process is killed
        begin = time.perf_counter()

        def total() -> float | None:
            return None if before is None else float(before) + time.perf_counter() - begin

        try:
            return fit(), total()
        finally:
            self.stages.write_note(kept, total())

    def _load(self, path: Path) -> Detector:
        return load(path).to(self.device)

    def _scores(
        self, key: Key, part: str, needs: Collection[str], fit: Stage, detector: Callable[[], Detector]
    ) -> np.ndarray:
        about = {**asdict(key), "set": part}
        stage = Stage("scores", about, {"fit": fit.digest, "set": self.sets.identity(part, needs)})
        found = self.stages.find(stage, _load_scores)
        if found is None:
            fitted, data = detector(), self.sets[part]
            found = self.stages.make(stage, lambda: fitted.score(data).numpy(), _save_scores)
        return found

    def _record(self, key: Key, scores: Mapping[str, np.ndarray], ood: str) -> Record:
        protocol = self.run.protocol
        ids, oods = scores[protocol.id], scores[ood]
        separation = Separation(ids, oods)
        return Record(
            backbone=key.backbone,
            detector=key.detector,
            seed=key.seed,
            ood=ood,
            level=protocol.level_of(ood),
            fpr95=separation.fpr95(),
            auroc=separation.auroc(),
            aupr_in=separation.aupr_in(),
            aupr_out=separation.aupr_out(),
            id_rejected_at_95_ood_recall=separation.id_rejected_at_95_ood_recall(),
            n_id=len(ids),
            n_ood=len(oods),
        )

    def view(self, seed: int = 0) -> View:
        """The ID test set and the OOD sets in two dimensions."""
        parts = (TEST, *self.sets.ood)
        depends = {"sets": {part: self.sets.identity(part) for part in parts}, "seed": seed}
        stage = Stage("view", {"backbone": self.name, "sets": self.run.protocol.id}, depends)
        found = self.stages.find(stage, self._load_view)
        if found is None:
            sets = {self._shown(part): self.sets[part] for part in parts}
            self.say(f"{self.name}: laying features out in two dimensions")
            found = self.stages.make(stage, lambda: self._view(sets, seed), _save_view)
        return found

    def _view(self, sets: Mapping[str, FeatureSource], seed: int) -> View:
        points, rows = lay_out(sets, seed)
        names = tuple(name for name, index in rows.items() for _ in index)
        labels = np.full(len(names), -1, np.int64)
        test, shown = sets[self.run.protocol.id], rows[self.run.protocol.id]
        if "labels" in test.shapes:
            labels[: len(shown)] = test.rows(shown, ["labels"])["labels"].numpy()
        return View(self.name, points, names, labels)

    def _load_view(self, path: Path) -> View:
        header, tensors = storage.read(path, "view", {"sets": list}, {"points": 2, "labels": 1})
        return View(self.name, tensors["points"].numpy(), tuple(header["sets"]), tensors["labels"].numpy())


def _checkpoint(fits: Iterable[Stage]) -> Stage:
    """Where a running fit of these is kept."""
    stages = list(fits)
    about = {name: stages[0].about[name] for name in ("backbone", "detector")}
    return Stage("checkpoint", about, {"fits": [stage.digest for stage in stages]})


def _save_detector(detector: Detector | None, path: Path) -> None:
    if detector is not None:
        detector.save(path)


def _save_view(view: View, path: Path) -> None:
    tensors: dict[str, Tensor] = {"points": torch.from_numpy(view.points), "labels": torch.from_numpy(view.labels)}
    storage.write(path, "view", {"sets": list(view.sets)}, tensors)


def _save_history(history: History, path: Path) -> None:
    storage.write(path, "history", asdict(history), {})


def _load_history(path: Path) -> History:
    header, _ = storage.read(path, "history", dict.fromkeys((part.name for part in fields(History)), list))
    return History(**header)


def _save_members(members: list[str], path: Path) -> None:
    storage.write(path, "members", {"members": members}, {})


def _load_members(path: Path) -> list[str]:
    return [str(name) for name in storage.read(path, "members", {"members": list})[0]["members"]]


def _save_scores(scores: np.ndarray, path: Path) -> None:
    storage.write(path, "scores", {}, {"scores": torch.from_numpy(scores)})


def _load_scores(path: Path) -> np.ndarray:
    scores: np.ndarray = storage.read(path, "scores", ranks={"scores": 1})[1]["scores"].numpy()
    return scores
