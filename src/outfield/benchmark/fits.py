"""A benchmark on the features of one backbone: each detector is fitted once per seed, each set scored once by each."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from outfield.backbone import accuracy
from outfield.benchmark.cache import Cache, Entry
from outfield.benchmark.protocol import HELD_OUT, TEST, TRAIN
from outfield.benchmark.provenance import settings_of
from outfield.benchmark.result import BenchmarkRun, Key, Layout, LowData, Result, wrong_answers
from outfield.benchmark.sets import FractionOfSets, Say, Sets
from outfield.benchmark.summary import METRICS, by_fit
from outfield.detectors import Detector, load
from outfield.energy import History
from outfield.errors import DivergenceError, FileFormatError, InputError, OutfieldWarning
from outfield.extras import library
from outfield.features import FeatureSource, normalise
from outfield.files import Record

log = logging.getLogger(__name__)
Given = Mapping[Key, Detector]
"""Detectors that are fitted already."""
POINTS = 2000  # in all: t-SNE takes seconds for these and minutes for ten times as many
FIRST = 600  # of which so many at most are the first set's
# t-SNE's threads wait for each other thousands of times, spinning: where they share cores with anything else, all of them take
# several times as long as half of them.
THREADS = min(4, max(1, (os.cpu_count() or 1) // 2))


@dataclass
class BackboneFits:
    """Fits and scores detectors on one backbone's features; results go to the run, and perhaps to the cache."""

    name: str
    sets: Sets
    run: BenchmarkRun
    cache: Cache
    device: str = "auto"
    say: Say = log.info

    def fill(
        self, detectors: Mapping[str, Detector], seeds: list[int], given: Given, layout: bool, fractions: list[float]
    ) -> None:
        """All detectors, accuracy and layout; a detector that fails is dropped with a warning, unless no other is left."""
        left_out = self.run.provenance.get("left_out", {})
        for name in [name for name in detectors if name not in left_out]:
            ready = {key.seed: one for key, one in given.items() if (key.backbone, key.detector) == (self.name, name)}
            try:
                self.add(name, detectors[name], seeds, ready)
            except (InputError, DivergenceError) as error:
                if len(left_out) + 1 == len(detectors):
                    raise
                left_out[name] = f"{self.name}: {error}"
                self.run.drop(name)
                self.run.provenance["left_out"] = left_out
                warnings.warn(f"{name} is left out, {left_out[name]}", OutfieldWarning, stacklevel=2)
        test = self.sets[TEST]
        right = accuracy(test.in_memory()) if {"labels", "logits"} <= set(test.shapes) else None
        self.run.provenance["backbones"].setdefault(self.name, {})["accuracy"] = right
        if right is not None:
            self.run.accuracies[self.name], self.run.wrong[self.name] = right, wrong_answers(test)
        if layout:
            self.run.layouts.append(self._layout())
        fitted = {key.detector for key in given if key.backbone == self.name}
        to_fit = {name: one for name, one in detectors.items() if name not in left_out and name not in fitted}
        for fraction in fractions:
            self.add_fraction(to_fit, seeds, fraction)

    def add(self, name: str, detector: Detector, seeds: list[int], given: Mapping[int | None, Detector]) -> None:
        """Fit a detector from every seed, where it is not given, score every set, and put scores and records into the run."""
        wanted: list[int | None] = [*given] if given else [*seeds] if detector.trained else [None]
        fits = {seed: self._entry(name, detector, seed) for seed in wanted}
        # Where scores and curves are found from an earlier run, the detector is not needed, nor the features.
        fitted = functools.cache(lambda: dict(given) if given else self._fitted(detector, fits))
        for seed, fit in fits.items():
            self._judge(Key(self.name, name, seed), detector, fit, lambda seed=seed: fitted()[seed])  # type: ignore[misc]
        if not fitted.cache_info().currsize:
            for fit in fits.values():
                self.cache.mention(fit)

    def add_fraction(self, detectors: Mapping[str, Detector], seeds: list[int], fraction: float) -> None:
        """Fit and score the detectors on a fraction of the training rows, and put means over the OOD sets into the run.

        Those of all rows are taken from the run's records, where they are already. A detector that cannot be fitted on so few
        rows has the reason in the place of figures.
        """
        sets = FractionOfSets(self.sets, fraction)
        for name, detector in detectors.items():
            mine = [r for r in self.run.records if (r.backbone, r.detector) == (self.name, name)]
            if fraction < 1:
                # A run and a log of their own: those of the run are about all rows.
                scratch, cache = BenchmarkRun(self.run.protocol), Cache(self.cache.folder, self.cache.device)
                self.say(f"{self.name}: {name} on {100 * fraction:g} % of the training rows")
                try:
                    replace(self, sets=sets, run=scratch, cache=cache).add(name, detector, seeds, {})
                except (InputError, DivergenceError) as error:
                    self.run.low_data.append(LowData(fraction, self.name, name, None, reason=str(error)))
                    continue
                mine = scratch.records
            for (_, seed), fit in by_fit(mine).get(name, {}).items():
                fpr95, auroc = (statistics.fmean(getattr(one, each) for one in fit.values()) for each in METRICS)
                self.run.low_data.append(LowData(fraction, self.name, name, seed, fpr95, auroc))

    def _judge(self, key: Key, detector: Detector, fit: Entry, fitted: Callable[[], Any]) -> None:
        """Scores, records, and what a learned or a choosing detector tells of its fit."""
        protocol, needs = self.run.protocol, (*detector.needs_to_score, *detector.uses)
        known, *others = (self._scores(key, part, needs, fit, fitted) for part in (TEST, *self.sets.ood))
        scores = dict(zip(self.sets.ood, others, strict=True))
        self.run.scores[key] = {protocol.id: known, **scores}
        self.run.records += [Result.of(key, ood, protocol.level_of(ood), known, one) for ood, one in scores.items()]
        if detector.trained:
            self.run.histories[key] = History(**self._told("history", key, fit, lambda: asdict(fitted().history_)))
        if detector.uses_stand_ins:
            told = self._told("members", key, fit, lambda: {"members": list(fitted().names)})
            self.run.provenance.setdefault("chosen", {}).setdefault(key.detector, {})[self.name] = told["members"]

    def _told(self, what: str, key: Key, fit: Entry, tell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a fitted detector tells of itself, ready for JSON; it took no time of its own."""
        entry = Entry(what, asdict(key), {"fit": fit.digest})
        return self.cache.record(entry, lambda: Record(tell(), {}), timed=False).header

    def _scores(self, key: Key, part: str, needs: Collection[str], fit: Entry, fitted: Callable[[], Any]) -> np.ndarray:
        depends = {"fit": fit.digest, "set": self.sets.identity(part, needs)}
        entry = Entry("scores", {**asdict(key), "set": part}, depends)
        if not self.cache.kept(entry):
            fitted(), self.sets[part]  # work of its own: its time is not counted twice
        record = self.cache.record(entry, lambda: Record({}, {"scores": fitted().score(self.sets[part])}))
        return record.tensors["scores"].numpy()

    def _entry(self, name: str, detector: Detector, seed: int | None) -> Entry:
        """A fit: of which detector, on which rows, given which besides."""
        learned = (detector.field, *detector.needs_to_fit, *detector.uses)
        depends = {
            "train": self.sets.identity(TRAIN, learned),
            "settings": settings_of(detector) | ({} if seed is None else {"seed": seed}),
            "own code": _own_code(detector),
            "beside": {part: self.sets.identity(part, learned) for part in self._beside(detector)},
        }
        return Entry("detector", asdict(Key(self.name, name, seed)), depends)

    def _beside(self, detector: Detector) -> list[str]:
        """The sets that a detector is given when it is fitted, besides the training rows."""
        if not detector.uses_held_out or not self.sets.has_held_out:
            return []
        return [HELD_OUT, *(self.sets.levels if detector.uses_stand_ins else ())]

    def _fitted(self, detector: Detector, fits: Mapping[int | None, Entry]) -> dict[int | None, Detector]:
        """Fitted detectors by seed, found or fitted."""
        fresh = detector.fresh().to(self.device)
        if fresh.trained:
            return self._fit_seeds(fresh, {seed: fit for seed, fit in fits.items() if seed is not None})
        found = self.cache.find(fits[None], load)
        if found is None:
            train, beside = self.sets[TRAIN], self._beside(fresh)  # not a part of the fit, nor of its seconds
            given: dict[str, Any] = {"held_out": self.sets[HELD_OUT]} if beside else {}
            given |= {"stand_ins": self.sets.stand_ins()} if len(beside) > 1 else {}
            self.say(f"{self.name}: fitting {type(fresh).__name__}")
            begin = time.perf_counter()
            found = fresh.fit(train, **given)
            self.cache.keep(fits[None], found, type(found).save, time.perf_counter() - begin)
        return {None: found.to(self.device)}

    def _fit_seeds(self, fresh: Any, fits: Mapping[int, Entry]) -> dict[int | None, Detector]:
        kept = {seed: self.cache.find(fit, load) for seed, fit in fits.items()}
        found: dict[int | None, Detector] = {seed: one.to(self.device) for seed, one in kept.items() if one is not None}
        if missing := [seed for seed in fits if seed not in found]:
            # A checkpoint of all seeds is nearer to the end than a fresh fit of those that are missing.
            group = [*fits] if self.cache.kept(_checkpoint(fits.values())) else missing
            self.say(f"{self.name}: fitting {type(fresh).__name__}, seed{'s' * (len(group) > 1)} {str(group)[1:-1]}")
            checkpoint = self.cache.path(_checkpoint(fits[seed] for seed in group))
            trained, seconds = self._train(fresh, group, checkpoint)
            found |= dict(zip(group, trained, strict=True))
            for seed in missing:
                self.cache.keep(fits[seed], found[seed], type(fresh).save, seconds)
            if checkpoint is not None:
                checkpoint.unlink(missing_ok=True)
        return {seed: found[seed] for seed in fits}

    def _train(self, fresh: Any, seeds: list[int], checkpoint: Path | None) -> tuple[list[Detector], float | None]:
        """Fit all seeds side by side, with the seconds of each; these are not known of a fit that goes on from a checkpoint."""
        train = self.sets[TRAIN]
        if checkpoint is not None and checkpoint.exists():
            try:
                return fresh.fit_seeds(train, seeds, checkpoint=checkpoint), None
            except (FileFormatError, InputError) as error:
                warnings.warn(f"a fit begins anew: {error}", OutfieldWarning, stacklevel=2)
                checkpoint.unlink()
        begin = time.perf_counter()
        trained = fresh.fit_seeds(train, seeds, checkpoint=checkpoint)
        return trained, (time.perf_counter() - begin) / len(seeds)

    def _layout(self) -> Layout:
        """The ID test set and the OOD sets in two dimensions."""
        of_id = self.run.protocol.id
        depends = {"sets": {part: self.sets.identity(part) for part in (TEST, *self.sets.ood)}, "seed": 0}
        entry = Entry("layout", {"backbone": self.name, "sets": of_id}, depends)

        def work() -> Record:
            self.say(f"{self.name}: laying features out in two dimensions")
            sets = {of_id: self.sets[TEST]} | {ood: self.sets[ood] for ood in self.sets.ood}
            return lay_out(self.name, sets).record()

        return Layout.from_record(self.cache.record(entry, work))


def _own_code(detector: Detector) -> str | None:
    """Digest of the file of a detector that is the user's own, so that a change of it is noticed."""
    module = type(detector).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.startswith("outfield."):
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _checkpoint(fits: Iterable[Entry]) -> Entry:
    """Where a running fit of these is kept."""
    entries = list(fits)
    about = {name: entries[0].about[name] for name in ("backbone", "detector")}
    return Entry("checkpoint", about, {"fits": [entry.digest for entry in entries]})


def lay_out(backbone: str, sets: Mapping[str, FeatureSource], seed: int = 0) -> Layout:
    """Some rows of each set by t-SNE of their features, begun from the principal components; labels of the first set alone."""
    chosen = choose_rows(sets, seed)
    z = [normalise(sets[name].rows(rows, ["features"])["features"]).numpy() for name, rows in chosen.items()]
    names = tuple(name for name, rows in chosen.items() for _ in rows)
    labels = np.full(len(names), -1, np.int64)
    first, rows = next(iter(chosen.items()))
    if "labels" in sets[first].shapes:
        labels[: len(rows)] = sets[first].rows(rows, ["labels"])["labels"].numpy()
    return Layout(backbone, embed(np.concatenate(z), seed), names, labels)


def choose_rows(sets: Mapping[str, FeatureSource], seed: int) -> dict[str, np.ndarray]:
    """Rows of each set to show, ascending."""
    rng = np.random.default_rng(seed)
    share = (POINTS - FIRST) // max(1, len(sets) - 1)
    most = dict.fromkeys(sets, share) | {next(iter(sets)): FIRST}
    counts = {name: min(len(data), most[name]) for name, data in sets.items()}
    return {name: np.sort(rng.choice(len(sets[name]), n, replace=False)) for name, n in counts.items()}


def embed(z: np.ndarray, seed: int) -> np.ndarray:
    """Rows z (n, D) as points (n, 2); all at the origin where there are too few, or no two that differ."""
    if len(z) < 4 or not np.ptp(z, axis=0).any():
        return np.zeros((len(z), 2), np.float32)
    decomposition, manifold = library("sklearn.decomposition", "report"), library("sklearn.manifold", "report")
    # Principal components beyond the first 50 hold little but noise, and cost time.
    components = decomposition.PCA(min(50, *z.shape), random_state=seed).fit_transform(z)
    components = np.pad(components, ((0, 0), (0, max(0, 2 - components.shape[1]))))
    tsne = manifold.TSNE(init="pca", random_state=seed, perplexity=min(30.0, (len(z) - 1) / 3))
    # OpenMP's number of threads belongs to the thread that sets it: no other thread sees the change.
    with library("threadpoolctl", "report").threadpool_limits(THREADS, user_api="openmp"):
        return np.asarray(tsne.fit_transform(components), np.float32)
