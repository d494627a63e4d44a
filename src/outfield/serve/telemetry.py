"""What the service tells of itself: counts for Prometheus, log lines of JSON, and spans and metrics for OpenTelemetry.

None of it holds an image or a token.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from outfield.config import require_number
from outfield.errors import InputError, as_ours
from outfield.extras import library
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
        for one in verdicts:
            for histogram, value in ((self.scores.of[name], one.score), (self.p_values, one.p_value)):
                if value is not None and not math.isnan(value):
                    histogram.labels(name).observe(value)
        self.batches.labels(name).observe(len(verdicts))

    def text(self) -> bytes:
        return prometheus_client.generate_latest(self.registry)


log = logging.getLogger("outfield.serve")
LONGEST = 500  # letters of a text in a line; some come from clients


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
    names = ("outfield", "uvicorn", "asyncio", "python_multipart", "py.warnings")
    loggers = [logging.getLogger(name) for name in names]
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


# OpenTelemetry

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
QUIET = ("/metrics", "/v2/health/live", "/v2/health/ready")  # what is asked every few seconds, and has no span
LAST = 2.0  # seconds at the end in which a collector takes what is left


class Otlp:
    """Sends a span for each request, and the metrics of a registry every minute, by OTLP over HTTP.

    A request waits for nothing: other threads send. What a collector does not take, or cannot be reached for, is lost, and the
    log says so once. The environment variables of OpenTelemetry hold: OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, …
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        self._where, self._every = _host(address), _seconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)
        trace = library("opentelemetry.sdk.trace", "otel")
        batches = library("opentelemetry.sdk.trace.export", "otel")
        traces = library("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
        metrics = library("opentelemetry.exporter.otlp.proto.http.metric_exporter", "otel")
        self._kinds = library("opentelemetry.trace", "otel")
        self._points = library("opentelemetry.sdk.metrics.export", "otel")
        self._parents = library("opentelemetry.trace.propagation.tracecontext", "otel").TraceContextTextMapPropagator()
        scopes = library("opentelemetry.sdk.util.instrumentation", "otel")
        self._scope = scopes.InstrumentationScope("outfield", __version__)
        about = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "outfield"), "service.version": __version__}
        self._resource = library("opentelemetry.sdk.resources", "otel").Resource.create(about)
        base = address.rstrip("/")
        spans, self._metrics = (
            traces.OTLPSpanExporter(f"{base}/v1/traces"),
            metrics.OTLPMetricExporter(f"{base}/v1/metrics"),
        )
        self._exporters = {"spans": spans, "metrics": self._metrics}
        for what, exporter in self._exporters.items():
            exporter.export = self._told(exporter.export, what)
        self._spans = trace.TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._spans.add_span_processor(batches.BatchSpanProcessor(spans))
        self._tracer = self._spans.get_tracer("outfield", __version__)
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs every failure; _told does once
        self._registry, self._began, self._ended = registry, time.time_ns(), threading.Event()
        self._sender = threading.Thread(target=self._send, name="outfield metrics", daemon=True)
        self._sender.start()

    def _told(self, export: Callable[..., Any], what: str) -> Callable[..., Any]:
        """``export``, which tells when things begin to be lost, and when no longer."""
        lost = False

        def sent(*given: Any) -> Any:
            nonlocal lost
            result = export(*given)
            before, lost = lost, result.name != "SUCCESS"
            if lost != before and not self._ended.is_set():
                level, event = (logging.WARNING, "telemetry lost") if lost else (logging.INFO, "telemetry taken again")
                tell(level, event, what=what, collector=self._where)
            return result

        return sent

    def request(
        self, headers: Mapping[str, str], method: str, route: str, status: int, seconds: float, about: Mapping[str, Any]
    ) -> None:
        """A request that was answered just now; its parent is that of the header ``traceparent``."""
        if route in QUIET:
            return
        method, end = method if method in METHODS else "_OTHER", time.time_ns()
        told: dict[str, Any] = {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        told |= {f"outfield.{name}": value for name, value in about.items()}
        span = self._tracer.start_span(
            f"{method} {route}", self._parents.extract(headers), self._kinds.SpanKind.SERVER, told,
            start_time=end - round(1e9 * seconds),
        )  # fmt: skip
        if status >= 500:
            span.set_status(self._kinds.StatusCode.ERROR)
        span.end(end)

    def stop(self) -> None:
        """Send what is left, in two seconds."""
        ending = threading.Thread(target=self._spans.shutdown, daemon=True)
        ending.start()
        self._ended.set()
        for thread in (ending, self._sender):
            thread.join(LAST / 2)
        for exporter in self._exporters.values():
            exporter.shutdown()

    def _send(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(self._every)
            metrics = [self._metric(one) for one in self._registry.collect() if one.samples]
            scopes = [self._points.ScopeMetrics(self._scope, metrics, "")]
            self._metrics.export(self._points.MetricsData([self._points.ResourceMetrics(self._resource, scopes, "")]))

    def _metric(self, metric: Metric) -> Any:
        """A metric of Prometheus as one of OpenTelemetry."""
        points, at = self._points, (self._began, time.time_ns())
        found = [points.NumberDataPoint(one.labels, *at, one.value) for one in metric.samples]
        data = points.Gauge(found)
        if metric.type == "counter":
            data = points.Sum(found, points.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        elif metric.type == "histogram":
            data = points.Histogram(_buckets(metric, points, at), points.AggregationTemporality.CUMULATIVE)
        return points.Metric(metric.name, metric.documentation, "", data)


def _host(address: str) -> str:
    """The host of a collector's address, behind which a path is put."""
    found = re.fullmatch(
        r"https?://(?:[^\s/?#@]*@)?([^\s/?#@:\[\]]+|\[[\da-fA-F:.]+\])(?::\d+)?(?:/[^\s?#]*)?", address
    )
    if found is None:
        raise InputError(f"--otlp is {address!r:.100}; it must be a collector's address, such as http://localhost:4318")
    return found[1]


def _seconds(variable: str, usual: float) -> float:
    """Milliseconds of an environment variable."""
    said = os.environ.get(variable) or str(usual)
    with as_ours(f"{variable} is {said!r:.50}; it must be a number of milliseconds", InputError, ValueError):
        found = float(said)
    require_number(variable, found, above=0, most=86_400_000)
    return found / 1000


def _buckets(metric: Metric, points: Any, at: tuple[int, int]) -> list[Any]:
    """The histograms of a metric, one for each guard: counts of each bucket alone, where Prometheus sums them up."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for one in metric.samples:
        labels = tuple((name, value) for name, value in one.labels.items() if name != "le")
        found.setdefault(labels, {})[one.labels.get("le", one.name.rpartition("_")[2])] = one.value
    made = []
    for labels, values in found.items():
        count, total = int(values.pop("count")), values.pop("sum")
        each = np.diff([0, *values.values()]).astype(int).tolist()
        bounds = [float(limit) for limit in values][:-1]  # but for +Inf
        made.append(points.HistogramDataPoint(dict(labels), *at, count, total, each, bounds, None, None))
    return made
