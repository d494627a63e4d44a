"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.benchmark.paper import COMPARED as COMPARED
from outfield.benchmark.paper import Claim as Claim
from outfield.benchmark.paper import FAILS as FAILS
from outfield.benchmark.paper import HOLDS as HOLDS
from outfield.benchmark.paper import MARGIN as MARGIN
from outfield.benchmark.paper import PARTLY as PARTLY
from outfield.benchmark.paper import UNTESTED as UNTESTED
from outfield.benchmark.paper import check_claims as check_claims
from outfield.benchmark.paper import published_beside as published_beside
from outfield.benchmark.plan import ROWS as ROWS
from outfield.benchmark.plan import checked_fractions as checked_fractions
from outfield.benchmark.plan import default_detectors as default_detectors
from outfield.benchmark.plan import detectors_from_text as detectors_from_text
from outfield.benchmark.plan import paper_detectors as paper_detectors
from outfield.benchmark.protocol import AVERAGE as AVERAGE
from outfield.benchmark.protocol import LEVELS as LEVELS
from outfield.benchmark.protocol import PROTOCOLS as PROTOCOLS
from outfield.benchmark.protocol import Protocol as Protocol
from outfield.benchmark.provenance import commit_in_words as commit_in_words
from outfield.benchmark.provenance import version_of as version_of
from outfield.benchmark.result import BenchmarkRun as BenchmarkRun
from outfield.benchmark.result import Key as Key
from outfield.benchmark.result import Layout as Layout
from outfield.benchmark.result import LowData as LowData
from outfield.benchmark.result import Record as Record
from outfield.benchmark.result import Result as Result
from outfield.benchmark.result import RiskCurves as RiskCurves
from outfield.benchmark.result import evaluate as evaluate
from outfield.benchmark.result import load_run as load_run
from outfield.benchmark.result import risk_curves as risk_curves
from outfield.benchmark.result import save_run as save_run
from outfield.benchmark.runs import benchmark_features as benchmark_features
from outfield.benchmark.runs import run_benchmark as run_benchmark
from outfield.benchmark.summary import Cell as Cell
from outfield.benchmark.summary import Columns as Columns
from outfield.benchmark.summary import Comparison as Comparison
from outfield.benchmark.summary import Difference as Difference
from outfield.benchmark.summary import Printed as Printed
from outfield.benchmark.summary import PrintedTable as PrintedTable
from outfield.benchmark.summary import Spread as Spread
from outfield.benchmark.summary import Summary as Summary
from outfield.benchmark.summary import compare as compare
from outfield.benchmark.summary import fraction_cells as fraction_cells
from outfield.benchmark.summary import intervals as intervals
from outfield.benchmark.summary import level_columns as level_columns
from outfield.benchmark.summary import paper_columns as paper_columns
from outfield.benchmark.summary import present as present
from outfield.benchmark.summary import published as published
from outfield.benchmark.summary import set_columns as set_columns
from outfield.benchmark.summary import summarise as summarise

__all__ = [
    "AVERAGE",
    "BenchmarkRun",
    "COMPARED",
    "Cell",
    "Claim",
    "Columns",
    "Comparison",
    "Difference",
    "FAILS",
    "HOLDS",
    "Key",
    "LEVELS",
    "Layout",
    "LowData",
    "MARGIN",
    "PARTLY",
    "PROTOCOLS",
    "Printed",
    "PrintedTable",
    "Protocol",
    "ROWS",
    "Record",
    "Result",
    "RiskCurves",
    "Spread",
    "Summary",
    "UNTESTED",
    "benchmark_features",
    "check_claims",
    "checked_fractions",
    "commit_in_words",
    "compare",
    "default_detectors",
    "detectors_from_text",
    "evaluate",
    "fraction_cells",
    "intervals",
    "level_columns",
    "load_run",
    "paper_columns",
    "paper_detectors",
    "present",
    "published",
    "published_beside",
    "risk_curves",
    "run_benchmark",
    "save_run",
    "set_columns",
    "summarise",
    "version_of",
]
