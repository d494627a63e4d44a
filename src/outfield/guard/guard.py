"""Guard: from one image to a verdict, with everything that this takes in one object and one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from outfield.backbone.backbone import Backbone
from outfield.backbone.extraction import Extraction
from outfield.backbone.views import Views
from outfield.config import require_choice
from outfield.detectors.base import Detector
from outfield.errors import InputError
from outfield.features.set import FeatureSet
from outfield.files.paths import PathLike
from outfield.guard import saving
from outfield.guard.inputs import Given, Items, as_given, gives_images, portions
from outfield.guard.judging import Judge
from outfield.guard.reading import pieces, prepared
from outfield.guard.running import Runner
from outfield.guard.verdict import Verdict, Verdicts
from outfield.images.skipped import ON_ERROR
from outfield.images.source import ImageSource
from outfield.scores.threshold import Threshold


class Guard:
    """A network with its preprocessing, a fitted detector and a threshold: call it with images, and it gives verdicts.

    Made by :meth:`build` or :meth:`load`.

    Args:
        backbone: the network; it runs where it is.
        detector: fitted on rows of that network.
        threshold: chosen on scores of that detector.
        views: over which every field is averaged, as where the detector was fitted.
        precision: of the network's arithmetic, see :meth:`outfield.Backbone.extract`.
        half: whether a file keeps numbers with half as many bits; they must be rounded already.
        provenance: how it came about, ready for JSON.
        fingerprint: of the backbone, where it is known already.

    Attributes:
        widths: What :meth:`judge` needs of each image, and how many numbers that are.

    Raises:
        InputError: the detector cannot score what the network gives.
    """

    def __init__(
        self,
        backbone: Backbone,
        detector: Detector,
        threshold: Threshold,
        *,
        views: Views | str | int | None = None,
        precision: str = "float32",
        half: bool = False,
        provenance: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.backbone, self.detector, self.threshold = backbone, detector, threshold
        self.views, self.precision, self.half = Views.of(views), precision, half
        self.provenance = dict(provenance or {})
        needs = detector.needs_to_score
        self._fields = tuple(dict.fromkeys(("features", *needs, "logits")))
        stages = any(name.startswith("stage") for name in needs)
        odin = "odin_logits" in needs
        self.fingerprint = backbone.fingerprint() if fingerprint is None else fingerprint
        self._runner = Runner(
            backbone, stages=stages, views=self.views, odin=odin, precision=precision, fingerprint=self.fingerprint
        )
        self._judge = Judge(detector, threshold, backbone.names)
        fields = self._runner.probe()
        self.widths = {name: fields[name].shape[-1] for name in dict.fromkeys((*needs, "logits"))}
        self._runner.extraction.only(self._fields)
        self._last_layer = self._runner.extraction.last_layer()
        self.judge(FeatureSet(**{name: fields[name] for name in self._fields}, about=self._runner.about))

    @classmethod
    def build(
        cls,
        backbone: Backbone | str,
        images: ImageSource | PathLike,
        held_out: ImageSource | PathLike | None = None,
        *,
        detector: Detector | str | None = None,
        keep: float = 0.95,
        views: Views | str | int | None = None,
        seed: int = 0,
        precision: str = "float32",
        half: bool = False,
        most: int | None = 10_000,
        device: str | torch.device = "auto",
        batch_size: int = 512,
        workers: int | None = None,
        on_error: str = "skip",
    ) -> Self:
        """A guard of a network and a folder of ID images.

        Where the detector calibrates itself (Auto, Fused), 40 of the held-out images and half of those beyond the fewest that
        are needed choose and calibrate its members. The others, which nothing else has seen, choose the threshold: p-values
        of new ID images are therefore valid.

        Args:
            backbone: the network, or what :meth:`outfield.Backbone.open` takes.
            images: ID images, best those that the network was trained on: a source or a folder. Sub-folders are classes.
            held_out: ID images that the network has not seen. If None, a fifth of ``images``, of each class in proportion: up to
                a third where a fifth is fewer than 240, and no more than 5,000.
            detector: a detector that is not fitted, or the name of one; :class:`outfield.Auto` if None, which stand-ins made of
                held-out images choose.
            keep: share of ID images that the guard accepts.
            views: average over views of each image, see :meth:`outfield.Backbone.extract`; with "auto" stand-ins choose between
                one, flip and six, which takes nine passes over the images.
            seed: of the choice of held-out images, and of the detector where it has one.
            precision: of the network's arithmetic.
            half: round the numbers of the network and of the detector so that the file is half as large.
            most: images that the detector is fitted on, at most, of each class in proportion: detectors that keep their training
                rows make files, and single verdicts, that grow with them. All if None.
            device: where a network that is opened here runs, and the detector.
            batch_size: images that the network is given at once, at most.
            workers: processes that decode image files.
            on_error: "skip" leaves images out that cannot be read, with a warning; "fail" makes the first of them an error.

        Raises:
            InputError: a setting that cannot be, or class folders that are not the network's classes.
            TooFewSamplesError: too few images to calibrate.
        """
        from outfield.guard import asked, building  # who only checks images needs no candidates to choose from

        asked.check_asked(detector, keep, views, seed, half, most, device, on_error)
        content = building.build(
            backbone,
            images,
            held_out,
            detector=detector,
            keep=keep,
            views=asked.views_of(views),
            seed=int(seed),
            half=half,
            most=most,
            device=device,
            on_error=on_error,
            precision=precision,
            batch_size=batch_size,
            workers=workers,
        )
        return cls._of(content)

    @classmethod
    def _of(cls, content: saving.Content) -> Self:
        return cls(
            content.backbone,
            content.detector,
            content.threshold,
            views=content.views,
            precision=content.precision,
            half=content.half,
            provenance=content.provenance,
            fingerprint=content.fingerprint,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, or none."""
        return tuple(self.backbone.names)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the detector's members; its own name where it has none."""
        return self._judge.members

    @property
    def extraction(self) -> Extraction:
        """The way through the network, which knows where to look into it."""
        return self._runner.extraction

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return self.backbone.device

    def __call__(
        self, x: Any, *, normalised: bool = False, on_error: str = "fail", workers: int | None = None
    ) -> Verdict | Verdicts:
        """The verdict on an image, or verdicts on several.

        Args:
            x: one image: a path, bytes of an encoded image, a file opened with "rb", a PIL image, a numpy array (H, W, 3) of
                uint8, or a torch tensor (3, H, W) of uint8 or of floating numbers in [0, 1]. Several: a folder, an ``.npz``, an
                array (N, H, W, 3), a tensor (N, 3, H, W), a list or an iterator of any of these, an
                :class:`outfield.ImageSource`, or a ``DataLoader`` of tensors or of (tensors, …).
            normalised: tensors are resized and normalised as the network takes them; nothing is done to them.
            on_error: "fail" raises an error where an image cannot be read; "skip" gives a verdict that tells it.
            workers: processes that decode image files; see :meth:`outfield.Backbone.extract`.

        Raises:
            InputError: ``x`` is nothing that holds images.
            FileFormatError: an image is broken, and ``on_error`` is "fail".
            StorageError: a file cannot be read, and ``on_error`` is "fail".
        """
        require_choice("on_error", on_error, ON_ERROR)
        if isinstance(x, DataLoader):
            batches = (as_given(_first(batch), normalised) for batch in x)
            return Verdicts([one for batch in batches for one in self._several(batch, on_error, 0)])
        if gives_images(x):
            return Verdicts([*self._drawn(x, normalised, on_error, workers)])
        given = as_given(x, normalised, on_error)
        if given.single and on_error == "fail":
            return self._single(given)
        found = Verdicts([*self._several(given, on_error, workers)])
        return found[0] if given.single else found

    def stream(self, x: Any, *, on_error: str = "fail", workers: int | None = None) -> Iterator[Verdict]:
        """Verdicts on several images one after the other, as they are ready; see :meth:`__call__`.

        An iterator is asked for as many images as go through the network together, and then for more: it need not end.
        """
        require_choice("on_error", on_error, ON_ERROR)
        if gives_images(x):
            return self._drawn(x, False, on_error, workers)
        return self._several(as_given(x, on_error=on_error), on_error, workers)

    def prepare(self, x: Any) -> Tensor:
        """One image as bytes (h, w, C) that only have to be normalised: what :meth:`judge_pixels` takes a batch of."""
        given = as_given(x)
        if not given.single or not isinstance(given.images, Items):
            raise InputError("prepare takes one image; give several to the guard itself")
        return prepared(self.backbone, given.images.items[0])[0]

    def judge_pixels(self, pixels: Tensor, files: Sequence[str | None] | None = None) -> Verdicts:
        """Verdicts on images that :meth:`prepare` gave, stacked (N, h, w, C).

        Raises:
            InputError: they are something else.
        """
        way = self.backbone.preprocessing
        right = isinstance(pixels, Tensor) and pixels.dtype == torch.uint8 and pixels.dim() == 4 and len(pixels) > 0
        if not right or tuple(pixels.shape[1:]) != (*way.size, way.channels):
            raise InputError(
                f"judge_pixels takes uint8 (N, {way.size[0]}, {way.size[1]}, {way.channels}), what prepare gives"
            )
        return Verdicts([*self._judged(pixels, [None] * len(pixels) if files is None else files)])

    def judge(self, features: FeatureSet, files: Sequence[str | None] | None = None) -> Verdicts:
        """Verdicts on rows that the guard's network gave: the fields that the detector needs, and logits.

        Logits that are missing are computed where the network's last layer makes them of the features.

        Raises:
            InputError: they are rows of another network, or logits are missing.
        """
        if features.logits is None:
            features = self._with_logits(features)
        return Verdicts(self._judge(features, [None] * len(features) if files is None else files))

    def _with_logits(self, features: FeatureSet) -> FeatureSet:
        rows, weight, bias = features.features, *(self._last_layer.get(name) for name in ("head_weight", "head_bias"))
        if (width := self.widths.get("features")) not in (None, rows.shape[1]):
            raise InputError(f"features has {rows.shape[1]} columns; this guard's network gives {width}")
        if weight is None or bias is None or rows.shape[1] != weight.shape[1]:
            raise InputError("a verdict names the class; pass logits beside the features")
        logits = rows.float() @ weight.T.to(rows.device).float() + bias.to(rows.device).float()
        return FeatureSet(**{**features.tensors(), "logits": logits}, about=features.about)

    def _single(self, given: Given) -> Verdict:
        images = given.images
        batch = self._checked(images) if isinstance(images, Tensor) else prepared(self.backbone, _only(images))
        rows = next(iter(self._runner.features([batch], self._fields)))
        return self._judge(rows, given.files)[0]

    def _drawn(self, x: Iterator[Any], normalised: bool, on_error: str, workers: int | None) -> Iterator[Verdict]:
        """Verdicts on what an iterator gives, so many at a time as the network takes."""
        for part in portions(x, self._runner.rows):
            yield from self._several(as_given(part, normalised, on_error), on_error, workers)

    def _several(self, given: Given, on_error: str, workers: int | None) -> Iterator[Verdict]:
        if isinstance(given.images, Tensor):
            yield from self._judged(self._checked(given.images), given.files)
            return
        start = 0
        for piece in pieces(given.images, self.backbone, self._runner.rows, workers, on_error):
            numbers = range(start, piece.stop)
            files = [given.files[i] for i in numbers if i not in piece.errors]
            found = iter(() if piece.pixels is None else self._judged(piece.pixels, files))
            for number in numbers:
                error = piece.errors.get(number)
                yield next(found) if error is None else Verdict.failed(given.files[number], error)
            start = piece.stop

    def _checked(self, images: Tensor) -> Tensor:
        """Normalised images, if they have the size that the network is given: many networks would take another, too."""
        way = self.backbone.preprocessing
        if tuple(images.shape[1:]) != (way.channels, *way.size):
            wanted = (way.channels, *way.size)
            raise InputError(f"normalised images have shape {tuple(images.shape[1:])}; this network takes {wanted}")
        return images

    def _judged(self, batch: Tensor, files: Sequence[str | None]) -> Iterator[Verdict]:
        done = 0
        for rows in self._runner.features([batch], self._fields):
            yield from self._judge(rows, files[done : done + len(rows)])
            done += len(rows)

    def save(self, path: PathLike) -> None:
        """Write all of it to one file (``.guard``), atomically: nothing in it is executable.

        A network that was given in Python is not in the file, but its fingerprint is: see :meth:`load`.

        Raises:
            InputError: the name of the file ends otherwise.
            StorageError: it could not be written; what was there stays.
        """
        saving.save(path, self._content())

    def _content(self) -> saving.Content:
        return saving.Content(
            self.backbone,
            self.fingerprint,
            self.detector,
            self.threshold,
            self.views,
            self.precision,
            self.half,
            self.provenance,
        )

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "auto", network: nn.Module | None = None) -> Self:
        """Read a guard that :meth:`save` wrote: equal verdicts to the bit, nothing refitted, nothing unpickled.

        Args:
            path: the file.
            device: where to run; "auto" for a GPU where there is one.
            network: the network, where the guard was built of an ``nn.Module``; it runs where it is.

        Raises:
            StorageError: there is no such file.
            FileFormatError: it is truncated, changed, no guard, or of a later version.
            InputError: the network must be given and is not, or is another one.
        """
        return cls._of(saving.load(path, device, network))

    def __repr__(self) -> str:
        classes = "" if self.backbone.classes is None else f", {self.backbone.classes} classes"
        return (
            f"Guard({self.backbone.name}{classes}: {' + '.join(self.members)}; keeps {self.threshold.keep:.4g} of ID, "
            f"chosen on {len(self.threshold.reference):,} held-out images)"
        )


def _only(images: ImageSource) -> Any:
    return images.items[0] if isinstance(images, Items) else images[0]


def _first(batch: Any) -> Any:
    """The images of a batch of a DataLoader: all of it, or the first of (images, labels, …)."""
    if isinstance(batch, Mapping):
        for name in ("pixel_values", "images", "image"):
            if name in batch:
                return batch[name]
        raise InputError(
            f"a batch holds {', '.join(map(str, batch))}; images are looked for as pixel_values, images or image"
        )
    if isinstance(batch, Iterable) and not isinstance(batch, Tensor | np.ndarray):
        return next(iter(batch))
    return batch
