"""What a benchmark hands on: records of every detector on every OOD set, and what figures are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from outfield.benchmark.protocol import Protocol
from outfield.energy.loop import History
from outfield.extras import library

if TYPE_CHECKING:
    from outfield.benchmark.comparison import Comparison

COLUMNS = ("backbone", "detector", "seed", "ood", "level", "fpr95", "auroc", "aupr_in", "aupr_out", "n_id", "n_ood")
"""Of :meth:`BenchmarkRun.table`."""


@dataclass(frozen=True)
class Key:
    """Which fitted detector: on which backbone's features, from which seed (None where there is nothing random)."""

    backbone: str
    detector: str
    seed: int | None = None


@dataclass(frozen=True)
class Record:
    """How one fitted detector told one OOD set from the ID test set; fractions."""

    backbone: str
    detector: str
    seed: int | None
    ood: str
    level: str
    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    id_rejected_at_95_ood_recall: float
    n_id: int
    n_ood: int


@dataclass(frozen=True)
class LowData:
    """A detector that was fitted on a fraction of the training rows: means over the OOD sets, or why it could not be."""

    fraction: float
    backbone: str
    detector: str
    seed: int | None
    fpr95: float | None = None
    auroc: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class View:
    """Features of some samples of every set, laid out in two dimensions for the eye."""

    backbone: str
    points: np.ndarray
    """(n, 2)"""
    sets: tuple[str, ...]
    """Name of the set that each point is from; the ID test set goes by the protocol's ``id``."""
    labels: np.ndarray
    """Class of each point (n,), −1 where it has none."""


@dataclass(repr=False)
class BenchmarkRun:
    """All that the tables, the figures and the page are made from."""

    protocol: Protocol
    records: list[Record] = field(default_factory=list)
    scores: dict[Key, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """Scores of each set (N,), float32, by the set's name; the ID test set goes by the protocol's ``id``."""
    histories: dict[Key, History] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    accuracies: dict[str, float] = field(default_factory=dict)
    """Each backbone's share of ID test images that it classifies rightly."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """JSON-ready: commit, versions, machine, settings of each detector, seeds, data (checksum and number of images of each
    set), backbones (checksum, architecture, accuracy), seconds of each stage, when it began."""
    classes: tuple[str, ...] = ()
    """Names of the ID set's classes by label, as the data has them; none where it has none."""
    low_data: list[LowData] = field(default_factory=list)
    """Of detectors that were fitted on fractions of the training rows; none where that was not asked for."""

    def __repr__(self) -> str:
        """One line: the ID set, and how many of everything there are."""
        counts = [
            f"{count} {word}{'s' * (count != 1)}"
            for what, word in (("detector", "detector"), ("ood", "OOD set"), ("backbone", "backbone"))
            for count in [len({getattr(record, what) for record in self.records})]
        ]
        records = f"{len(self.records):,} record{'s' * (len(self.records) != 1)}"
        return f"BenchmarkRun({self.protocol.id}: {' × '.join(counts)}, {records})"

    def drop(self, detector: str) -> None:
        """Take back all results of a detector, as if it had not been run."""
        self.records = [record for record in self.records if record.detector != detector]
        self.low_data = [found for found in self.low_data if found.detector != detector]
        self.scores = {key: found for key, found in self.scores.items() if key.detector != detector}
        self.histories = {key: found for key, found in self.histories.items() if key.detector != detector}
        self.provenance.get("chosen", {}).pop(detector, None)

    def table(self) -> Any:
        """The records as a ``pandas.DataFrame``, one row for each backbone, detector, seed and OOD set; fractions.

        The columns are backbone, detector, seed (a nullable integer: none where nothing is random), ood, level, fpr95,
        auroc, aupr_in, aupr_out, n_id and n_ood.

        Raises:
            MissingExtraError: pandas is not installed, which comes with the extra ``tables``.
        """
        pandas = library("pandas", "tables")
        columns = {name: [getattr(record, name) for record in self.records] for name in COLUMNS}
        return pandas.DataFrame(columns | {"seed": pandas.array(columns["seed"], dtype="Int64")})

    def compare(
        self, first: str, second: str, *, resamples: int = 1000, coverage: float = 0.95, seed: int = 0
    ) -> Comparison:
        """By how much two detectors differ in FPR95 and AUROC, with paired bootstrap intervals.

        Rows of every set are drawn again with replacement, the same for both detectors; what exactly is computed, and the
        arguments, are in :mod:`outfield.benchmark.comparison`.

        Returns:
            Differences (first − second) by OOD set, level and "average": ``run.compare("KNN", "SSD").fpr95["near"].value``.

        Raises:
            UnknownNameError: the run has no scores of such a detector.
            InputError: there is nothing that can be compared, or a setting cannot be.
        """
        from outfield.benchmark.comparison import compare

        return compare(self, first, [second], resamples=resamples, coverage=coverage, seed=seed)[0]
