"""Guard: from an image or a row to a verdict, with everything that this takes in one object and one file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone import Backbone, Views
from outfield.config import require_choice, require_number
from outfield.detectors import Detector, names_of
from outfield.errors import FileFormatError, InputError, OutfieldError, as_ours
from outfield.features import FeatureSet, TablePreprocessing
from outfield.files import PathLike, Record, kind_of, read_record, write_record
from outfield.guard.boxes import Boxes
from outfield.guard.decision import Decision, predicted
from outfield.guard.readers import ImageReader, Reader, TableReader
from outfield.guard.texts import Texts
from outfield.guard.verdict import Verdict, Verdicts
from outfield.images import ON_ERROR, ImageSource
from outfield.modes import resolve_device
from outfield.scores import Threshold
from outfield.version import __version__

if TYPE_CHECKING:
    from outfield.guard.explanation import RowWhy, UsualValues

GUARD_ENDINGS = (".guard", ".safetensors")
# Of what a file's header says; a file of a later one is refused. Guards without a decision are of the version ``PLAIN``.
VERSION, PLAIN = 2, 1
# By the kind of their files
READERS: dict[str, type[Reader]] = {one.kind: one for one in (ImageReader, Reader, Boxes, Texts)}
# Under which the header of each kind of file says its version
VERSION_ENTRY = {kind: "guard" if kind == ImageReader.kind else "version" for kind in READERS}
RENAMED = {"most": "max_train", "half": "float16"}  # settings of version 0.1 by what they are called now


class Guard:
    """A reader, a fitted detector and a threshold: call it with images, or with rows, and it gives verdicts.

    Made by :meth:`build` (of images or texts), :meth:`build_rows` (of a table or of features) or :meth:`load`.

    Args:
        reader: turns inputs into rows.
        detector: fitted on such rows.
        threshold: chosen on scores of that detector.
        provenance: how it came about, ready for JSON.
        decision: what it decides beyond that: by predicted class, and which answers it accepts.

    Attributes:
        takes: What it is called with: "images", "table", "texts" or "features".
        names: Of the classes, or none.
        members: Names of the detector's members; its own name where it has none.
        widths: What :meth:`judge` needs of each input, and how many numbers that are.
        fingerprint: Of the network, or, where there is none, of the detector.

    Raises:
        InputError: the threshold was chosen for another detector, or the detector cannot score what the network gives.
    """

    def __init__(
        self,
        reader: Reader,
        detector: Detector,
        threshold: Threshold,
        *,
        provenance: Mapping[str, Any] | None = None,
        decision: Decision | None = None,
    ) -> None:
        known = detector.fingerprint()
        if threshold.source not in (None, known):
            raise InputError(f"the threshold was chosen for {threshold.source}, but the detector is {known}")
        self.detector, self.threshold, self.provenance = detector, threshold, dict(provenance or {})
        self.decision, self._rule = decision, decision or Decision()
        self.reader = reader.giving((*detector.needs_to_score, *self._rule.needs))
        self.takes, self.names, self.widths = reader.takes, reader.names, self.reader.widths
        self.fingerprint: str = getattr(reader, "fingerprint", None) or known
        self._explain = getattr(detector, "explain", None)  # of detectors that are sums of others
        self.members: tuple[str, ...] = names_of([detector]) if self._explain is None else detector.names  # type: ignore[attr-defined]
        if self.reader.probe is not None:
            self.judge(self.reader.probe)

    @classmethod
    def build(
        cls,
        backbone: Backbone | Boxes | Texts | str,
        images: ImageSource | PathLike | Iterable[tuple[Any, Any, Any]],
        held_out: ImageSource | PathLike | Iterable[tuple[Any, Any, Any]] | None = None,
        *,
        detector: Detector | str | None = None,
        keep: float = 0.95,
        threshold: str = "global",
        accuracy: float | None = None,
        views: Views | str | int | None = None,
        seed: int = 0,
        precision: str = "float32",
        float16: bool = False,
        max_train: int | None = 10_000,
        device: str | torch.device = "auto",
        batch_size: int = 512,
        workers: int | None = None,
        on_error: str = "skip",
        **old: Any,
    ) -> Guard:
        """A guard of a network and ID images, of an object detector and annotated images, or of a text classifier and texts.

        Held-out images calibrate the members of the detector (Auto, Fused), where it has members. Others, which nothing else has
        seen, choose the threshold: p-values of new ID images are therefore valid.

        Args:
            backbone: the network, or what :meth:`outfield.Backbone.open` takes. Of boxes :class:`outfield.Boxes`; the images are
                then annotated, settings of a network's images cannot be given, and "images" below are boxes. Of texts
                :class:`outfield.Texts`; "images" are then a table with a column of texts (CSV, Parquet, a DataFrame), or a list.
            images: ID images, best those that the network was trained on: a source or a folder. Sub-folders are classes.
                Annotated: triples of an image, its boxes (n, 4) and their labels or names; a folder or list of images of Pascal
                VOC; or a JSON file of COCO. A box that is found counts if it overlaps by half with one of its class.
            held_out: ID images that the network has not seen. If None, a fifth of ``images``, of each class in proportion: up to
                a third where a fifth is fewer than 240, and no more than 5,000.
            detector: a detector that is not fitted, or the name of one; :class:`outfield.Auto` if None, which stand-ins made of
                held-out images choose.
            keep: share of ID images that the guard accepts.
            threshold: "global", or "per class": a threshold for each class that the network predicts, so that each keeps that
                share; classes with too few images share one.
            accuracy: share of right classes among the answers that verdicts ``accept``, with a confidence of 95 %. The images are
                in folders of the network's classes, and the held-out ones new to it; two thirds of those that would set the
                threshold test this instead.
            views: average over views of each image, see :meth:`outfield.Backbone.extract`; with "auto" stand-ins choose between
                one, flip and six, which takes nine passes over the images.
            seed: of the choice of held-out images, and of the detector where it has one.
            precision: of the network's arithmetic.
            float16: round the numbers of the network and of the detector so that the file is half as large.
            max_train: images that the detector is fitted on, at most, of each class in proportion: detectors that keep their
                training rows make files, and single verdicts, that grow with them. All if None.
            device: where a network that is opened here runs, and the detector.
            batch_size: images that the network is given at once, at most.
            workers: processes that decode image files.
            on_error: "skip" leaves images out that cannot be read, with a warning; "fail" makes the first of them an error.
            old: ``half`` and ``most``, as ``float16`` and ``max_train`` were called.

        Raises:
            InputError: a setting that cannot be, or class folders that are not the network's classes.
            TooFewSamplesError: too few images to calibrate.
        """
        from outfield.guard.annotations import BoxPlan  # who only checks needs no candidates to choose from
        from outfield.guard.build import ImagePlan, TextPlan

        settings: dict[str, Any] = {
            "detector": detector, "keep": keep, "threshold": threshold, "accuracy": accuracy,
            "seed": seed, "max_train": max_train, "device": device, "views": views,
            "precision": precision, "float16": float16, "batch_size": batch_size, "workers": workers, "on_error": on_error,
        }  # fmt: skip
        plan = BoxPlan if isinstance(backbone, Boxes) else TextPlan if isinstance(backbone, Texts) else ImagePlan
        return plan(**{**settings, **_new_names(old)}).build(backbone, images, held_out)

    @classmethod
    def build_rows(
        cls,
        rows: Any,
        held_out: Any = None,
        *,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        missing: str = "refuse",
        categories: Sequence[str] = (),
        ignore_extra: bool = False,
        network_features: bool | None = None,
        detector: Detector | str | None = None,
        keep: float = 0.95,
        threshold: str = "global",
        accuracy: float | None = None,
        names: Sequence[str] = (),
        seed: int = 0,
        max_train: int | None = 10_000,
        device: str | torch.device = "auto",
        **old: Any,
    ) -> Guard:
        """A guard of ID rows of a table, or of features: no network and no image takes part.

        Held-out rows calibrate the members of the detector, where it has members. Others, which nothing else has seen, choose
        the threshold: p-values of new ID rows are therefore valid.

        Args:
            rows: ID rows: a table (a DataFrame, columns by name, the path of a CSV or Parquet file), or features.
            held_out: more of them, of the same kind, that nothing was trained on. A fifth of ``rows`` if None.
            label: of a table, the column that holds the class of each row.
            columns: of a table, the columns to take; all but the label if None.
            missing: of a table, what missing cells are: see :meth:`outfield.TablePreprocessing.fit`.
            categories: of a table, columns whose numbers are names.
            ignore_extra: of a table, later tables may have other columns, too.
            network_features: rows are the features of a network: detectors look at their direction alone. Other features are
                standardised, and their length counts, as in a table. If None, they are a network's where they say so, as those
                of :meth:`outfield.Backbone.extract` do, or have logits.
            detector: a detector that is not fitted, or the name of one; :class:`outfield.Auto` if None.
            keep: share of ID rows that the guard accepts.
            threshold: "global", or "per class", see :meth:`build`; rows need logits.
            accuracy: share of right classes among accepted answers, see :meth:`build`; rows need labels and logits.
            names: of the classes that the logits of features count.
            seed: of the choice of held-out rows, and of the detector where it has one.
            max_train: rows that the detector is fitted on, at most, of each class in proportion: detectors that keep their
                training rows make files, and verdicts, that grow with them. All if None. What is learned of columns is learned
                on all.
            device: where the detector runs.
            old: ``most``, as ``max_train`` was called.

        Raises:
            InputError: a setting that cannot be, or rows that cannot be used.
            TooFewSamplesError: too few rows to calibrate.

        >>> import numpy as np
        >>> guard = Guard.build_rows(np.random.default_rng(0).normal(size=(300, 4)) + 9, detector="SSD", device="cpu")
        >>> guard.takes, [one.is_ood for one in guard([[9.0, 9.0, 9.0, 9.0], [9.0, -9.0, 9.0, -9.0]])]
        ('table', [False, True])
        """
        from outfield.guard.build import RowPlan

        settings = {
            "detector": detector, "keep": keep, "threshold": threshold, "accuracy": accuracy,
            "seed": seed, "max_train": max_train, "device": device, "label": label,
            "columns": columns, "missing": missing, "categories": categories, "ignore_extra": ignore_extra,
            "network_features": network_features, "names": names,
        }  # fmt: skip
        return RowPlan(**{**settings, **_new_names(old)}).build(rows, held_out)

    @cached_property
    def watched(self) -> Threshold:
        """What a :class:`outfield.Drift` is made of: the threshold; of boxes with the scores of one box an image."""
        one_an_image = self.provenance.get("one_an_image")
        return self.threshold if one_an_image is None else replace(self.threshold, reference=one_an_image)

    @property
    def image_reader(self) -> ImageReader:
        """The reader of a guard of images; an error of any other guard."""
        if not isinstance(self.reader, ImageReader):
            what = "boxes of images" if isinstance(self.reader, Boxes) else self.takes
            raise InputError(f"this guard looks at {what}, not at images")
        return self.reader

    @property
    def backbone(self) -> Backbone:
        """The network of a guard of images."""
        return self.image_reader.backbone

    @property
    def table(self) -> TablePreprocessing | None:
        """How the columns of a table become features; None where the guard looks at something else."""
        return getattr(self.reader, "table", None)

    @property
    def device(self) -> torch.device:
        """Where the network runs; where there is none, the detector."""
        return self.backbone.device if isinstance(self.reader, ImageReader) else self.detector.device

    def __call__(
        self, x: Any, *, normalised: bool = False, on_error: str = "fail", workers: int | None = None
    ) -> Verdict | Verdicts:
        """The verdict on an image, or verdicts on several images or rows.

        Args:
            x: one image: a path, bytes of an encoded image, a file opened with "rb", a PIL image, a numpy array (H, W, 3) of
                uint8, or a torch tensor (3, H, W) of uint8 or of floating numbers in [0, 1]. Several: a folder, an ``.npz``, an
                array (N, H, W, 3), a tensor (N, 3, H, W), a list or an iterator of any of these, an
                :class:`outfield.ImageSource`, or a ``DataLoader`` of tensors or of (tensors, …). Of a guard of rows what it was
                built of: a table (a DataFrame, columns by name, the path of a CSV or Parquet file), or features (a FeatureSet,
                an array (N, D), the path of a file of features). Of a guard of texts one text, a list of texts, or a table with
                a column of them: a DataFrame, columns by name, or a ``Path`` of a CSV or Parquet file.
            normalised: tensors are resized and normalised as the network takes them; nothing is done to them.
            on_error: "fail" raises an error where an image, or a row of a table, cannot be read; "skip" gives a verdict that
                tells it.
            workers: processes that decode image files; see :meth:`outfield.Backbone.extract`.

        Raises:
            InputError: ``x`` is nothing that the guard looks at, or a row cannot be used, and ``on_error`` is "fail".
            FileFormatError: an image is broken, and ``on_error`` is "fail".
            StorageError: a file cannot be read, and ``on_error`` is "fail".
        """
        require_choice("on_error", on_error, ON_ERROR)
        single, batches = self.reader.read(x, on_error, normalised, workers)
        found = [verdict for batch in batches for verdict in self.reader.verdicts(batch, self._judged)]
        return found[0] if single else Verdicts(found, self.reader.unit)

    def stream(
        self, x: Any, *, on_error: str = "fail", workers: int | None = None, why: bool = False
    ) -> Iterator[Verdict]:
        """Verdicts on several images, or on the rows of several files, one after the other, as they are ready.

        An iterator of images is asked for as many as go through the network together, and then for more: it need not end. Of a
        guard of rows each verdict says its file and its row, counted from 1.

        Args:
            x: images, as of :meth:`__call__`; of a guard of rows the paths of tables or of files of features.
            on_error: "fail" makes what cannot be read an error; "skip" gives a verdict that tells it.
            workers: processes that decode image files.
            why: tell of each OOD row of a table the columns that count most, as :meth:`why` does: verdicts have a ``why``.

        Raises:
            InputError: ``why``, and this guard looks at no table; or what cannot be used where ``on_error`` is "fail".
        """
        require_choice("on_error", on_error, ON_ERROR)
        usual = self._usual_values() if why else None
        batches = self.reader.read_files(x, on_error, workers)
        found = ((batch, self.reader.verdicts(batch, self._judged)) for batch in batches)
        if usual is None:
            return (one for _, verdicts in found for one in verdicts)
        return (one for batch, verdicts in found for one in usual.with_reasons(batch, Verdicts(verdicts, "rows")))

    def features(self, x: Any) -> FeatureSet:
        """Rows of a table, or features, as the detector takes them; see :meth:`__call__`."""
        return self.reader.features(x)

    def prepare(self, x: Any) -> Tensor:
        """One image as bytes (h, w, C) that only have to be normalised: what :meth:`judge_pixels` takes a batch of."""
        return (self.reader if isinstance(self.reader, Boxes) else self.image_reader).prepare(x)

    def judge_pixels(self, pixels: Tensor, files: Sequence[str | None] | None = None) -> Verdicts:
        """Verdicts on images that :meth:`prepare` gave, stacked (N, h, w, C).

        Raises:
            InputError: they are something else.
        """
        found: list[Verdict] = []
        for rows in self.image_reader.read_pixels(pixels):
            found += self._judged(rows, [None] * len(rows) if files is None else files[len(found) :][: len(rows)])
        return Verdicts(found)

    def judge(self, features: FeatureSet, files: Sequence[str | None] | None = None) -> Verdicts:
        """Verdicts on rows: of a guard of images on fields of its network, those that the detector needs, and logits.

        Logits that are missing are computed where the network's last layer makes them of the features.

        Raises:
            InputError: they are rows of another table or network, or a field is missing.
        """
        names = [None] * len(features) if files is None else files
        return Verdicts(self._judged(self.reader.complete(features), names), self.reader.unit)

    def _judged(self, features: FeatureSet, files: Sequence[str | None]) -> list[Verdict]:
        """A verdict on each row: its score, its p-value, and the member that adds most where it is OOD."""
        if self._explain is None:
            scores, own, top = self.detector.score(features), None, [0] * len(features)
        else:
            why = self._explain(features)
            scores, own, top = why.total, why.p_values, why.terms.argmax(1).tolist()
        names, found = self.names, predicted(features)
        classes: list[int | None] = [None] * len(features) if found is None else found.tolist()
        p_values, is_ood = self._rule.known(scores, features, self.threshold)
        more = self._rule.more(features, (p_values, is_ood), names)
        members = p_values[:, None].tolist() if own is None else own.tolist()
        columns = (files, classes, top, members, p_values.tolist(), scores.tolist(), is_ood.tolist(), more)
        verdicts = []
        for file, index, first, each, p_value, score, ood, decided in zip(*columns, strict=True):
            label = names[index] if names and index is not None else None
            by, each_p = self.members[first] if ood else None, dict(zip(self.members, each, strict=True))
            verdicts.append(Verdict(file, index, label, score, p_value, ood, by, each_p, **decided))
        return verdicts

    def why(self, frame: Any, rows: Any = None, *, most: int | None = None, on_error: str = "fail") -> list[RowWhy]:
        """Which columns make rows of a table OOD: each is put to what is usual, and the row is scored again.

        In the place of a number or truth comes the median of training rows; in the place of a text that level of them which gives
        the lowest score. Where no column alone makes an OOD row ID, two are changed together, then three; where these do not
        either, that is what is told. A row costs as many scores as there are columns, of texts as many as there are levels.

        Args:
            frame: a table, as for :meth:`__call__`.
            rows: numbers of the rows to look at, counted from 0, or a truth for each row of the table; the OOD ones if None.
            most: columns to tell of each row, at most, those that count most first; all if None.
            on_error: "fail" makes a row that cannot be used an error; "skip" leaves it out, and tells the error where it was
                asked for by its number.

        Returns:
            One for each row in the order in which they were asked for; scores are those that a call with this table gives.

        Raises:
            InputError: this guard looks at no table, the table cannot be used, or there are no such rows.
        """
        from outfield.guard.explanation import row_numbers

        require_choice("on_error", on_error, ON_ERROR)
        if most is not None:
            require_number("most", most, least=1, whole=True)
        usual = self._usual_values()
        batch = usual.reader.read_one(frame, on_error)
        verdicts = Verdicts(self.reader.verdicts(batch, self._judged), "rows")
        asked = np.flatnonzero(verdicts.is_ood).tolist() if rows is None else row_numbers(rows, len(verdicts))
        return [*usual.explain(batch, verdicts, asked, most)]

    def _usual_values(self) -> UsualValues:
        from outfield.guard.explanation import UsualValues

        if not isinstance(self.reader, TableReader):
            what = f"guards of tables tell columns, but this one looks at {self.takes}; build it of a table"
            raise InputError(f"{what}: Guard.build_rows(frame), outfield guard rows TABLE on the command line")
        return UsualValues(self.reader, self.detector, self.threshold)

    def warm_up(self, count: int) -> float:
        """Judge so many made-up inputs, so that what is loaded at its first use is there; how many seconds that took."""
        began = time.monotonic()
        for rows in self.reader.example(count):
            self._judged(rows, [None] * len(rows))
        return time.monotonic() - began

    def updated(
        self,
        reviewed: PathLike | None = None,
        *,
        sample: Any = None,
        train: Any = None,
        until: str | None = None,
        workers: int | None = None,
    ) -> Guard:
        """A new version of this guard, which stays as it is.

        Its threshold, p-values and decision are chosen anew on inputs that nobody chose: the random sample in a folder of kept
        inputs, all of which people have reviewed, or ``sample``. Where the traffic stays as it was in that sample,
        P(p ≤ α) ≤ α for known inputs. Others, such as refused inputs that people know, may only train.

        Args:
            reviewed: folder of kept inputs (``outfield serve --keep``) that people reviewed, or known images or rows.
            sample: an unselected sample of known inputs: images (a source or a folder), a table or features.
            train: training inputs, with which and with the reviewed ones the guard is fitted again, with the same settings. What
                is in the sample, too, is left out. If None, the detector stays.
            until: time up to which kept inputs count, such as "2026-03-01T18:00" (UTC).
            workers: processes that decode image files.

        Returns:
            The guard; ``provenance["updated"]`` tells of each update what it was made with, and what it changes: rows of a name,
            how many inputs, accepted before and after, those refused now, and those accepted now.

        Raises:
            InputError: there is no unselected sample, or people have not reviewed all of it.
            TooFewSamplesError: too few of it are known.

        >>> rng = np.random.default_rng(0)
        >>> guard = Guard.build_rows(rng.normal(size=(300, 4)), detector="SSD", device="cpu")
        >>> new = guard.updated(sample=1.5 * rng.normal(size=(300, 4)))
        >>> new.threshold.value > guard.threshold.value, new.provenance["updated"][0]["changes"][0][:2]
        (True, ['sample, known', 300])
        """
        from outfield.guard.update import updated

        return updated(self, reviewed, sample, train, until, workers)

    def save(self, path: PathLike) -> None:
        """Write all of it to one file (``.guard``), atomically: nothing in it is executable.

        A network that was given in Python is not in the file, but its fingerprint is: see :meth:`load`.

        Raises:
            InputError: the name of the file ends otherwise.
            StorageError: it could not be written; what was there stays.
        """
        own, model = self.reader.record(), self.detector.record()
        if self.reader.float16:
            own, model = own.narrowed(), model.narrowed()
        kind = self.reader.kind
        version, parts = (PLAIN, {}) if self.decision is None else (VERSION, {"decision": self.decision.record()})
        header = {VERSION_ENTRY[kind]: version, "outfield": __version__, "provenance": dict(self.provenance)}
        whole = Record.of({**header, **own.header}, detector=model, threshold=self.threshold.record(), **parts)
        write_record(path, kind, Record(whole.header, whole.tensors | own.tensors), endings=GUARD_ENDINGS, once=True)

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "auto", network: Any = None) -> Guard:
        """Read a guard that :meth:`save` wrote: equal verdicts to the bit, nothing refitted, nothing unpickled.

        Args:
            path: the file.
            device: where to run; "auto" for a GPU where there is one.
            network: the network, where the guard was built of an ``nn.Module``, or the callable of :class:`outfield.Boxes`; it
                runs where it is.

        Raises:
            StorageError: there is no such file.
            FileFormatError: it is truncated, changed, no guard, or of a later version.
            InputError: the network must be given and is not, or is another one.
        """
        target, kind = resolve_device(device), kind_of_guard(path)
        record = read_record(path, kind)
        check_version(path, kind, record.header)
        reader = READERS[kind].from_record(path, record, target, network)
        # Detectors may be anybody's, and raise anything of a file that is wrong.
        told = f"{path} holds a guard that this version of Outfield cannot build"
        with as_ours(told, FileFormatError, Exception, OutfieldError):
            detector = Detector.from_record(record.part("detector")).to(str(target))
            threshold = Threshold.from_record(record.part("threshold"))
            decided = "decision" in record.header
            decision = Decision.from_record(record.part("decision"), str(target)) if decided else None
        return Guard(reader, detector, threshold, provenance=record.header["provenance"], decision=decision)

    def __repr__(self) -> str:
        from outfield.guard.description import quality

        word, count = quality(self.provenance).partition(".")[0], len(self.threshold.reference)
        told = f"chosen on {count:,} held-out {self.reader.scored}{word and f'; quality: {word}'}"
        return f"Guard({self.reader}: {' + '.join(self.members)}; keeps {self.threshold.keep:.4g} of ID, {told})"


def open_guard(path: PathLike, device: str | torch.device = "auto") -> Guard:
    """The guard in a file, of images or of rows: :meth:`Guard.load`."""
    return Guard.load(path, device)


def kind_of_guard(path: PathLike) -> str:
    """What the file of a guard says that it is; an image guard's of anything else, whose reader refuses it."""
    return str(found) if (found := kind_of(path)) in READERS else ImageReader.kind


