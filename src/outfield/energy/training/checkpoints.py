"""Checkpoints of a running fit: written every so often, at the end and when the fit is interrupted; checked before they are used.

An interrupt can come in the middle of a step, when weights, moments and generators belong to no step at all. So what a step
has changed is copied when the step is whole, into one of two sets of tensors in turn; an interrupt writes the last whole one.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from outfield.config import require
from outfield.errors import DivergenceError, FileFormatError, InputError, OutfieldWarning, StorageError
from outfield.files import RECORD_ENDINGS, PathLike, Record, as_path, check_output, read_record, write_record

if TYPE_CHECKING:
    from outfield.energy.training.loop import Run

VERSION = 2
"""Of what a checkpoint holds."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a running fit is kept so that one that was interrupted or killed can go on.

    Args:
        path: A ``.safetensors`` file, replaced atomically.
        seconds: How often it is written; it is also written at the end, and when the fit is interrupted (Ctrl-C).
        identity: What, besides the rows and the settings of the loop, must be equal for a checkpoint to belong to a fit, ready
            for JSON. Detectors fill it in.
    """

    path: PathLike
    seconds: float = 30.0
    identity: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        as_path(self.path)
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        require(number and self.seconds >= 0, "seconds", self.seconds, "a number, at least 0")
        require(isinstance(self.identity, Mapping), "identity", self.identity, "a dictionary")


class State(NamedTuple):
    """What must survive a restart.

    Attributes:
        header: Plain values, ready for JSON.
        moving: Tensors that the next step may change in place.
        fixed: Tensors that nobody changes in place.
    """

    header: dict[str, Any]
    moving: dict[str, Tensor]
    fixed: dict[str, Tensor]


class Keeper:
    """Keeps a run in its checkpoint.

    Args:
        checkpoint: Where and how often.
        run: What is kept.
        identity: What must be equal for a checkpoint to belong to this run, ready for JSON.

    Raises:
        StorageError: the file cannot be written, which is found before any work.
    """

    def __init__(self, checkpoint: Checkpoint, run: Run, identity: Mapping[str, Any]) -> None:
        self.path, self.seconds, self.run = as_path(checkpoint.path), checkpoint.seconds, run
        check_output(self.path, RECORD_ENDINGS, "checkpoint")
        self.identity: dict[str, Any] = json.loads(json.dumps(dict(identity)))
        self.written = time.monotonic()
        self._whole: State | None = None
        self._spare: dict[str, Tensor] | None = None

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one.

        Raises:
            InputError: it belongs to another fit.
            FileFormatError: it is damaged, or was written by an earlier version.
        """
        if not self.path.exists():
            return
        header, tensors = read_record(self.path, "Checkpoint")
        if header.get("version") != VERSION:
            raise FileFormatError(
                f"the checkpoint {self.path} was written by another version of Outfield and cannot be used; "
                "delete it or name another file to start afresh"
            )
        try:
            self._check_identity(header["identity"])
            self.run.take(header, tensors)
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FileFormatError(f"the checkpoint {self.path} is damaged: {error}") from error

    def _check_identity(self, found: Mapping[str, Any]) -> None:
        for key, value in self.identity.items():
            if found.get(key) != value:
                what = ", ".join(differences(found.get(key), value)) if isinstance(value, dict) else ""
                raise InputError(
                    f"the checkpoint {self.path} belongs to a fit with other {key}{f' ({what})' if what else ''}; "
                    "delete it or name another file to start afresh"
                )

    def after_step(self, over: bool) -> None:
        """Remember the step that has just ended; write it if it is the last one, or if it is time."""
        state, spare = self.run.state(), self._spare
        if spare is None or spare.keys() != state.moving.keys():
            spare = {name: tensor.clone() for name, tensor in state.moving.items()}
        else:
            _copy(state.moving, spare)
        self._spare = None if self._whole is None else self._whole.moving
        self._whole = State(state.header, spare, state.fixed)
        if over or time.monotonic() - self.written >= self.seconds:
            self.run.check()
            self.write()

    def write(self) -> None:
        """Write the last whole step, unless its numbers are not finite: then the next step will say that it diverged."""
        if self._whole is not None and all(bool(torch.isfinite(one).all()) for one in self._whole.moving.values()):
            header = {**self._whole.header, "version": VERSION, "identity": self.identity}
            write_record(self.path, "Checkpoint", Record(header, {**self._whole.moving, **self._whole.fixed}))
            self.written = time.monotonic()

    def interrupted(self, error: BaseException) -> None:
        """Write the last whole step of a fit that is being interrupted, unless it diverged; a second interrupt goes through."""
        if self._whole is None:
            return
        try:
            self.run.check()
            self.write()
            error.add_note(f"The fit up to here is kept in {self.path}; the same fit again goes on from there.")
        except DivergenceError:
            return
        except StorageError as failure:
            warnings.warn(f"the interrupted fit was not kept: {failure}", OutfieldWarning, stacklevel=2)


def _copy(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy tensors to those of the same names, with few launches on a GPU."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for name, tensor in tensors.items():
        to, of = groups.setdefault((tensor.device, tensor.dtype), ([], []))
        to.append(into[name])
        of.append(tensor)
    with torch.no_grad():
        for to, of in groups.values():
            torch._foreach_copy_(to, of)


def differences(there: Any, here: Any, path: str = "") -> Iterator[str]:
    """Where two plain settings differ, each as ``training.epochs is 3 there and 4 here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in here:
            yield from differences(there.get(key), here[key], f"{path}.{key}" if path else key)
    elif there != here:
        yield f"{path} is {there!r:.60} there and {here!r:.60} here"
