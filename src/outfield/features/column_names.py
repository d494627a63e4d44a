"""How the columns of a table are called: which of them make up each field.

Columns ``feature_0, feature_1, …`` (or, where cells can be lists, one column ``features``) are the features; ``logit_*`` and the
other fields likewise; ``label`` is the class. Any other column is an error, so that nothing is taken for a feature by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from outfield.errors import FileFormatError
from outfield.features.fields import FIELDS, Field

SHOWN = 60
"""Letters of a column's name that a message shows."""


def columns_by_field(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Which columns make up each field, in their order: one of lists or numbers, or one for each entry of a row.

    Raises:
        FileFormatError: There is no header, a name is unknown or stands twice, a number is missing, or there are no features.
    """
    if not names:
        raise FileFormatError(f"{path} has no columns; expected {_expected()}")
    if all(re.fullmatch(r"\s*[-+.\deE]+\s*", name) for name in names):
        raise FileFormatError(f"{path} has no header; its first line must name the columns: {_expected()}")
    if len(set(names)) < len(names):
        raise FileFormatError(f"{path} has two columns of the same name; each name may stand once")
    columns: dict[str, list[str]] = {}
    numbered: dict[str, dict[int, str]] = {}
    for name in names:
        field, number = _meant(path, name)
        if number is None:
            columns.setdefault(field.name, []).append(name)
        else:
            numbered.setdefault(field.name, {})[number] = name
    for field_name, found in numbered.items():
        if sorted(found) != list(range(len(found))):
            raise FileFormatError(
                f"{path}: the columns of {field_name} must be numbered 0 to {len(found) - 1} without gaps"
            )
        columns.setdefault(field_name, []).extend(found[i] for i in range(len(found)))
    _refuse_twice(path, columns)
    if "features" not in columns:
        raise FileFormatError(f"{path} has no columns feature_0, feature_1, …; it has {', '.join(names[:6]):.200}")
    return columns


def _meant(path: Path, column: str) -> tuple[Field, int | None]:
    """The field that a column belongs to, and which of its columns it is (None where it holds the whole field)."""
    stem, _, number = column.rpartition("_")
    for field in filter(_has_columns, FIELDS.values()):
        if column == field.name or (column == field.column and len(field.axes) == 1):
            return field, None
        if stem == field.column and len(field.axes) == 2 and re.fullmatch(r"0|[1-9][0-9]{0,8}", number):
            return field, int(number)
    shown = repr(column if len(column) <= SHOWN else column[:SHOWN] + "…")
    raise FileFormatError(
        f"{path} has a column {shown}; expected {_expected()}. A table whose columns have names of their own becomes features by "
        "FeatureSet.from_frame, and a guard by outfield guard rows"
    )


def _has_columns(field: Field) -> bool:
    return field.per_row


def _refuse_twice(path: Path, columns: dict[str, list[str]]) -> None:
    for name, found in columns.items():
        if len(found) > 1 and (name in found or len(FIELDS[name].axes) == 1):
            raise FileFormatError(f"{path} has {name} twice, as columns {found[0]} and {found[1]}; keep one")


def _expected() -> str:
    first, *others = filter(_has_columns, FIELDS.values())
    shown = ", ".join(field.column + "_*" * (len(field.axes) - 1) for field in others)
    return f"{first.column}_0, {first.column}_1, … perhaps {shown}"
