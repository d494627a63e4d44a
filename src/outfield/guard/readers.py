"""Readers: from what a guard is called with to the rows that its detector scores.

A guard is a reader, a detector and a threshold. :class:`ImageReader` reads images through a network, :class:`TableReader` the
rows of tables, :class:`Reader` itself features. Another one, say of audio clips, is a subclass with ``read_one``, ``record`` and
``from_record``, and an entry of ``READERS``: :class:`outfield.Boxes` is one.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from outfield.backbone import Backbone, Extraction, Odin, Origin, Preprocessing, Views, read
from outfield.config import from_plain, to_plain
from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.features import NETWORK, Cells, Column, FeatureSet, FeatureSource, TablePreprocessing, network_text
from outfield.files import PathLike, Record
from outfield.guard.inputs import Given, as_given, one_image, portions
from outfield.guard.verdict import Verdict
from outfield.images import as_png
from outfield.percent import counted

ABOUT = ("name", "head", "classes", "names")  # what the file of a guard says of its network beside weights and origin
ROWS = 512  # images that the network is given at once, at most
# Images of noise that show where to look into a network: their maps are unlike each other, as those of a black image are not
PROBES = 2


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


Judge = Callable[[FeatureSet, Sequence[str | None]], list[Verdict]]  # verdicts on rows with these names


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

    def __init__(self, names: Sequence[str] = (), widths: Mapping[str, int] = {}) -> None:
        self.names, self.widths = tuple(names), dict(widths)

    def giving(self, needed: Sequence[str]) -> Self:
        """This reader for a detector that scores these fields."""
        return self

    def read(self, x: Any, on_error: str, normalised: bool, workers: int | None) -> tuple[bool, Iterator[Batch]]:
        """Whether ``x`` is a single input, and batches of all inputs in their order; see :meth:`outfield.Guard.__call__`."""
        return False, iter([self.read_one(x, on_error)])

    def read_files(self, x: Any, on_error: str, workers: int | None) -> Iterator[Batch]:
        """Batches of several files; see :meth:`outfield.Guard.stream`."""
        for path in x:
            try:
                found = self.read_file(path, on_error)
            except OutfieldError as error:
                if on_error == "fail":
                    raise
                found = iter([Batch(None, [str(path)], {0: str(error)})])
            yield from found

    def read_file(self, path: Any, on_error: str) -> Iterator[Batch]:
        """Batches of a file; each input is named by its row."""
        if os.path.isdir(path):
            raise InputError(f"{path} is a folder; a guard of rows reads .csv or .parquet")
        found = self.read_one(path, on_error)
        return iter([found._replace(names=[name or f"{path} row {i}" for i, name in enumerate(found.names, 1)])])

    def verdicts(self, batch: Batch, judged: Judge) -> list[Verdict]:
        """A verdict on each input of a batch, whether it could be read or not; ``judged`` gives one for each row."""
        good = [name for place, name in enumerate(batch.names) if place not in batch.errors]
        rows = iter(() if batch.features is None else judged(batch.features, good))
        found = ((name, batch.errors.get(place)) for place, name in enumerate(batch.names))
        return [next(rows) if error is None else Verdict.failed(name, error) for name, error in found]

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
        logits, known = features.logits, counted(len(self.names), "class")
        if self.names and logits is not None and logits.shape[1] != len(self.names):
            raise InputError(f"there are names of {known}, but the logits have {logits.shape[1]}")
        return features

    def example(self, count: int) -> Iterator[FeatureSet]:
        """``count`` rows, made by the steps that inputs go through."""
        zeros = {name: torch.zeros(count, width) for name, width in self.widths.items()}
        yield FeatureSet(**{"features": next(iter(zeros.values())), **zeros})

    def record(self) -> Record:
        """Its part of the guard's file."""
        return Record({"table": None, "names": list(self.names)}, {})

    @classmethod
    def from_record(cls, path: PathLike, record: Record, device: torch.device, network: Any) -> Reader:
        """The reader of a guard's file."""
        names, table = record.header["names"], record.header["table"]
        widths = record.header["provenance"].get("widths", {})
        return Reader(names, widths) if table is None else TableReader(TablePreprocessing.of_json(table), names, widths)

    def __str__(self) -> str:
        return "features"


