"""Looking into a network while it runs, by hooks: the input of its last linear layer, its last feature map and its blocks.

The network's code is not touched. Where to look is found in the first batch, in which the inputs and outputs of all modules are
watched; later batches are watched at those places only.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

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

MAPS_KEPT = (
    8  # How many of the latest maps the search holds on to; the last feature map is among the last few before the head
)


class Seen(NamedTuple):
    """What one forward pass showed: features (N, D), spread (N, D), stages by number in float32, logits (N, K) as they came."""

    features: Tensor
    spread: Tensor | None
    logits: Tensor
    stages: Mapping[int, Tensor] = MappingProxyType({})


def logits_of(output: Any, rows: int) -> Tensor:
    """The logits (N, K) in what a network returned: a tensor, ``.logits`` or ``["logits"]``, or the first of a tuple.

    Raises:
        InputError: there are none.
    """
    found = getattr(output, "logits", output)
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif isinstance(found, tuple | list) and found:
        found = found[0]
    good = isinstance(found, Tensor) and found.layout == torch.strided and found.device.type != "meta"
    if not good or not (
        found.dim() == 2 and found.shape[0] == rows and found.shape[1] > 0 and found.is_floating_point()
    ):
        shown = f"a tensor of shape {tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else None
        raise InputError(
            f"the network gave {shown or type(output).__name__} for {rows} images; a classifier gives logits ({rows}, K), "
            "floating numbers, alone, first in a tuple, or as .logits"
        )
    logits: Tensor = found
    return logits


class Observer:
    """A network that also shows its features, the spread of its last feature map and its stages.

    Args:
        network: any classifier.
        head: dotted name of the layer whose input are the features; found if None.
        stages: show what the network's blocks give, too, see :mod:`outfield.backbone.blocks`.

    Attributes:
        stage_names: Names of the modules whose outputs are the stages, known from the first pass on.
        last_layer: Weight (K, D) and bias (K,) or None of the head, in float32 on the CPU; None before the first pass, and where
            the logits are something else than that layer of the features.

    Raises:
        InputError: the network has no module of that name.
    """

    def __init__(self, network: nn.Module, head: str | None = None, stages: bool = False) -> None:
        self.network, self.stages = network, stages
        self._given = None if head is None else _named_module(network, head)
        self._taps: Taps | None = None
        self._numbers: tuple[int, ...] = ()
        self.stage_names: tuple[str, ...] = ()
        self.last_layer: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, images: Tensor) -> Seen:
        """One forward pass, the first of which also finds where to look.

        Raises:
            InputError: no logits came out, it is not clear which layer is the head, or stages are wanted of a network that has
                none.
        """
        if self._taps is None:
            return self._search(images)
        with self._taps.listening() as caught:
            logits = logits_of(self.network(images), images.shape[0])  # which, unlike len, may stay open in an export
        if caught.features is None or not self._taps.is_complete(caught):
            raise self._other_way()
        stages = (caught.stages[place.module] for place in self._taps.stages)
        return Seen(caught.features, caught.spread, logits, dict(zip(self._numbers, stages, strict=True)))

    def only(self, spread: bool, stages: Collection[int]) -> None:
        """After the first pass: from now on show no spread, unless it is wanted, and of the stages those of these numbers."""
        if self._taps is not None:
            kept = {
                number: place
                for number, place in zip(self._numbers, self._taps.stages, strict=True)
                if number in stages
            }
            self._numbers = tuple(kept)
            self._taps = self._taps._replace(map=self._taps.map if spread else None, stages=tuple(kept.values()))

    def features_of(self, images: Tensor) -> Tensor | None:
        """The features (N, D) alone, in float32 and with the graph that leads to them, in a forward pass.

        The very first pass of all finds where to look, so that this is then the second one. None where it does not find that
        because features are not finite.
        """
        if self._taps is None:
            with torch.no_grad():
                self(images.detach().clone())  # a network may write to what it is given
        if self._taps is None:
            return None
        found: list[Tensor | None] = []
        remove = _watch(self._taps.head, True, lambda module, tensor: found.append(tensor))
        try:
            logits_of(self.network(images), len(images))
        finally:
            remove()
        if not found or found[-1] is None:
            raise self._other_way()
        return pooled_input(self._taps.head, found[-1]).float()

    def _other_way(self) -> InputError:
        return InputError(
            f"{type(self.network).__name__} took another way through its layers than in the first batch; features can "
            "only be read from a network that takes the same way for all images"
        )

    def _search(self, images: Tensor) -> Seen:
        said = getattr(self.network, "num_prefix_tokens", None)
        prefix_tokens = said if isinstance(said, int) else None
        trace = Trace(self._given, len(images), self.stages, prefix_tokens)
        with trace.listening(module for module in self.network.modules() if module is not self.network):
            logits = logits_of(self.network(images), len(images))
        call = self._find_head(trace.calls, logits)
        features = pooled_input(call.module, call.input)
        before = [passing for passing in reversed(trace.maps.values()) if passing.order < call.order]
        found = find_map(before, features, prefix_tokens)
        if self._given is not None and _is_normalised(logits):
            warnings.warn(
                "the network's outputs look like probabilities, but are taken as logits: leave out its softmax",
                OutfieldWarning,
                stacklevel=2,
            )
        spread = found[0].spread(found[1]) if found else None
        if not bool(features.isfinite().all()):
            return Seen(features, spread, logits)  # maps cannot be told from others; the next batch may be better
        blocks: list[Block] = []
        if self.stages:
            blocks = find_blocks(self.network, trace.outputs_before(call.order), found[0] if found else None, features)
            if not blocks:
                raise InputError(
                    f"no stages were found in {type(self.network).__name__}: besides the features, no block of it gives a map "
                    "(N, C, H, W) or tokens (N, T, C); extract without --stages, in Python stages=False"
                )
        self._taps = Taps(call.module, found[0] if found else None, tuple(block.place for block in blocks))
        self.stage_names = tuple(block.name for block in blocks)
        self._numbers = tuple(range(1, len(blocks) + 1))
        self.last_layer = _layer(call.module, features, logits)
        return Seen(
            features, spread, logits, {i: block.pooled.to(features.device) for i, block in enumerate(blocks, 1)}
        )

    def _find_head(self, calls: list[Call], logits: Tensor) -> Call:
        """The last call of the layer that was named; else of a linear one whose output is the network's; else of timm's own."""
        if self._given is not None:
            if not calls:
                raise InputError(f"head is a {type(self._given).__name__} that took no part in the forward pass")
            return calls[-1]
        timm_own = getattr(self.network, "get_classifier", None)
        classifier = timm_own() if callable(timm_own) else None
        found = [call for call in calls if _is_same(call.output, logits)] or [
            call for call in calls if call.module is classifier
        ]
        if not found:
            raise InputError(
                f"the head of {type(self.network).__name__} was not found: no linear layer turns pooled features into the "
                "network's output; name the layer whose input are the features, in Python head='fc' "
                f"({_linear_names(self.network)}), and leave out a softmax at the end; "
                "a network without a head gives features itself: FeatureSet(network(images))"
            )
        return found[-1]


def _named_module(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        raise InputError(
            f"head is {name!r}, but {type(network).__name__} has no module of that name; {_linear_names(network)}"
        ) from error


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

        def at_map(module: nn.Module, tensor: Tensor | None) -> None:
            if self.map is not None and tensor is not None and tuple(tensor.shape[1:]) == self.map.shape:
                caught.passed = tensor

        def at_head(module: nn.Module, tensor: Tensor | None) -> None:
            caught.features = None if tensor is None else pooled_input(module, copied(tensor))
            caught.stages = dict(given)
            if self.map is not None and caught.passed is not None:
                # Not when it passed by: an activation in place may come in between.
                caught.spread = self.map.spread(caught.passed)

        def at_stage(place: FeatureMap, module: nn.Module, tensor: Tensor | None) -> None:
            if tensor is not None and tuple(tensor.shape[1:]) == place.shape:
                given[place.module] = place.mean(tensor)

        with contextlib.ExitStack() as hooks:
            if self.map is not None:
                hooks.callback(_watch(self.map.module, self.map.is_input, at_map))
            for place in self.stages:
                hooks.callback(_watch(place.module, False, functools.partial(at_stage, place)))
            hooks.callback(_watch(self.head, True, at_head))
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
        raise InputError(
            f"the head {type(head).__name__} takes an input of shape {tuple(tensor.shape)}; features are (N, D): name a layer "
            "behind the pooling"
        )
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
    if isinstance(values, Tensor):
        return values
    if isinstance(values, tuple | list):
        return next((value for value in values if isinstance(value, Tensor)), None)
    return None
