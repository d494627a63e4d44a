"""What the service counts, under the names that Prometheus asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from outfield.guard.verdict import Verdict
from outfield.scores.threshold import Threshold
from outfield.serve.metrics import Counter, Histogram, exposition
from outfield.version import __version__

if TYPE_CHECKING:
    from outfield.serve.models import Model

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
P_VALUES = tuple(round(0.05 * step, 2) for step in range(1, 20))
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class Counts:
    """All metrics of a service."""

    def __init__(self) -> None:
        self.samples = Counter("outfield_samples_total", "Images judged.", ("model_name", "decision"))
        self.requests = Counter("outfield_requests_total", "Requests answered.", ("route", "status"))
        self.reloads = Counter("outfield_reloads_total", "Times a guard was read again.", ("model_name", "result"))
        self.scores: dict[str, Histogram] = {}
        self.p_values: dict[str, Histogram] = {}
        self.batches: dict[str, Histogram] = {}
        self.seconds: dict[str, Histogram] = {}

    def add_guard(self, name: str, threshold: Threshold) -> None:
        """Begin to count for a guard; scores are counted between quantiles of its calibration scores."""
        reference = threshold.reference.numpy()
        limits = sorted({*np.quantile(reference, np.linspace(0, 1, 11)).tolist(), threshold.value})
        labels = {"model_name": name}
        self.scores[name] = Histogram("outfield_score", "Scores; higher is more OOD.", limits, labels)
        self.p_values[name] = Histogram("outfield_p_value", "P-values; of ID images uniform.", P_VALUES, labels)
        self.batches[name] = Histogram("outfield_batch_images", "Images given to the network at once.", IMAGES, labels)
        self.seconds[name] = Histogram("request_predict_seconds", "Seconds from request to answer.", SECONDS, labels)
        for decision in ("id", "ood", "error"):
            self.samples.add(0, name, decision)
        for result in ("replaced", "failed"):
            self.reloads.add(0, name, result)

    def see(self, name: str, verdicts: Sequence[Verdict]) -> None:
        """Count the verdicts of one batch."""
        ood = sum(bool(one.is_ood) for one in verdicts)
        self.samples.add(ood, name, "ood")
        self.samples.add(len(verdicts) - ood, name, "id")
        self.scores[name].observe([one.score for one in verdicts if one.score is not None])
        self.p_values[name].observe([one.p_value for one in verdicts if one.p_value is not None])
        self.batches[name].observe([len(verdicts)])

    def text(self, models: Iterable[Model]) -> str:
        """In Prometheus's text format."""
        build = Counter("outfield_build_info", "Version of Outfield.", ("version",), "gauge")
        build.set(1, __version__)
        waiting = Counter("outfield_queue_images", "Images accepted and not answered yet.", ("model_name",), "gauge")
        alarm = Counter("outfield_drift_alarm", "1 once drift was found.", ("model_name",), "gauge")
        evidence = Counter("outfield_drift_log_wealth", "Evidence of drift.", ("model_name",), "gauge")
        for model in models:
            told = model.drift.summary()
            waiting.set(model.accepted, model.name)
            alarm.set(float(told["alarm"]), model.name)
            evidence.set(told["log_wealth"], model.name)
        counters = [build, self.samples, self.requests, self.reloads, waiting, alarm, evidence]
        kinds = (self.scores, self.p_values, self.batches, self.seconds)
        return exposition(counters, [one for kind in kinds for one in kind.values()])
