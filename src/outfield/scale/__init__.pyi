"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.scale.cluster import connected as connected
from outfield.scale.scorer import score_files as score_files
from outfield.scale.shards import fit_mixture as fit_mixture

__all__ = [
    "connected",
    "fit_mixture",
    "score_files",
]
