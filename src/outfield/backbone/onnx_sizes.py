"""Whether the sizes of values in an ONNX graph depend on what is in an image: then no run of it tells what the next one takes."""

from __future__ import annotations

from typing import Any

from outfield.errors import InputError

DECIDING = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "Compress": (1,),
    "ConstantOfShape": (0,), "DFT": (1,), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "If": (0,),
    "MaxUnpool": (2,), "MelWeightMatrix": (0, 1), "NonMaxSuppression": (0, 1, 2, 3, 4), "NonZero": (0,), "OneHot": (1,),
    "Pad": (1,), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "STFT": (1, 3), "SequenceAt": (1,),
    "Slice": (1, 2, 3, 4), "Split": (1,), "SplitToSequence": (1,), "Tile": (1,), "TopK": (1,), "Unique": (0,), "Upsample": (1,),
}  # fmt: skip
"""Inputs of operators that decide how large the output is, or what is done. Other outputs are as large as inputs are."""
BLIND = ("Shape", "Size")
"""Operators that look at the size of an image and not at what is in it."""


def check_sizes(graph: Any, image: str, source: str) -> None:
    """Refuse a graph in which a size, or a branch, is decided by what is in an image.

    Raises:
        InputError: It is.
    """
    _follow(graph, {image}, source)


def _follow(graph: Any, seen: set[str], source: str) -> None:
    """Add to ``seen`` what depends on images; nodes are in the order of their work."""
    for node in graph.node:
        for place in DECIDING.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in seen:
                what = "which branch is taken" if node.op_type == "If" else "how large a value is"
                raise InputError(
                    f"in {source} what is in an image decides {what} ({node.op_type}), so that its work cannot be told; export "
                    "it with sizes that depend on the images' sizes alone"
                )
        inner = [one.g for one in node.attribute if one.HasField("g")]
        for one in inner:
            _follow(one, seen, source)
        given = [*node.input, *(output.name for one in inner for output in one.output)]
        if node.op_type not in BLIND and not seen.isdisjoint(given):
            seen.update(filter(None, node.output))
