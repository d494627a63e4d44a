"""Looking into a network while it runs: the input of its last linear layer and its last feature map, by temporary hooks.

The network's code is not touched. Where to look is found in the first batch, in which the inputs and outputs of all modules are
watched; later batches are watched at two places only.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outfield.backbone.feature_maps import FeatureMap, Passing, find_map, is_pooled
from outfield.errors import InputError, OutfieldWarning

MAPS_KEPT = 8
"""How many of the latest maps the search holds on to; the last feature map is among the last few before the head."""


class Seen(NamedTuple):
    """What one forward pass showed: features (N, D) and spread (N, D) in float32, the logits (N, K) as they came."""

    features: Tensor
    spread: Tensor | None
    logits: Tensor


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
    if not _are_logits(found, rows):
        shown = f"a tensor of shape {tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else None
        raise InputError(
            f"the network gave {shown or type(output).__name__} for {rows} images; a classifier gives logits ({rows}, K), "
            "floating numbers, alone, first in a tuple, or as .logits"
        )
    logits: Tensor = found
    return logits


def _are_logits(found: Any, rows: int) -> bool:
    if not isinstance(found, Tensor) or found.layout != torch.strided or found.device.type == "meta":
        return False
    return found.dim() == 2 and len(found) == rows and found.shape[1] > 0 and found.is_floating_point()


class Observer:
    """A network that also shows its features, and the spread of its last feature map.

    Args:
        network: any classifier.
        head: dotted name of the layer whose input are the features; found if None.

    Raises:
        InputError: the network has no module of that name.
    """

    def __init__(self, network: nn.Module, head: str | None = None) -> None:
        self.network = network
        self._given = None if head is None else _named_module(network, head)
        self._taps: _Taps | None = None

    def __call__(self, images: Tensor) -> Seen:
        """One forward pass, the first of which also finds where to look.

        Raises:
            InputError: no logits came out, or it is not clear which layer is the head.
        """
        if self._taps is None:
            return self._search(images)
        with self._taps.listening() as caught:
            logits = logits_of(self.network(images), len(images))
        if caught.features is None or (self._taps.map is not None and caught.spread is None):
            raise InputError(
                f"{type(self.network).__name__} took another way through its layers than in the first batch; features can "
                "only be read from a network that takes the same way for all images"
            )
        return Seen(caught.features, caught.spread, logits)

    def _search(self, images: Tensor) -> Seen:
        trace = _Trace(self._given)
        with trace.listening(module for module in self.network.modules() if module is not self.network):
            logits = logits_of(self.network(images), len(images))
        call = self._find_head(trace.calls, logits)
        features = _pooled(call.module, call.input)
        before = [passing for passing in reversed(trace.maps.values()) if passing.order < call.order]
        found = find_map(before, features, getattr(self.network, "num_prefix_tokens", None))
        if self._given is not None and _is_normalised(logits):
            warnings.warn(
                "the network's outputs look like probabilities, but are taken as logits: leave out its softmax",
                OutfieldWarning,
                stacklevel=2,
            )
        if bool(features.isfinite().all()):  # else the map cannot be told from others; the next batch may be better
            self._taps = _Taps(call.module, found[0] if found else None)
        return Seen(features, found[0].spread(found[1]) if found else None, logits)

    def _find_head(self, calls: list[_Call], logits: Tensor) -> _Call:
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
                f"({_linear_names(self.network)}), and leave out a softmax at the end"
            )
        return found[-1]


@dataclass
class _Caught:
    features: Tensor | None = None
    spread: Tensor | None = None
    passed: Tensor | None = None


class _Taps(NamedTuple):
    """The two places to look at."""

    head: nn.Module
    map: FeatureMap | None

    @contextlib.contextmanager
    def listening(self) -> Iterator[_Caught]:
        caught = _Caught()

        def at_map(tensor: Tensor | None) -> None:
            if self.map is not None and tensor is not None and tuple(tensor.shape[1:]) == self.map.shape:
                caught.passed = tensor

        def at_head(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensor = _first_tensor((*args, *kwargs.values()))
            caught.features = None if tensor is None else _pooled(module, _copied(tensor))
            if self.map is not None and caught.passed is not None:
                # Not when it passed by: an activation in place may come in between.
                caught.spread = self.map.spread(caught.passed)

        with contextlib.ExitStack() as hooks:
            if self.map is not None and self.map.is_input:
                hook = self.map.module.register_forward_pre_hook(
                    lambda module, args, kwargs: at_map(_first_tensor((*args, *kwargs.values()))), with_kwargs=True
                )
                hooks.callback(hook.remove)
            elif self.map is not None:
                hook = self.map.module.register_forward_hook(lambda module, args, output: at_map(_first_tensor(output)))
                hooks.callback(hook.remove)
            hooks.callback(self.head.register_forward_pre_hook(at_head, with_kwargs=True).remove)
            yield caught


class _Call(NamedTuple):
    order: int
    module: nn.Module
    input: Tensor
    output: Tensor | None = None


class _Trace:
    """What went through the modules in one pass: calls of what may be the head, and the latest maps, oldest first.

    Of linear layers only pooled inputs (of one position) are kept, and few maps, so that little memory is held.
    """

    def __init__(self, head: nn.Module | None) -> None:
        self.head = head
        self.calls: list[_Call] = []
        self.maps: dict[int, Passing] = {}
        self._order = 0

    @contextlib.contextmanager
    def listening(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        with contextlib.ExitStack() as hooks:
            for module in modules:
                hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(self._leave).remove)
            yield

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        tensor = _first_tensor((*args, *kwargs.values()))
        if tensor is not None:
            self._pass(module, True, tensor)
            if module is self.head or (self.head is None and _is_linear(module) and is_pooled(tensor)):
                self.calls.append(_Call(self._order, module, _copied(tensor)))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        tensor = _first_tensor(output)
        if tensor is not None:
            self._pass(module, False, tensor)
            if self.calls and self.calls[-1].module is module:
                self.calls[-1] = self.calls[-1]._replace(output=tensor)

    def _pass(self, module: nn.Module, is_input: bool, tensor: Tensor) -> None:
        self._order += 1
        if tensor.dim() in (3, 4) and not is_pooled(tensor):
            self.maps.pop(id(tensor), None)
            self.maps[id(tensor)] = Passing(self._order, module, is_input, tensor)
            if len(self.maps) > MAPS_KEPT:
                del self.maps[next(iter(self.maps))]


def _named_module(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        raise InputError(
            f"head is {name!r}, but {type(network).__name__} has no module of that name; {_linear_names(network)}"
        ) from error


def _linear_names(network: nn.Module) -> str:
    names = [name for name, module in network.named_modules() if name and _is_linear(module)]
    return f"its linear layers end with {', '.join(names[-4:])}" if names else "no linear layer can be seen in it"


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))


def _pooled(head: nn.Module, tensor: Tensor) -> Tensor:
    """The input of the head as features (N, D)."""
    if not is_pooled(tensor):
        raise InputError(
            f"the head {type(head).__name__} takes an input of shape {tuple(tensor.shape)}; features are (N, D): name a layer "
            "behind the pooling"
        )
    return tensor.flatten(1)


def _copied(tensor: Tensor) -> Tensor:
    """A copy in float32, which later operations in place do not reach."""
    return tensor.detach().to(torch.float32, copy=True)


def _first_tensor(values: Any) -> Tensor | None:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, tuple | list):
        return next((value for value in values if isinstance(value, Tensor)), None)
    return None


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
