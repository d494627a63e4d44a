"""Spans and metrics for OpenTelemetry, against a collector on this machine, and against none."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from tests.helpers.guards import labelled, noise
from tests.helpers.service import Program, png, running

import outfield as of
from outfield.errors import MissingExtraError
from outfield.serve import Service, Settings
from outfield.serve.telemetry import Counts, Otlp

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """What came, by its address."""

    def __init__(self):
        self.came = {"/v1/traces": [], "/v1/metrics": []}

    def spans(self):
        return [
            (resources.resource, span)
            for body in self.came["/v1/traces"]
            for resources in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resources.scope_spans
            for span in scope.spans
        ]

    def metrics(self):
        """Those that came last."""
        (resources,) = ExportMetricsServiceRequest.FromString(self.came["/v1/metrics"][-1]).resource_metrics
        return {metric.name: metric for metric in resources.scope_metrics[0].metrics}


@contextmanager
def collector(status=200):
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            found.came[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def plain(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def points(metric):
    """Values of a metric, as Prometheus writes them."""
    found = {}
    for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
        name = metric.name + "_total" * metric.HasField("sum")
        found[name, *sorted(plain(point.attributes).items())] = point.as_double
    for point in metric.histogram.data_points:
        labels = plain(point.attributes)
        found[f"{metric.name}_count", *sorted(labels.items())] = point.count
        found[f"{metric.name}_sum", *sorted(labels.items())] = point.sum
        limits, total = [*map(float, point.explicit_bounds), float("inf")], 0
        for limit, count in zip(limits, point.bucket_counts, strict=True):
            total += count
            found[f"{metric.name}_bucket", *sorted({**labels, "le": limit}.items())] = total
    return found


def written(counts):
    """The same of the text for Prometheus."""
    found = {}
    for family in text_string_to_metric_families(counts.text().decode()):
        for one in family.samples:
            labels = {name: float(value) if name == "le" else value for name, value in one.labels.items()}
            found[one.name, *sorted(labels.items())] = one.value
    return found


def test_a_span_for_each_request_and_the_metrics_of_prometheus(files):
    with collector() as to, running(files["fused"], files["ssd"], otlp=to.address) as service:
        images = [png(one) for one in (*labelled(2, 5).images, *noise(1))]
        kind = {"Content-Type": "image/png", "traceparent": PARENT, "tracestate": "a=b"}
        assert service.client.post("/v1/check?guard=ssd", content=images[2], headers=kind).status_code == 200
        assert service.check(*images).status_code == 200
        assert service.client.get("/v2/models/none").status_code == 404
        for path in ("/metrics", "/v2/health/live", "/v2/health/ready"):
            service.client.get(path)
        service.client.get("/secret")
        service.client.request("SECRET", "/")
        counts = service.service.counts
        before = time.time_ns()
        service.service.otlp.stop()
    traced = sorted(((span.name, plain(span.attributes), span) for _, span in to.spans()), key=lambda one: one[0])
    assert [name for name, _, _ in traced] == [
        "GET /v2/models/{name}", "GET other", "POST /v1/check", "POST /v1/check", "_OTHER /"
    ]  # fmt: skip
    (first, other) = sorted(traced[2:4], key=lambda one: one[1]["outfield.guard"], reverse=True)
    assert first[1] == {
        "http.request.method": "POST",
        "http.route": "/v1/check",
        "http.response.status_code": 200,
        "outfield.guard": "ssd",
        "outfield.images": 1,
        "outfield.ood": 1,
        "outfield.errors": 0,
    }
    assert (other[1]["outfield.guard"], other[1]["outfield.images"]) == ("fused", 3)
    span = first[2]
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (*PARENT.split("-")[1:3], "a=b")
    assert other[2].trace_id != span.trace_id
    assert not other[2].parent_span_id
    assert span.kind == span.SPAN_KIND_SERVER
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert before - 60e9 < span.start_time_unix_nano < before
    assert traced[0][1]["http.response.status_code"] == 404
    assert all("secret" not in str(one).lower() for one in traced)
    about = plain(to.spans()[0][0].attributes)
    assert (about["service.name"], about["service.version"]) == ("outfield", of.__version__)

    sent = {key: value for metric in to.metrics().values() for key, value in points(metric).items()}
    assert sent == pytest.approx(written(counts), rel=1e-6)
    assert len(sent) > 100
    assert to.metrics()["outfield_samples"].sum.is_monotonic


def test_a_failure_is_an_error(files):
    counts = Counts()
    with collector() as to:
        otlp = Otlp(to.address + "/", counts.registry)
        otlp.request({}, "GET", "/x", 500, 0.1, {})
        otlp.request({"traceparent": PARENT[:-1] + "0"}, "GET", "/not sampled", 200, 0.1, {})
        otlp.stop()
    ((_, span),) = to.spans()
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert span.end_time_unix_nano - span.start_time_unix_nano == 100_000_000


def nowhere():
    with socket.create_server(("127.0.0.1", 0)) as place:
        return f"http://127.0.0.1:{place.getsockname()[1]}"


def test_a_collector_that_is_away_slows_nothing_and_is_told_once(files, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # for so long sending tries again and again
    image, waited, until = png(noise(1)[0]), [], time.monotonic() + 20
    with caplog.at_level(logging.INFO), running(files["ssd"], otlp=nowhere()) as service:
        began = time.monotonic()
        while time.monotonic() < min(until, began + 5) or (len(told(caplog)) < 2 and time.monotonic() < until):
            start = time.monotonic()
            assert service.check(image).status_code == 200
            waited.append(time.monotonic() - start)
    assert sorted(waited)[len(waited) // 2] < 0.5
    assert {one.about["what"] for one in told(caplog)} == {"spans", "metrics"}
    assert [(one.message, one.about["collector"]) for one in told(caplog)] == [("telemetry lost", "127.0.0.1")] * 2


def told(caplog):
    """What was logged, but for requests and the like."""
    names = ("outfield", "opentelemetry", "urllib3", "requests")
    found = [one for one in caplog.records if one.name.startswith(names) and one.levelno >= logging.INFO]
    return [one for one in found if one.name != "outfield.serve" or "telemetry" in one.message]


def test_a_collector_that_hangs_does_not_keep_the_service_from_its_end(files):
    with socket.create_server(("127.0.0.1", 0)) as silent, running(files["ssd"]) as service:
        otlp = Otlp(f"http://127.0.0.1:{silent.getsockname()[1]}", service.service.counts.registry)
        otlp.request({}, "GET", "/x", 200, 0.1, {})
        began = time.monotonic()
        otlp.stop()
        assert time.monotonic() - began < 4


def test_that_it_is_taken_again_is_told(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    with caplog.at_level(logging.INFO), collector(400) as to:
        otlp, until = Otlp(to.address, Counts().registry), time.monotonic() + 30
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.02)
        monkeypatch.setattr(BaseHTTPRequestHandler, "send_response_only", of_status(200))
        while len(caplog.records) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        otlp.stop()
    assert [(one.message, one.about["what"]) for one in caplog.records] == [
        ("telemetry lost", "metrics"),
        ("telemetry taken again", "metrics"),
    ]


def of_status(status, original=BaseHTTPRequestHandler.send_response_only):
    return lambda self, _, message=None: original(self, status, message)


def test_the_program_follows_the_standard_variable(files, tmp_path):
    with (
        collector() as to,
        Program(tmp_path, files["ssd"], OTEL_EXPORTER_OTLP_ENDPOINT=to.address, OTEL_SERVICE_NAME="mine") as program,
    ):
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(30) == 0
        assert "outfield_samples" in to.metrics()
        body = ExportMetricsServiceRequest.FromString(to.came["/v1/metrics"][-1])
        assert plain(body.resource_metrics[0].resource.attributes)["service.name"] == "mine"


def test_an_address_that_is_none():
    wrong = ["collector:4318", "ftp://collector", "http://", "http://[", "http://a:b", "http://a?b", "http://a/#b"]
    for address in (*wrong, "", "http://a b"):
        with pytest.raises(of.InputError, match="a collector's address"):
            Otlp(address, Counts().registry)


@pytest.mark.parametrize("interval", ["soon", "0", "-1", "nan"])
def test_an_interval_that_is_none(interval, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(of.InputError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        Otlp("http://localhost:4318", Counts().registry)


def test_without_the_extra_an_error_names_it(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outfield\[otel\]'"):
        Service([files["ssd"]], Settings(device="cpu", otlp="http://localhost:4318"))


def test_the_service_needs_none_of_it():
    """FastAPI may load the interface alone by itself."""
    blocked = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked})); from outfield.serve import make_server, Service"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
