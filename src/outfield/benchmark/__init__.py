"""A benchmark: one ID set, OOD sets at three distances, every detector, several seeds, several backbones → records.

:func:`run_benchmark` begins with images, :func:`benchmark_features` with features; both give a :class:`BenchmarkRun`, from which
tables, figures and pages are made.
"""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "paper": ("COMPARED", "Claim", "FAILS", "HOLDS", "MARGIN", "PARTLY", "UNTESTED", "check_claims", "published_beside"),
        "plan": ("ROWS", "checked_fractions", "default_detectors", "detectors_from_text", "paper_detectors"),
        "protocol": ("AVERAGE", "LEVELS", "PROTOCOLS", "Protocol"),
        "provenance": ("commit_in_words", "version_of"),
        "result": (
            "BenchmarkRun", "Key", "Layout", "LowData", "Record", "Result", "RiskCurves", "evaluate", "load_run",
            "risk_curves", "save_run",
        ),
        "runs": ("benchmark_features", "run_benchmark"),
        "summary": (
            "Cell", "Columns", "Comparison", "Difference", "Printed", "PrintedTable", "Spread", "Summary", "compare",
            "fraction_cells", "intervals", "level_columns", "paper_columns", "present", "published", "set_columns",
            "summarise",
        ),
    },
)  # fmt: skip
