"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.cluster.cluster import connected as connected
from outfield.cluster.scorer import score_files as score_files
from outfield.cluster.shards import ShardedBank as ShardedBank
from outfield.cluster.shards import fit_mixture as fit_mixture

__all__ = [
    "ShardedBank",
    "connected",
    "fit_mixture",
    "score_files",
]
