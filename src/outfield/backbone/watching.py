"""What is watched while a network runs: in the first pass all of its modules, later the few places that matter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outfield.backbone.blocks import Output, read_output
from outfield.backbone.feature_maps import FeatureMap, Passing, is_pooled
from outfield.errors import InputError

MAPS_KEPT = 8
"""How many of the latest maps the search holds on to; the last feature map is among the last few before the head."""


@dataclass
class Caught:
    """What passed by in one pass; None, or missing from the stages, is what did not."""

    features: Tensor | None = None
    spread: Tensor | None = None
    passed: Tensor | None = None
    stages: dict[nn.Module, Tensor] = field(default_factory=dict)


class Taps(NamedTuple):
    """The places to look at: the head's input, the last feature map, and the outputs of the blocks."""

    head: nn.Module
    map: FeatureMap | None
    stages: tuple[FeatureMap, ...] = ()

    def is_complete(self, caught: Caught) -> bool:
        """Whether everything that there is to see was seen."""
        lacks_map = self.map is not None and caught.spread is None
        return caught.features is not None and not lacks_map and len(caught.stages) == len(self.stages)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Caught]:
        """Hooks at these places, removed afterwards."""
        caught = Caught()
        given: dict[nn.Module, Tensor] = {}

        def at_map(tensor: Tensor | None) -> None:
            if self.map is not None and tensor is not None and tuple(tensor.shape[1:]) == self.map.shape:
                caught.passed = tensor

        def at_head(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensor = first_tensor((*args, *kwargs.values()))
            caught.features = None if tensor is None else pooled_input(module, copied(tensor))
            caught.stages = dict(given)
            if self.map is not None and caught.passed is not None:
                # Not when it passed by: an activation in place may come in between.
                caught.spread = self.map.spread(caught.passed)

        def at_stage(place: FeatureMap, tensor: Tensor | None) -> None:
            if tensor is not None and tuple(tensor.shape[1:]) == place.shape:
                given[place.module] = place.mean(tensor)

        with contextlib.ExitStack() as hooks:
            if self.map is not None and self.map.is_input:
                hook = self.map.module.register_forward_pre_hook(
                    lambda module, args, kwargs: at_map(first_tensor((*args, *kwargs.values()))), with_kwargs=True
                )
                hooks.callback(hook.remove)
            elif self.map is not None:
                hook = self.map.module.register_forward_hook(lambda module, args, output: at_map(first_tensor(output)))
                hooks.callback(hook.remove)
            for place in self.stages:
                hook = place.module.register_forward_hook(
                    lambda module, args, output, place=place: at_stage(place, first_tensor(output))
                )
                hooks.callback(hook.remove)
            hooks.callback(self.head.register_forward_pre_hook(at_head, with_kwargs=True).remove)
            yield caught


class Call(NamedTuple):
    """One call of what may be the head."""

    order: int
    module: nn.Module
    input: Tensor
    output: Tensor | None = None


class Trace:
    """What went through the modules in one pass: calls of what may be the head, and the latest maps, oldest first.

    Of linear layers only pooled inputs (of one position) are kept, and few maps, so that little memory is held.

    Args:
        head: the layer that was named as the head, or None.
        rows: images of the pass.
        blocks: keep the pooled output of every module, of which some are the stages.
        prefix_tokens: how many tokens are no positions of the image, where the network says so.
    """

    def __init__(self, head: nn.Module | None, rows: int, blocks: bool, prefix_tokens: int | None) -> None:
        self.head, self.rows, self.blocks, self.prefix_tokens = head, rows, blocks, prefix_tokens
        self.calls: list[Call] = []
        self.maps: dict[int, Passing] = {}
        self.outputs: dict[nn.Module, list[Output]] = {}
        self._order = 0

    @contextlib.contextmanager
    def listening(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Hooks at all of these modules, removed afterwards."""
        with contextlib.ExitStack() as hooks:
            for module in modules:
                hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(self._leave).remove)
            yield

    def outputs_before(self, order: int) -> dict[nn.Module, Output]:
        """The last output of each module before a moment of the pass."""
        before = {m: [one for one in outputs if one.order < order] for m, outputs in self.outputs.items()}
        return {module: outputs[-1] for module, outputs in before.items() if outputs}

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        tensor = first_tensor((*args, *kwargs.values()))
        if tensor is not None:
            self._pass(module, True, tensor)
            if module is self.head or (self.head is None and is_linear(module) and is_pooled(tensor)):
                self.calls.append(Call(self._order, module, copied(tensor)))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            self._pass(module, False, tensor)
            if self.calls and self.calls[-1].module is module:
                self.calls[-1] = self.calls[-1]._replace(output=tensor)
            read = read_output(self._order, module, tensor, self.rows, self.prefix_tokens) if self.blocks else None
            if read is not None:
                self.outputs.setdefault(module, []).append(read)

    def _pass(self, module: nn.Module, is_input: bool, tensor: Tensor) -> None:
        self._order += 1
        if tensor.dim() in (3, 4) and not is_pooled(tensor):
            self.maps.pop(id(tensor), None)
            self.maps[id(tensor)] = Passing(self._order, module, is_input, tensor)
            if len(self.maps) > MAPS_KEPT:
                del self.maps[next(iter(self.maps))]


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, perhaps written as a convolution of one pixel."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))


def pooled_input(head: nn.Module, tensor: Tensor) -> Tensor:
    """The input of the head as features (N, D)."""
    if not is_pooled(tensor):
        raise InputError(
            f"the head {type(head).__name__} takes an input of shape {tuple(tensor.shape)}; features are (N, D): name a layer "
            "behind the pooling"
        )
    return tensor.flatten(1)


def copied(tensor: Tensor) -> Tensor:
    """A copy in float32, which later operations in place do not reach."""
    return tensor.detach().to(torch.float32, copy=True)


def first_tensor(values: Any) -> Tensor | None:
    """A tensor, or the first one of a tuple or list; None if there is none."""
    if isinstance(values, Tensor):
        return values
    if isinstance(values, tuple | list):
        return next((value for value in values if isinstance(value, Tensor)), None)
    return None
