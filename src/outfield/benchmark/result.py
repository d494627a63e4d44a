"""Results: how each detector told each OOD set from the ID test set, and all that a benchmark hands on, as a file too."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from outfield.benchmark.protocol import Protocol
from outfield.config import require
from outfield.detectors import Detector
from outfield.energy import History
from outfield.errors import MALFORMED, FileFormatError, as_ours
from outfield.extras import library
from outfield.features import FeatureSource
from outfield.files import PathLike, read_record, write_record
from outfield.files import Record as FileRecord
from outfield.percent import counted
from outfield.scores import RiskCoverage, Separation

if TYPE_CHECKING:
    from outfield.benchmark.summary import Comparison

COLUMNS = ("backbone", "detector", "seed", "ood", "level", "fpr95", "auroc", "aupr_in", "aupr_out", "n_id", "n_ood")
"""Of :meth:`BenchmarkRun.table`."""


@dataclass(frozen=True)
class Key:
    """Which fitted detector: on which backbone's features, from which seed (None where there is nothing random)."""

    backbone: str
    detector: str
    seed: int | None = None


@dataclass(frozen=True)
class Result:
    """How one fitted detector told one OOD set from the ID test set; fractions.

    ``backbone`` and ``level`` are empty and ``seed`` is None where :func:`evaluate` made it.
    """

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

    @classmethod
    def of(cls, key: Key, ood: str, level: str, scores_id: Any, scores_ood: Any) -> Result:
        """All metrics of scores (N,) of the ID test set against those (M,) of an OOD set."""
        found = Separation(scores_id, scores_ood)
        metrics = (
            found.fpr95(),
            found.auroc(),
            found.aupr_in(),
            found.aupr_out(),
            found.id_rejected_at_95_ood_recall(),
        )
        return cls(key.backbone, key.detector, key.seed, ood, level, *metrics, len(scores_id), len(scores_ood))


Record = Result
"""What a result of a benchmark was called in version 0.1."""


def evaluate(
    detectors: Mapping[str, Detector] | Detector,
    test: FeatureSource,
    ood: Mapping[str, FeatureSource],
    risks: dict[str, RiskCurves] | None = None,
) -> list[Result]:
    """Score the ID test set once per detector and every OOD set against it.

    Args:
        detectors: fitted detectors by the name to report, or one, which goes by its class's name.
        test: held-out ID data.
        ood: OOD sets by name.
        risks: filled with risk and coverage by detector, where the test set has labels and logits.

    Raises:
        InputError: something else was given.
    """
    if isinstance(detectors, Detector):
        detectors = {type(detectors).__name__: detectors}
    for what, given, kind in (("detectors", detectors, Detector), ("ood", ood, FeatureSource)):
        require(isinstance(given, Mapping), what, type(given).__name__, 'a mapping by name, such as {"svhn": features}')
        for name, one in given.items():
            require(isinstance(one, kind), f"{what}[{name!r}]", type(one).__name__, f"a {kind.__name__}")
    require(isinstance(test, FeatureSource), "test", type(test).__name__, "a FeatureSource")
    results = []
    for name, detector in detectors.items():
        scores_id, scores_ood = detector.score(test), {other: detector.score(data) for other, data in ood.items()}
        results += [Result.of(Key("", name), other, "", scores_id, scores) for other, scores in scores_ood.items()]
        if risks is not None and {"labels", "logits"} <= test.shapes.keys():
            risks[name] = risk_curves(scores_id, wrong_answers(test), scores_ood)
    return results


def wrong_answers(test: FeatureSource) -> np.ndarray:
    """Whether the largest logit of each row is that of another class than its label (N,)."""
    pieces = test.batches(8192, ["logits", "labels"])
    return torch.cat([torch.ne(one["logits"].argmax(1), one["labels"]) for one in pieces]).numpy()


