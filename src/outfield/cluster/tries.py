"""How often each part was begun: what kills one worker would kill every worker after it."""

from __future__ import annotations

from collections import Counter

MOST = 5
"""How often a part is begun, at most."""


class Tries:
    """Counts for all workers of a cluster, as a small actor of its own."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """How often a part was begun, this time included."""
        self.begun[number] += 1
        return self.begun[number]
