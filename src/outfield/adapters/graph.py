"""A guard as one PyTorch module: from pixels, or from the network's fields, to score, p-value, verdict and class.

It is what ``torch.export`` traces. The network is looked into as everywhere else, by :class:`outfield.backbone.Extraction`.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outfield import detectors
from outfield.backbone import evaluation_mode as undisturbed
from outfield.detectors import Batch, Calibration, CombinedDetector, Detector
from outfield.errors import InputError, StorageError, as_ours
from outfield.features import normalise
from outfield.files import PathLike, as_path, make_folder
from outfield.guard import Guard
from outfield.version import __version__

EXAMPLES = 3  # images that a graph is traced with; what it computes does not depend on how many they are


class Decision(nn.Module):
    """From scores (N,) to p-values (N,), float32, and verdicts (N,), by held-out scores (n,), float64, and the threshold."""

    def __init__(self, reference: Tensor, value: float) -> None:
        super().__init__()
        self.reference: Tensor
        self.value: Tensor
        self.register_buffer("reference", reference)
        self.register_buffer("value", torch.tensor(value, dtype=torch.float64))

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(1 + #{i : s_i ≥ s}) / (n + 1), and whether s is above the threshold; NaN is."""
        wide = scores.double()
        at_least = (self.reference[None, :] >= wide[:, None]).sum(1)
        return ((1 + at_least).double() / (1 + self.reference.shape[0])).float(), ~(wide <= self.value)


class FieldsGraph(nn.Module):
    """From the fields that a guard's detector needs, (N, D) each, in their order, to score, p-value and verdict."""

    outputs = ("score", "p_value", "is_ood")

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        if guard.decision is not None:
            raise InputError(
                "this guard has thresholds for each class, or accepts answers, and a graph holds one threshold alone; export one "
                "built without --per-class and --accuracy, its features alone, or serve it: outfield serve"
            )
        self.names = guard.detector.needs_to_score
        self.decision = Decision(guard.threshold.reference, guard.threshold.value)
        self._score = scorer(guard.detector)

    def forward(self, *fields: Tensor) -> tuple[Tensor, ...]:
        finite = torch.stack([field.isfinite().all(1) for field in fields]).all(0)
        scores = self._score(dict(zip(self.names, fields, strict=True)))
        scores = torch.where(finite, scores, torch.nan)  # whatever a detector makes of numbers that are none
        return scores, *self.decision(scores)


class ImagesGraph(nn.Module):
    """From bytes (N, h, w, C) or floats (N, C, h, w) to score, p-value, verdict and class, or to fields and class."""

    def __init__(self, guard: Guard, verdicts: bool) -> None:
        super().__init__()
        self.network = guard.backbone.network
        self.names = guard.detector.needs_to_score
        self.rest = FieldsGraph(guard) if verdicts else None
        self.outputs = (*(self.names if self.rest is None else self.rest.outputs), "label")
        self._fields = guard.image_reader.extraction.fields

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        fields = self._fields(images)
        found = [fields[name] for name in self.names]
        results = [one.clone() for one in found] if self.rest is None else self.rest(*found)
        return *results, fields["logits"].argmax(1)


@dataclass(frozen=True)
class Traced:
    """A guard as a ``torch.export.ExportedProgram`` for any number of images, with examples and what PyTorch gives for them."""

    program: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    examples: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]


