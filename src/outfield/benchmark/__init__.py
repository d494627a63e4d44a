"""A benchmark: one ID set, OOD sets at three distances, every detector, several seeds, several backbones → records.

:func:`run_benchmark` begins with images, :func:`benchmark_features` with features; both give a :class:`BenchmarkRun`, from which
tables, figures and pages are made.
"""

from outfield.benchmark.choice import detectors_from_text, paper_detectors
from outfield.benchmark.records import BenchmarkRun, Key, Record, View
from outfield.benchmark.runs import benchmark_features, run_benchmark

__all__ = [
    "BenchmarkRun",
    "Key",
    "Record",
    "View",
    "benchmark_features",
    "detectors_from_text",
    "paper_detectors",
    "run_benchmark",
]
