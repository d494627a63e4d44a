"""The maps that a network makes on its way: the last one before the features, and those of its blocks, which are its stages.

Nothing is known of the network but its tree of modules and what they gave in one pass. For the blocks, the search goes from the
network itself down into the part that holds the others (the ``blocks`` of a vision transformer, the ``features`` of
torchvision) until there are several of about the same depth: layer1 … layer4 of a ResNet, the blocks of a transformer. Where
there are only single layers, as in VGG, a block is a convolution with what follows it up to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from outfield.features import MOST_STAGES


def unchanged(tensor: Tensor) -> Tensor:
    """The tensor itself."""
    return tensor


# What a network may do, outside of any module, to its last feature map before it is pooled
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (unchanged, functional.relu, functional.silu, functional.gelu)


@dataclass(frozen=True)
class FeatureMap:
    """Where a feature map passes by, and how it is read.

    ``shape`` is that of one image's map, ``channels`` the axis of the D channels: all others but the first are positions. The
    first ``skipped`` tokens are no positions of the image.
    """

    module: nn.Module
    is_input: bool
    shape: tuple[int, ...]
    channels: int
    skipped: int = 0
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


class Passing(NamedTuple):
    """A tensor that went into or out of a module; ``order`` counts such events."""

    order: int
    module: nn.Module
    is_input: bool
    tensor: Tensor


def find_map(
    passing: Iterable[Passing], features: Tensor, prefix_tokens: int | None
) -> tuple[FeatureMap, Tensor] | None:
    """The latest map whose mean is the features, perhaps after an activation; else the latest as wide as they are."""
    possible = []
    for _, module, is_input, tensor in passing:
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


def read_output(order: int, module: nn.Module, tensor: Tensor, rows: int, prefix_tokens: int | None) -> Output | None:
    """What a module gave, pooled; None if it is no map: (N, C, H, W), (N, H, W, C) or tokens (N, T, C) of all images."""
    if tensor.dim() not in (3, 4) or len(tensor) != rows or 0 in tensor.shape or not tensor.is_floating_point():
        return None
    places = _readings(module, False, tensor, (0, 1) if prefix_tokens is None else (prefix_tokens,))
    ways = tuple((place, place.mean(tensor).cpu()) for place in places)
    return Output(order, ways, tensor.dtype in (torch.float32, torch.float64)) if ways else None


def find_blocks(
    network: nn.Module, outputs: Mapping[nn.Module, Output], last_map: FeatureMap | None, features: Tensor
) -> list[Block]:
    """The blocks of a network in the order in which they ran, at most :data:`MOST_STAGES`, evenly spread where there are more.

    Tokens that are no positions are left out as in the last feature map; a last block whose mean the features are is no stage.
    """
    names = {module: name for name, module in network.named_modules()}
    read = {module: (*_way(module, output, last_map), tolerance(output.exact)) for module, output in outputs.items()}
    here = features.detach().float().cpu()
    same = {module for module, (_, pooled, within) in read.items() if is_close(pooled, here, within)}
    # What has one position only and is the features may belong to the head, such as layers in front of the last.
    heads = {module for module in same if max(read[module][0].shape) == math.prod(read[module][0].shape)}
    found = [Block(names[module], *read[module][:2]) for module in _trunk(network, outputs, heads)]
    if found and found[-1].place.module in same:
        del found[-1]
    count = min(len(found), MOST_STAGES)
    return [found[-(-(i + 1) * len(found) // count) - 1] for i in range(count)]


def _trunk(network: nn.Module, outputs: Mapping[nn.Module, Output], heads: Set[nn.Module]) -> list[nn.Module]:
    """The modules that are blocks, in the order in which they ran; a last one may be in ``heads``."""
    inside = network
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
    """The axis of the channels, 1 or 3: the one whose size is that of a weight; else maps are square; else as in the last map."""
    sizes = {len(weight) for weight in module.parameters() if weight.dim()}
    if (shape[0] in sizes) != (shape[2] in sizes):
        return 1 if shape[0] in sizes else 3
    if (shape[0] == shape[1]) != (shape[1] == shape[2]):
        return 1 if shape[1] == shape[2] else 3
    return last_map.channels if last_map is not None and len(last_map.shape) == 3 else 1
