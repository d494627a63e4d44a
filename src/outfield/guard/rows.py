"""RowGuard: from the row of a table, or of any features, to a verdict; no network and no image takes part."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_choice, require_number
from outfield.detectors.base import Detector
from outfield.errors import InputError, OutfieldError
from outfield.features.set import FeatureSet, FeatureSource
from outfield.features.table import TablePreprocessing
from outfield.files.paths import PathLike
from outfield.guard import row_files
from outfield.guard.explaining import explained, read_rows, row_numbers, with_reasons
from outfield.guard.judging import Judge, check_class_names
from outfield.guard.replacing import Replacing
from outfield.guard.verdict import Verdict, Verdicts
from outfield.guard.why import ExplainedVerdict, RowWhy
from outfield.scores.threshold import Threshold, check_keep

ON_ERROR = ("skip", "fail")


class RowGuard:
    """A fitted detector with its threshold and, for tables, what was learned of the columns: call it with rows.

    Made by :meth:`build` or :meth:`load`.

    Args:
        detector: Fitted on such rows.
        threshold: Chosen on scores of that detector.
        table: How a table becomes features; None where the rows are features.
        names: Of the classes that logits count, or none.
        provenance: How it came about, ready for JSON.

    Attributes:
        widths: What :meth:`judge` needs of each row, and how many numbers that are.

    Raises:
        InputError: The detector is not fitted, or the threshold was chosen for another.
    """

    def __init__(
        self,
        detector: Detector,
        threshold: Threshold,
        *,
        table: TablePreprocessing | None = None,
        names: Sequence[str] = (),
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.detector, self.threshold, self.table = detector, threshold, table
        self.names, self.provenance = tuple(names), dict(provenance or {})
        self.fingerprint = detector.fingerprint()
        if threshold.source not in (None, self.fingerprint):
            raise InputError(f"the threshold was chosen for {threshold.source}, but the detector is {self.fingerprint}")
        self._judge = Judge(detector, threshold, self.names)
        self.widths: dict[str, int] = {name: int(width) for name, width in self.provenance.get("widths", {}).items()}

    @classmethod
    def build(
        cls,
        rows: Any,
        held_out: Any = None,
        *,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        missing: str = "refuse",
        detector: Detector | str | None = None,
        keep: float = 0.95,
        names: Sequence[str] = (),
        seed: int = 0,
        most: int | None = 10_000,
        device: str | torch.device = "auto",
    ) -> Self:
        """A guard of ID rows.

        Of the held-out rows, half calibrate the members of the detector where it has members, and the others, which nothing
        else has seen, choose the threshold: p-values of new ID rows are therefore valid.

        Args:
            rows: ID rows: a table (a DataFrame, columns by name, the path of a CSV or Parquet file), or features.
            held_out: More of them, of the same kind, that nothing was trained on. A fifth of ``rows`` if None.
            label: Of a table, the column that holds the class of each row.
            columns: Of a table, the columns to take; all but the label if None.
            missing: Of a table, what missing cells are: see :meth:`outfield.TablePreprocessing.fit`.
            detector: A detector that is not fitted, or the name of one; :class:`outfield.Auto` if None.
            keep: Share of ID rows that the guard accepts.
            names: Of the classes that the logits of features count.
            seed: Of the choice of held-out rows, and of the detector where it has one.
            most: Rows that the detector is fitted on, at most, of each class in proportion: detectors that keep their training
                rows make files, and verdicts, that grow with them. All if None. What is learned of columns is learned on all.
            device: Where the detector runs.

        Raises:
            InputError: A setting that cannot be, or rows that cannot be used.
            TooFewSamplesError: Too few rows to calibrate.
        """
        check_keep(keep)
        require_number("seed", seed, least=0, whole=True)
        if most is not None:
            require_number("most", most, least=1, whole=True)
        given = () if isinstance(names, str) else tuple(names)
        good = all(isinstance(name, str) for name in given) and not isinstance(names, str)
        require(good, "names", names, "a text for each class")
        from outfield.guard import row_building  # who only checks rows needs nothing of it

        settings = {"label": label, "columns": columns, "missing": missing}
        content = row_building.build(rows, held_out, settings, detector, keep, given, int(seed), most, device)
        return cls._of(content)

    @classmethod
    def _of(cls, content: row_files.Content) -> Self:
        detector, threshold, table, names, provenance = content
        return cls(detector, threshold, table=table, names=names, provenance=provenance)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the detector's members; its own name where it has none."""
        return self._judge.members

    def __call__(self, x: Any, *, on_error: str = "fail") -> Verdicts:
        """Verdicts on rows.

        Args:
            x: What the guard was built of: a table (a DataFrame, columns by name, the path of a CSV or Parquet file), or
                features (a FeatureSet, an array (N, D), the path of a file of features).
            on_error: "fail" raises an error where a row of a table has a cell that cannot be used; "skip" gives a verdict that
                tells it, and judges the others.

        Raises:
            InputError: It is something else, its columns are not those of the training rows, or a row cannot be used and
                ``on_error`` is "fail".
        """
        require_choice("on_error", on_error, ON_ERROR)
        features, errors = self._usable(x, on_error)
        names = None if features is None else features.names
        return self._in_order(features, errors, names or [None] * _count(features, errors))

    def _usable(self, x: Any, on_error: str) -> tuple[FeatureSet | None, dict[int, str]]:
        """The rows that can be judged, and why each of the others cannot, where that is not to be an error."""
        if on_error == "fail" or self.table is None or isinstance(x, FeatureSource):
            return self.features(x), {}
        return self.table.usable(x)

    def _in_order(
        self, features: FeatureSet | None, errors: Mapping[int, str], names: Sequence[str | None]
    ) -> Verdicts:
        """A verdict on each row, whether it could be judged or not; ``names`` has one for each of them."""
        kept = [name for number, name in enumerate(names) if number not in errors]
        judged = iter(() if features is None else self.judge(features, kept))
        return Verdicts(
            [
                Verdict.failed(name, errors[number]) if number in errors else next(judged)
                for number, name in enumerate(names)
            ],
            "rows",
        )

    def features(self, x: Any) -> FeatureSet:
        """Rows as the detector takes them; see :meth:`__call__`."""
        if isinstance(x, FeatureSource):
            return x.in_memory()
        if self.table is not None:
            return self.table(x)
        if isinstance(x, str | os.PathLike):
            return FeatureSet.load(x)
        if isinstance(x, np.ndarray | Tensor | list):
            return FeatureSet(x)
        raise InputError(
            f"this guard looks at features, not at a {type(x).__name__}; pass a FeatureSet, an array (N, D) or the path of a file"
        )

    def judge(self, features: FeatureSet, files: Sequence[str | None] | None = None) -> Verdicts:
        """Verdicts on rows as :meth:`features` gives them.

        Raises:
            InputError: They are rows of another table or network, or lack a field.
        """
        check_class_names(self.names, features)
        return Verdicts(self._judge(features, [None] * len(features) if files is None else files), "rows")

    def why(self, frame: Any, rows: Any = None, *, most: int | None = None, on_error: str = "fail") -> list[RowWhy]:
        """Which columns make rows of a table OOD: each is put to what is usual, and the row is scored again.

        In the place of a number or truth comes the median of training rows; in the place of a text that level of them which gives
        the lowest score. Where no column alone makes an OOD row ID, two are changed together, then three; where these do not
        either, that is what is told. A row costs as many scores as there are columns, of texts as many as there are levels.

        Args:
            frame: A table, as for :meth:`__call__`.
            rows: Numbers of the rows to look at, counted from 0, or a truth for each row of the table; the OOD ones if None.
            most: Columns to tell of each row, at most, those that count most first; all if None.
            on_error: "fail" makes a row that cannot be used an error; "skip" leaves it out, and tells the error where it was
                asked for by its number.

        Returns:
            One for each row in the order in which they were asked for; scores are those that a call with this table gives.

        Raises:
            InputError: This guard looks at features, the table cannot be used, or there are no such rows.
        """
        require_choice("on_error", on_error, ON_ERROR)
        if most is not None:
            require_number("most", most, least=1, whole=True)
        replacing = self._replacing()
        found = read_rows(replacing.table, frame, skip=on_error == "skip")
        verdicts = self._in_order(found.features, found.errors, [None] * _count(found.features, found.errors))
        asked = np.flatnonzero(verdicts.is_ood).tolist() if rows is None else row_numbers(rows, len(verdicts))
        return [*explained(replacing, found, verdicts, asked, most)]

    def _replacing(self) -> Replacing:
        """What scores rows with a column changed.

        Raises:
            InputError: This guard looks at features.
        """
        if self.table is None:
            raise InputError(
                "columns are told by guards of tables, but this one looks at features, whose columns mean nothing by themselves; "
                "build it of a table: RowGuard.build(frame), outfield guard rows TABLE on the command line"
            )
        return Replacing(self.table, self.detector, self.threshold)

    def stream(
        self,
        paths: Sequence[PathLike],
        *,
        on_error: str = "fail",
        workers: int | None = None,
        why: bool = False,
    ) -> Iterator[Verdict]:
        """Verdicts on the rows of several files; each says its file and its row, counted from 1.

        Args:
            paths: Tables or files of features.
            on_error: "fail" makes a file or a row of a table that cannot be used an error; "skip" gives a verdict that tells it.
            workers: Not used: rows need no decoding.
            why: Tell of each OOD row of a table the columns that count most, as :meth:`why` does: verdicts have a ``why``.

        Raises:
            InputError: ``why``, and this guard looks at features; or what cannot be used where ``on_error`` is "fail".
        """
        require_choice("on_error", on_error, ON_ERROR)
        replacing = self._replacing() if why else None
        for path in paths:
            try:
                verdicts = self._of_file(path, on_error, replacing)
            except OutfieldError as error:
                if on_error == "fail":
                    raise
                kind = ExplainedVerdict if why else Verdict
                verdicts = [kind.failed(str(path), str(error))]
            yield from verdicts

    def _of_file(self, path: PathLike, on_error: str, replacing: Replacing | None) -> Sequence[Verdict]:
        """Verdicts on the rows of one file, with reasons where something can tell them."""
        if replacing is None:
            return self._numbered(path, *self._usable(path, on_error))
        found = read_rows(replacing.table, path, skip=on_error == "skip")
        return with_reasons(replacing, found, self._numbered(path, found.features, found.errors))

    def _numbered(self, path: PathLike, features: FeatureSet | None, errors: Mapping[int, str]) -> Verdicts:
        """Verdicts on rows of one file, each called by its own name or by its number."""
        names = None if features is None else features.names
        numbered = [f"{path} row {i + 1}" for i in range(_count(features, errors))]
        return self._in_order(features, errors, names or numbered)

    def warm_up(self, rows: int) -> float:
        """Judge so many rows of zeros, so that what is loaded at its first use is there; how many seconds that took."""
        began = time.monotonic()
        zeros = {name: torch.zeros(rows, width) for name, width in self.widths.items()}
        self.judge(FeatureSet(**{"features": next(iter(zeros.values())), **zeros}))
        return time.monotonic() - began

    def save(self, path: PathLike) -> None:
        """Write all of it to one file (``.guard``), atomically: nothing in it is executable.

        Raises:
            InputError: The name of the file ends otherwise.
            StorageError: It could not be written; what was there stays.
        """
        row_files.save(path, row_files.Content(self.detector, self.threshold, self.table, self.names, self.provenance))

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "auto") -> Self:
        """Read a guard that :meth:`save` wrote: equal verdicts to the bit, nothing refitted, nothing unpickled.

        Raises:
            StorageError: There is no such file.
            FileFormatError: It is truncated, changed, no guard of rows, or of a later version.
        """
        return cls._of(row_files.load(path, device))

    def __repr__(self) -> str:
        what = "features" if self.table is None else f"a table of {len(self.table.columns)} columns"
        return (
            f"RowGuard({what}: {' + '.join(self.members)}; keeps {self.threshold.keep:.4g} of ID, chosen on "
            f"{len(self.threshold.reference):,} held-out rows)"
        )


def _count(features: FeatureSet | None, errors: Mapping[int, str]) -> int:
    """Rows that can be judged, and others."""
    return len(errors) + (0 if features is None else len(features))
