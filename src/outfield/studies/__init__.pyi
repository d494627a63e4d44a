"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.studies.demo import run_demo as run_demo
from outfield.studies.toy import ToyModel as ToyModel
from outfield.studies.toy import ToyRun as ToyRun
from outfield.studies.toy import run_toys as run_toys

__all__ = [
    "ToyModel",
    "ToyRun",
    "run_demo",
    "run_toys",
]
