"""The commands, one file each, in the order of ``outfield --help``."""

# isort: off
from outfield.cli.commands import guard, serve, export  # noqa: F401
from outfield.cli.commands import detectors, fit, choose, score, evaluate, drift  # noqa: F401
from outfield.cli.commands import train, extract, stand_ins, benchmark, report  # noqa: F401
from outfield.cli.commands import toy, demo  # noqa: F401
# isort: on
