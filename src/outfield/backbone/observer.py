"""Looking into a network while it runs: the input of its last linear layer, its last feature map and its blocks, by hooks.

The network's code is not touched. Where to look is found in the first batch, in which the inputs and outputs of all modules are
watched; later batches are watched at those places only.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from outfield.backbone.blocks import Block, find_blocks
from outfield.backbone.feature_maps import find_map, is_close, tolerance
from outfield.backbone.watching import Call, Taps, Trace, copied, first_tensor, is_linear, pooled_input
from outfield.errors import InputError, OutfieldWarning


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
    return found.dim() == 2 and found.shape[0] == rows and found.shape[1] > 0 and found.is_floating_point()


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
        if self._taps is None:
            return
        kept = [pair for pair in zip(self._numbers, self._taps.stages, strict=True) if pair[0] in stages]
        self._numbers = tuple(number for number, _ in kept)
        places = tuple(place for _, place in kept)
        self._taps = self._taps._replace(map=self._taps.map if spread else None, stages=places)

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
        hook = self._taps.head.register_forward_pre_hook(
            lambda module, args, kwargs: found.append(first_tensor((*args, *kwargs.values()))), with_kwargs=True
        )
        try:
            logits_of(self.network(images), len(images))
        finally:
            hook.remove()
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
            self._check_stages(blocks)
        self._taps = Taps(call.module, found[0] if found else None, tuple(block.place for block in blocks))
        self.stage_names = tuple(block.name for block in blocks)
        self._numbers = tuple(range(1, len(blocks) + 1))
        self.last_layer = _layer(call.module, features, logits)
        return Seen(
            features, spread, logits, {i: block.pooled.to(features.device) for i, block in enumerate(blocks, 1)}
        )

    def _check_stages(self, blocks: list[Block]) -> None:
        if not blocks:
            raise InputError(
                f"no stages were found in {type(self.network).__name__}: besides the features, no block of it gives a map "
                "(N, C, H, W) or tokens (N, T, C); extract without --stages, in Python stages=False"
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
