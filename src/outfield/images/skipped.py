"""Images that could not be read, and were left out instead of ending the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ON_ERROR = ("fail", "skip")
"""What an image that cannot be read does: end the work with an error, or be left out and told."""
SHOWN = 3


class Skipped(NamedTuple):
    """One image, or folder of images, that was left out.

    Attributes:
        name: of the file, or the number of the image where it has no name.
        reason: why it could not be read.
    """

    name: str
    reason: str


def summary(skipped: Sequence[Skipped], total: int, where: str) -> str:
    """One sentence about what was left out.

    >>> summary([Skipped("a.png", "a.png is truncated")], 10, "photos")
    '1 of 10 images of photos could not be read and is left out: a.png is truncated'
    """
    verb = "is" if len(skipped) == 1 else "are"
    shown = "; ".join(one.reason for one in skipped[:SHOWN])
    more = f"; and {len(skipped) - SHOWN:,} others" if len(skipped) > SHOWN else ""
    return f"{len(skipped):,} of {total:,} images of {where} could not be read and {verb} left out: {shown}{more}"