def check_version(path: PathLike, kind: str, header: Mapping[str, Any]) -> None:
    """Refuse a guard's file that a later version of Outfield wrote."""
    if (version := header[VERSION_ENTRY[kind]]) > VERSION:
        what = f"{path} is a guard of version {version}, written by Outfield {header.get('outfield')}; this is Outfield"
        raise FileFormatError(f"{what} {__version__}, which reads versions up to {VERSION}: install a newer one")


class _OfRows(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, Guard) and one.takes in ("table", "features")


class RowGuard(Guard, metaclass=_OfRows):
    """What version 0.1 called a :class:`Guard` of a table or of features."""

    @classmethod
    def build(cls, rows: Any, held_out: Any = None, **settings: Any) -> Guard:  # type: ignore[override]
        """:meth:`Guard.build_rows`."""
        _tell("RowGuard.build", "Guard.build_rows")
        return Guard.build_rows(rows, held_out, **settings)

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "auto", network: nn.Module | None = None) -> Guard:
        """:meth:`Guard.load`."""
        _tell("RowGuard.load", "Guard.load")
        return Guard.load(path, device)


def _tell(old: str, new: str, level: int = 3) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=level)


def _new_names(old: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their new names, with a warning."""
    for name in old:
        if name not in RENAMED:
            raise TypeError(f"a guard is not built with {name!r}")
        _tell(f"{name}=", f"{RENAMED[name]}=", 4)
    return {RENAMED[name]: value for name, value in old.items()}
