"""Readers: from what a guard is called with to the rows that its detector scores.

A guard is a reader, a detector and a threshold. :class:`ImageReader` reads images through a network, :class:`TableReader` the
rows of tables, :class:`Reader` itself features. Another one, say of audio clips, is a subclass with ``read_one``, ``record`` and
``from_record``, and an entry of ``READERS``: :class:`outfield.Boxes` is one.
"""

from __future__ import annotations

import base64
import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from outfield.backbone import Backbone, Extraction, Odin, Origin, Preprocessing, Views, read
from outfield.config import from_plain, require_choice, to_plain
from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.features import NETWORK, Cells, Column, FeatureSet, FeatureSource, TablePreprocessing, network_text
from outfield.files import PathLike, Record
from outfield.guard.inputs import Given, as_given, gives_images, pixels, portions
from outfield.guard.verdict import Verdict
from outfield.images import ON_ERROR
from outfield.percent import counted

ROWS = 512
"""Images that the network is given at once, at most."""
PROBES = 2
"""Images of noise that show where to look into a network: their maps are unlike each other, as those of a black image are not."""
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
"""A black pixel as PNG, with which a guard of images is warmed up."""


class Batch(NamedTuple):
    """Some consecutive inputs.

    Attributes:
        features: rows of those that could be read; None where none could.
        names: of all of them, each a file or None.
        errors: why others could not be read, by their place in ``names``.
        cells: of a table, what the features were made of.
        found: of a guard of boxes, those of the one image whose rows these are.
    """

    features: FeatureSet | None
    names: Sequence[str | None]
    errors: Mapping[int, str] = {}
    cells: Mapping[str, Cells] | None = None
    found: Any = None


class Reader:
    """Turns what a guard is called with into rows; this one reads features.

    Attributes:
        takes: what it reads: "images", "table", "texts" or "features".
        unit: what verdicts are on, in words.
        scored: what has a score, in words: the same, or the boxes of images.
        kind: of the guard's file.
        names: of the classes that logits count, or none.
        widths: the fields that the detector scores, and how many numbers each has.
        float16: whether the file keeps numbers with half as many bits.
        columns: of tables that it reads; none where it reads something else.
        probe: rows with which a guard finds out whether the detector can score what is read, or None.
    """

    takes: ClassVar[str] = "features"
    unit: ClassVar[str] = "rows"
    scored: ClassVar[str] = "rows"
    kind: ClassVar[str] = "guard of rows"
    float16: bool = False
    columns: Sequence[Column] = ()
    probe: FeatureSet | None = None

    def __init__(self, names: Sequence[str] = (), widths: Mapping[str, int] | None = None) -> None:
        self.names, self.widths = tuple(names), dict(widths or {})

    def giving(self, needed: Sequence[str]) -> Self:
        """This reader for a detector that scores these fields."""
        return self

    def read(
        self, x: Any, on_error: str = "fail", normalised: bool = False, workers: int | None = None
    ) -> tuple[bool, Iterator[Batch]]:
        """Whether ``x`` is a single input, and batches of all inputs in their order; see :meth:`outfield.Guard.__call__`."""
        require_choice("on_error", on_error, ON_ERROR)
        return False, iter([self.read_one(x, on_error)])

    def read_files(self, x: Any, on_error: str = "fail", workers: int | None = None) -> Iterator[Batch]:
        """Batches of several files; see :meth:`outfield.Guard.stream`."""
        require_choice("on_error", on_error, ON_ERROR)
        for path in x:
            try:
                if os.path.isdir(path):
                    raise InputError(f"{path} is a folder; a guard of rows reads .csv or .parquet")
                found = self.read_one(path, on_error)
            except OutfieldError as error:
                if on_error == "fail":
                    raise
                found = Batch(None, [str(path)], {0: str(error)})
            numbered = [name or f"{path} row {i}" for i, name in enumerate(found.names, 1)]
            yield found._replace(names=numbered)

    def verdicts(
        self, batch: Batch, judged: Callable[[FeatureSet, Sequence[str | None]], list[Verdict]]
    ) -> list[Verdict]:
        """A verdict on each input of a batch, whether it could be read or not; ``judged`` gives one for each row."""
        good = [name for place, name in enumerate(batch.names) if place not in batch.errors]
        found = iter(() if batch.features is None else judged(batch.features, good))
        return [
            Verdict.failed(name, batch.errors[place]) if place in batch.errors else next(found)
            for place, name in enumerate(batch.names)
        ]

    def read_one(self, x: Any, on_error: str = "fail") -> Batch:
        """The rows of one table, array or file."""
        features = self.complete(self.features(x))
        return Batch(features, features.names or [None] * len(features))

    def features(self, x: Any) -> FeatureSet:
        """Rows as the detector takes them."""
        if isinstance(x, FeatureSource):
            return x.in_memory()
        if isinstance(x, str | os.PathLike):
            return FeatureSet.load(x)
        if isinstance(x, np.ndarray | Tensor | list):
            return FeatureSet(x)
        raise InputError(f"this guard looks at features, not at a {type(x).__name__}; pass a FeatureSet, array or path")

    def complete(self, features: FeatureSet) -> FeatureSet:
        """Rows that were not read here, with all that a verdict needs."""
        logits = features.logits
        if self.names and logits is not None and logits.shape[1] != len(self.names):
            raise InputError(
                f"there are names of {counted(len(self.names), 'class')}, but the logits have {logits.shape[1]}"
            )
        return features

    def example(self, count: int) -> Iterator[FeatureSet]:
        """``count`` rows, made by the steps that inputs go through."""
        zeros = {name: torch.zeros(count, width) for name, width in self.widths.items()}
        yield FeatureSet(**{"features": next(iter(zeros.values())), **zeros})

    def record(self) -> Record:
        """Its part of the guard's file."""
        return Record({"table": None, "names": list(self.names)}, {})

    @classmethod
    def from_record(
        cls, path: PathLike, record: Record, device: torch.device, network: nn.Module | None = None
    ) -> Reader:
        """The reader of a guard's file."""
        names, table = record.header["names"], record.header["table"]
        widths = record.header["provenance"].get("widths", {})
        return Reader(names, widths) if table is None else TableReader(TablePreprocessing.of_json(table), names, widths)

    def __str__(self) -> str:
        return "features"


