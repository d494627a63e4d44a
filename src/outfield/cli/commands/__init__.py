"""The commands, one file each, in the order of ``outfield --help``."""

# isort: off
from outfield.cli.commands import guard, guard_rows, serve, export
from outfield.cli.commands import detectors, fit, choose, score, evaluate, drift
from outfield.cli.commands import train, extract, stand_ins, benchmark, report
from outfield.cli.commands import toy, demo
# isort: on

__all__ = [
    "benchmark",
    "choose",
    "demo",
    "detectors",
    "drift",
    "evaluate",
    "export",
    "extract",
    "fit",
    "guard",
    "guard_rows",
    "report",
    "score",
    "serve",
    "stand_ins",
    "toy",
    "train",
]
