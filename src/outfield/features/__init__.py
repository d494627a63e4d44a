"""Features: rows of numbers with labels and logits, from networks or tables, in memory or in files."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "clusters": ("clustered",),
        "fields": ("FIELDS", "MOST_STAGES", "TWO_CLASSES", "made_by", "spaces"),
        "formats": ("columns_by_field", "split_source", "values_of"),
        "head": ("HEAD", "HEAD_FIELDS", "has_head", "head_of"),
        "set": ("FeatureSet",),
        "source": ("NETWORK", "FeatureSource", "Part", "Wrapped", "agree", "checked_about", "network_text", "normalise"),
        "split": ("copies_of", "split_rows", "stratified_rows"),
        "stand_in_rows": ("feature_stand_ins",),
        "stream": ("FeatureStream", "open_features", "open_or_read"),
        "columns": ("NUMBER", "TEXT", "TRUTH", "Cells", "Column", "array_of", "as_texts", "cells_of", "is_missing", "rows_of"),
        "table_files": (
            "TABLE_ENDINGS", "arrow", "csv_text", "named_columns", "parquet_file", "read_column", "read_table", "readable",
            "whole_parquet", "write_columns",
        ),
        "table_preprocessing": ("LARGEST", "TablePreprocessing", "read_columns", "within_float32"),
    },
)  # fmt: skip
