"""Looking into a network by hooks: the input of its last linear layer, its last feature map and its blocks, the stages.

In the first batch all modules are watched, later only the places found then. Blocks are the first parts of about the same depth,
as layer1 … layer4 of a ResNet; of single layers, as in VGG, a convolution with what follows it up to the next.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from outfield.errors import InputError, OutfieldWarning
from outfield.features import MOST_STAGES

MAPS_KEPT = 8  # Latest maps that the search holds on to; the last feature map is among the last few before the head


class Seen(NamedTuple):
    """What a forward pass showed in float32, features with the graph that leads to them, and logits (N, K) as they came."""

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
    shown = f"a {type(output).__name__}"
    if isinstance(found, Tensor):
        if found.is_floating_point() and found.dim() == 2 and found.shape[0] == rows and found.shape[1] > 0:
            return found
        shown = f"a tensor of shape {tuple(found.shape)}, {found.dtype}"
    what = f"the network gave {shown} for {rows} images; a classifier gives logits ({rows}, K)"
    raise InputError(f"{what}, floating numbers, alone, first in a tuple, or as .logits")


class Observer:
    """A network that also shows its features, the spread of its last feature map and its stages."""

    def __init__(self, network: nn.Module, head: str | None = None, stages: bool = False) -> None:
        self.network, self.stages = network, stages
        self._given = None if head is None else _named_module(network, head)
        self._head: nn.Module | None = None
        self._places: dict[int, FeatureMap] = {}  # of the last feature map, 0, and of the stages, by their number
        self.stage_names: tuple[str, ...] = ()  # of the modules whose outputs are the stages, from the first pass on
        # Weight and bias of the head in float32 on the CPU, where the logits are that layer of the features
        self.last_layer: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, images: Tensor) -> Seen:
        """One forward pass, the first of which also finds where to look."""
        if self._head is None:
            return self._search(images)
        features: Tensor | None = None
        passed: dict[int, Tensor] = {}
        seen: dict[int, Tensor] = {}

        def at_place(number: int, place: FeatureMap, module: nn.Module, tensor: Tensor) -> None:
            if tuple(tensor.shape[1:]) == place.shape:
                passed[number] = place.mean(tensor) if number else tensor

        def at_head(module: nn.Module, tensor: Tensor) -> None:
            nonlocal features, seen
            features = pooled_input(module, tensor.to(torch.float32, copy=True))
            # Not when it passed by: an activation in place may come in between.
            seen = {number: value if number else self._places[0].spread(value) for number, value in passed.items()}

        with contextlib.ExitStack() as hooks:
            for number, place in self._places.items():
                hooks.callback(_watch(place.module, place.is_input, partial(at_place, number, place)))
            hooks.callback(_watch(self._head, True, at_head))
            logits = logits_of(self.network(images), images.shape[0])  # which, unlike len, may stay open in an export
        if features is None or seen.keys() != self._places.keys():
            what = f"{type(self.network).__name__} took another way through its layers than in the first batch"
            raise InputError(what)
        return Seen(features, seen.pop(0, None), logits, dict(sorted(seen.items())))

    def only(self, numbers: Collection[int]) -> None:
        """After the first pass: from now on show the spread only if 0 is wanted, and the stages of these numbers alone."""
        self._places = {number: place for number, place in self._places.items() if number in numbers}

    def features_of(self, images: Tensor) -> Tensor | None:
        """The features (N, D) with the graph that leads to them; None where the first pass did not find where to look."""
        if self._head is None:
            with torch.no_grad():
                self(images.detach().clone())  # a network may write to what it is given
        return None if self._head is None else self(images).features

    def _search(self, images: Tensor) -> Seen:
        said = getattr(self.network, "num_prefix_tokens", None)
        prefix_tokens = said if isinstance(said, int) else None
        trace = Trace(self._given, len(images), self.stages, prefix_tokens)
        with contextlib.ExitStack() as hooks:
            for module, is_input in itertools.product([*self.network.modules()][1:], (True, False)):
                hooks.callback(_watch(module, is_input, partial(trace.see, is_input)))
            logits = logits_of(self.network(images), len(images))
        call = self._find_head(trace.calls, logits)
        features = pooled_input(call.module, call.tensor)
        before = [passing for passing in reversed(trace.maps) if passing.order < call.order]
        place, tensor = find_map(before, features, prefix_tokens) or (None, features)
        if self._given is not None and _is_normalised(logits):
            told = "the network's outputs look like probabilities, but are taken as logits: leave out its softmax"
            warnings.warn(told, OutfieldWarning, stacklevel=2)
        spread = None if place is None else place.spread(tensor)
        if not bool(features.isfinite().all()):
            return Seen(features, spread, logits)  # maps cannot be told from others; the next batch may be better
        outputs = {module: one for module, one in trace.outputs.items() if one.order < call.order}
        blocks = find_blocks(self.network, outputs, place, features) if self.stages else []
        if self.stages and not blocks:
            what = f"no stages were found in {type(self.network).__name__}: no block gives a map or tokens"
            raise InputError(f"{what}; extract without --stages, in Python stages=False")
        self._head = call.module
        self._places = {} if place is None else {0: place}
        self._places |= {number: block.place for number, block in enumerate(blocks, 1)}
        self.stage_names = tuple(block.name for block in blocks)
        self.last_layer = _layer(call.module, features, logits)
        stages = {number: block.pooled.to(features.device) for number, block in enumerate(blocks, 1)}
        return Seen(features, spread, logits, stages)

    def _find_head(self, calls: list[Passing], logits: Tensor) -> Passing:
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
    found: nn.Module | None = dict(network.named_modules(remove_duplicate=False)).get(name)
    if found is None:
        what = f"head is {name!r}, but {type(network).__name__} has no module of that name"
        raise InputError(f"{what}; {_linear_names(network)}")
    return found


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


class Passing(NamedTuple):
    """A tensor that went into or out of a module; ``order`` counts such events. Of what may be the head, its output too."""

    order: int
    module: nn.Module
    is_input: bool
    tensor: Tensor
    output: Tensor | None = None


class Trace:
    """What went through the modules in one pass: calls of what may be the head, the latest maps, pooled outputs of ``blocks``."""

    def __init__(self, head: nn.Module | None, rows: int, blocks: bool, prefix_tokens: int | None) -> None:
        self.head, self.rows, self.blocks, self.prefix_tokens = head, rows, blocks, prefix_tokens
        self.calls: list[Passing] = []
        self.maps: list[Passing] = []
        self.outputs: dict[nn.Module, Output] = {}
        self._order = 0

    def see(self, is_input: bool, module: nn.Module, tensor: Tensor) -> None:
        """What a hook shows."""
        self._order += 1
        if tensor.dim() in (3, 4) and not is_pooled(tensor):
            last = [passing for passing in self.maps if passing.tensor is not tensor][1 - MAPS_KEPT :]
            self.maps = [*last, Passing(self._order, module, is_input, tensor)]
        if is_input:
            if module is self.head or (self.head is None and is_linear(module) and is_pooled(tensor)):
                self.calls.append(Passing(self._order, module, True, copied(tensor)))
            return
        if self.calls and self.calls[-1].module is module:
            self.calls[-1] = self.calls[-1]._replace(output=tensor)
        of_all = tensor.dim() in (3, 4) and len(tensor) == self.rows and tensor.numel() and tensor.is_floating_point()
        if self.blocks and of_all:  # (N, C, H, W), (N, H, W, C) or tokens (N, T, C)
            skips = (0, 1) if self.prefix_tokens is None else (self.prefix_tokens,)
            ways = tuple((place, place.mean(tensor).cpu()) for place in _readings(module, False, tensor, skips))
            if ways:
                self.outputs[module] = Output(self._order, ways, tensor.dtype in (torch.float32, torch.float64))


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


def _watch(module: nn.Module, is_input: bool, see: Callable[[nn.Module, Tensor], None]) -> Callable[[], None]:
    """Show the first tensor that goes into, or comes out of, a module, if there is one; what is returned ends it."""

    def show(module: nn.Module, args: tuple[Any, ...], more: Any) -> None:
        given = more if isinstance(more, tuple | list) else (more,)
        values = (*args, *more.values()) if is_input else given  # arguments by name, or the output
        tensor = next((value for value in values if isinstance(value, Tensor)), None)
        if tensor is not None:
            see(module, tensor)

    if is_input:
        return module.register_forward_pre_hook(show, with_kwargs=True).remove
    return module.register_forward_hook(show).remove


# Maps, and the blocks that give them


def unchanged(tensor: Tensor) -> Tensor:
    """The tensor itself."""
    return tensor


# What a network may do, outside of any module, to its last feature map before it is pooled
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (unchanged, functional.relu, functional.silu, functional.gelu)


@dataclass(frozen=True)
class FeatureMap:
    """Where a feature map passes by, and how it is read."""

    module: nn.Module
    is_input: bool
    shape: tuple[int, ...]  # of one image's map
    channels: int  # the axis of the D channels: all others but the first are positions
    skipped: int = 0  # first tokens that are no positions of the image
    activation: Callable[[Tensor], Tensor] = unchanged

    def _read(self, tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        values = tensor.detach()[:, self.skipped :] if self.skipped else tensor.detach()
        return self.activation(values.float()), tuple(a for a in range(1, tensor.dim()) if a != self.channels)

    def mean(self, tensor: Tensor) -> Tensor:
        """Mean over positions (N, D)."""
        values, positions = self._read(tensor)
        return values.mean(positions)

    def spread(self, tensor: Tensor) -> Tensor:
        """Standard deviation over positions (N, D), divided by their number (correction 0)."""
        values, positions = self._read(tensor)
        if values.device.type != "cpu":
            return values.std(positions, correction=0)
        away = values.double()  # as std adds up there, which takes ten times as long
        away = away - away.mean(positions, keepdim=True)
        return away.square().mean(positions).sqrt().float()


def find_map(
    passing: Iterable[Passing], features: Tensor, prefix_tokens: int | None
) -> tuple[FeatureMap, Tensor] | None:
    """The latest map whose mean is the features, perhaps after an activation; else the latest as wide as they are."""
    possible = []
    for _, module, is_input, tensor, _ in passing:
        skipped = prefix_tokens
        if tensor.dim() == 3 and skipped is None:
            skipped = int(is_close(tensor[:, :1].flatten(1).detach().float(), features, 1e-3))  # a class token
        for place in _readings(module, is_input, tensor, [skipped or 0]):
            tokens = tensor.dim() == 3 and tensor.shape[1] - place.skipped <= 1
            if len(tensor) == len(features) and tensor.shape[place.channels] == features.shape[1] and not tokens:
                possible.append((place, tensor))
    for place, tensor in possible:
        for activation in ACTIVATIONS:
            activated = replace(place, activation=activation)
            # Half precision and another order of summation must not hide what is the same.
            if is_close(activated.mean(tensor), features, tolerance(tensor.dtype == torch.float32)):
                return activated, tensor
    return possible[0] if possible else None


def _readings(module: nn.Module, is_input: bool, tensor: Tensor, skips: Iterable[int]) -> list[FeatureMap]:
    """The ways to read a tensor as a map: channels first or last; or tokens, without these numbers of first ones."""
    shape = tuple(tensor.shape[1:])
    if tensor.dim() == 4:
        return [FeatureMap(module, is_input, shape, channels) for channels in (1, 3)]
    return [FeatureMap(module, is_input, shape, 2, skipped) for skipped in skips if skipped < shape[0]]


def is_pooled(tensor: Tensor) -> bool:
    """Whether there is one position only: (N, D), (N, D, 1, 1), (N, 1, D) …"""
    return tensor.dim() >= 2 and tensor.numel() == tensor.shape[0] * max(tensor.shape[1:])


def tolerance(exact: bool) -> float:
    """For :func:`is_close`, of what was computed in full precision or not."""
    return 1e-3 if exact else 1e-2


def is_close(a: Tensor, b: Tensor, within: float) -> bool:
    """Whether two tensors have one shape, and their largest difference is small beside the largest entry of the second."""
    return a.shape == b.shape and bool((a - b).abs().max() <= within * b.abs().max())


@dataclass(frozen=True)
class Output:
    """What one module gave in the first pass: when, its mean over positions (N, D) in every way that its map can be read."""

    order: int
    ways: tuple[tuple[FeatureMap, Tensor], ...]
    exact: bool


@dataclass(frozen=True)
class Block:
    """A module whose mean over positions (N, D) is a stage: its dotted name, and how its output is read."""

    name: str
    place: FeatureMap
    pooled: Tensor


def find_blocks(
    network: nn.Module, outputs: Mapping[nn.Module, Output], last_map: FeatureMap | None, features: Tensor
) -> list[Block]:
    """The blocks of a network in the order in which they ran, at most :data:`MOST_STAGES`, evenly spread where there are more."""
    names = {module: name for name, module in network.named_modules()}
    read = {module: (*_way(module, output, last_map), tolerance(output.exact)) for module, output in outputs.items()}
    here = features.detach().float().cpu()
    same = {module for module, (_, pooled, within) in read.items() if is_close(pooled, here, within)}
    # What has one position only and is the features may belong to the head, such as layers in front of the last.
    heads = {module for module in same if max(read[module][0].shape) == math.prod(read[module][0].shape)}
    found = [Block(names[module], *read[module][:2]) for module in _trunk(network, outputs, heads)]
    if found and found[-1].place.module in same:
        del found[-1]  # its mean is the features
    count = min(len(found), MOST_STAGES)
    return [found[-(-(i + 1) * len(found) // count) - 1] for i in range(count)]


def _trunk(inside: nn.Module, outputs: Mapping[nn.Module, Output], heads: Set[nn.Module]) -> list[nn.Module]:
    """The modules inside a network that are blocks, in the order in which they ran; a last one may be in ``heads``."""
    while True:
        parts = sorted(_parts(inside, outputs), key=lambda part: outputs[part].order)
        heights = [_height(part) for part in parts]
        tallest = max(heights, default=0)
        if tallest == 0:
            return _layers(parts) or [part for part in (inside,) if part in outputs]
        holders = [part for part in parts if sum(_height(inner) > 0 for inner in _parts(part, outputs)) > 1]
        if len(holders) == 1 and heights.count(tallest) == 1 and _height(holders[0]) == tallest:
            inside = holders[0]  # a stem may be nearly as deep, but holds no blocks
            continue
        # Blocks that change the size have a branch more than others have.
        blocks = [part for part, height in zip(parts, heights, strict=True) if height >= max(1, tallest - 1)]
        if len(blocks) - (blocks[-1] in heads) > 1:
            return blocks
        inside = blocks[0]


def _layers(parts: Sequence[nn.Module]) -> list[nn.Module]:
    """Of single layers: of each that multiplies, the last of those that follow it up to the next."""
    found: list[nn.Module] = []
    for part in parts:
        if any(weight.dim() > 1 for weight in part.parameters()):
            found.append(part)
        elif found:
            found[-1] = part
    return found


def _parts(module: nn.Module, outputs: Mapping[nn.Module, Output]) -> list[nn.Module]:
    """The children that gave a map; of one that did not, such as a ModuleList, its children in its place."""
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if child in outputs else _parts(child, outputs)
    return found


def _height(module: nn.Module) -> int:
    """How deep modules with parameters lie in one another: 0 for a layer, 1 for a group of layers, …"""
    inner = [_height(child) for child in module.children() if next(child.parameters(), None) is not None]
    return 1 + max(inner) if inner else 0


def _way(module: nn.Module, output: Output, last_map: FeatureMap | None) -> tuple[FeatureMap, Tensor]:
    """How an output is read: tokens as those of the last feature map, other maps with the channels where the shape says so."""
    ways = {(place.channels, place.skipped): (place, pooled) for place, pooled in output.ways}
    shape = output.ways[0][0].shape
    if len(shape) == 2:
        same = last_map is not None and len(last_map.shape) == 2 and last_map.shape[0] == shape[0]
        return ways.get((2, last_map.skipped if same and last_map is not None else 0), output.ways[0])
    return ways[_channels(module, shape, last_map), 0]


def _channels(module: nn.Module, shape: tuple[int, ...], last_map: FeatureMap | None) -> int:
    """The axis of the channels, 1 or 3: the one whose size is that of a weight; else as in the last map."""
    sizes = {len(weight) for weight in module.parameters() if weight.dim()}
    if (shape[0] in sizes) != (shape[2] in sizes):
        return 1 if shape[0] in sizes else 3
    return last_map.channels if last_map is not None and len(last_map.shape) == 3 else 1
