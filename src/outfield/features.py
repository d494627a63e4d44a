"""FeatureSet: what a backbone hands to every detector, checked once, here.

Everything behind this door may rely on: two-dimensional finite floating features, matching lengths, integer labels that
start at 0, tensors on the CPU.
"""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from outfield import storage
from outfield.errors import FileFormatError, InputError

DIGEST = "outfield_sha256"
"""Name of the array in an ``.npz`` of ours that holds the digest of the others."""
ROWS_AT_ONCE = 65_536
"""Rows looked at together when a large array is checked."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class FeatureSet:
    """Features of a set of images, and what else detectors may need of them.

    Args:
        features: pooled penultimate features (N, D), not normalised: detectors do that.
        labels: class of each row (N,), integers from 0.
        logits: the classifier's outputs (N, K).
        spread: spatial standard deviation of the feature map (N, D').
        odin_logits: the classifier's outputs at the ODIN-perturbed input (N, K).

    Arrays may be numpy or torch, half to double precision; they are neither copied nor changed where that can be helped.

    Raises:
        InputError: NaN or infinite values, a wrong rank, lengths that differ, labels that are not integers from 0 or that
            exceed the classes of the logits.

    >>> import numpy as np, outfield as of
    >>> of.FeatureSet(np.eye(3), labels=[0, 1, 1])
    FeatureSet(3 samples, features 3-d, labels of 2 classes)
    """

    features: Tensor
    labels: Tensor | None
    logits: Tensor | None
    spread: Tensor | None
    odin_logits: Tensor | None

    def __init__(
        self,
        features: ArrayLike | Tensor,
        *,
        labels: ArrayLike | Tensor | None = None,
        logits: ArrayLike | Tensor | None = None,
        spread: ArrayLike | Tensor | None = None,
        odin_logits: ArrayLike | Tensor | None = None,
    ) -> None:
        given = (features, labels, logits, spread, odin_logits)
        if features is None:
            raise InputError("features is None; pass an array of shape (N, D)")
        for name, value in zip(FIELDS, given, strict=True):
            checked = None if value is None else _labels(value) if name == "labels" else _matrix(name, value)
            object.__setattr__(self, name, checked)
        self._check_agreement()

    def _check_agreement(self) -> None:
        for name, value in self.tensors().items():
            if len(value) != len(self.features):
                raise InputError(f"{name} has {len(value)} rows but features has {len(self.features)}; they must match")
        if self.logits is not None and self.odin_logits is not None and self.logits.shape != self.odin_logits.shape:
            raise InputError(
                f"odin_logits has shape {tuple(self.odin_logits.shape)} but logits {tuple(self.logits.shape)}; "
                "both come from the same classifier and must match"
            )
        if self.labels is not None and self.logits is not None:
            width = self.logits.shape[1]
            if int(self.labels.max()) >= width:
                raise InputError(
                    f"labels go up to {int(self.labels.max())}, out of range for logits of {width} classes (0 to {width - 1})"
                )

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} samples", f"features {self.features.shape[1]}-d"]
        if self.labels is not None:
            parts.append(f"labels of {len(self.labels.unique())} classes")
        parts += [name for name in FIELDS[2:] if getattr(self, name) is not None]
        return f"FeatureSet({', '.join(parts)})"

    def __getitem__(self, rows: slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor) -> FeatureSet:
        """The chosen rows (a slice, indices or a mask) as a FeatureSet."""
        if isinstance(rows, int):
            raise InputError(f"index {rows} would give a single row; write [{rows}:{rows + 1}] for a set of one")
        forward = isinstance(rows, slice) and (rows.step or 1) > 0
        try:
            index = rows if forward else torch.from_numpy(np.arange(len(self))[rows].copy())
        except (IndexError, TypeError, ValueError) as error:
            raise InputError(f"these rows cannot be taken from {len(self)}: {error}") from error
        return FeatureSet(**{name: value[index] for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        return {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}

    def batches(self, size: int) -> Iterator[dict[str, Tensor]]:
        """The fields in consecutive pieces of at most ``size`` rows, unchecked (this set was checked)."""
        present = self.tensors()
        for start in range(0, len(self), size):
            yield {name: value[start : start + size] for name, value in present.items()}

    @classmethod
    def join(cls, parts: Sequence[FeatureSet]) -> FeatureSet:
        """Several sets as one; a field must be in all of them or in none."""
        if not parts:
            raise InputError("join was given no FeatureSet; pass at least one")
        names = [tuple(part.tensors()) for part in parts]
        if len(set(names)) > 1:
            raise InputError(
                f"the sets to join have different fields: {' and '.join(str(n) for n in sorted(set(names)))}"
            )
        for name in names[0]:
            widths = {tuple(part.tensors()[name].shape[1:]) for part in parts}
            if len(widths) > 1:
                raise InputError(f"the sets to join have {name} of different widths: {sorted(widths)}")
        return cls(**{name: torch.cat([part.tensors()[name] for part in parts]) for name in names[0]})

    def save(self, path: storage.PathLike) -> None:
        """Write to ``.safetensors`` or ``.npz`` (by the ending), atomically.

        Raises:
            InputError: another ending, or a type that ``.npz`` cannot hold.
            StorageError: the file could not be written; what was there stays.
        """
        suffix = Path(path).suffix
        if suffix == ".safetensors":
            storage.write(path, "FeatureSet", {}, self.tensors())
        elif suffix == ".npz":
            if any(value.dtype == torch.bfloat16 for value in self.tensors().values()):
                raise InputError(f"{path}: .npz cannot hold bfloat16; save as .safetensors")
            # The digest comes first, so that an index that lost its end is found.
            digest = np.array(storage.fingerprint(self.tensors()))
            arrays = {DIGEST: digest, **{name: value.numpy() for name, value in self.tensors().items()}}
            storage.write_npz(path, arrays)
        else:
            raise InputError(
                f"{path}: a FeatureSet is saved as .safetensors or .npz, not {suffix or 'without an ending'!r}"
            )

    @classmethod
    def load(cls, path: storage.PathLike, part: str | None = None) -> FeatureSet:
        """Read ``.safetensors`` or ``.npz``; nothing is unpickled.

        Args:
            path: the file. A file written by other software is fine if its arrays carry the names of the fields.
            part: for an ``.npz`` that holds several sets as ``train_features``, ``train_labels``, ``test_features`` …,
                which one ("train").

        Raises:
            StorageError: there is no such file.
            FileFormatError: truncated, changed, or not a FeatureSet.
            InputError: its arrays are not valid as a FeatureSet.
        """
        suffix = Path(path).suffix
        if part is not None and suffix != ".npz":
            raise InputError(f"{path}: only an .npz can hold several sets; {part!r} has no meaning here")
        if suffix == ".safetensors":
            arrays: dict[str, Any] = _read_safetensors(path)
        elif suffix == ".npz":
            arrays = dict(_read_npz(path, part))
        else:
            raise InputError(f"{path}: a FeatureSet is read from .safetensors or .npz, not {suffix or 'no ending'!r}")
        unknown = sorted(set(arrays) - set(FIELDS))
        if unknown or "features" not in arrays:
            hint = _parts_hint(list(arrays)) if part is None else ""
            raise FileFormatError(
                f"{path} is not a FeatureSet: it holds {_some(list(arrays))}; expected features and any of "
                f"{', '.join(FIELDS[1:])}{hint}"
            )
        return cls(**arrays)


FIELDS = tuple(f.name for f in fields(FeatureSet))


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise InputError(f"{name} is a sparse tensor; pass {name}.to_dense()")
        return value.detach().cpu()
    if np.ma.is_masked(value):
        raise InputError(f"{name} has masked entries; every entry must hold a number")
    try:
        array = np.asarray(value)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            if array.dtype.byteorder == ">" or any(stride < 0 for stride in array.strides):
                array = array.astype(array.dtype.newbyteorder("="))
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers; got {type(value).__name__} ({error})") from error


def _matrix(name: str, value: Any) -> Tensor:
    tensor = _tensor(name, value)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must hold real numbers; got {tensor.dtype}")
    if tensor.ndim != 2:
        raise InputError(f"{name} must have two dimensions (samples, width); got shape {tuple(tensor.shape)}")
    if 0 in tensor.shape:
        raise InputError(f"{name} is empty: shape {tuple(tensor.shape)}; at least one row and one column are needed")
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    for start in range(0, len(tensor), ROWS_AT_ONCE):
        finite = torch.isfinite(tensor[start : start + ROWS_AT_ONCE])
        if not bool(finite.all()):
            row, column = (~finite).nonzero()[0].tolist()
            bad = float(tensor[start + row, column])
            count = int((~torch.isfinite(tensor)).any(1).sum())
            raise InputError(
                f"{name}[{start + row}, {column}] is {bad}; all values must be finite (rows with such values: {count})"
            )
    return tensor


def _labels(value: Any) -> Tensor:
    tensor = _tensor("labels", value)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"labels must be integers from 0; got {tensor.dtype}")
    if tensor.ndim != 1:
        raise InputError(f"labels must have one dimension; got shape {tuple(tensor.shape)}")
    tensor = tensor.to(torch.int64)
    if len(tensor) and int(tensor.min()) < 0:
        raise InputError(f"labels go down to {int(tensor.min())}, out of range; classes are counted from 0")
    return tensor


def _read_safetensors(path: storage.PathLike) -> dict[str, Tensor]:
    metadata, tensors = storage.read_tensors(path)
    if "outfield" in metadata:
        storage.parse_header(path, "FeatureSet", metadata["outfield"], tensors)
    return tensors


def _read_npz(path: storage.PathLike, part: str | None) -> dict[str, np.ndarray]:
    storage.check_readable(path)
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise FileFormatError(f"{path} holds a single array, not an .npz archive")
        with file:
            if part is None:
                return _checked_npz(path, {name: file[name] for name in file.files})
            arrays = {name: file[f"{part}_{name}"] for name in FIELDS if f"{part}_{name}" in file.files}
            if not arrays:
                raise FileFormatError(f"{path} has no set {part!r}{_parts_hint(file.files)}")
            return arrays
    except FileFormatError:
        raise
    except (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"{path} is truncated, or is not an .npz archive of plain arrays ({error})") from error


def _checked_npz(path: storage.PathLike, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays without the digest that :meth:`FeatureSet.save` adds, compared with it where there is one."""
    if DIGEST in arrays:
        digest = str(arrays.pop(DIGEST))
        if digest != storage.fingerprint({name: torch.from_numpy(array) for name, array in arrays.items()}):
            raise FileFormatError(f"{path} was changed after it was written: its checksum does not match its content")
    return arrays


def _parts_hint(names: Sequence[str]) -> str:
    parts = [name.removesuffix("_features") for name in names if name.endswith("_features")]
    return f"; it holds several sets, name one of them: {', '.join(parts)}" if parts else ""


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) or "nothing"
    return f"{shown}, …" if len(names) > 6 else shown
