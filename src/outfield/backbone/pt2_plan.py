"""What is to be known of a classifier in an exported program: what goes in, what comes out, and where its features are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor

from outfield.backbone.onnx_graph import FEATURES, LOGITS
from outfield.backbone.pt2_archive import ADVICE, Archive
from outfield.backbone.pt2_steps import Named, Step
from outfield.errors import FileFormatError, InputError, OutfieldError

PASSED = (
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "dropout",
    "dropout_",
    "detach",
    "alias",
    "clone",
    "to",
    "_to_copy",
)
"""What may stand behind the last layer; logits are what goes in."""
RESHAPED = ("flatten", "view", "reshape", "squeeze", "dropout", "dropout_", "clone", "contiguous", "_unsafe_view")
"""What may stand between pooling and the last layer."""
POOLED = ("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "mean")
TURNED = ("t", "numpy_T", "permute", "transpose")
STORED = ("parameter", "buffer", "tensor_constant")
KEYS = ("image", "shape", "tensors", "types", "nodes", "logits", "features")


@dataclass(frozen=True)
class Plan:
    """A program without its numbers.

    Attributes:
        image: name of its input.
        shape: of its input, (N, C, H, W); None where a size is free.
        tensors: names of weights and constants, and what they are called in the file.
        types: of each of them, as text: a file may keep them with fewer bits.
        nodes: the steps, as JSON.
        logits: name of the logits.
        features: name of the features, where they are an output.
    """

    image: str
    shape: tuple[int | None, ...]
    tensors: Mapping[str, str]
    types: Mapping[str, str]
    nodes: Sequence[Any]
    logits: str
    features: str | None

    def to_json(self) -> dict[str, Any]:
        """The same as a plain dictionary."""
        return {key: getattr(self, key) for key in KEYS}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` gave.

        Raises:
            ValueError: It is none.
        """
        if not isinstance(plain, dict) or set(plain) != set(KEYS) or not isinstance(plain["nodes"], list):
            raise ValueError("the plan of a network is broken")
        tables, names = (plain["tensors"], plain["types"]), (plain["image"], plain["logits"])
        good = all(isinstance(one, dict) for one in tables) and all(isinstance(one, str) for one in names)
        if not good or not isinstance(plain["features"], str | None):
            raise ValueError("the plan of a network is broken")
        shape = tuple(plain["shape"])
        if not is_of_images(shape):
            raise ValueError(f"the plan of a network is for an input of shape {str(shape)[:80]}")
        return cls(**{**plain, "shape": shape})


class Layer(NamedTuple):
    """The last layer: logits = features · weightᵀ + bias."""

    features: str
    logits: str
    weight: Tensor
    bias: Tensor | None


def is_of_images(shape: tuple[Any, ...]) -> bool:
    """Whether a shape is (N, C, H, W) with 3 channels or 1; None stands for a size that is free."""
    sizes = all(one is None or (type(one) is int and 0 < one < 2**31) for one in shape)
    return len(shape) == 4 and sizes and shape[1] in (1, 3)


def plan_of(archive: Archive, source: str) -> Plan:
    """Look through a program.

    Raises:
        InputError: It is no image classifier.
        FileFormatError: It is broken, or needs what is a pickle.
    """
    try:
        module = archive.program["graph_module"]
        graph, signature = module["graph"], module["signature"]
        image, tensors = _inputs(archive, signature, source)
        logits, features = _outputs(module, signature, source)
        nodes = [{key: node[key] for key in ("target", "inputs", "outputs")} for node in graph["nodes"]]
        about = graph["tensor_values"][image]
        shape = tuple(one.get("as_int") for one in about["sizes"])
    except OutfieldError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"the program in {source} is broken: {type(error).__name__}: {str(error)[:100]}"
        ) from error
    if not is_of_images(shape) or about.get("dtype") != 7:
        raise InputError(
            f"{source} takes an input of shape {str(shape)[:80]}; images are float32 of shape (N, C, H, W) with 3 channels or 1"
        )
    types = {name: str(archive.tensors[key].dtype) for name, key in tensors.items()}
    return Plan(image, shape, tensors, types, nodes, logits, features)


