"""Whether what arrives is still what the threshold was chosen on: share OOD, p-values, and an alarm with a known error."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.errors import FileFormatError, InputError, OutfieldError, as_ours
from outfield.files import PathLike, Record, read_record, write_record
from outfield.percent import counted
from outfield.scores.betting import BETS, anytime_interval, gaps_of, lots, play, uniform
from outfield.scores.threshold import Threshold, check_keep, same
from outfield.scores.vectors import as_scores, rank

AT_ONCE = 65_536  # samples taken in together; memory grows with this, not with how many come
# streams of random numbers: places within a gap, order of a sample among equal scores, the same of calibration scores
TIES, SAMPLES, REFERENCE = 0, 1, 2
ARRAYS = ("counts", "histogram", "recent", "stakes")
SETTINGS = ("calibration", "keep", "alpha", "window", "bins", "seed")


@dataclass
class Seen:
    """What a Drift knows of its samples besides its arrays."""

    seen: int = 0
    ood: int = 0
    log_wealth: float = 0.0
    largest_log_wealth: float = 0.0
    alarm_at: int | None = None
    least: float = 0.0  # the lowest ln wealth before the alarm
    since: int = 1  # the sample after that


class Drift:
    """Watches scores or p-values of a deployed detector, one or many at a time, from any number of threads.

    The alarm tests that new samples and the calibration scores are exchangeable, i.e. that nothing has changed: if so, it is ever
    raised, however long the stream, with probability at most ``alpha`` (a betting martingale, :mod:`outfield.scores.betting`).
    That counts the luck of the calibration's draw, too: a long stream of ID samples against few
    calibration scores is no drift. It bets on too many small p-values first of all, on too many large ones, on both ends
    and on the middle; other departures from uniform may go unseen. An alarm stays until :meth:`reset`.

    Args:
        threshold: Whose scores are watched. None where only p-values are, with ``calibration`` and ``keep``.
        calibration: How many held-out scores the p-values were computed with (n of their 1 / (n + 1)); taken from the
            threshold where there is one. With None p-values are taken to be exactly uniform and independent, as those of
            a fixed, known distribution are; those of a Threshold are not.
        keep: Share of ID samples that is not called OOD; taken from the threshold where there is one.
        alpha: Probability of ever raising a false alarm.
        window: How many of the last samples make the recent share.
        bins: Of the histogram of p-values.
        seed: Of the random order of equal scores.

    Raises:
        InputError: A setting is out of range, or ``calibration`` is not the threshold's.

    >>> drift = Drift(Threshold.fit(torch.arange(200.0)))
    >>> drift.update(torch.arange(0.0, 200.0, 4.0)), drift.update(torch.full((50,), 500.0))
    (False, True)
    """

    def __init__(
        self,
        threshold: Threshold | None = None,
        *,
        calibration: int | None = None,
        keep: float | None = None,
        alpha: float = 0.01,
        window: int = 1000,
        bins: int = 20,
        seed: int = 0,
    ) -> None:
        if threshold is not None:
            require(isinstance(threshold, Threshold), "threshold", threshold, "a Threshold or None")
            own = len(threshold.reference)
            require(calibration in (None, own), "calibration", calibration, f"{own}, the threshold's, or not given")
            require(keep in (None, threshold.keep), "keep", keep, f"{threshold.keep}, the threshold's, or not given")
            calibration, keep = own, threshold.keep
        if calibration is not None:
            require_number("calibration", calibration, least=1, whole=True)
        require_number("alpha", alpha, above=0, most=1)
        for name, value in (("window", window), ("bins", bins)):
            require_number(name, value, least=1, most=10**6, whole=True)
        require_number("seed", seed, least=0, whole=True)
        self.threshold, self.calibration, self.keep = threshold, calibration, 0.95 if keep is None else keep
        check_keep(self.keep)
        self.alpha, self.window, self.bins, self.seed = float(alpha), int(window), int(bins), int(seed)
        self._lock = threading.RLock()
        if threshold is not None:
            self._reference = threshold.reference.numpy()
            self._ties = lots(self._reference, self._random(REFERENCE, 0, len(self._reference)))
        self.reset()

    def reset(self) -> None:
        """Forget all samples, and the alarm. After an alarm this begins a new test, with an ``alpha`` of its own."""
        with self._lock:
            self._now = Seen()
            self._counts = np.zeros(0 if self.calibration is None else self.calibration + 1, np.int64)
            self._histogram, self._recent = np.zeros(self.bins, np.int64), np.zeros(0, bool)
            self._stakes = np.full(BETS, -np.inf)

    @property
    def p_limit(self) -> float:
        """The largest p-value that is called OOD."""
        if self.calibration is None:
            return 1 - self.keep
        slots = self.calibration + 1
        return (slots - rank(self.keep, slots)) / slots

    @property
    def alarm(self) -> bool:
        """Whether drift was found since the beginning, or the last reset."""
        return self._now.alarm_at is not None

    def update(self, scores: Any) -> bool:
        """Take in scores (N,), or one; returns whether there is an alarm.

        Raises:
            InputError: There is no threshold, or these are not scores of its detector, or NaN is among them.
        """
        if self.threshold is None:
            raise InputError("this Drift has no threshold, so it takes p-values: update_p_values, or Drift(threshold)")
        vector = as_scores("scores", _vector(scores))
        p_values = self.threshold.p_value(scores if isinstance(scores, Tensor) and scores.ndim else vector).numpy()
        with self._lock:
            order = self._random(SAMPLES, self._now.seen, len(vector))
            return self._take(p_values, gaps_of(self._reference, self._ties, vector, order))

    def update_p_values(self, p_values: Any) -> bool:
        """Take in p-values (N,), or one; returns whether there is an alarm.

        The alarm's error is exact for scores that are never equal; where many are, :meth:`update` with the scores orders them
        by lot, which p-values cannot be.

        Raises:
            InputError: One is not in (0, 1], or not a multiple of 1 / (calibration + 1).
        """
        vector = as_scores("p_values", _vector(p_values))
        bad = ~((vector > 0) & (vector <= 1))
        if bad.any():
            at = int(bad.argmax())
            raise InputError(f"p_values[{at}] is {vector[at]}; p-values are above 0 and at most 1")
        if self.calibration is None:
            return self._take(vector, None)
        slots = self.calibration + 1
        places = np.rint(vector * slots)
        odd = np.abs(vector * slots - places) > min(1e-9 + 1e-6 * slots, 0.25)
        odd |= places < 1
        if odd.any():
            at = int(odd.argmax())
            what = f"p_values[{at}] is {vector[at]}, which {self.calibration} calibration scores cannot give"
            raise InputError(f"{what}; they give multiples of 1 / {slots}")
        return self._take(places / slots, places.astype(np.int64) - 1)

    def _take(self, p_values: np.ndarray, gaps: np.ndarray | None) -> bool:
        with self._lock:
            for start in range(0, len(p_values), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                self._take_part(p_values[part], None if gaps is None else gaps[part])
            return self.alarm

    def _take_part(self, p_values: np.ndarray, gaps: np.ndarray | None) -> None:
        now, numbers = self._now, p_values
        if gaps is not None:
            numbers = uniform(self._counts, gaps, 1 - self._random(TIES, now.seen, len(gaps)))
        self._stakes, wealth = play(self._stakes, now.seen, numbers)
        if now.alarm_at is None:
            reached = np.flatnonzero(wealth >= -math.log(self.alpha))
            quiet = wealth[: reached[0]] if len(reached) else wealth
            if quiet.min(initial=math.inf) < now.least:
                now.least, now.since = float(quiet.min()), now.seen + int(quiet.argmin()) + 2
            if len(reached):
                now.alarm_at = now.seen + int(reached[0]) + 1
        now.log_wealth, now.largest_log_wealth = float(wealth[-1]), max(now.largest_log_wealth, float(wealth.max()))
        called = p_values <= self.p_limit * (1 + 1e-12)  # the same number may have been reached by another division
        self._recent = np.concatenate([self._recent, called])[-self.window :]
        now.seen, now.ood = now.seen + len(called), now.ood + int(called.sum())
        # Bin b holds b / bins < p ≤ (b + 1) / bins.
        place = np.clip(np.ceil(p_values * self.bins * (1 - 1e-12)).astype(np.int64) - 1, 0, self.bins - 1)
        self._histogram += np.bincount(place, minlength=self.bins)

    def _random(self, stream: int, start: int, count: int) -> np.ndarray:
        """Numbers (count,) in [0, 1) from place ``start`` on, a function of the seed: a restart goes on with the same ones."""
        return np.random.Generator(np.random.PCG64([self.seed, stream]).advance(start)).random(count)

    def share_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Where the share of OOD verdicts lies, for all looks at it together: see :mod:`outfield.scores.betting`."""
        require_number("confidence", confidence, above=0, most=1 - 1e-12)
        with self._lock:
            return anytime_interval(self._now.ood, self._now.seen, confidence)

    def summary(self, confidence: float = 0.95) -> dict[str, Any]:
        """Everything there is to tell, ready for JSON.

        ``samples``, ``ood``, ``share_ood`` with ``share_low`` and ``share_high`` (anytime-valid, at ``confidence``), the share
        ``expected`` of ID samples, the ``recent_share`` of the last ``recent_samples``; ``histogram`` of p-values;
        ``log_wealth`` of the test now and ``largest_log_wealth``, the ``limit`` that raises the alarm, its ``alpha``, the
        ``alarm``, after how many samples it was raised (``alarm_at``), and since which of them the evidence has grown
        (``since``), about where the change began. Shares of no samples are None.
        """
        with self._lock:
            now, (low, high) = self._now, self.share_interval(confidence)
            return {
                "samples": now.seen, "ood": now.ood, "share_ood": now.ood / now.seen if now.seen else None,
                "share_low": low, "share_high": high, "confidence": confidence, "expected": self.p_limit,
                "recent_samples": len(self._recent),
                "recent_share": float(self._recent.mean()) if len(self._recent) else None,
                "histogram": self._histogram.tolist(), "log_wealth": now.log_wealth,
                "largest_log_wealth": now.largest_log_wealth, "limit": -math.log(self.alpha), "alpha": self.alpha,
                "alarm": self.alarm, "alarm_at": now.alarm_at, "since": now.since if self.alarm else None,
            }  # fmt: skip

    def __repr__(self) -> str:
        told = self.summary()
        if not told["samples"]:
            return f"Drift(no samples yet; false alarms with probability {self.alpha:g} at most)"
        return (
            f"Drift({counted(told['samples'], 'sample')}, {100 * told['share_ood']:.1f} % OOD (95 % interval "
            f"{100 * told['share_low']:.1f} to {100 * told['share_high']:.1f}, {100 * told['expected']:.1f} expected), "
            f"{100 * told['recent_share']:.1f} % of the last {told['recent_samples']:,}; {in_words(told)})"
        )

    def state(self) -> dict[str, Any]:
        """What it has seen and how it was made: plain values and tensors, for :meth:`of_state`."""
        header, tensors = self.record()
        return {**header, **tensors}

    @classmethod
    def of_state(cls, state: dict[str, Any], threshold: Threshold | None = None) -> Drift:
        """What :meth:`state` described.

        Args:
            state: From :meth:`state`.
            threshold: Where given, the state must be of this one; else it is made of the state.

        Raises:
            InputError: The state is not complete, or it is of another threshold.
        """
        try:
            known = state["value"] is not None
            own = Threshold(state["value"], state["keep"], state["reference"], state["source"]) if known else None
            made = cls(own, **{name: state[name] for name in SETTINGS})
            made._now = Seen(**{field.name: state[field.name] for field in fields(Seen)})
            for name in ARRAYS:
                setattr(made, f"_{name}", state[name].detach().cpu().numpy().copy())
        except KeyError as error:
            raise InputError(f"the state of a Drift lacks {error}") from error
        if threshold is not None and not same(own, threshold):
            raise InputError("this state was kept with another threshold; begin a new one for this threshold")
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of_state, (self.state(),)

    def save(self, path: PathLike) -> None:
        """Write the state to ``path`` (``.safetensors``), atomically: whenever the process ends, the file is whole.

        Raises:
            StorageError: The file could not be written; what was there stays.
        """
        write_record(path, "Drift", self.record())

    def record(self) -> Record:
        """The state as files hold it."""
        with self._lock:
            header = (
                {name: getattr(self, name) for name in SETTINGS} | {"value": None, "source": None} | asdict(self._now)
            )
            tensors = {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in ARRAYS}
        if self.threshold is None:
            return Record(header, tensors)
        known = self.threshold.record()
        return Record({**header, **known.header}, {**tensors, "reference": known.tensors["reference"].clone()})

    @classmethod
    def load(cls, path: PathLike, threshold: Threshold | None = None) -> Drift:
        """Read what :meth:`save` wrote, and go on from there.

        Args:
            path: The file.
            threshold: Where given, the state must be of this one.

        Raises:
            FileFormatError: The file is damaged or not a Drift.
            InputError: It is of another threshold.
        """
        header, tensors = read_record(path, "Drift")
        with as_ours(f"{path} holds a Drift that cannot be one", FileFormatError, OutfieldError):
            loaded = cls.of_state({**header, **tensors})
        if threshold is not None and not same(loaded.threshold, threshold):
            raise InputError(f"{path} was kept with another threshold; begin a new file for this one")
        return loaded


def in_words(told: Mapping[str, Any], unit: str = "sample") -> str:
    """What a summary says of drift: whether there is any, in which column, since when, and how strong the evidence is."""
    found = "no drift found"
    if told["alarm"]:
        where = f" in {told['column']}" if "column" in told else ""
        found = f"DRIFT{where} since about {unit} {told['since']:,}, found after {told['alarm_at']:,} {unit}s"
    most = told["largest_log_wealth"]
    evidence = f"{math.exp(most):,.0f} to 1" if most < math.log(1e6) else "over a million to 1"
    return (
        f"{found}: evidence {evidence}, an alarm needs {math.exp(told['limit']):,.0f} to 1 "
        f"(a false alarm, ever, has probability {told['alpha']:g} at most)"
    )


def _vector(values: Any) -> Any:
    """One number as a vector of one; anything else as it is."""
    if isinstance(values, int | float):
        return [values]
    return values.reshape(1) if getattr(values, "ndim", 1) == 0 else values
