"""Any number of rows: guards over folders, Parquet and object stores, by this process or on Ray; fits in shares."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__, {"cluster": ("connected",), "scorer": ("score_files",), "shards": ("fit_mixture",)}
)
