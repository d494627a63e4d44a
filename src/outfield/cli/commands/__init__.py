"""The commands, one file each, in the order of ``outfield --help``."""

# isort: off
from outfield.cli.commands import guard, serve, drift, benchmark, demo, doctor  # noqa: F401
from outfield.cli.commands import export, extract, detectors, fit, choose, score, evaluate  # noqa: F401
from outfield.cli.commands import train, stand_ins, report, toy  # noqa: F401
# isort: on
