"""A guard as an ONNX file, or one of ``torch.export``: images in, score, p-value, verdict and class of each out.

Resizing and cropping stay outside: the graph takes pixels of the network's size, and its metadata says how they are made. Steps
that ONNX lacks, or that PyTorch's exporter rounds, are replaced by others that keep their precision: the second half here.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from outfield.adapters.graph import Traced, Written, about, open_rows, size_of, traced
from outfield.errors import InputError, as_ours
from outfield.extras import check_installed, library
from outfield.files import PathLike, check_output, write_atomically, write_bytes
from outfield.guard import Guard

# Bytes of a file with all of its numbers; protobuf ends there, and those of a larger one lie beside it
LARGEST = 2**31 - 1
# How far a score may be from the guard's where it is tried, relative to the larger of it and one.
TOLERANCE = {"ONNX Runtime": 1e-3, "torch.export": 1e-4}
SAID = "outfield.json"  # inside of a ``.pt2``: ``torch.export.load(path, extra_files={"outfield.json": ""})``


def to_onnx(guard: Guard, path: PathLike, *, takes: str = "pixels", gives: str = "verdicts") -> Written:
    """Write a guard as an ONNX file, atomically, once ONNX Runtime has given the scores that PyTorch gives.

    Args:
        guard: on the CPU.
        path: ``.onnx``; numbers of more than 2 GB go to a second file, ``.onnx.data``.
        takes: "pixels" for bytes (N, h, w, C) of the network's size, "normalised" for floats (N, C, h, w), or "features" for the
            fields that the detector scores, without the network.
        gives: "verdicts" for score, p-value, verdict and class, or "features" for the fields that the detector scores and the
            class: the network without the detector.

    Raises:
        InputError: the guard cannot be exported, or the path has another ending.
        MissingExtraError: onnx, onnxscript or ONNX Runtime are not installed.
        StorageError: the file could not be written; what was there stays.
    """
    check_installed("onnx", "onnx", "onnxscript", "onnxruntime")
    checked = check_output(path, (".onnx",))
    found = traced(guard, takes, gives)
    model = converted(found)
    library("onnx.helper", extra="onnx").set_model_props(model, about(guard, takes))
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST - 2**24:
        return _write_large(checked, model, found)
    content = model.SerializeToString()
    apart = compared(content, found)
    write_bytes(checked, content)
    return _written(len(content), found, apart, model)


def to_pt2(guard: Guard, path: PathLike, *, takes: str = "pixels") -> Written:
    """Write a guard as a ``torch.export.ExportedProgram``, atomically.

    ``torch.export.load(path).module()(pixels)`` gives score, p-value, verdict and class. PyTorch reads such files with pickle:
    load only those that you trust.

    Args:
        guard: on the CPU.
        path: ``.pt2``.
        takes: see :func:`to_onnx`.

    Raises:
        InputError: the guard cannot be exported, or the path has another ending.
        StorageError: the file could not be written; what was there stays.
    """
    checked = check_output(path, (".pt2",))
    found = traced(guard, takes)
    for node in found.program.graph.nodes:
        node.meta.pop("stack_trace", None)  # places in this machine's files
    apart = difference(found.program.module()(*found.examples)[0], found, "torch.export")
    said = {SAID: json.dumps(about(guard, takes))}
    write_atomically(checked, lambda file: torch.export.save(found.program, file, extra_files=said))
    return _written(checked.stat().st_size, found, apart)


def _written(size: int, found: Traced, apart: float, model: Any = None) -> Written:
    imports = () if model is None else model.opset_import
    opset = next((one.version for one in imports if one.domain in ("", "ai.onnx")), None)
    inputs, outputs = map(_told, found.inputs, found.examples), map(_told, found.outputs, found.expected)
    return Written(size, opset, tuple(inputs), tuple(outputs), apart)


def _told(name: str, value: Tensor) -> str:
    return f"{name} {str(value.dtype).removeprefix('torch.')} [{', '.join(['N', *map(str, value.shape[1:])])}]"


def difference(scores: Tensor, found: Traced, runner: str) -> float:
    """How far scores, or features, of the examples are from PyTorch's, relative to the larger of each and one."""
    scores, wanted = scores.double(), found.expected[0].double()
    apart = float(((scores - wanted).abs() / wanted.abs().clamp_min(1)).max())
    if not apart <= TOLERANCE[runner]:
        said = f"{runner} gives scores {scores.tolist()!s:.300} where the guard gives {wanted.tolist()!s:.300}"
        raise InputError(f"{said}; nothing was written")
    return apart


