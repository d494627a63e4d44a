"""A guard as one PyTorch module: from pixels, or from the network's fields, to score, p-value, verdict and class.

It is what ``torch.export`` traces. The network is looked into as everywhere else, by :class:`outfield.backbone.Extraction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outfield.adapters.formulas import scorer
from outfield.backbone import evaluation_mode as undisturbed
from outfield.errors import InputError
from outfield.guard import Guard

INPUTS = ("pixels", "normalised", "features")
"""What goes in: bytes (N, h, w, C), normalised images (N, C, h, w), or the fields that the detector scores."""
EXAMPLES = 3
"""Images that a graph is traced with; what it computes does not depend on how many they are."""

FIXED = "len(images) in a network fixes their number, images.shape[0] does not; "


class Decision(nn.Module):
    """From scores (N,) to p-values (N,), float32, and verdicts (N,).

    Args:
        reference: held-out scores (n,), float64.
        value: the threshold.
    """

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
    """From the fields that a guard's detector needs, (N, D) each, in their order, to score, p-value and verdict.

    Args:
        guard: on the CPU.
    """

    outputs = ("score", "p_value", "is_ood")

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.names = guard.detector.needs_to_score
        self.decision = Decision(guard.threshold.reference, guard.threshold.value)
        self._score = scorer(guard.detector)

    def forward(self, *fields: Tensor) -> tuple[Tensor, ...]:
        """Score, p-value and verdict (N,) each."""
        finite = torch.stack([field.isfinite().all(1) for field in fields]).all(0)
        scores = self._score(dict(zip(self.names, fields, strict=True)))
        scores = torch.where(finite, scores, torch.nan)  # whatever a detector makes of numbers that are none
        return scores, *self.decision(scores)


class ImagesGraph(nn.Module):
    """From images to score, p-value, verdict and class.

    Args:
        guard: on the CPU.
    """

    outputs = ("score", "p_value", "is_ood", "label")

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.network = guard.backbone.network
        self.rest = FieldsGraph(guard)
        self._fields = guard.image_reader.extraction.fields

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Score, p-value, verdict and number of the class (N,) each, of bytes (N, h, w, C) or floats (N, C, h, w)."""
        fields = self._fields(images)
        return *self.rest(*(fields[name] for name in self.rest.names)), fields["logits"].argmax(1)


class NetworkGraph(nn.Module):
    """From images to what the detector scores, (N, D) each, and the class: what stands before a :class:`FieldsGraph`.

    Args:
        guard: on the CPU.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.network = guard.backbone.network
        self.names = guard.detector.needs_to_score
        self.outputs = (*self.names, "label")
        self._fields = guard.image_reader.extraction.fields

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The fields, and the number of the class (N,), of bytes (N, h, w, C) or floats (N, C, h, w)."""
        fields = self._fields(images)
        return *(fields[name].clone() for name in self.names), fields["logits"].argmax(1)


@dataclass(frozen=True)
class Traced:
    """A guard that was traced.

    Attributes:
        program: a ``torch.export.ExportedProgram`` for any number of images.
        inputs: names of what goes in.
        outputs: names of what comes out.
        examples: inputs, all with the same number of rows, at least 1; :meth:`expected` are their outputs.
        expected: outputs of PyTorch for them.
    """

    program: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    examples: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]


def traced(guard: Guard, takes: str = "pixels", gives: str = "verdicts") -> Traced:
    """Trace a guard.

    Args:
        guard: on the CPU, of a network that runs in float32.
        takes: one of :data:`INPUTS`.
        gives: "verdicts", or "features" for what the detector scores and the class: the network without the detector.

    Raises:
        InputError: it is on another device or of another precision, or its detector or network cannot be traced.
    """
    _check(guard, takes)
    pixels = _noise(guard)
    with torch.no_grad(), undisturbed(guard.backbone.network):
        if takes == "features":
            graph: FieldsGraph | ImagesGraph | NetworkGraph = FieldsGraph(guard)
            known, inputs = guard.image_reader.extraction.fields(pixels), guard.detector.needs_to_score
            examples = tuple(known[name].contiguous() for name in inputs)
        else:
            graph = NetworkGraph(guard) if gives == "features" else ImagesGraph(guard)
            inputs = ("pixels" if takes == "pixels" else "images",)
            examples = (pixels if takes == "pixels" else _normalised(guard, pixels),)
        # Once before it is traced: what a detector makes when it is first asked, and keeps, must not be made of stand-ins.
        expected = graph.eval()(*examples)
        rows = open_rows(examples)
        shapes = (rows,) if takes == "features" else rows
        try:
            program = torch.export.export(graph, examples, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # a network may be anybody's
            said = " ".join(str(error).split())
            raise InputError(
                f"{guard.backbone.name} with {type(guard.detector).__name__} cannot be traced by torch.export: "
                f"{type(error).__name__}: {said:.300}; {FIXED if 'specialized' in said else ''}--features-only exports the "
                "detector without the network"
            ) from error
    return Traced(program, inputs, graph.outputs, examples, tuple(expected))


def _check(guard: Guard, takes: str) -> None:
    if guard.device.type != "cpu":
        raise InputError(
            f"the guard is on {guard.device}; load it on the CPU to export it: Guard.load(path, device='cpu')"
        )
    if guard.image_reader.precision not in ("float32", "auto"):
        raise InputError(
            f"the guard's network runs in {guard.image_reader.precision}, but exported graphs run in float32, whose scores are "
            "others; build "
            "it with precision='float32'"
        )
    if takes != "features" and not getattr(guard.backbone.network, "gives_gradients", True):
        raise InputError(
            f"{guard.backbone.name} is itself an ONNX file, which is not traced; export the detector alone (--features-only, in "
            "Python takes='features') and run it behind that file"
        )


def _normalised(guard: Guard, pixels: Tensor) -> Tensor:
    return guard.backbone.preprocessing.preparation(torch.device("cpu"), torch.float32, torch.contiguous_format)(pixels)


def _noise(guard: Guard) -> Tensor:
    height, width = guard.backbone.preprocessing.size
    shape = (EXAMPLES, height, width, len(guard.backbone.preprocessing.mean))
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def open_rows(examples: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """What ``torch.export.export`` takes to leave the number of rows, the same of all examples, open."""
    rows = torch.export.Dim("N", min=1, max=2**30)
    return tuple({0: rows} for _ in examples)
