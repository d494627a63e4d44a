"""Published figures that stand beside a run's: the paper's on its protocols, OpenOOD's on its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outfield.benchmark import openood, paper
from outfield.benchmark.paper import Printed, PrintedTable
from outfield.benchmark.protocol import Protocol


@dataclass(frozen=True)
class Beside:
    """Who published figures for a protocol, and which.

    Args:
        label: What their lines of a table are called.
        words: How a sentence names them.
        reference: Where they are printed.
        rows: The figures, by detector, then by OOD set, level or "average".
        notes: What is to be said wherever they are shown.
    """

    label: str
    words: str
    reference: str
    rows: PrintedTable
    notes: tuple[str, ...]


def beside(protocol: Protocol, detectors: Iterable[str] = ()) -> Beside:
    """What to show beside a run of this protocol; no rows where nothing is published.

    Args:
        protocol: Of the run.
        detectors: Which are shown; remarks on the paper's figures for others are left out.
    """
    if protocol.key in openood.ROWS:
        return Beside("OpenOOD", "OpenOOD", openood.REFERENCE, openood.ROWS[protocol.key], (openood.NOTE,))
    rows: dict[str, dict[str, Printed]] = {}
    for source in (paper.DETAILED, paper.ABLATION, paper.TABLE_1):
        for name, cells in source.get(protocol.key, {}).items():
            rows.setdefault(name, {}).update(cells)
    return Beside("paper", "the paper", paper.REFERENCE, rows, paper.remarks(protocol.key, detectors))
