"""Reports: tables, figures and pages of results. Nothing here computes a result."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "benchmark_files": ("read_run", "results_csv", "results_json", "write_report", "write_tables"),
        "benchmark_tables": ("fraction_table", "full_table", "results_table", "risk_table", "tables"),
        "canvas": ("save_figure",),
        "choice_table": ("choice_figure", "in_words", "trials_csv", "trials_table"),
        "figures": ("write_evaluation", "write_overview", "write_risks"),
        "table": ("Table",),
        "toys": ("toy_figure", "toy_json", "toy_table"),
    },
)
