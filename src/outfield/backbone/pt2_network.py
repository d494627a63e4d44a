"""A classifier in a file of ``torch.export``, as a module: its steps are run by us, its last layer is ours.

Unlike an ONNX file it runs wherever its tensors are, and gives gradients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone.onnx_graph import FEATURES, LOGITS
from outfield.backbone.onnx_network import TOLERANCE, Given
from outfield.backbone.pt2_archive import TYPES, read_archive
from outfield.backbone.pt2_cost import LIMIT, META, Cost, cost_of, grown
from outfield.backbone.pt2_plan import Plan, last_layer, map_before, plan_of
from outfield.backbone.pt2_steps import Step, check_order, steps_of, writes_to
from outfield.errors import FileFormatError, InputError, OutfieldError

PLAN = "plan"
"""The tensor that holds the plan, as bytes of JSON."""


class Pt2Network(nn.Module):
    """The network of an exported program.

    Args:
        plan: Steps, and what goes in and comes out.
        tensors: Weights and constants, by the names that the plan has for them.
        source: Where it comes from, for errors.

    Raises:
        FileFormatError: It is broken, or cannot be run.
        InputError: It is no image classifier whose features can be found, or does what a network may not.
    """

    def __init__(self, plan: Plan, tensors: Mapping[str, Tensor], source: str) -> None:
        super().__init__()
        content = json.dumps(plan.to_json()).encode()
        self.register_buffer(PLAN, torch.from_numpy(np.frombuffer(content, np.uint8).copy()))
        self.asked, self._stored = plan, {name: f"tensor{number}" for number, name in enumerate(plan.tensors)}
        for name, key in self._stored.items():
            self.register_buffer(key, tensors[name])
        steps = steps_of(plan.nodes, source)
        check_order(steps, {plan.image, *plan.tensors}, source)
        if any(writes_to(step, {plan.image, *plan.tensors}) for step in steps):
            raise InputError(
                f"{source} changes its own weights or its images while it runs; call eval() before torch.export.export"
            )
        self.head: nn.Module = Given()
        self._features, self._logits = plan.features, plan.logits
        if plan.features is None:
            layer = last_layer(steps, plan.logits, tensors, source)
            self._features, self._logits = layer.features, layer.logits
            rows, columns = layer.weight.shape
            self.head = nn.Linear(columns, rows, bias=layer.bias is not None, dtype=torch.float32)
            with torch.no_grad():
                self.head.weight.copy_(layer.weight)
                if layer.bias is not None:
                    self.head.bias.copy_(layer.bias)
            self.head.requires_grad_(False)
        self._all = steps
        self._steps = steps if plan.features is not None else _until(steps, self._features)
        self._map = map_before(self._steps, str(self._features))
        self.map = nn.Identity()
        wanted = (self._features, self._logits if isinstance(self.head, Given) else None, self._map)
        self._wanted = [name for name in wanted if name is not None]
        self._ends = _last_uses(self._steps, set(self._wanted))
        self._costs: dict[tuple[tuple[int, ...], torch.dtype], Cost] = {}
        self._check(source)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the images that it takes, where they are fixed."""
        height, width = self.asked.shape[2:]
        return None if height is None or width is None else (height, width)

    @property
    def channels(self) -> int:
        """Of the images that it takes."""
        return int(self.asked.shape[1] or 3)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) of images (N, C, H, W)."""
        rows = self.asked.shape[0]
        if rows is None:
            found = self._piece(images)
        else:
            parts = [self._filled(images[start : start + rows], rows) for start in range(0, len(images), rows)]
            found = [torch.cat(values) for values in zip(*parts, strict=True)]
        if self._map is not None:
            self.map(found[-1])  # nothing happens to it, but it can be watched
        logits: Tensor = self.head(*found[: 1 if isinstance(self.head, nn.Linear) else 2])
        return logits

    def _piece(self, images: Tensor) -> list[Tensor]:
        """What is wanted of some images: features, logits where the last layer is not ours, and the map, if there is one."""
        self._count(images.shape, images.dtype)
        known = self._run(images, self._steps, self._ends)
        return [known[name] for name in self._wanted]

    def _count(
        self,
        shape: tuple[int, ...],
        kind: torch.dtype = torch.float32,
        steps: list[Step] | None = None,
        source: str = "an exported network",
    ) -> None:
        """Refuse images of a shape for which the program asks for too much, before it is run on them."""
        if (
            torch.compiler.is_compiling() or (shape, kind) in self._costs
        ):  # a tracer asks about sizes that have no numbers yet
            return
        two = (self.asked.shape[0] or 2, *shape[1:])
        limit = LIMIT
        if shape != two:
            self._count(two, kind)
            limit = grown(self._costs[two, kind], shape[0])
        known = {name: getattr(self, key) for name, key in self._stored.items()}
        known[self.asked.image] = torch.empty(shape, dtype=kind, device=META)
        steps = self._steps if steps is None else steps
        self._costs[shape, kind] = cost_of(steps, _last_uses(steps, set()), known, limit, source)

    def _filled(self, images: Tensor, rows: int) -> list[Tensor]:
        """Likewise of a network for a fixed number of images, to which too few are filled up."""
        count = len(images)
        more = images[:1].expand(rows - count, *images.shape[1:])
        return [value[:count] for value in self._piece(torch.cat([images, more]))]

    def _run(self, images: Tensor, steps: list[Step], ends: Mapping[int, list[str]]) -> dict[str, Any]:
        known: dict[str, Any] = {name: getattr(self, key) for name, key in self._stored.items()}
        known[self.asked.image] = images
        for number, step in enumerate(steps):
            step.run(known, images.device)
            for name in ends.get(number, ()):
                known.pop(name, None)  # so that memory is free again
        return known

    def _changes(self, images: Tensor) -> list[int]:
        """How often weights and images have been written to, also through views of them, as far as PyTorch counts it."""
        held = [images, *(getattr(self, key) for key in self._stored.values())]
        return [0 if one.is_inference() else one._version for one in held]

    def _check(self, source: str) -> None:
        """Run it once, and compare our last layer with the file's."""
        rows = self.asked.shape[0] or 2
        shape = (rows, self.channels, *(self.size or (224, 224)))
        self._count(shape, steps=self._all, source=source)
        images = torch.rand(shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
        ends = _last_uses(self._all, {str(self._features), self._logits})
        before = self._changes(images)
        try:
            with torch.no_grad():
                known = self._run(images, self._all, ends)
                features, logits = known[str(self._features)], known[self._logits]
                good = all(_is_of_rows(one, rows) for one in (features, logits))
                ours = (
                    self.head(*((features, logits) if isinstance(self.head, Given) else (features,))) if good else None
                )
                most = TOLERANCE * max(1.0, float(logits.abs().max())) if good else 0.0
        except OutfieldError:
            raise
        except Exception as error:  # of PyTorch, by a program that is anybody's
            said = (str(error).splitlines() or [""])[0][:300]
            raise FileFormatError(f"{source} cannot be run: {type(error).__name__}: {said}") from error
        if ours is None:
            raise InputError(
                f"{source} gives no features and logits with a row of floating numbers for each image; export a module that "
                f'returns {{"{FEATURES}": …, "{LOGITS}": …}}'
            )
        if before != self._changes(images):
            raise InputError(
                f"{source} changes its own weights or its images while it runs; call eval() before torch.export.export"
            )
        if not torch.allclose(ours, logits.to(ours.dtype), rtol=0, atol=most):
            raise InputError(f"the last layer of {source} does not give its logits; export a module that returns both")


def read_network(path: Path) -> Pt2Network:
    """The network of a file that ``torch.export.save`` wrote.

    Raises:
        StorageError: It cannot be read.
        FileFormatError: It is broken, or its weights are pickles.
        InputError: It is no image classifier whose features can be found, or does what a network may not.
    """
    archive = read_archive(path)
    plan = plan_of(archive, str(path))
    return Pt2Network(plan, {name: archive.tensors[key] for name, key in plan.tensors.items()}, str(path))


def build(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network whose plan and tensors are kept.

    Raises:
        FileFormatError: They are not there.
    """
    held = state.get(PLAN)
    try:
        if held is None or held.dtype != torch.uint8 or held.dim() != 1:
            raise ValueError(PLAN)
        plan = Plan.of_json(json.loads(held.cpu().numpy().tobytes()))
        types = {str(kind): kind for kind in TYPES.values()}
        tensors = {
            name: state[f"tensor{number}"].to("cpu", types[plan.types[name]])
            for number, name in enumerate(plan.tensors)
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{source} holds no program of torch.export: {str(error)[:100]}") from error
    return Pt2Network(plan, tensors, source)


def kept(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What :func:`build` needs of a state dict: not the last layer, which is among the tensors already."""
    return {name: value for name, value in state.items() if not name.startswith("head.")}


def _is_of_rows(value: Any, rows: int) -> bool:
    """Whether a value is a table of floating numbers with a row for each image."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dim() == 2
        and len(value) == rows
        and value.numel() > 0
    )


def _until(steps: list[Step], name: str | None) -> list[Step]:
    """The steps up to the one that gives a value."""
    last = max((number for number, step in enumerate(steps) if name in step.outputs), default=-1)
    return steps[: last + 1]


def _last_uses(steps: list[Step], wanted: set[str]) -> dict[int, list[str]]:
    """Behind which step which values are not needed any more."""
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        last |= dict.fromkeys(step.uses() | set(step.outputs), number)
    found: dict[int, list[str]] = {}
    for name, number in last.items():
        if name not in wanted:
            found.setdefault(number, []).append(name)
    return found
