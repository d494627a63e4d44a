"""Counters and histograms, and Prometheus's text format of them."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

Labels = tuple[str, ...]


class Counter:
    """Numbers by label that only grow, or a gauge whose numbers are set.

    Args:
        name: Of the metric.
        help: What it counts.
        labels: Names of the labels.
        kind: "counter" or "gauge".
    """

    def __init__(self, name: str, help: str, labels: Sequence[str] = (), kind: str = "counter") -> None:
        self.name, self.help, self.labels, self.kind = name, help, tuple(labels), kind
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float, *labels: str) -> None:
        """Count."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Say what it is now."""
        with self._lock:
            self._values[labels] = value

    def get(self, *labels: str) -> float:
        """What it is now; 0 where nothing was counted."""
        return self._values.get(labels, 0.0)

    def lines(self) -> Iterator[str]:
        """In Prometheus's text format."""
        yield from _head(self.name, self.help, self.kind)
        with self._lock:
            values = dict(self._values)
        for labels, value in values.items():
            yield f"{self.name}{_labels(dict(zip(self.labels, labels, strict=True)))} {_number(value)}"


class Histogram:
    """How many values lie at or below each of some limits.

    Args:
        name: Of the metric.
        help: What is measured.
        limits: Ascending; one more at infinity is added.
        labels: Name and value of each.
    """

    def __init__(self, name: str, help: str, limits: Sequence[float], labels: Mapping[str, str]) -> None:
        self.name, self.help, self.limits, self.labels = name, help, tuple(limits), dict(labels)
        self._counts, self._sum = [0] * (len(self.limits) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, values: Sequence[float]) -> None:
        """Take in values; what is no number is left out."""
        with self._lock:
            for value in values:
                if not math.isnan(value):
                    self._counts[bisect_left(self.limits, value)] += 1
                    self._sum += value

    def lines(self) -> Iterator[str]:
        """In Prometheus's text format, without its head: several guards share one."""
        with self._lock:
            counts, total = self._counts[:], self._sum
        seen = 0
        for limit, count in zip((*self.limits, math.inf), counts, strict=True):
            seen += count
            yield f"{self.name}_bucket{_labels({**self.labels, 'le': _number(limit)})} {seen}"
        yield f"{self.name}_sum{_labels(self.labels)} {_number(total)}"
        yield f"{self.name}_count{_labels(self.labels)} {seen}"


def exposition(counters: Sequence[Counter], histograms: Sequence[Histogram]) -> str:
    """All of it as text, each metric under one head."""
    lines = [line for counter in counters for line in counter.lines()]
    names: dict[str, list[Histogram]] = {}
    for one in histograms:
        names.setdefault(one.name, []).append(one)
    for name, several in names.items():
        lines += [*_head(name, several[0].help, "histogram"), *(line for one in several for line in one.lines())]
    return "\n".join(lines) + "\n"


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _labels(labels: Mapping[str, str]) -> str:
    """In braces, escaped.

    >>> _labels({"model_name": 'my "guard"'})
    '{model_name="my \\\\"guard\\\\""}'
    """
    if not labels:
        return ""
    escaped = {key: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, v in labels.items()}
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"


def _number(value: float) -> str:
    """As Prometheus writes it.

    >>> _number(3.0), _number(0.25), _number(math.inf)
    ('3', '0.25', '+Inf')
    """
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
