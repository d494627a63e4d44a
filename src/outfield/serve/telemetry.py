"""What the service tells of itself: counts for Prometheus, and log lines of JSON that hold neither an image nor a token."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from outfield.guard import Verdict
from outfield.version import __version__

if TYPE_CHECKING:
    from outfield.serve.models import Model

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
P_VALUES = tuple(round(0.05 * step, 2) for step in range(1, 20))
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
GUARD = ("model_name",)

prometheus_client.disable_created_metrics()


class Scores:
    """Histograms of one name whose limits differ from guard to guard."""

    def __init__(self) -> None:
        self.of: dict[str, Histogram] = {}

    def collect(self) -> Iterator[Metric]:
        found = [metric for histogram in self.of.values() for metric in histogram.collect()]
        for metric in found[1:]:
            found[0].samples += metric.samples
        yield from found[:1]


class Counts:
    """All metrics of a service."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        Gauge("outfield_build_info", "Version of Outfield.", ("version",), registry=own).labels(__version__).set(1)
        self.samples = Counter("outfield_samples", "Images judged.", (*GUARD, "decision"), registry=own)
        self.requests = Counter("outfield_requests", "Requests answered.", ("route", "status"), registry=own)
        self.reloads = Counter("outfield_reloads", "Times a guard was read again.", (*GUARD, "result"), registry=own)
        self.waiting = Gauge("outfield_queue_images", "Images accepted and not answered yet.", GUARD, registry=own)
        self.alarm = Gauge("outfield_drift_alarm", "1 once drift was found.", GUARD, registry=own)
        self.evidence = Gauge("outfield_drift_log_wealth", "Evidence of drift.", GUARD, registry=own)
        self.kept = Counter("outfield_kept", "Inputs kept for review.", (*GUARD, "result"), registry=own)
        self.scores = Scores()
        own.register(self.scores)
        self.p_values = self._histogram("outfield_p_value", "P-values; uniform for ID images.", P_VALUES)
        self.batches = self._histogram("outfield_batch_images", "Images given to the network at once.", IMAGES)
        self.seconds = self._histogram("request_predict_seconds", "Seconds from request to answer.", SECONDS)

    def _histogram(self, name: str, help: str, limits: Sequence[float]) -> Histogram:
        return Histogram(name, help, GUARD, buckets=limits, registry=self.registry)

    def add_guard(self, model: Model) -> None:
        """Begin to count for a guard; scores are counted between quantiles of its calibration scores."""
        name, threshold = model.name, model.guard.threshold
        limits = sorted({*np.quantile(threshold.reference.numpy(), np.linspace(0, 1, 11)).tolist(), threshold.value})
        score = Histogram("outfield_score", "Scores; higher is more OOD.", GUARD, buckets=limits, registry=None)
        self.scores.of[name] = score
        for one in (score, self.p_values, self.batches, self.seconds):
            one.labels(name)
        for decision in ("id", "ood", "error"):
            self.samples.labels(name, decision)
        for result in ("replaced", "failed"):
            self.reloads.labels(name, result)
        self.waiting.labels(name).set_function(lambda: model.accepted)
        self.alarm.labels(name).set_function(lambda: float(model.drift.alarm))
        self.evidence.labels(name).set_function(lambda: model.drift.summary()["log_wealth"])

    def see(self, name: str, verdicts: Sequence[Verdict]) -> None:
        ood = sum(bool(one.is_ood) for one in verdicts)
        self.samples.labels(name, "ood").inc(ood)
        self.samples.labels(name, "id").inc(len(verdicts) - ood)
        _observe(self.scores.of[name].labels(name), (one.score for one in verdicts))
        _observe(self.p_values.labels(name), (one.p_value for one in verdicts))
        self.batches.labels(name).observe(len(verdicts))

    def text(self) -> bytes:
        return prometheus_client.generate_latest(self.registry)


def _observe(histogram: Histogram, values: Iterable[float | None]) -> None:
    for value in values:
        if value is not None and not math.isnan(value):
            histogram.observe(value)


log = logging.getLogger("outfield.serve")
LONGEST = 500
"""Letters of a text in a line; some come from clients."""


def tell(level: int, event: str, **about: Any) -> None:
    """Log an event, and plain values about it."""
    log.log(level, event, extra={"about": about})


class JsonLines(logging.Formatter):
    """A record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()[:LONGEST]}
        about: dict[str, Any] = getattr(record, "about", {})
        line |= {name: value[:LONGEST] if isinstance(value, str) else value for name, value in about.items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@contextlib.contextmanager
def json_lines() -> Iterator[None]:
    """While the block runs, warnings and what Outfield and uvicorn log go to stderr as JSON lines, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [
        logging.getLogger(name) for name in ("outfield", "uvicorn", "asyncio", "python_multipart", "py.warnings")
    ]
    before = [(one, one.handlers[:], one.propagate) for one in loggers]
    for one in loggers:
        one.handlers, one.propagate = [handler], False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # what is wrong with a form is in the answer
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for one, handlers, propagate in before:
            one.handlers, one.propagate = handlers, propagate