def converted(found: Traced) -> Any:
    """A traced guard as a model of ONNX."""
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                exact(found.program, found.examples).run_decompositions(STEPS), input_names=list(found.inputs),
                output_names=list(found.outputs), dynamo=True, verbose=False,
            )  # fmt: skip
    except Exception as error:  # of torch's exporter
        said = next((line for line in str(error).splitlines() if "No ONNX function" in line), str(error))
        raise InputError(f"this guard cannot be written as ONNX: {said:.300}") from error
    assert program is not None  # as torch.onnx.export with dynamo=True promises
    model = program.model_proto
    _clean(model)
    return model


def compared(model: bytes | str, found: Traced) -> float:
    """The :func:`difference` of ONNX Runtime's scores, or features."""
    runtime = library("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    with as_ours("ONNX Runtime cannot run what was exported", InputError):
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given = {name: value.numpy() for name, value in zip(found.inputs, found.examples, strict=True)}
        scores = session.run([found.outputs[0]], given)[0]
    return difference(torch.from_numpy(scores), found, "ONNX Runtime")


def _write_large(path: Path, model: Any, found: Traced) -> Written:
    """A model and a second file with its numbers, each written atomically, the numbers first."""
    onnx = library("onnx", extra="onnx")
    with tempfile.TemporaryDirectory(dir=path.resolve().parent, prefix=".outfield-") as folder:
        made = Path(folder) / path.name
        onnx.save_model(model, str(made), save_as_external_data=True, location=f"{path.name}.data")
        apart, size = compared(str(made), found), size_of(made.parent)
        for file in sorted(made.parent.iterdir(), reverse=True):  # the numbers first
            file.replace(path.with_name(file.name))
    return _written(size, found, apart, model)


def _clean(model: Any) -> None:
    """Leave out where in this machine's files each step was traced, and call the number of rows N."""
    del model.graph.value_info[:]
    for entry in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del entry.metadata_props[:]
        entry.doc_string = ""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"


ATEN = torch.ops.aten
SAME = {ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.mul.Tensor, ATEN.div.Tensor}  # take a tensor where they take a number
OTHERS = {  # have another name where they take a tensor
    ATEN.gt.Scalar: ATEN.gt.Tensor, ATEN.ge.Scalar: ATEN.ge.Tensor, ATEN.lt.Scalar: ATEN.lt.Tensor,
    ATEN.le.Scalar: ATEN.le.Tensor, ATEN.where.ScalarOther: ATEN.where.self, ATEN.where.ScalarSelf: ATEN.where.self,
}  # fmt: skip
LIMITS: dict[Any, tuple[bool, ...]] = {  # cut off: whether each of their numbers is a lower limit
    ATEN.clamp_min.default: (True,), ATEN.clamp_max.default: (False,), ATEN.clamp.default: (True, False),
}  # fmt: skip


def exact(program: Any, examples: tuple[Tensor, ...]) -> Any:
    """The same ``ExportedProgram`` with constants where numbers meet float64: PyTorch's exporter rounds numbers to float32.

    0.1 would be 1e-8 off, and the smallest float64, which keeps a row of zeros from being divided by 0, would be 0.
    """
    try:
        module: fx.GraphModule = program.module(check_guards=False)
    except TypeError:  # PyTorch before 2.9 checks nothing
        module = program.module()
    constants: dict[float, fx.Node] = {}
    first = next(iter(module.graph.nodes))
    for node in list(module.graph.nodes):
        numbers: list[float] = [float(one) for one in node.args if _is_number(node, one)]
        rounded = any(one == one and float(torch.tensor(one, dtype=torch.float32)) != one for one in numbers)
        wide = any(getattr(one.meta.get("val"), "dtype", None) == torch.float64 for one in node.all_input_nodes)
        if node.op != "call_function" or not rounded or not wide:
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


def _is_number(node: fx.Node, one: Any) -> bool:
    """Whether an argument becomes a constant; whole numbers only where both limits must be tensors."""
    return isinstance(one, float) or (node.target in LIMITS and isinstance(one, int))


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


STEPS = {  # functions in the place of steps, for ``ExportedProgram.run_decompositions``
    ATEN.cdist.default: _cdist, ATEN.log1p.default: _log1p, ATEN.expm1.default: _expm1, ATEN.sort.stable: _sort,
    ATEN.argsort.stable: _argsort,
}  # fmt: skip
