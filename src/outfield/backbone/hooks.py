"""Looking into a network while it runs, by hooks: the input of its last linear layer, its last feature map and its blocks.

The network's code is not touched. Where to look is found in the first batch, in which the inputs and outputs of all modules are
watched; later batches are watched at those places only.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from outfield.backbone.feature_maps import (
    Block,
    FeatureMap,
    Output,
    Passing,
    find_blocks,
    find_map,
    is_close,
    is_pooled,
    read_output,
    tolerance,
)
from outfield.errors import InputError, OutfieldWarning

MAPS_KEPT = 8  # Latest maps that the search holds on to; the last feature map is among the last few before the head


class Seen(NamedTuple):
    """What one forward pass showed: features (N, D), spread (N, D), stages by number in float32, logits (N, K) as they came."""

    features: Tensor
    spread: Tensor | None
    logits: Tensor
    stages: Mapping[int, Tensor] = MappingProxyType({})


def logits_of(output: Any, rows: int) -> Tensor:
    """The logits (N, K) in what a network returned: a tensor, ``.logits`` or ``["logits"]``, or the first of a tuple."""
    found = getattr(output, "logits", output)
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif isinstance(found, tuple | list) and found:
        found = found[0]
    plain = isinstance(found, Tensor) and found.layout == torch.strided and found.is_floating_point()
    if plain and found.dim() == 2 and found.shape[0] == rows and found.shape[1] > 0 and not found.is_meta:
        return cast(Tensor, found)
    shown = (
        f"a tensor of shape {tuple(found.shape)}, {found.dtype}"
        if isinstance(found, Tensor)
        else f"a {type(output).__name__}"
    )
    what = f"the network gave {shown} for {rows} images; a classifier gives logits ({rows}, K)"
    raise InputError(f"{what}, floating numbers, alone, first in a tuple, or as .logits")


class Observer:
    """A network that also shows its features, the spread of its last feature map and its stages.

    From the first pass on, ``stage_names`` are the modules whose outputs are the stages, and ``last_layer`` weight (K, D) and
    bias (K,) or None of the head, in float32 on the CPU; None where the logits are not that layer of the features.
    """

    def __init__(self, network: nn.Module, head: str | None = None, stages: bool = False) -> None:
        self.network, self.stages = network, stages
        self._given = None if head is None else _named_module(network, head)
        self._head: nn.Module | None = None
        self._map: FeatureMap | None = None
        self._places: dict[int, FeatureMap] = {}  # of the stages, by their number
        self.stage_names: tuple[str, ...] = ()
        self.last_layer: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, images: Tensor) -> Seen:
        """One forward pass, the first of which also finds where to look."""
        if self._head is None:
            return self._search(images)
        features, spread, last_map = None, None, None
        passed: dict[int, Tensor] = {}
        stages: dict[int, Tensor] = {}

        def at_map(module: nn.Module, tensor: Tensor | None) -> None:
            nonlocal last_map
            if self._map is not None and tensor is not None and tuple(tensor.shape[1:]) == self._map.shape:
                last_map = tensor

        def at_stage(number: int, place: FeatureMap, module: nn.Module, tensor: Tensor | None) -> None:
            if tensor is not None and tuple(tensor.shape[1:]) == place.shape:
                passed[number] = place.mean(tensor)

        def at_head(module: nn.Module, tensor: Tensor | None) -> None:
            nonlocal features, spread, stages
            features = None if tensor is None else pooled_input(module, copied(tensor))
            stages = dict(passed)
            if self._map is not None and last_map is not None:
                # Not when it passed by: an activation in place may come in between.
                spread = self._map.spread(last_map)

        with contextlib.ExitStack() as hooks:
            if self._map is not None:
                hooks.callback(_watch(self._map.module, self._map.is_input, at_map))
            for number, place in self._places.items():
                hooks.callback(_watch(place.module, False, partial(at_stage, number, place)))
            hooks.callback(_watch(self._head, True, at_head))
            logits = logits_of(self.network(images), images.shape[0])  # which, unlike len, may stay open in an export
        if features is None or (self._map is None) != (spread is None) or len(stages) != len(self._places):
            raise self._other_way()
        return Seen(features, spread, logits, {number: stages[number] for number in self._places})

    def only(self, spread: bool, stages: Collection[int]) -> None:
        """After the first pass: from now on show no spread, unless it is wanted, and of the stages those of these numbers."""
        self._map = self._map if spread else None
        self._places = {number: place for number, place in self._places.items() if number in stages}

    def features_of(self, images: Tensor) -> Tensor | None:
        """The features (N, D) alone, in float32 and with the graph that leads to them, in a forward pass.

        The very first pass of all finds where to look, so that this is then the second one. None where it does not find that
        because features are not finite.
        """
        if self._head is None:
            with torch.no_grad():
                self(images.detach().clone())  # a network may write to what it is given
        if self._head is None:
            return None
        found: list[Tensor | None] = [None]
        remove = _watch(self._head, True, lambda module, tensor: found.append(tensor))
        try:
            logits_of(self.network(images), len(images))
        finally:
            remove()
        if found[-1] is None:
            raise self._other_way()
        return pooled_input(self._head, found[-1]).float()

    def _other_way(self) -> InputError:
        return InputError(f"{type(self.network).__name__} took another way through its layers than in the first batch")

    def _search(self, images: Tensor) -> Seen:
        said = getattr(self.network, "num_prefix_tokens", None)
        prefix_tokens = said if isinstance(said, int) else None
        trace = Trace(self._given, len(images), self.stages, prefix_tokens)
        with trace.listening(module for module in self.network.modules() if module is not self.network):
            logits = logits_of(self.network(images), len(images))
        call = self._find_head(trace.calls, logits)
        features = pooled_input(call.module, call.input)
        before = [passing for passing in reversed(trace.maps.values()) if passing.order < call.order]
        place, tensor = find_map(before, features, prefix_tokens) or (None, features)
        if self._given is not None and _is_normalised(logits):
            told = "the network's outputs look like probabilities, but are taken as logits: leave out its softmax"
            warnings.warn(told, OutfieldWarning, stacklevel=2)
        spread = None if place is None else place.spread(tensor)
        if not bool(features.isfinite().all()):
            return Seen(features, spread, logits)  # maps cannot be told from others; the next batch may be better
        blocks: list[Block] = []
        if self.stages:
            blocks = find_blocks(self.network, trace.outputs_before(call.order), place, features)
            if not blocks:
                what = f"no stages were found in {type(self.network).__name__}: no block gives a map or tokens"
                raise InputError(f"{what}; extract without --stages, in Python stages=False")
        self._head, self._map = call.module, place
        self._places = {number: block.place for number, block in enumerate(blocks, 1)}
        self.stage_names = tuple(block.name for block in blocks)
        self.last_layer = _layer(call.module, features, logits)
        stages = {number: block.pooled.to(features.device) for number, block in enumerate(blocks, 1)}
        return Seen(features, spread, logits, stages)

    def _find_head(self, calls: list[Call], logits: Tensor) -> Call:
        """The last call of the layer that was named; else of a linear one whose output is the network's; else of timm's own."""
        if self._given is not None:
            if not calls:
                raise InputError(f"head is a {type(self._given).__name__} that took no part in the forward pass")
            return calls[-1]
        timm_own = getattr(self.network, "get_classifier", None)
        classifier = timm_own() if callable(timm_own) else None
        own = [call for call in calls if call.module is classifier]
        found = [call for call in calls if _is_same(call.output, logits)] or own
        if not found:
            raise InputError(
                f"the head of {type(self.network).__name__} was not found: no linear layer gives the network's output; leave out "
                f"a softmax at its end, or name the layer, in Python head='fc' ({_linear_names(self.network)}); a network "
                "without a head gives features itself: FeatureSet(network(images))"
            )
        return found[-1]


def _named_module(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        what = f"head is {name!r}, but {type(network).__name__} has no module of that name"
        raise InputError(f"{what}; {_linear_names(network)}") from error


def _linear_names(network: nn.Module) -> str:
    names = [name for name, module in network.named_modules() if name and is_linear(module)]
    return f"its linear layers end with {', '.join(names[-4:])}" if names else "no linear layer can be seen in it"


def _is_same(output: Tensor | None, logits: Tensor) -> bool:
    """Whether a layer's output is the network's, perhaps in another shape or type."""
    if output is None or len(output) != len(logits) or output.numel() != logits.numel():
        return False
    same = torch.equal(output.float().flatten(1).nan_to_num(), logits.float().nan_to_num())
    return same or output.data_ptr() == logits.data_ptr()


def _is_normalised(logits: Tensor) -> bool:
    """Whether outputs of at least two classes are probabilities, or their logarithms."""
    values = logits.detach().float()
    probabilities = values if values.min() >= 0 else values.exp()
    return logits.shape[1] > 1 and bool(((probabilities.sum(1) - 1).abs() < 1e-2).all())


def _layer(head: nn.Module, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of a linear layer, if the logits are what it makes of the features."""
    if not isinstance(head, nn.Linear | nn.Conv2d):
        return None
    weight, bias = copied(head.weight).flatten(1), None if head.bias is None else copied(head.bias)
    if tuple(weight.shape) != (logits.shape[1], features.shape[1]):
        return None
    with torch.autocast(features.device.type, enabled=False):
        expected = functional.linear(features, weight, bias)
    if not is_close(expected, logits.detach().float(), tolerance(logits.dtype == torch.float32)):
        return None
    return weight.cpu(), None if bias is None else bias.cpu()


