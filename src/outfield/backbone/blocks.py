"""The blocks of a network, whose outputs are its stages: which modules they are, and how each output is pooled.

Nothing is known of the network but its tree of modules and what they gave in one pass. From the network itself the search goes
down into the part that holds the others (the ``blocks`` of a vision transformer, the ``features`` of torchvision) until there
are several of about the same depth: layer1 … layer4 of a ResNet, the blocks of a transformer. Where there are only single
layers, as in VGG, a block is a convolution with what follows it up to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outfield.backbone.feature_maps import FeatureMap, is_close, tolerance
from outfield.features.fields import MOST_STAGES


@dataclass(frozen=True)
class Output:
    """What one module gave in the first pass: pooled in every way that its map can be read.

    Attributes:
        order: when, among all events of the pass.
        ways: how the map may be read, with the mean over its positions (N, D), on the CPU.
        exact: whether the map was in full precision.
    """

    order: int
    ways: tuple[tuple[FeatureMap, Tensor], ...]
    exact: bool


@dataclass(frozen=True)
class Block:
    """A module whose pooled output is a stage.

    Attributes:
        name: dotted, in the network.
        place: how its output is read.
        pooled: mean over positions (N, D) in the first pass.
    """

    name: str
    place: FeatureMap
    pooled: Tensor


def read_output(order: int, module: nn.Module, tensor: Tensor, rows: int, prefix_tokens: int | None) -> Output | None:
    """What a module gave, pooled; None if it is no map: (N, C, H, W), (N, H, W, C) or tokens (N, T, C) of all images."""
    if tensor.dim() not in (3, 4) or len(tensor) != rows or 0 in tensor.shape or not tensor.is_floating_point():
        return None
    shape = tuple(tensor.shape[1:])
    if tensor.dim() == 4:
        places = [FeatureMap(module, False, shape, channels) for channels in (1, 3)]
    else:
        skips = (0, 1) if prefix_tokens is None else (prefix_tokens,)
        places = [FeatureMap(module, False, shape, 2, skipped) for skipped in skips if skipped < shape[0]]
    ways = tuple((place, place.mean(tensor).cpu()) for place in places)
    return Output(order, ways, tensor.dtype in (torch.float32, torch.float64)) if ways else None


def find_blocks(
    network: nn.Module, outputs: Mapping[nn.Module, Output], last_map: FeatureMap | None, features: Tensor
) -> list[Block]:
    """The blocks of a network in the order in which they ran, at most :data:`MOST_STAGES`, evenly spread where there are more.

    Args:
        network: the network.
        outputs: what its modules gave in one pass, before the head.
        last_map: how the last feature map is read, if there is one; tokens that are no positions are left out as there.
        features: (N, D); a last block whose mean they are is no stage.
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
