"""TablePreprocessing: from the columns of a table to features, learned once on training rows and kept for later ones."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_choice
from outfield.errors import MALFORMED, FileFormatError, InputError, OutfieldError, OutfieldWarning, as_ours
from outfield.features.columns import (
    SHOWN,
    TEXT,
    Cells,
    Column,
    array_of,
    as_texts,
    cells_of,
    columns_of,
    learned,
)
from outfield.features.formats import split_source
from outfield.features.set import FeatureSet
from outfield.features.source import NETWORK, FeatureSource, network_text
from outfield.features.table_files import Uneven, read_table
from outfield.files import PathLike, Record, read_record, write_record
from outfield.percent import counted, listed

ENDINGS = (".safetensors",)
# of files of features, which are read as tables where nothing says that a network gave them
ARRAY_ENDINGS = (".safetensors", ".npz", ".npy")
REFUSE, MEDIAN = "refuse", "median"
# the constant entry of a row, as a multiple of the root of its width, which is the usual length of a standardised row
LENGTH = 3.0
NAMELESS = r"\s*|Unnamed: \d+"  # names of columns that have none: in a CSV, and as pandas reads it
LARGEST = 1e30  # entries are cut off here, so that the widest outlier is a float32


@dataclass(frozen=True)
class TablePreprocessing:
    """How the columns of a table become features; made by :meth:`fit` or :meth:`load`, applied by calling it with a frame.

    Numbers are standardised by mean and standard deviation of the training rows; truths become 0 and 1; a column of texts
    becomes one entry for each level of the training rows, 1 for the row's level. The last entry of a row is a constant,
    3 √D for the D others: detectors of features look at the direction of a row alone, and beside a constant the direction
    tells how long the row is, so that nothing is lost.

    Attributes:
        columns: What was learned of each column, in the order of the training frame.
        label: The column that holds the class of a row, or None.
        classes: The classes in the order in which labels count them.
        others: Whether a frame may have columns beside these: after a fit with ``columns`` or ``ignore_extra``.
        missing: "refuse" makes a missing cell an error; "median" puts the median of the training rows in the place of a
            number or truth, and no level in the place of a text.
    """

    columns: tuple[Column, ...]
    label: str | None
    classes: tuple[str, ...]
    others: bool
    missing: str

    POLICIES: ClassVar[tuple[str, ...]] = (REFUSE, MEDIAN)

    @classmethod
    def fit(
        cls,
        frame: Any,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        standardise: bool = True,
        missing: str = REFUSE,
        categories: Sequence[str] = (),
        ignore_extra: bool = False,
    ) -> Self:
        """Learn from training rows.

        Args:
            frame: A DataFrame (pandas, polars), a table of pyarrow, columns by name, or the path of a CSV or Parquet file. The
                columns of an array, a FeatureSet or a file of features are called feature_0, feature_1, ….
            label: Column that holds the class of each row, texts, truths or whole numbers; None where there is none.
            columns: Columns to take, in this order; all but the label if None, and then later frames may have no others.
            standardise: Shift and scale numbers to mean 0 and standard deviation 1; leave them as they are if False.
            missing: What missing cells are: "refuse" for an error, "median" to fill them in.
            categories: Columns whose numbers are names, such as those of bus lines: each number is a level.
            ignore_extra: Later frames may have other columns, too, which are ignored.

        Raises:
            InputError: A column that is not there, cannot be used, or has missing cells.
        """
        require(isinstance(standardise, bool), "standardise", standardise, "True or False")
        require(isinstance(label, str | None), "label", label, "the name of a column, or None where there is none")
        require_choice("missing", missing, cls.POLICIES)
        require(isinstance(ignore_extra, bool), "ignore_extra", ignore_extra, "True or False")
        _check_names("categories", categories)
        found = read_columns(frame, dict.fromkeys(categories, TEXT))
        taken = _named(found, columns, label)
        if lacking := [name for name in categories if name not in taken]:
            raise InputError(f"categories has {_listed(lacking)}, which is not taken; it may have {_listed(taken)}")
        cells = {name: cells_of(name, found[name]) for name in taken}
        cells |= {name: as_texts(cells[name]) for name in categories}
        _refuse_missing(cells, missing)
        known = tuple(learned(name, own, standardise) for name, own in cells.items())
        classes = () if label is None else _classes(label, found[label])
        return cls(known, label, classes, ignore_extra or columns is not None, missing)

    @property
    def names(self) -> tuple[str, ...]:
        """What each entry of a row is, such as "age" or "colour = red"; the last is the constant."""
        return (*(name for column in self.columns for name in column.entries), "constant")

    def __call__(self, frame: Any) -> FeatureSet:
        """The rows of a frame as features, with labels where it has their column and all of them are known classes.

        Where the training rows had no such column, all rows are of one class, so that one Gaussian is fitted to them. Columns
        are taken by their names, whatever their order is. A text that the training rows did not have has no level: its entries
        are 0, and a warning says how many there are.

        Raises:
            InputError: Columns are missing or unknown, hold something else than in training, or have missing cells.
        """
        found = read_columns(frame, self._kinds())
        return self._features(self._cells(found), self._labels(found))

    def cells(self, frame: Any) -> dict[str, Cells]:
        """The cells of a frame by column, before :meth:`features_of` makes features of them."""
        return self._cells(read_columns(frame, self._kinds()))

    def _cells(self, found: Mapping[str, Any]) -> dict[str, Cells]:
        self._check_names(found)
        cells = {column.name: column.checked(cells_of(column.name, found[column.name])) for column in self.columns}
        _refuse_missing(cells, self.missing)
        return cells

    def usable(self, frame: Any) -> tuple[FeatureSet | None, dict[int, str]]:
        """As a call, but a row with a cell that cannot be used does not end all: the others are given, without labels.

        Returns:
            The other rows in their order, None if there are none; and for each row that is left out, by its number counted
            from 0, why: too few cells or too many, or one that is missing, infinite, or no number in a column of numbers.

        Raises:
            InputError: Columns are missing or unknown.
        """
        cells, errors = self.usable_cells(frame)
        return self.features_of(cells), errors

    def usable_cells(self, frame: Any) -> tuple[dict[str, Cells], dict[int, str]]:
        """As :meth:`cells`, but without the rows that cannot be used; and why each of those cannot, as :meth:`usable` says."""
        try:
            return self.cells(frame), {}
        except OutfieldError:
            pass  # whatever concerns all rows is found again
        is_csv = str(frame).endswith(".csv") if isinstance(frame, str | os.PathLike) else False
        errors: dict[int, str] = {}  # the first of each row
        found = read_columns(frame, self._kinds(), errors if is_csv else None)
        self._check_names(found)
        missing, uneven = self.missing == MEDIAN, {*errors}
        there = [i for i in range(len(next(iter(found.values()))) + len(uneven)) if i not in uneven]
        cells: dict[str, dict[int, Any]] = {column.name: {} for column in self.columns}
        for column in self.columns:
            for number, value in zip(there, array_of(found[column.name]), strict=True):
                try:
                    cells[column.name][number] = column.cell(value, missing, is_csv)
                except InputError as error:
                    errors.setdefault(number, str(error))
        usable = {name: [cell for i, cell in own.items() if i not in errors] for name, own in cells.items()}
        types = {name: object if kind == TEXT else np.float64 for name, kind in self._kinds().items()}
        return {name: Cells(kind, np.array(usable[name], types[name])) for name, kind in self._kinds().items()}, errors

    def features_of(self, cells: Mapping[str, Cells]) -> FeatureSet | None:
        """Cells that :meth:`cells` or :meth:`usable_cells` gave as features, without labels; None where there is no row."""
        return self._features(cells, None) if len(next(iter(cells.values())).values) else None

    def _kinds(self) -> dict[str, str]:
        return {column.name: column.kind for column in self.columns}

    def _features(self, cells: Mapping[str, Cells], labels: Tensor | None) -> FeatureSet:
        for column in self.columns:
            unseen = column.unseen(cells[column.name])
            if unseen:
                warnings.warn(
                    f"column {column.name!r} has {counted(len(unseen), 'cell')} that no training row had, such as "
                    f"{unseen[0]!r:.60}; they count as an unknown text",
                    OutfieldWarning,
                    stacklevel=3,
                )
        rows = np.concatenate([column.entries_of(cells[column.name]) for column in self.columns], axis=1)
        constant = np.full((len(rows), 1), LENGTH * math.sqrt(rows.shape[1]))
        features = within_float32(np.concatenate([rows, constant], axis=1))
        about = {NETWORK: network_text(f"table of {len(self.columns)} columns", self.fingerprint())}
        return FeatureSet(features, labels=labels, about=about)

    def unknown(self, names: Iterable[str]) -> str:
        """The columns among these that a frame may not have, in words; nothing where there are none."""
        found = [name for name in names if name not in (*self._kinds(), self.label)]
        return _listed(found) if found and not self.others else ""

    def _check_names(self, found: Mapping[str, Any]) -> None:
        if lacking := [column.name for column in self.columns if column.name not in found]:
            raise InputError(f"the table lacks {_listed(lacking)}; it has {_listed([*found])}")
        if unknown := self.unknown(found):
            _refuse_nameless([*found])
            what = f"the table has {unknown}, which the training rows did not have; leave it out"
            raise InputError(f"{what}, or pass --ignore-extra (in Python ignore_extra=True when the guard is built)")

    def _labels(self, found: Mapping[str, Any]) -> Tensor | None:
        if self.label is None:
            return torch.zeros(len(next(iter(found.values()))), dtype=torch.int64)
        if self.label not in found:
            return None
        texts = _class_texts(self.label, found[self.label])
        if not set(texts) <= set(self.classes):
            return None
        number = {name: index for index, name in enumerate(self.classes)}
        return torch.tensor([number[str(text)] for text in texts])

    def fingerprint(self) -> str:
        """A digest of all that was learned: rows of another table are refused by detectors."""
        told = json.dumps([{**vars(column)} for column in self.columns] + [self.missing], default=list)
        return hashlib.sha256(told.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**vars(self), "columns": [dict(vars(column)) for column in self.columns], "classes": [*self.classes]}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` made."""
        with as_ours("this is no preprocessing of a table", FileFormatError, *MALFORMED):
            columns = tuple(Column(**{**own, "levels": tuple(own["levels"])}) for own in said["columns"])
            return cls(columns, said["label"], tuple(said["classes"]), said["others"], said["missing"])

    def save(self, path: PathLike) -> None:
        """Write to a ``.safetensors`` file, atomically.

        Raises:
            InputError: Another ending.
            StorageError: The file could not be written; what was there stays.
        """
        write_record(path, "table", Record({"table": self.to_json()}, {}), endings=ENDINGS)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            StorageError: There is no such file.
            FileFormatError: It is truncated, changed, or something else.
        """
        header, _ = read_record(path, "table", {"table": dict})
        return cls.of_json(header["table"])


def within_float32(entries: np.ndarray) -> np.ndarray:
    """Entries of rows as features hold them, float32 and cut off at :data:`LARGEST`."""
    cut: np.ndarray = entries.clip(-LARGEST, LARGEST).astype(np.float32)
    return cut


def read_columns(frame: Any, kinds: Mapping[str, str] | None = None, out: Uneven = None) -> dict[str, Any]:
    """The columns of any table by name: of a frame, an array, a FeatureSet or a file; all else as of :func:`read_table`."""
    if isinstance(frame, str | os.PathLike):
        path, suffix = frame, split_source(frame)[0].suffix
        frame = FeatureSet.load(path) if suffix in ARRAY_ENDINGS else read_table(path, kinds, out)
        if suffix == ".parquet" and "features" in frame:  # lists of numbers
            frame = FeatureSet.load(path)
    return columns_of(frame.in_memory().features if isinstance(frame, FeatureSource) else frame)


def _named(found: Mapping[str, Any], columns: Sequence[str] | None, label: str | None) -> list[str]:
    if columns is not None:
        _check_names("columns", columns)
    taken = [name for name in found if name != label] if columns is None else [*columns]
    if columns is None:
        _refuse_nameless(taken)
    lacking = [name for name in (*taken, label) if name is not None and name not in found]
    if lacking:
        raise InputError(f"the table has no {_listed(lacking)}; it has {_listed([*found])}")
    if not taken or len(set(taken)) < len(taken) or label in taken:
        raise InputError(f"columns is {taken!r:.200}; name at least one, each once, and not the label")
    return taken


def _check_names(setting: str, names: Any) -> None:
    right = isinstance(names, Iterable) and not isinstance(names, str) and all(isinstance(name, str) for name in names)
    require(right, setting, names, "a list of names of columns")


def _refuse_nameless(names: Sequence[str]) -> None:
    """Refuse the numbers of rows, which pandas writes as a column without a name."""
    if any(re.fullmatch(NAMELESS, name) for name in names):
        what = "a column has no name: is it the index of a frame? Leave it out (frame.to_csv(path"
        raise InputError(f"{what}, index=False)), or name the columns to take: columns=[…], --columns")


def _refuse_missing(cells: Mapping[str, Cells], missing: str) -> None:
    counts = {name: int(own.missing.sum()) for name, own in cells.items()} if missing == REFUSE else {}
    holes = [f"{name!r} ({count:,} of {len(cells[name].values):,})" for name, count in counts.items() if count]
    if holes:
        shown = ", ".join(holes[:SHOWN]) + ", …" * (len(holes) > SHOWN)
        raise InputError(f"cells are missing in column {shown}; fill them, or use missing='median' (--missing median)")


def _classes(label: str, column: Any) -> tuple[str, ...]:
    texts = _class_texts(label, column)
    known = {text for text in texts if text is not None}
    if None in texts:
        raise InputError(f"the label {label!r} has missing cells; every training row has a class")
    numbers = all(text.removeprefix("-").isdecimal() for text in known)
    return tuple(sorted(known, key=(lambda text: (int(text), text)) if numbers else None))


def _class_texts(label: str, column: Any) -> list[str | None]:
    """The class of each row as a text: of whole numbers their digits, None where it is missing."""
    cells = cells_of(label, column)
    if cells.kind == TEXT:
        return [*cells.values]
    if (cells.values[~cells.missing] % 1).any():
        raise InputError(f"the label {label!r} holds numbers that are not whole; classes are texts or whole numbers")
    return [*as_texts(cells).values]


def _listed(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {listed(names)}"
