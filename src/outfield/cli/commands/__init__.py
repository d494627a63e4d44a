"""The commands, in the order of ``outfield --help``."""

# isort: off
from outfield.cli.commands import guard, serve, drift, doctor  # noqa: F401
from outfield.cli.commands import export, extract, detectors, fit, choose, score, evaluate  # noqa: F401
from outfield.cli.commands import train, stand_ins, benchmark, studies  # noqa: F401
# isort: on
