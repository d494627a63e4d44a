"""Texts: a text classifier of transformers as the reader of a guard, with its own tokenizer.

A row is what the classifier's last linear layer looks at, with the logits that it gives. Texts go through the network together
where they have equally many tokens, so that none is padded.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone import Observer, Origin, evaluation_mode, match_labels, open_text_classifier
from outfield.errors import FileFormatError, InputError, as_ours
from outfield.extras import library
from outfield.features import (
    HEAD_FIELDS,
    NETWORK,
    TEXT,
    Column,
    FeatureSet,
    FeatureSource,
    array_of,
    as_texts,
    cells_of,
    is_missing,
    network_text,
    read_columns,
)
from outfield.files import PathLike, Record, as_path
from outfield.guard.boxes import network_fingerprint
from outfield.guard.readers import Batch, Reader, check_network
from outfield.modes import resolve_device
from outfield.percent import counted
from outfield.progress import bar

log = logging.getLogger(__name__)
LABEL = "label"  # column of the classes of texts, and of features as their CSV files call it
PIECE, AT_ONCE = 512, 32  # texts that are tokenized together, and that go through the network together, at most
PROBE = "a"
SHOWN = 8  # names of classes or columns in a message


@dataclass(frozen=True)
class Opened:
    """Cells that should be texts, their source and column, the class of each if there are classes, and their names."""

    cells: Sequence[Any]
    source: str
    column: str | None = None
    labels: Tensor | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, chosen: np.ndarray) -> Opened:
        labels = None if self.labels is None else self.labels[torch.from_numpy(chosen)]
        return replace(self, cells=[self.cells[place] for place in np.flatnonzero(chosen).tolist()], labels=labels)

    def usable(self, on_error: str) -> Opened:
        """Those that are texts; others are left out, or, with "fail", an error."""
        problems = [_problem(cell) for cell in self.cells]
        good = np.array([problem is None for problem in problems], bool)
        if good.all():
            return self
        place, count = int(good.argmin()), int((~good).sum())
        told = f"row {place + 1}: {problems[place]}"
        if on_error == "fail" or not good.any():
            raise InputError(f"{self.source} {told}")
        log.warning("%s of %s texts of %s are left out; %s", count, len(good), self.source, told)
        return self[good]


class Texts(Reader):
    """A text classifier of transformers as the reader of a guard: every text is a row.

    Nothing is downloaded, nothing is unpickled, and no code of the folder is run.

    Args:
        network: "hf:FOLDER", with config.json, model.safetensors and tokenizer.json as ``save_pretrained`` writes them.
        column: of the texts in tables; if None "text", or the only column of texts.
        label: column of the classes, names or numbers of the network's; if None "label", where there is such a column.
        device: where the network runs.

    Raises:
        FileFormatError: the folder holds no text classifier, or its tokenizer is another network's.
        StorageError: a file is missing.
    """

    takes, unit, scored, kind = "texts", "texts", "texts", "guard of texts"
    origin: Origin
    probe: FeatureSet

    def __init__(
        self, network: str, *, column: str | None = None, label: str | None = None, device: str | torch.device = "auto"
    ) -> None:
        if not isinstance(network, str) or not network.startswith("hf:"):
            raise InputError(f"{network!r:.100} is no text classifier; write hf:FOLDER, a folder of save_pretrained")
        folder = as_path(network.removeprefix("hf:"), "the folder behind hf:")
        trained, tokens, limit = open_text_classifier(folder)
        super().__init__(trained.names)
        self.name, self.origin, self.column, self.label = trained.name, cast(Origin, trained.origin), column, label
        self._ready(trained.network.to(resolve_device(device)), tokens, limit, str(folder))

    def _ready(self, network: Any, tokens: str, limit: Any, source: str) -> None:
        """Take network and tokenizer, and find where to look by a first text."""
        self.network, self.tokens, self._told = network, tokens, False
        self.device: torch.device = next(network.parameters()).device
        self.longest, tokenizers = _longest(network, limit), library("tokenizers", extra="hf")
        with as_ours(f"{source} holds no tokenizer that tokenizers can read", FileFormatError):
            self.tokenizer = tokenizers.Tokenizer.from_str(tokens)
            self.tokenizer.no_padding()
            cut = (self.tokenizer.truncation or {}).get("direction", "right")
            self.tokenizer.no_truncation()
            if self.longest is not None:
                self.tokenizer.enable_truncation(self.longest, direction=cut)
            probe = self.tokenizer.encode(PROBE)
        known = max(*self.tokenizer.get_vocab().values(), *probe.ids, 0) + 1
        embedded = network.get_input_embeddings().num_embeddings
        if known > embedded:
            what = f"its tokenizer has {known:,} tokens, its network {embedded:,}; it is another's"
            raise FileFormatError(f"{source}: {what}")
        whole = f"{network_fingerprint(network)}|{self.longest}|{tokens}"
        self.fingerprint = hashlib.sha256(whole.encode()).hexdigest()
        self._about = {NETWORK: network_text(self.name, self.fingerprint)}
        score = getattr(network, "score", None)
        self._observer = Observer(_LastToken(network) if isinstance(score, nn.Linear) else network)
        self.probe = self._rows([probe] * 2)
        self._observer.only(())  # their maps have as many positions as a text has tokens
        self.classes = int(self.probe.shapes["logits"][1])
        if self.classes < 2:
            raise FileFormatError(f"{source} gives one number for a text, which is a regression; guards need classes")

    @property
    def last_layer(self) -> dict[str, Tensor]:
        """Its weight and bias, where the logits are what it makes of the features."""
        weight, bias = self._observer.last_layer or (None, None)
        return dict(zip(HEAD_FIELDS, (weight, bias), strict=True)) if weight is not None and bias is not None else {}

    def rounded(self) -> Self:
        """The same, with numbers of half as many bits as a file of float16 holds them."""
        made, state = copy.copy(self), Record({}, self.origin.state(self.network)).narrowed().tensors
        made.float16 = True
        made._ready(self.origin.build(state, self.name).to(self.device), self.tokens, self.longest, self.name)
        return made

    def giving(self, needed: Sequence[str]) -> Self:
        made, shapes = copy.copy(self), self.probe.shapes
        made.columns = (Column(self.column or TEXT, TEXT, (), 0.0, 1.0, 0.0),)
        made.widths = {name: shapes[name][1] for name in dict.fromkeys((*needed, "logits")) if name in shapes}
        return made

    # Texts out of what is given

    def open(self, given: Any, classes: bool = True) -> Opened:
        """The texts of a path, of columns by name or of a list; where it is asked for, their classes if there are any."""
        if isinstance(given, list | tuple) or getattr(given, "ndim", 0) == 1:
            return Opened([*given], "the list")
        source, label = str(given) if isinstance(given, str | os.PathLike) else "the table", self.label or LABEL
        found = read_columns(given, dict.fromkeys((self.column or TEXT, label), TEXT))
        column = self.column or TEXT
        if column not in found and self.column is None:
            texts = [name for name, one in found.items() if name != label and isinstance(array_of(one)[0], str)]
            column = texts[0] if len(texts) == 1 else column
        if column not in found:
            listed = ", ".join([*found][:SHOWN]) + ", …" * (len(found) > SHOWN)
            what = f"{source} has no column {column!r} of texts; it has {listed}"
            raise InputError(f"{what}: rename one, or name it when the guard is built (--column, in Python column=…)")
        labels = self._labels(label, found[label], source) if classes and label in found else ()
        return Opened(array_of(found[column]).tolist(), source, column, *labels)

    def _labels(self, name: str, column: Any, source: str) -> tuple[Tensor, tuple[str, ...]]:
        """Classes as the network counts them, by their names or numbers; and their names, where only the column has some."""
        cells = as_texts(cells_of(name, column))
        if cells.missing.any():
            raise InputError(f"{source}: column {name!r} has {counted(int(cells.missing.sum()), 'empty cell')}")
        known, labels = np.unique(cells.values.astype(str), return_inverse=True)
        classes, numbers = tuple(known.tolist()), tuple(map(str, range(self.classes)))
        numbered = all(map(str.isdecimal, classes)) and not {*classes} <= {*self.names}
        names = numbers if numbered else self.names
        found, why = match_labels(SimpleNamespace(labels=labels, classes=classes), names, self.classes)  # type: ignore[arg-type]
        if found is None:
            listed = ", ".join((self.names or numbers)[:SHOWN]) + ", …" * (self.classes > SHOWN)
            what = f"{source}: column {name!r} cannot be used: {why}; its classes are {listed}"
            raise InputError(f"{what}: name another column, --label, in Python label=…, or leave it out of the table")
        return torch.from_numpy(found), self.names if self.names or numbered else classes

    # Rows

    def rows(self, given: Any) -> FeatureSet:
        """Features and logits of texts, with labels where they have classes; what is no text is an error."""
        found = given if isinstance(given, Opened) else self.open(given)
        if not len(found):
            raise InputError(f"there is no text in {found.source}, which is empty")
        parts: list[FeatureSet] = []
        with bar("reading texts", len(found), "texts") as advance:
            for batch in self._batches(found.cells, "fail", f"{found.source} row "):
                parts.append(cast(FeatureSet, batch.features))
                advance(PIECE * len(parts))
        joined = FeatureSet.join(parts)
        fields: dict[str, Any] = {**joined.tensors(), "labels": found.labels, **self.last_layer}
        return FeatureSet(**fields, about=joined.about)

    def features(self, x: Any) -> FeatureSet:
        return x.in_memory() if isinstance(x, FeatureSource) else self.rows(x)

    def read(self, x: Any, on_error: str, normalised: bool, workers: int | None) -> tuple[bool, Iterator[Batch]]:
        if isinstance(x, FeatureSource):
            return super().read(x, on_error, normalised, workers)
        cells = [x] if isinstance(x, str) else self.open(x, classes=False).cells
        if not cells:
            raise InputError("there is no text in an empty list")
        return isinstance(x, str), self._batches(cells, on_error)

    def read_file(self, path: Any, on_error: str) -> Iterator[Batch]:
        return self._batches(self.open(Path(path), classes=False).cells, on_error, f"{path} row ")

    def _batches(self, cells: Sequence[Any], on_error: str, where: str = "") -> Iterator[Batch]:
        for start in range(0, len(cells), PIECE):
            part = cells[start : start + PIECE]
            errors = {place: why for place, cell in enumerate(part) if (why := _problem(cell))}
            good = [place for place in range(len(part)) if place not in errors]
            encoded = dict(zip(good, self.tokenizer.encode_batch([part[place] for place in good]), strict=True))
            errors |= {place: f"{part[place]!r:.40} has no token" for place, one in encoded.items() if not one.ids}
            if errors and on_error == "fail":
                place = min(errors)
                raise InputError(f"{where or 'text '}{start + place + 1}: {errors[place]}")
            if not self._told and any(one.overflowing for one in encoded.values()):
                self._told = True
                log.warning("%s reads %s tokens of a text at most; longer ones are cut there", self.name, self.longest)
            kept = [one for one in encoded.values() if one.ids]
            names = [f"{where}{start + place + 1}" if where else None for place in range(len(part))]
            yield Batch(self._rows(kept) if kept else None, names, errors)

    def _rows(self, encoded: Sequence[Any]) -> FeatureSet:
        """The fields of texts that are tokenized, in their order."""
        alike: dict[int, list[int]] = {}
        for place, one in enumerate(encoded):
            alike.setdefault(len(one.ids), []).append(place)
        parts = [own[at : at + AT_ONCE] for own in alike.values() for at in range(0, len(own), AT_ONCE)]
        features, logits = [], []
        with evaluation_mode(self.network, gradients=False):
            for part in parts:
                seen = self._observer(torch.tensor([encoded[place].ids for place in part], device=self.device))
                features.append(seen.features.float().cpu())
                logits.append(seen.logits.float().cpu())
        order = torch.tensor([place for part in parts for place in part]).argsort()
        return FeatureSet(torch.cat(features)[order], logits=torch.cat(logits)[order], about=self._about)

    def example(self, count: int) -> Iterator[FeatureSet]:
        yield self._rows([self.tokenizer.encode(PROBE)] * count)

    # Its part of the guard's file

    def record(self) -> Record:
        said: dict[str, Any] = {"name": self.name, "origin": self.origin.to_json(), "fingerprint": self.fingerprint}
        said["limit"] = self.longest
        settings = {"names": list(self.names), "column": self.column, "label": self.label, "half": self.float16}
        text = torch.frombuffer(bytearray(self.tokens.encode()), dtype=torch.uint8)
        state = self.origin.state(self.network)
        return Record.of(settings, network=Record(said, state), tokenizer=Record({}, {"json": text}))

    @classmethod
    def from_record(cls, path: PathLike, record: Record, device: torch.device, network: Any) -> Self:
        if network is not None:
            raise InputError(f"{path} holds its network; leave network out")
        header, (said, state) = record.header, record.part("network")
        made = cls.__new__(cls)
        Reader.__init__(made, header["names"])
        made.name, made.origin, made.float16 = said["name"], Origin.of_json(said["origin"]), header["half"]
        made.column, made.label = header["column"], header["label"]
        built = made.origin.build(state, str(path)).requires_grad_(False).to(device)
        tokens = record.part("tokenizer").tensors["json"].numpy().tobytes().decode()
        made._ready(built, tokens, said["limit"], str(path))
        check_network(path, made.fingerprint, said["fingerprint"], None)
        return made

    def __str__(self) -> str:
        return f"texts of {self.name}, {counted(self.classes, 'class')}"


class _LastToken(nn.Module):
    """A decoder as a classifier: transformers' own gives its head all tokens, and takes the logits of the last."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.decoder, self.score = network.base_model, network.score

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.score(self.decoder(input_ids=ids)[0][:, -1])
        return found


def _longest(network: Any, limit: Any) -> int | None:
    """How many tokens a network reads: as its tokenizer says, and as it has positions; None where neither says it."""
    tables = [one for name, one in network.named_modules() if name.endswith("position_embeddings")]
    padded = [one.num_embeddings - 1 - at for one in tables if (at := getattr(one, "padding_idx", None)) is not None]
    said = [limit, getattr(network.config, "max_position_embeddings", None), *padded]
    return min((one for one in said if isinstance(one, int) and 0 < one < 10**9), default=None)


def _problem(cell: Any) -> str | None:
    """Why a cell cannot be judged."""
    if not isinstance(cell, str):
        return "there is no text" if is_missing(cell) else f"{cell!r:.40} is no text"
    if not cell.strip():
        return "the text is empty"
    try:
        cell.encode()
    except UnicodeEncodeError:
        return "the text holds half a character, which UTF-8 does not have"
    return None
