"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.report.benchmark_files import read_run as read_run
from outfield.report.benchmark_files import results_csv as results_csv
from outfield.report.benchmark_files import results_json as results_json
from outfield.report.benchmark_files import write_report as write_report
from outfield.report.benchmark_files import write_tables as write_tables
from outfield.report.benchmark_tables import fraction_table as fraction_table
from outfield.report.benchmark_tables import full_table as full_table
from outfield.report.benchmark_tables import results_table as results_table
from outfield.report.benchmark_tables import risk_table as risk_table
from outfield.report.benchmark_tables import tables as tables
from outfield.report.canvas import save_figure as save_figure
from outfield.report.choice_table import choice_figure as choice_figure
from outfield.report.choice_table import in_words as in_words
from outfield.report.choice_table import trials_csv as trials_csv
from outfield.report.choice_table import trials_table as trials_table
from outfield.report.figures import write_evaluation as write_evaluation
from outfield.report.figures import write_overview as write_overview
from outfield.report.figures import write_risks as write_risks
from outfield.report.table import Table as Table
from outfield.report.toys import toy_figure as toy_figure
from outfield.report.toys import toy_json as toy_json
from outfield.report.toys import toy_table as toy_table

__all__ = [
    "Table",
    "choice_figure",
    "fraction_table",
    "full_table",
    "in_words",
    "read_run",
    "results_csv",
    "results_json",
    "results_table",
    "risk_table",
    "save_figure",
    "tables",
    "toy_figure",
    "toy_json",
    "toy_table",
    "trials_csv",
    "trials_table",
    "write_evaluation",
    "write_overview",
    "write_report",
    "write_risks",
    "write_tables",
]