class TableReader(Reader):
    """Rows of a table, whose columns ``table`` turns into features."""

    takes = "table"

    def __init__(self, table: TablePreprocessing, names: Sequence[str] = (), widths: Mapping[str, int] = {}) -> None:
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


class PixelReader(Reader):
    """Images, in every way in which they come; of an iterator as many are taken together as ``rows`` says."""

    takes, unit, scored = "images", "images", "images"
    rows: int = 1

    def read(self, x: Any, on_error: str, normalised: bool, workers: int | None) -> tuple[bool, Iterator[Batch]]:
        if isinstance(x, DataLoader):
            given, workers = (as_given(_first(batch), normalised) for batch in x), 0
        elif isinstance(x, Iterator) and not hasattr(x, "read"):  # images that need not end; an open file is one image
            given = (as_given(some, normalised, on_error) for some in portions(x, self.rows))
        else:
            whole = as_given(x, normalised, on_error)
            return whole.single, self.batches(whole, on_error, workers)
        return False, (batch for one in given for batch in self.batches(one, on_error, workers))

    def read_files(self, x: Any, on_error: str, workers: int | None) -> Iterator[Batch]:
        return self.read(x, on_error, False, workers)[1]

    def batches(self, given: Given, on_error: str, workers: int | None) -> Iterator[Batch]:
        """Batches of images."""
        raise NotImplementedError


class ImageReader(PixelReader):
    """Images, through a network that is kept ready.

    Views and precision are those that the detector was fitted with. With ``float16`` the network must be rounded already. After
    :meth:`giving`, ``extraction`` is the way through the network and ``rows`` how many images it is given at once.
    """

    kind = "guard"
    extraction: Extraction

    def __init__(
        self, backbone: Backbone, views: Any = None, precision: str = "float32", float16: bool = False
    ) -> None:
        super().__init__(backbone.names)
        self.backbone, self.views, self.precision, self.float16 = backbone, Views.of(views), precision, float16
        self.fingerprint = backbone.fingerprint()
        self._fields: tuple[str, ...] = ()
        self._about: dict[str, str] = {}
        self._last_layer: dict[str, Tensor] = {}

    def giving(self, needed: Sequence[str]) -> Self:
        made, odin = copy.copy(self), Odin() if "odin_logits" in needed else None
        stages = any(name.startswith("stage") for name in needed)
        way = {"odin": odin, "precision": self.precision, "stages": stages, "views": self.views}
        made.extraction, fields = looked_into(self.backbone, **way)
        made._fields = tuple(dict.fromkeys(("features", *needed, "logits")))
        made._about = {**made.extraction.about(), NETWORK: network_text(self.backbone.name, self.fingerprint)}
        made.widths = {name: fields[name].shape[-1] for name in dict.fromkeys((*needed, "logits"))}
        made.probe = FeatureSet(**{name: fields[name] for name in made._fields}, about=made._about)
        made.extraction.only(made._fields)
        made._last_layer, made.rows = made.extraction.last_layer(), made.extraction.at_once(ROWS)
        return made

    def prepare(self, x: Any) -> Tensor:
        """One image as bytes (h, w, C) that only have to be normalised."""
        return torch.from_numpy(self.backbone.pixels(one_image(x)))

    def read_pixels(self, pixels: Tensor) -> Iterator[FeatureSet]:
        """Rows of images that :meth:`prepare` gave, joined (N, h, w, C), piece by piece."""
        shape = (*self.backbone.preprocessing.size, self.backbone.preprocessing.channels)
        right = isinstance(pixels, Tensor) and pixels.dtype == torch.uint8 and pixels.shape[1:] == shape
        if not right or not len(pixels):
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
        black = as_png(np.zeros((1, 1, 3), np.uint8))
        return self._features(self.prepare(black).repeat(count, 1, 1, 1))

    def batches(self, given: Given, on_error: str, workers: int | None) -> Iterator[Batch]:
        images, start, way = given.images, 0, self.backbone.preprocessing
        if isinstance(images, Tensor):
            found, wanted = tuple(images.shape[1:]), (way.channels, *way.size)
            if found != wanted:  # many networks would take another size, too
                raise InputError(f"normalised images have shape {found}; this network takes {wanted}")
        elif given.single and on_error == "fail":
            images = torch.from_numpy(self.backbone.pixels(images[0]))[None]
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

    def _features(self, images: Tensor) -> Iterator[FeatureSet]:
        """The fields that the detector needs, of bytes (n, H, W, C) or of what the network takes, piece by piece."""
        for _, fields in self.extraction.run([images], self.rows):
            yield FeatureSet._of({name: fields[name] for name in self._fields}, self._about)  # which are finite

    def record(self) -> Record:
        origin, views = self.backbone.origin, to_plain(self.views)
        header = {"views": views, "precision": self.precision, "half": self.float16}
        header |= {"preprocessing": self.backbone.preprocessing.to_json()}
        network = {name: getattr(self.backbone, name) for name in ABOUT}
        network |= {"origin": None if origin is None else origin.to_json(), "fingerprint": self.fingerprint}
        return Record.of(header, network=Record(network, {} if origin is None else origin.state(self.backbone.network)))

    @classmethod
    def from_record(cls, path: PathLike, record: Record, device: torch.device, network: Any) -> Reader:
        header, (said, state) = record.header, record.part("network")
        origin = None if said["origin"] is None else Origin.of_json(said["origin"])
        if network is None and origin is None:
            what = f"{path} does not hold its network ({said['name']}), which came from Python"
            load = "Guard.load(path, network=MODULE); of a .pt2 file it is Backbone.open(FILE, trust=True, …).network"
            how = "export the network: torch.onnx.export(MODULE, images, 'net.onnx'), and build the guard of net.onnx"
            raise InputError(f"{what}. In Python: {load}. To serve or check it, {how}")
        built = network
        if network is None and origin is not None:
            built = origin.build(state, str(path)).requires_grad_(False).to(device)
            built = built.to(memory_format=torch.channels_last) if device.type == "cuda" else built
        way, about = Preprocessing.of_json(header["preprocessing"]), {name: said[name] for name in ABOUT}
        backbone = Backbone(built, preprocessing=way, **about)
        backbone.origin = origin
        settings = {"views": from_plain(header["views"]), "precision": header["precision"], "float16": header["half"]}
        made = cls(backbone, **settings)
        check_network(path, made.fingerprint, said["fingerprint"], network)
        return made

    def __str__(self) -> str:
        classes = "" if self.backbone.classes is None else f", {counted(self.backbone.classes, 'class')}"
        return f"{self.backbone.name}{classes}"


