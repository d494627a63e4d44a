"""A classifier in a file of ``torch.export`` as a module. PyTorch opens such a file, which can run code that is in it.

Unlike an ONNX file it runs wherever its tensors are, and gives gradients.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from outfield.backbone.onnx_network import FEATURES, LOGITS, ONE_INPUT, FileNetwork, Given, linear
from outfield.errors import InputError, as_ours
from outfield.files import open_to_read

# What may stand behind the last layer; logits are what goes in
PASSED = ("softmax", "log_softmax", "dropout", "dropout_", "detach", "alias", "clone", "to")
# What may stand between pooling and the last layer
RESHAPED = ("flatten", "view", "reshape", "squeeze", "dropout", "dropout_", "clone", "contiguous")
POOLED = ("adaptive_avg_pool2d", "mean")
# Which argument of an operator says that the network is being trained
TRAINING = {"batch_norm": 5, "dropout": 2, "dropout_": 2}


class ExportedNetwork(FileNetwork):
    """The network of an exported program; ``source`` is where it comes from, for errors."""

    def __init__(self, program: torch.export.ExportedProgram, source: str) -> None:
        module = program.module()
        graph = module.graph
        if program.graph_signature.buffers_to_mutate or any(_trains(node) for node in graph.nodes):
            raise InputError(f"{source} was exported in training mode; call eval() before torch.export.export")
        inputs = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            raise InputError(f"{source} has {len(inputs)} inputs; {ONE_INPUT}")
        shape = tuple(side if isinstance(side, int) else None for side in inputs[0].shape)
        super().__init__(shape, inputs[0].dtype == torch.float32, source)
        logits, features = _outputs(program, graph, source)
        self.head: nn.Module = Given()
        if features is None:
            features, logits, self.head = _last_layer(module, logits, source)
        wanted = [features, logits] if isinstance(self.head, Given) else [features]
        pooled = _map_before(features)
        if pooled is not None:
            self.map = nn.Identity()
        self.body = _giving(module, wanted if pooled is None else [*wanted, pooled])

    def _run(self, images: Tensor) -> tuple[Tensor, ...]:
        return cast(tuple[Tensor, ...], self.body(images))

    def extra_repr(self) -> str:
        """A digest of its steps: a fingerprint of the network has them in it."""
        return hashlib.sha256(self.body.code.encode()).hexdigest()


def read_program(path: Path, device: torch.device) -> ExportedNetwork:
    """The network of a file that ``torch.export.save`` wrote, which is unpickled and can run any code."""
    with open_to_read(path) as file, as_ours(f"{path} is no file of torch.export that this PyTorch can open"):
        program = torch.export.load(file)
        if device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)  # steps that make tensors name their device
    return ExportedNetwork(program, str(path))


def _outputs(program: torch.export.ExportedProgram, graph: fx.Graph, source: str) -> tuple[fx.Node, fx.Node | None]:
    """The logits, and the features where they are an output."""
    given: Any = next(iter(reversed(graph.nodes))).args[0]
    found = torch.utils._pytree.tree_unflatten(given, program.call_spec.out_spec)
    named = found if isinstance(found, Mapping) else {LOGITS: given[0]} if len(given) == 1 else {}
    if LOGITS not in named or set(named) - {FEATURES, LOGITS}:
        raise InputError(f"{source} gives {len(given)} outputs; give logits, or a dictionary with {FEATURES} too")
    return named[LOGITS], named.get(FEATURES)


def _name(node: Any) -> str:
    """The operator of a node, such as "linear"; nothing for a node that is none."""
    packet = getattr(getattr(node, "target", None), "overloadpacket", None)
    return "" if packet is None else str(packet.__name__)


def _trains(node: fx.Node) -> bool:
    place = TRAINING.get(_name(node))
    return place is not None and len(node.args) > place and node.args[place] is True


def _last_layer(module: fx.GraphModule, logits: fx.Node, source: str) -> tuple[fx.Node, fx.Node, nn.Linear]:
    """Features, logits, and the layer between them."""
    while _name(logits) in PASSED:
        logits = cast(fx.Node, logits.args[0])
    given = [node for node in logits.args if node is not None] if _name(logits) == "linear" else []
    stored = [_stored(module, node) for node in given[1:]]
    if not stored or any(value is None for value in stored):
        what = f"{source} does not end with a linear layer, so that its features are not known"
        raise InputError(f'{what}; export a module that returns {{"{FEATURES}": …, "{LOGITS}": …}}')
    return cast(fx.Node, given[0]), logits, linear(*cast(list[Tensor], stored))


def _stored(module: fx.GraphModule, node: Any) -> Tensor | None:
    """The tensor of the program that a node stands for."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found: Tensor = functools.reduce(getattr, str(node.target).split("."), cast(Any, module))
    return found.detach()


def _map_before(features: Any) -> fx.Node | None:
    """The map (N, C, H, W) whose mean the features may be."""
    node = features
    while _name(node) in RESHAPED:
        node = node.args[0]
    return cast(fx.Node, node.args[0]) if _name(node) in POOLED else None


def _giving(module: fx.GraphModule, wanted: list[fx.Node]) -> fx.GraphModule:
    """The program that gives these values, without the steps that they do not need and PyTorch's checks of the input."""
    graph = module.graph
    for node in graph.nodes:
        if node.op == "call_module" and not node.users:
            graph.erase_node(node)
        elif _name(node) == "view":
            node.target = torch.ops.aten.reshape.default  # which also takes what is laid out channels-last
    next(iter(reversed(graph.nodes))).args = (tuple(wanted),)
    graph.set_codegen(fx.graph.CodeGen())
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph).requires_grad_(False)