def _inputs(archive: Archive, signature: Mapping[str, Any], source: str) -> tuple[str, dict[str, str]]:
    """The name of the images, and of each stored tensor what it is called in the file."""
    images: list[str] = []
    tensors: dict[str, str] = {}
    for spec in signature["input_specs"]:
        ((kind, about),) = spec.items()
        if kind == "user_input" and "as_tensor" in about["arg"]:
            images.append(str(about["arg"]["as_tensor"]["name"]))
        elif kind in STORED and about[f"{kind}_name"] in archive.tensors:
            tensors[str(about["arg"]["name"])] = about[f"{kind}_name"]
        elif kind in STORED and about[f"{kind}_name"] in archive.pickled:
            raise FileFormatError(f"{about[f'{kind}_name']} of {source} is a pickle, which can run any code; {ADVICE}")
        else:
            raise InputError(
                f"{source} takes an input of the kind {kind[:40]!r}; a classifier takes images (N, C, H, W)"
            )
    if len(images) != 1:
        raise InputError(f"{source} has {len(images)} inputs; a classifier takes one, images (N, C, H, W)")
    return images[0], tensors


def _outputs(module: Mapping[str, Any], signature: Mapping[str, Any], source: str) -> tuple[str, str | None]:
    """Names of the logits, and of the features where they are an output."""
    found: list[str] = []
    for spec in signature["output_specs"]:
        ((kind, about),) = spec.items()
        if kind != "user_output":
            raise InputError(
                f"{source} changes its own state while it runs ({kind[:40]}); call eval() before torch.export.export"
            )
        found.append(str(about["arg"]["as_tensor"]["name"]))
    if len(found) == 1:
        return found[0], None
    spec = json.loads(module["module_call_graph"][0]["signature"]["out_spec"])[1]
    names = json.loads(spec["context"]) if spec.get("type") == "builtins.dict" else None
    if not isinstance(names, list) or sorted(map(str, names)) != [FEATURES, LOGITS] or len(found) != 2:
        raise InputError(
            f"{source} gives {len(found)} outputs; a classifier gives logits, or a dictionary of {FEATURES} and {LOGITS}"
        )
    by_name = dict(zip(names, found, strict=True))
    return by_name[LOGITS], by_name[FEATURES]


def last_layer(steps: Sequence[Step], logits: str, tensors: Mapping[str, Tensor], source: str) -> Layer:
    """The layer that makes the logits.

    Raises:
        InputError: It is no linear layer whose numbers are in the file.
    """
    makers = {name: step for step in steps for name in step.outputs}
    step = makers.get(logits)
    while step is not None and step.base in PASSED and step.args and isinstance(step.args[0], Named):
        logits = step.args[0].name
        step = makers.get(logits)
    found = None if step is None else _linear(step, makers, tensors)
    if found is None:
        raise InputError(
            f"{source} does not end with a linear layer, so that its features are not known; export a module that returns "
            f'{{"{FEATURES}": …, "{LOGITS}": …}}'
        )
    return Layer(found[0], logits, *found[1:])


def _linear(
    step: Step, makers: Mapping[str, Step], tensors: Mapping[str, Tensor]
) -> tuple[str, Tensor, Tensor | None] | None:
    """Features, weight (K, D) and bias of a step that is a linear layer."""
    given = [one.name if isinstance(one, Named) else None for one in step.args]
    if step.base == "linear" and 2 <= len(given) <= 3:
        rows, weight, bias = (*given, None)[:3]
        turned = False
    elif step.base == "addmm" and len(given) == 3 and not step.kwargs:
        bias, rows, weight = given
        turned = True
    elif step.base == "mm" and len(given) == 2:
        rows, weight, bias = (*given, None)
        turned = True
    else:
        return None
    maker = makers.get(weight or "")
    if turned and maker is not None and maker.base in TURNED and maker.args and isinstance(maker.args[0], Named):
        weight, turned = maker.args[0].name, False
    if rows is None or weight not in tensors or (bias is not None and bias not in tensors):
        return None
    found = tensors[str(weight)].T if turned and tensors[str(weight)].dim() == 2 else tensors[str(weight)]
    if found.dim() != 2 or 0 in found.shape or (bias is not None and tensors[bias].shape != found.shape[:1]):
        return None
    return rows, found.float(), None if bias is None else tensors[bias].float()


def map_before(steps: Sequence[Step], features: str) -> str | None:
    """The name of the map (N, C, H, W) whose mean the features may be."""
    makers = {name: step for step in steps for name in step.outputs}
    step = makers.get(features)
    while step is not None and step.args and isinstance(step.args[0], Named):
        if step.base in POOLED:
            return step.args[0].name
        step = makers.get(step.args[0].name) if step.base in RESHAPED else None
    return None