RiskCurves: TypeAlias = tuple[RiskCoverage, RiskCoverage | None]
"""Of a detector's scores as a ranking of answers: on ID test data, and with OOD data in equal parts."""


def risk_curves(scores_id: Any, wrong: np.ndarray, scores_ood: Mapping[str, Any]) -> RiskCurves:
    """Risk and coverage of the ID test data alone, and where half of all inputs are OOD, for which every answer is wrong.

    The OOD sets weigh the same, however many samples they have.
    """
    known, *others = (np.asarray(one, np.float64) for one in (scores_id, *scores_ood.values()))
    alone = RiskCoverage(known, wrong)
    if not others:
        return alone, None
    weights = [np.full(len(known), 1 / len(known)), *(np.full(len(one), 1 / len(one) / len(others)) for one in others)]
    bad = np.concatenate([wrong, *(np.ones(len(one), bool) for one in others)])
    return alone, RiskCoverage(np.concatenate([known, *others]), bad, np.concatenate(weights))


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
class Layout:
    """Features of some samples of every set of a backbone, laid out in two dimensions.

    Attributes:
        backbone: Whose features.
        points: (n, 2), float32.
        sets: Name of the set that each point is from; the ID test set goes by the protocol's ``id``.
        labels: Class of each point (n,), −1 where it has none.
    """

    backbone: str
    points: np.ndarray
    sets: tuple[str, ...]
    labels: np.ndarray

    def record(self) -> FileRecord:
        """For a file."""
        tensors = {"points": torch.from_numpy(self.points), "labels": torch.from_numpy(self.labels)}
        return FileRecord({"backbone": self.backbone, "sets": list(self.sets)}, tensors)

    @classmethod
    def from_record(cls, record: FileRecord) -> Layout:
        """From what a file holds."""
        points, labels = (record.tensors[name].numpy() for name in ("points", "labels"))
        return cls(record.header["backbone"], points, tuple(record.header["sets"]), labels)