class Call(NamedTuple):
    """One call of what may be the head."""

    order: int
    module: nn.Module
    input: Tensor
    output: Tensor | None = None


class Trace:
    """What went through the modules in one pass: calls of what may be the head, and the latest maps, oldest first.

    Of linear layers only pooled inputs (of one position) are kept, and few maps, so that little memory is held.

    ``blocks`` keeps the pooled output of every module, of which some are the stages; ``prefix_tokens`` are no positions of
    the image.
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
                hooks.callback(_watch(module, True, self._enter))
                hooks.callback(_watch(module, False, self._leave))
            yield

    def outputs_before(self, order: int) -> dict[nn.Module, Output]:
        """The last output of each module before a moment of the pass."""
        before = {m: [one for one in outputs if one.order < order] for m, outputs in self.outputs.items()}
        return {module: outputs[-1] for module, outputs in before.items() if outputs}

    def _enter(self, module: nn.Module, tensor: Tensor | None) -> None:
        if tensor is not None:
            self._pass(module, True, tensor)
            if module is self.head or (self.head is None and is_linear(module) and is_pooled(tensor)):
                self.calls.append(Call(self._order, module, copied(tensor)))

    def _leave(self, module: nn.Module, tensor: Tensor | None) -> None:
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
        what = f"the head {type(head).__name__} takes an input of shape {tuple(tensor.shape)}"
        raise InputError(f"{what}; features are (N, D): name a layer behind the pooling")
    return tensor.flatten(1)


def copied(tensor: Tensor) -> Tensor:
    """A copy in float32, which later operations in place do not reach."""
    return tensor.detach().to(torch.float32, copy=True)


def _watch(module: nn.Module, is_input: bool, see: Callable[[nn.Module, Tensor | None], None]) -> Callable[[], None]:
    """Show the first tensor that goes into, or comes out of, a module; what is returned ends it."""
    if is_input:
        return module.register_forward_pre_hook(
            lambda module, args, kwargs: see(module, _first_tensor((*args, *kwargs.values()))), with_kwargs=True
        ).remove
    return module.register_forward_hook(lambda module, args, output: see(module, _first_tensor(output))).remove


def _first_tensor(values: Any) -> Tensor | None:
    """A tensor, or the first one of a tuple or list; None if there is none."""
    several = values if isinstance(values, tuple | list) else (values,)
    return next((value for value in several if isinstance(value, Tensor)), None)
