"""Names of the rows of a set, such as the files of their images: kept in memory as texts, and in files as two arrays.

``name_bytes`` holds all names in UTF-8 one after the other, ``name_ends`` (N,) where each of them ends. The names of files that
are no valid UTF-8 come back as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError

BYTES, ENDS = "name_bytes", "name_ends"
ARRAYS = (BYTES, ENDS)
LONGEST = 2**16
"""Letters of a name."""
CODING = ("utf-8", "surrogateescape")


def checked_names(given: Any, rows: int) -> tuple[str, ...] | None:
    """The names of so many rows, or None.

    Raises:
        InputError: They are no texts, or of another number.

    >>> checked_names(["a.png", "b.png"], 2)
    ('a.png', 'b.png')
    """
    if given is None:
        return None
    found = given.tolist() if isinstance(given, np.ndarray) else given
    names = tuple(found) if isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping) else ()
    wrong = [name for name in names if not isinstance(name, str) or len(name) > LONGEST]
    if not names or wrong:
        shown = wrong[0] if wrong else given
        raise InputError(
            f"names is {shown!r:.100}; it must be a text of at most {LONGEST:,} letters for each row, or None"
        )
    try:
        "".join(names).encode(*CODING)
    except UnicodeEncodeError as error:
        raise InputError(f"names has {error.object[error.start]!r} in it, which is no letter of any text") from error
    if len(names) != rows:
        raise InputError(f"there are {len(names)} names for {rows} rows; each row has one, or none has")
    return names


def packed(names: tuple[str, ...] | None) -> dict[str, Tensor]:
    """The arrays of a file that hold the names; none where there are no names."""
    if names is None:
        return {}
    encoded = [name.encode(*CODING) for name in names]
    content = np.frombuffer(b"".join(encoded), np.uint8).copy()
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return {BYTES: torch.from_numpy(content), ENDS: torch.from_numpy(ends)}


def unpacked(path: Path, arrays: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names that :func:`packed` made arrays of; None where there are none.

    Raises:
        FileFormatError: They are not what it makes.
    """
    if not any(name in arrays for name in ARRAYS):
        return None
    content, ends = (np.asarray(arrays.get(name, ())) for name in ARRAYS)
    steps = np.diff(ends, prepend=0) if ends.ndim == 1 and ends.dtype.kind in "iu" else np.array([-1])
    if content.dtype != np.uint8 or content.ndim != 1 or not len(ends) or steps.min() < 0 or ends[-1] != len(content):
        raise FileFormatError(f"{path} holds names of rows that cannot be read")
    whole, starts = content.tobytes(), ends - steps
    return tuple(whole[start:end].decode(*CODING) for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
