"""Steps of a traced graph that ONNX lacks, or that PyTorch's exporter rounds, by others that keep their precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from outfield.errors import InputError

ATEN = torch.ops.aten
SAME = {ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.mul.Tensor, ATEN.div.Tensor}
"""Steps that take a tensor where they take a number."""
OTHERS = {
    ATEN.gt.Scalar: ATEN.gt.Tensor,
    ATEN.ge.Scalar: ATEN.ge.Tensor,
    ATEN.lt.Scalar: ATEN.lt.Tensor,
    ATEN.le.Scalar: ATEN.le.Tensor,
    ATEN.where.ScalarOther: ATEN.where.self,
    ATEN.where.ScalarSelf: ATEN.where.self,
}
"""Steps that have another name where they take a tensor."""


LIMITS: dict[Any, tuple[bool, ...]] = {
    ATEN.clamp_min.default: (True,),
    ATEN.clamp_max.default: (False,),
    ATEN.clamp.default: (True, False),
}
"""Steps that cut off: whether each of their numbers is a lower limit."""


def open_rows(examples: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """What ``torch.export.export`` takes to leave the number of rows, the same of all examples, open."""
    rows = torch.export.Dim("N", min=1, max=2**30)
    return tuple({0: rows} for _ in examples)


def exact(program: Any, examples: tuple[Tensor, ...]) -> Any:
    """The same ``ExportedProgram`` with constants where numbers meet float64: PyTorch's exporter rounds numbers to float32.

    0.1 would be 1e-8 off, and the smallest float64, which keeps a row of zeros from being divided by 0, would be 0.

    Args:
        program: what was traced.
        examples: what it was traced with.
    """
    module = _module(program)
    constants: dict[float, fx.Node] = {}
    first = next(iter(module.graph.nodes))
    for node in list(module.graph.nodes):
        numbers: list[float] = [float(one) for one in node.args if _is_number(node, one)]
        if node.op != "call_function" or not any(map(_is_rounded, numbers)) or not _is_wide(node):
            continue
        for number in numbers:
            if number not in constants:
                name = f"number_{len(constants)}"
                module.register_buffer(name, torch.tensor(number, dtype=torch.float64))
                with module.graph.inserting_before(first):
                    constants[number] = module.graph.get_attr(name)
        _replace(node, constants)
    module.graph.lint()
    module.recompile()
    return torch.export.export(module, examples, dynamic_shapes=open_rows(examples), strict=False)


def _module(program: Any) -> fx.GraphModule:
    try:
        module: fx.GraphModule = program.module(check_guards=False)
    except TypeError:  # PyTorch before 2.9 checks nothing
        module = program.module()
    return module


def _is_number(node: fx.Node, one: Any) -> bool:
    """Whether an argument becomes a constant; whole numbers only where both limits must be tensors."""
    return isinstance(one, float) or (node.target in LIMITS and isinstance(one, int))


def _is_rounded(number: float) -> bool:
    return number == number and float(torch.tensor(number, dtype=torch.float32)) != number


def _is_wide(node: fx.Node) -> bool:
    given = [one.meta.get("val") for one in node.all_input_nodes]
    return any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in given)


def _replace(node: fx.Node, constants: dict[float, fx.Node]) -> None:
    target: Any = node.target
    given: tuple[Any, ...] = node.args
    args = tuple(constants[float(one)] if _is_number(node, one) else one for one in given)
    if target is ATEN.rsub.Scalar and len(args) == 2:
        node.target, node.args = ATEN.sub.Tensor, (args[1], args[0])
    elif target in LIMITS:
        _limit(node, args)
    elif target in SAME or target in OTHERS:
        node.target, node.args = OTHERS.get(target, target), args


def _limit(node: fx.Node, args: tuple[Any, ...]) -> None:
    """Cut off by comparisons, as ``where(x < limit, limit, x)``: the exporter breaks graphs of several minima and maxima."""
    value, *limits = args
    known = [pair for pair in zip(LIMITS[node.target], limits, strict=False) if pair[1] is not None]
    with node.graph.inserting_before(node):
        for number, (lower, limit) in enumerate(known, 1):
            compare = ATEN.lt.Tensor if lower else ATEN.gt.Tensor
            beyond = node.graph.call_function(compare, (value, limit))
            if number < len(known):
                value = node.graph.call_function(ATEN.where.self, (beyond, limit, value))
    node.target, node.args = ATEN.where.self, (beyond, limit, value)


def _log1p(x: Tensor) -> Tensor:
    """log(1 + x) with its full relative precision near 0, which ONNX has no step for (Kahan): x log(u) / (u − 1), u = 1 + x."""
    u = 1 + x
    rounds = u == 1
    return torch.where(rounds, x, x * u.log() / torch.where(rounds, 1.0, u - 1))


def _expm1(x: Tensor) -> Tensor:
    """exp(x) − 1 likewise: (u − 1) x / log(u), u = exp(x)."""
    u = x.exp()
    rounds = (u == 1) | (u == 0) | u.isinf()
    return torch.where(rounds, torch.where(u == 1, x, u - 1), (u - 1) * x / torch.where(rounds, 1.0, u.log()))


def _sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """ONNX's TopK puts the first of equal numbers first."""
    found = torch.topk(x, x.shape[dim], dim, descending, True)
    return found.values, found.indices


def _argsort(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim=dim, descending=descending)[1]


def _cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Euclidean distances, by one product in float64."""
    if p != 2:
        raise InputError(f"distances of power {p} cannot be written as ONNX")
    x, y = a.double(), b.double()
    squares = x.square().sum(-1, keepdim=True) + y.square().sum(-1)[..., None, :] - 2 * (x @ y.mT)
    return squares.clamp_min(0.0).sqrt().to(a.dtype)


STEPS = {
    ATEN.cdist.default: _cdist,
    ATEN.log1p.default: _log1p,
    ATEN.expm1.default: _expm1,
    ATEN.sort.stable: _sort,
    ATEN.argsort.stable: _argsort,
}
"""Functions in the place of steps, for ``ExportedProgram.run_decompositions``."""