def traced(guard: Guard, takes: str = "pixels", gives: str = "verdicts") -> Traced:
    """Trace a guard; see :func:`outfield.adapters.onnx.to_onnx` for what it takes and gives."""
    _check(guard, takes)
    size, channels = guard.backbone.preprocessing.size, len(guard.backbone.preprocessing.mean)
    noise = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (EXAMPLES, *size, channels), generator=noise, dtype=torch.uint8)
    with torch.no_grad(), undisturbed(guard.backbone.network):
        if takes == "features":
            graph: FieldsGraph | ImagesGraph = FieldsGraph(guard)
            known, inputs = guard.image_reader.extraction.fields(pixels), guard.detector.needs_to_score
            examples = tuple(known[name].contiguous() for name in inputs)
        else:
            graph = ImagesGraph(guard, gives == "verdicts")
            inputs = ("pixels" if takes == "pixels" else "images",)
            if takes != "pixels":
                like = torch.device("cpu"), torch.float32, torch.contiguous_format
                pixels = guard.backbone.input.preparation(*like)(pixels)
            examples = (pixels,)
        # Once before it is traced: what a detector makes when it is first asked, and keeps, must not be made of stand-ins.
        expected = graph.eval()(*examples)
        rows = open_rows(examples)
        shapes = (rows,) if takes == "features" else rows
        try:
            program = torch.export.export(graph, examples, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # a network may be anybody's
            said = " ".join(str(error).split())
            advice = "--features-only exports the detector without the network"
            if "specialized" in said:
                advice = f"len(images) in a network fixes their number, images.shape[0] does not; {advice}"
            what = f"{guard.backbone.name} with {type(guard.detector).__name__} cannot be traced by torch.export"
            raise InputError(f"{what}: {type(error).__name__}: {said:.300}; {advice}") from error
    return Traced(program, inputs, graph.outputs, examples, tuple(expected))


def _check(guard: Guard, takes: str) -> None:
    if guard.device.type != "cpu":
        raise InputError(f"the guard is on {guard.device}; to export it, load it with Guard.load(path, device='cpu')")
    if guard.image_reader.precision not in ("float32", "auto"):
        what = f"the guard's network runs in {guard.image_reader.precision}, but exported graphs run in float32"
        raise InputError(f"{what}, whose scores differ; build it with precision='float32'")
    if takes != "features" and not getattr(guard.backbone.network, "gives_gradients", True):
        what = f"{guard.backbone.name} is itself an ONNX file, which is not traced; export the detector alone (--features-only"
        raise InputError(f"{what}, in Python takes='features') and run it behind that file")


def open_rows(examples: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """What ``torch.export.export`` takes to leave the number of rows, the same of all examples, open."""
    rows = torch.export.Dim("N", min=1, max=2**30)
    return tuple({0: rows} for _ in examples)


Score = Callable[[Batch], Tensor]  # from fields by their names, (n, D) each, to scores (n,)


def scorer(detector: Detector) -> Score:
    """What gives a fitted detector's scores (n,), float32, of the fields that it needs."""
    if isinstance(detector, detectors.ODIN):
        what = f"{type(detector).__name__} cannot be exported: what it scores takes a gradient through the network"
        raise InputError(f"{what}; these can: {', '.join(exportable())}, and Fused, Auto and HEAT of them")
    formula = FORMULAS.get(type(detector)._score)
    inside: Score = detector._score if formula is None else formula(detector)

    def score(fields: Batch) -> Tensor:
        own = {"features" if name == detector.field else name: fields[name] for name in detector.needs_to_score}
        return inside(own).clamp(-detectors.LARGEST, detectors.LARGEST).float()

    return score


def exportable() -> tuple[str, ...]:
    """Names of the detectors that are exported by themselves."""
    not_alone = detectors.ODIN | CombinedDetector
    return tuple(name for name, cls in detectors.DETECTORS.items() if not issubclass(cls, not_alone))


def kth_distance(bank: Tensor, k: int) -> Callable[[Tensor], Tensor]:
    """‖z − b_(k)‖ (n,), float64, of rows (n, D) to the k-th nearest row of a bank (M, D), by the largest z·b − ½ ‖b‖²."""
    half_squares = bank.double().square().sum(1) / 2

    def distance(z: Tensor) -> Tensor:
        wide = z.double()
        closeness = wide @ bank.double().T - half_squares
        place = closeness.topk(k, dim=1).indices[:, k - 1]
        return (wide - bank[place].double()).square().sum(1).sqrt()

    return distance


def cosines_to(bank: Tensor) -> Callable[[Tensor], Tensor]:
    """Cosines (n, M), float64, of features (n, D) to the rows of a bank (M, D)."""
    lengths = bank.double().square().sum(1).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    return lambda features: detectors.directions(normalise(features)) @ bank.double().T / lengths


def _knn(detector: detectors.KNN) -> Score:
    distance = kth_distance(detector.bank_, int(detector.k))
    return lambda batch: distance(normalise(batch["features"]))


def _grood(detector: detectors.GROOD) -> Score:
    distance = kth_distance(detector.bank_, 1)
    return lambda batch: distance(detector._gradients(batch["features"]))


def _sirc(detector: detectors.SIRC) -> Score:
    if detector.second_ is None:
        return detector._score
    inside = scorer(detector.second_)
    return lambda batch: detector.combined_score(batch["logits"], -inside(batch).double())


def _combood(detector: detectors.CombOOD) -> Score:
    distance = kth_distance(detector.bank_, int(detector.k))

    def score(batch: Batch) -> Tensor:
        z = normalise(batch["features"])
        squares = distance(z).float().double().square()
        x = detector._transformed((z.double() - detector.centre_) / detector.scale_) - detector.mean_
        mahalanobis_sq = (x @ detector.whitening_.T).square().sum(1)
        return math.sqrt(z.shape[1]) * squares.clamp_min(detectors.LEAST_SQUARE).log() + mahalanobis_sq

    return score


def _kde(detector: detectors.KDE) -> Score:
    cosines, kappa, rows = cosines_to(detector.bank_), float(detector.kappa), len(detector.bank_)
    return lambda batch: math.log(rows) - (kappa * (cosines(batch["features"]) - 1)).logsumexp(1)


def _nnguide(detector: detectors.NNGuide) -> Score:
    cosines, energies, k = cosines_to(detector.bank_), detector.energies_, int(detector.k)

    def score(batch: Batch) -> Tensor:
        guidance = (cosines(batch["features"]) * energies).topk(k, dim=1).values.mean(1)
        return -batch["logits"].double().logsumexp(1) * guidance

    return score


def _relation(detector: detectors.Relation) -> Score:
    cosines, least = cosines_to(detector.bank_), float(detector.threshold)

    def score(batch: Batch) -> Tensor:
        p = batch["logits"].double().softmax(1)
        related = cosines(batch["features"]).relu() * (p @ detector.probabilities_.double().T)
        return -torch.where(related > least, related, 0.0).sum(1)

    return score


def _columns(detector: CombinedDetector) -> Score:
    """The members' scores (n, M), float64."""
    members = [scorer(member) for member in detector.members_]
    return lambda batch: torch.stack([member(batch).double() for member in members], dim=1)


def _summed(detector: detectors.Summed) -> Score:
    columns = _columns(detector)
    terms = [one.standard if detector.rule == "z" else surprise(one) for one in detector.calibrations_]
    weights = detector._weights() or [1.0] * len(terms)

    def score(batch: Batch) -> Tensor:
        found = zip(weights, terms, columns(batch).unbind(1), strict=True)
        return torch.stack([weight * term(column) for weight, term, column in found], dim=1).sum(1)

    return score


def _composed(detector: detectors.ComposedDetector) -> Score:
    columns = _columns(detector)
    return lambda batch: detector._combine((columns(batch) - detector.means_) / detector.scales_)


def surprise(calibration: Calibration) -> Callable[[Tensor], Tensor]:
    """:meth:`Calibration.surprise`, with the places among the held-out scores counted instead of searched."""
    h, n, spread = calibration.scores, len(calibration.scores), calibration.spread

    def found(scores: Tensor) -> Tensor:
        s = scores.double()
        above = (h[None, :] <= s[:, None]).sum(1)
        low, high = h[(above - 1).clamp_min(0)], h[above.clamp_max(n - 1)]
        inside = (above > 0) & (above < n)
        between = torch.where(inside, (s - low) / torch.where(inside, high - low, 1.0), 0.0)
        return -torch.log1p(-(above + between) / (n + 1)) + (s - h[-1]).clamp_min(0.0) / spread

    return found


# By the method in whose place it stands, so that a detector which inherits that has it, too, and one with its own has not.
FORMULAS: dict[Any, Callable[[Any], Score]] = {
    detectors.KNN._score: _knn, detectors.GROOD._score: _grood, detectors.SIRC._score: _sirc,
    detectors.CombOOD._score: _combood, detectors.KDE._score: _kde, detectors.NNGuide._score: _nnguide,
    detectors.Relation._score: _relation, detectors.Summed._score: _summed,
    detectors.ComposedDetector._score: _composed,
}  # fmt: skip


class Written(NamedTuple):
    """What was written."""

    size: int  # bytes of all files
    opset: int | None  # version of ONNX's operators
    inputs: tuple[str, ...]  # name, type and shape
    outputs: tuple[str, ...]
    apart: float | None  # the largest difference of a score from the guard's, relative to the larger of it and one

    def __str__(self) -> str:
        opset = "" if self.opset is None else f", opset {self.opset}"
        apart = "" if self.apart is None else f"; scores within {max(self.apart, 1e-9):.0e} of the guard's"
        return f"{self.size / 1e6:.2f} MB{opset}; in: {', '.join(self.inputs)}; out: {', '.join(self.outputs)}{apart}"


@contextlib.contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """A folder to be filled, which is put in its place, where nothing may be yet, once the block ends without an error."""
    target = as_path(path)
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} is there already; remove it, or name another folder")
    make_folder(target.parent)
    wrong = as_ours(f"cannot write {target}", StorageError, OSError)
    with wrong, tempfile.TemporaryDirectory(dir=target.parent, prefix=".outfield-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        yield made
        made.rename(target)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def about(guard: Guard, takes: str) -> dict[str, str]:
    """How images are made into what a graph takes, what it was made of, and the threshold."""
    threshold, backbone = guard.threshold, guard.backbone
    said = {
        "version": __version__, "takes": takes, "preprocessing": json.dumps(backbone.preprocessing.to_json()),
        "network": backbone.name, "network_fingerprint": guard.fingerprint, "detector": repr(guard.detector),
        "detector_fingerprint": guard.detector.fingerprint(), "members": json.dumps(guard.members),
        "class_names": json.dumps(guard.names), "views": str(guard.image_reader.views),
        "threshold": repr(threshold.value), "keep": repr(threshold.keep), "held_out": str(len(threshold.reference)),
    }  # fmt: skip
    return {f"outfield.{name}": text for name, text in said.items()}