def check_network(path: PathLike, found: str | None, expected: str | None, given: Any) -> None:
    """That the network which was given, or else built, is the one that the guard of a file was built with."""
    if found != expected and given is not None:
        raise InputError(f"this network is not the one that {path} was built with; its weights or settings differ")
    if found != expected:
        raise FileFormatError(f"{path} holds a network that its library builds otherwise here: update that library")


def looked_into(backbone: Backbone, **settings: Any) -> tuple[Extraction, dict[str, Tensor]]:
    """The way through a network, which knows where to look into it, and all fields of two images of noise."""
    extraction, way = Extraction(backbone, **{"precision": "float32", **settings}), backbone.preprocessing
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (PROBES, *way.size, way.channels), generator=noise, dtype=torch.uint8)
    return extraction, next(iter(extraction.run([images], PROBES)))[1]


def _is_ready(x: Any) -> bool:
    """Whether rows are what a table's columns became, or a network's features, of which the detector says that they are not."""
    return isinstance(x, FeatureSource) and NETWORK in x.about


def _within(errors: Mapping[int, str] | None, start: int, stop: int) -> dict[int, str]:
    """Errors of some inputs, by their place among these."""
    return {index - start: errors[index] for index in range(start, stop) if index in errors} if errors else {}


def _first(batch: Any) -> Any:
    """The images of a batch of a DataLoader: all of it, or the first of (images, labels, …)."""
    if isinstance(batch, Mapping):
        named = [batch[name] for name in ("pixel_values", "images", "image") if name in batch]
        if not named:
            raise InputError(f"a batch holds {', '.join(map(str, batch))}; it must have pixel_values, images or image")
        return named[0]
    several = isinstance(batch, Iterable) and not isinstance(batch, Tensor | np.ndarray)
    return next(iter(batch)) if several else batch