@dataclass(repr=False)
class BenchmarkRun:
    """All that the tables, the figures and the page are made from.

    Attributes:
        protocol: The ID set and its OOD sets.
        records: Results of every fitted detector on every OOD set.
        scores: Of each set (N,), float32, by fitted detector, then by set; the ID test set goes by the protocol's ``id``.
        histories: Training curves of learned detectors.
        layouts: Features in two dimensions, one picture for each backbone.
        accuracies: Each backbone's share of ID test images that it classifies rightly.
        provenance: JSON-ready: commit, versions, machine, settings of each detector, seeds, data (checksum and number of images
            of each set), backbones (checksum, architecture, accuracy), seconds of each stage, when it began.
        classes: Names of the ID set's classes by label, as the data has them; none where it has none.
        low_data: Detectors that were fitted on fractions of the training rows; none where that was not asked for.
        wrong: Whether each backbone's class of each ID test image is wrong (N,), where the test set has labels.
    """

    protocol: Protocol
    records: list[Result] = field(default_factory=list)
    scores: dict[Key, Mapping[str, np.ndarray]] = field(default_factory=dict)
    histories: dict[Key, History] = field(default_factory=dict)
    layouts: list[Layout] = field(default_factory=list)
    accuracies: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    low_data: list[LowData] = field(default_factory=list)
    wrong: dict[str, np.ndarray] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: the ID set, and how many of everything there are."""
        words = (("detector", "detector"), ("ood", "OOD set"), ("backbone", "backbone"))
        counts = [counted(len({getattr(one, name) for one in self.records}), word) for name, word in words]
        return f"BenchmarkRun({self.protocol.id}: {' × '.join(counts)}, {counted(len(self.records), 'record')})"

    @property
    def views(self) -> list[Layout]:
        """What ``layouts`` was called in version 0.1."""
        warnings.warn("BenchmarkRun.views is called layouts now", DeprecationWarning, stacklevel=2)
        return self.layouts

    def drop(self, detector: str) -> None:
        """Take back all results of a detector, as if it had not been run."""
        self.records = [record for record in self.records if record.detector != detector]
        self.low_data = [found for found in self.low_data if found.detector != detector]
        self.scores = {key: found for key, found in self.scores.items() if key.detector != detector}
        self.histories = {key: found for key, found in self.histories.items() if key.detector != detector}
        self.provenance.get("chosen", {}).pop(detector, None)

    def risks(self) -> dict[str, RiskCurves]:
        """Risk and coverage of each detector's scores as a ranking of answers, on the first backbone and seed that it has."""
        found: dict[str, RiskCurves] = {}
        for key, scores in self.scores.items():
            if key.detector not in found and key.backbone in self.wrong:
                ood = {name: scores[name] for name in self.protocol.ood if name in scores}
                found[key.detector] = risk_curves(scores[self.protocol.id], self.wrong[key.backbone], ood)
        return found

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
        arguments, are in :mod:`outfield.benchmark.summary`.

        Returns:
            Differences (first − second) by OOD set, level and "average": ``run.compare("KNN", "SSD").fpr95["near"].value``.

        Raises:
            UnknownNameError: the run has no scores of such a detector.
            InputError: there is nothing that can be compared, or a setting cannot be.
        """
        from outfield.benchmark.summary import compare

        return compare(self, first, [second], resamples=resamples, coverage=coverage, seed=seed)[0]


def save_run(run: BenchmarkRun, path: PathLike) -> None:
    """Write records, scores, training curves, layouts and provenance to a ``.safetensors`` file, atomically."""
    tensors: dict[str, Tensor] = {}
    for number, scores in enumerate(run.scores.values()):
        tensors |= {f"scores.{number}.{name}": torch.from_numpy(values) for name, values in scores.items()}
    tensors |= {f"wrong.{number}": torch.from_numpy(values) for number, values in enumerate(run.wrong.values())}
    for number, layout in enumerate(run.layouts):
        tensors |= {f"view.{number}.{name}": value for name, value in layout.record().tensors.items()}
    header = {
        "protocol": run.protocol.plain(), "records": [asdict(record) for record in run.records],
        "scores": [asdict(key) for key in run.scores],
        "histories": [[asdict(key), asdict(history)] for key, history in run.histories.items()],
        "views": [layout.record().header for layout in run.layouts], "accuracies": run.accuracies, "answers": list(run.wrong),
        "provenance": run.provenance, "classes": list(run.classes), "low_data": [asdict(one) for one in run.low_data],
    }  # fmt: skip
    write_record(path, "benchmark run", FileRecord(header, tensors))


def load_run(path: PathLike) -> BenchmarkRun:
    """What :func:`save_run` wrote.

    Raises:
        StorageError: there is no such file.
        FileFormatError: truncated, changed, or not a benchmark's results.
    """
    found = read_record(path, "benchmark run", {"accuracies": dict, "provenance": dict})
    header = found.header
    with as_ours(f"{path} holds a run that this version of Outfield cannot read", FileFormatError, *MALFORMED):
        run = BenchmarkRun(Protocol(**header["protocol"]), [Result(**record) for record in header["records"]])
        for number, key in enumerate(header["scores"]):
            tensors = found.part(f"scores.{number}").tensors
            run.scores[Key(**key)] = {name: value.numpy() for name, value in tensors.items()}
        views = enumerate(header["views"])
        run.layouts = [Layout.from_record(FileRecord(one, found.part(f"view.{n}").tensors)) for n, one in views]
        run.histories = {Key(**key): History(**history) for key, history in header["histories"]}
        run.accuracies, run.provenance = header["accuracies"], header["provenance"]
        answers = enumerate(header.get("answers", ()))  # of later runs than files of 0.1 hold
        run.wrong = {name: found.tensors[f"wrong.{number}"].numpy() for number, name in answers}
        run.classes, run.low_data = tuple(header["classes"]), [LowData(**one) for one in header["low_data"]]
        return run