class TableReader(Reader):
    """Rows of a table, whose columns ``table`` turns into features."""

    takes = "table"

    def __init__(
        self, table: TablePreprocessing, names: Sequence[str] = (), widths: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(names, widths)
        self.table, self.columns = table, table.columns

    def read_one(self, x: Any, on_error: str = "fail") -> Batch:
        if _is_ready(x):
            return super().read_one(x)
        cells, errors = self.table.usable_cells(x) if on_error == "skip" else (self.table.cells(x), {})
        features = self.table.features_of(cells)
        return Batch(features, [None] * (len(errors) + (0 if features is None else len(features))), errors, cells)

    def features(self, x: Any) -> FeatureSet:
        return x.in_memory() if _is_ready(x) else self.table(x)

    def record(self) -> Record:
        return Record({**super().record().header, "table": self.table.to_json()}, {})

    def __str__(self) -> str:
        return f"a table of {counted(len(self.table.columns), 'column')}"


class ImageReader(Reader):
    """Images, through a network that is kept ready.

    Views and precision are those that the detector was fitted with. With ``float16`` the network must be rounded already. After
    :meth:`giving`, ``extraction`` is the way through the network and ``rows`` how many images it is given at once.
    """

    takes, unit, scored, kind = "images", "images", "images", "guard"
    extraction: Extraction
    rows: int

    def __init__(
        self,
        backbone: Backbone,
        *,
        views: Views | str | int | None = None,
        precision: str = "float32",
        float16: bool = False,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(backbone.names)
        self.backbone, self.views, self.precision, self.float16 = backbone, Views.of(views), precision, float16
        self.fingerprint = backbone.fingerprint() if fingerprint is None else fingerprint
        self._fields: tuple[str, ...] = ()
        self._about: dict[str, str] = {}
        self._last_layer: dict[str, Tensor] = {}

    def giving(self, needed: Sequence[str]) -> Self:
        made, odin = copy.copy(self), "odin_logits" in needed
        stages = any(name.startswith("stage") for name in needed)
        made.extraction, fields = looked_into(self.backbone, stages, self.views, odin, self.precision)
        made._fields = tuple(dict.fromkeys(("features", *needed, "logits")))
        made._about = {**made.extraction.about(), NETWORK: network_text(self.backbone.name, self.fingerprint)}
        made.widths = {name: fields[name].shape[-1] for name in dict.fromkeys((*needed, "logits"))}
        made.probe = FeatureSet(**{name: fields[name] for name in made._fields}, about=made._about)
        made.extraction.only(made._fields)
        made._last_layer, made.rows = made.extraction.last_layer(), made.extraction.at_once(ROWS)
        return made

    def read(
        self, x: Any, on_error: str = "fail", normalised: bool = False, workers: int | None = None
    ) -> tuple[bool, Iterator[Batch]]:
        require_choice("on_error", on_error, ON_ERROR)
        if isinstance(x, DataLoader):
            given = (as_given(_first(batch), normalised) for batch in x)
            return False, (batch for one in given for batch in self._batches(one, on_error, 0))
        if gives_images(x):
            given = (as_given(part, normalised, on_error) for part in portions(x, self.rows))
            return False, (batch for one in given for batch in self._batches(one, on_error, workers))
        whole = as_given(x, normalised, on_error)
        return whole.single, self._batches(whole, on_error, workers)

    def read_files(self, x: Any, on_error: str = "fail", workers: int | None = None) -> Iterator[Batch]:
        return self.read(x, on_error, workers=workers)[1]

    def prepare(self, x: Any) -> Tensor:
        """One image as bytes (1, h, w, C) that only have to be normalised."""
        given = as_given(x)
        if not given.single or isinstance(given.images, Tensor):
            raise InputError("prepare takes one image; give several to the guard itself")
        return self._prepared(given)

    def read_pixels(self, pixels: Tensor) -> Iterator[FeatureSet]:
        """Rows of images that :meth:`prepare` gave, joined (N, h, w, C), piece by piece."""
        way = self.backbone.preprocessing
        shape = (*way.size, way.channels)
        right = isinstance(pixels, Tensor) and pixels.dtype == torch.uint8 and pixels.dim() == 4 and len(pixels) > 0
        if not right or tuple(pixels.shape[1:]) != shape:
            raise InputError(f"judge_pixels takes uint8 (N, {', '.join(map(str, shape))}), what prepare gives")
        return self._features(pixels)

    def complete(self, features: FeatureSet) -> FeatureSet:
        """The same rows with logits, which are computed where the network's last layer makes them of the features."""
        if features.logits is not None:
            return features
        rows, weight, bias = features.features, *(self._last_layer.get(name) for name in ("head_weight", "head_bias"))
        if (width := self.widths.get("features")) not in (None, rows.shape[1]):
            raise InputError(f"features has {rows.shape[1]} columns; this guard's network gives {width}")
        if weight is None or bias is None or rows.shape[1] != weight.shape[1]:
            raise InputError("a verdict names the class; pass logits beside the features")
        logits = rows.float() @ weight.T.to(rows.device).float() + bias.to(rows.device).float()
        return FeatureSet(**{**features.tensors(), "logits": logits}, about=features.about)

    def example(self, count: int) -> Iterator[FeatureSet]:
        return self._features(self.prepare(PICTURE).repeat(count, 1, 1, 1))

    def _batches(self, given: Given, on_error: str, workers: int | None) -> Iterator[Batch]:
        images, start, way = given.images, 0, self.backbone.preprocessing
        if isinstance(images, Tensor):
            found, wanted = tuple(images.shape[1:]), (way.channels, *way.size)
            if found != wanted:  # many networks would take another size, too
                raise InputError(f"normalised images have shape {found}; this network takes {wanted}")
        elif given.single and on_error == "fail":
            images = self._prepared(given)
        errors: dict[int, str] | None = {} if on_error == "skip" else None
        pinned = self.extraction.device.type == "cuda"  # of the network; asking it would take longer
        whole = [images] if isinstance(images, Tensor) else read(images, way, self.rows, workers, pinned, errors)
        for batch in whole:
            for rows in self._features(batch):
                stop, left = start, len(rows)
                while errors and left:
                    left -= stop not in errors
                    stop += 1
                stop += left
                yield Batch(rows, given.files[start:stop], _within(errors, start, stop))
                start = stop
        if start < len(images):
            yield Batch(None, given.files[start:], _within(errors, start, len(images)))

    def _prepared(self, given: Given) -> Tensor:
        return torch.from_numpy(self.backbone.pixels(pixels(given.images.items[0], "the image")))[None]  # type: ignore[union-attr]

    def _features(self, images: Tensor) -> Iterator[FeatureSet]:
        """The fields that the detector needs, of bytes (n, H, W, C) or of what the network takes, piece by piece."""
        for _, fields in self.extraction.run([images], self.rows):
            yield FeatureSet._of({name: fields[name] for name in self._fields}, self._about)  # which are finite

    def record(self) -> Record:
        backbone, origin = self.backbone, self.backbone.origin
        header = {
            "preprocessing": backbone.preprocessing.to_json(), "views": to_plain(self.views), "precision": self.precision,
            "half": self.float16,
        }  # fmt: skip
        network = {
            "name": backbone.name, "origin": None if origin is None else origin.to_json(), "fingerprint": self.fingerprint,
            "head": backbone.head, "classes": backbone.classes, "names": list(backbone.names),
        }  # fmt: skip
        return Record.of(header, network=Record(network, {} if origin is None else origin.state(backbone.network)))

    @classmethod
    def from_record(
        cls, path: PathLike, record: Record, device: torch.device, network: nn.Module | None = None
    ) -> Reader:
        header, (said, state) = record.header, record.part("network")
        origin = None if said["origin"] is None else Origin.of_json(said["origin"])
        if network is not None:
            built = network
        elif origin is not None:
            built = origin.build(state, str(path)).requires_grad_(False).to(device)
            built = built.to(memory_format=torch.channels_last) if device.type == "cuda" else built
        else:
            raise InputError(
                f"{path} does not hold its network ({said['name']}), which came from Python. In Python: "
                "Guard.load(path, network=MODULE); of a .pt2 file it is Backbone.open(FILE, trust=True, …).network. To serve or "
                "check it, export the network: torch.onnx.export(MODULE, images, 'net.onnx'), and build the guard of net.onnx"
            )
        about = {name: said[name] for name in ("head", "name", "classes", "names")}
        backbone = Backbone(built, preprocessing=Preprocessing.of_json(header["preprocessing"]), **about)
        backbone.origin = origin
        found, expected = backbone.fingerprint(), str(said["fingerprint"])
        if found != expected and network is not None:
            raise InputError(
                f"this network is not the one that {path} was built with: its fingerprint is {found[:16]}…, not "
                f"{expected[:16]}…; weights, layers and their settings must be the same"
            )
        if found != expected:
            raise FileFormatError(f"{path} holds a network that its library builds otherwise here: update that library")
        settings = {"views": from_plain(header["views"]), "precision": header["precision"], "float16": header["half"]}
        return cls(backbone, fingerprint=expected, **settings)

    def __str__(self) -> str:
        classes = "" if self.backbone.classes is None else f", {counted(self.backbone.classes, 'class')}"
        return f"{self.backbone.name}{classes}"


def looked_into(
    backbone: Backbone, stages: bool, views: Views, odin: bool = False, precision: str = "float32"
) -> tuple[Extraction, dict[str, Tensor]]:
    """The way through a network, which knows where to look into it, and all fields of two images of noise."""
    expects, extraction = (
        backbone.preprocessing,
        Extraction(backbone, Odin() if odin else None, precision, stages, views),
    )
    shape = (PROBES, *expects.size, len(expects.mean))
    noise = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return extraction, next(iter(extraction.run([noise], PROBES)))[1]


def _is_ready(x: Any) -> bool:
    """Whether rows are what a table's columns became, or a network's features, of which the detector says that they are not."""
    return isinstance(x, FeatureSource) and NETWORK in x.about


def _within(errors: Mapping[int, str] | None, start: int, stop: int) -> dict[int, str]:
    """Errors of some inputs, by their place among these."""
    return {index - start: errors[index] for index in range(start, stop) if index in errors} if errors else {}


def _first(batch: Any) -> Any:
    """The images of a batch of a DataLoader: all of it, or the first of (images, labels, …)."""
    if isinstance(batch, Mapping):
        for name in ("pixel_values", "images", "image"):
            if name in batch:
                return batch[name]
        raise InputError(f"a batch holds {', '.join(map(str, batch))}; it must have pixel_values, images or image")
    if isinstance(batch, Iterable) and not isinstance(batch, Tensor | np.ndarray):
        return next(iter(batch))
    return batch
