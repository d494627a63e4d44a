"""A guard as an ONNX file: image in, score, p-value, verdict and class out, for any number of images at once.

Resizing and cropping stay outside: the graph takes pixels of the network's size, and its metadata says how they are made.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outfield.adapters.graph import Traced, traced
from outfield.adapters.steps import STEPS, exact
from outfield.adapters.told import about
from outfield.adapters.written import Written
from outfield.errors import InputError
from outfield.extras import check_installed, library
from outfield.files.atomic import write_bytes
from outfield.files.paths import PathLike, check_output
from outfield.guard.guard import Guard

ENDINGS = (".onnx",)
LARGEST = 2**31 - 1
"""Bytes of a file with all of its numbers; those of a larger one lie beside it, since protobuf ends there."""
TOLERANCE = 1e-3
"""How far a score in ONNX Runtime may be from PyTorch's where it is tried, relative to the larger of it and one."""


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
    checked = check_output(path, ENDINGS)
    found = traced(guard, takes, gives)
    model = converted(found)
    for name, text in about(guard, takes).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, text
    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST - 2**24
    if large:
        return _write_large(checked, model, found)
    content = model.SerializeToString()
    apart = compared(content, found)
    write_bytes(checked, content)
    return _written(len(content), model, apart)


def converted(found: Traced) -> Any:
    """A traced guard as a model of ONNX.

    Raises:
        InputError: it has steps that ONNX lacks.
    """
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                exact(found.program, found.examples).run_decompositions(STEPS),
                input_names=list(found.inputs),
                output_names=list(found.outputs),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # of torch's exporter
        said = next((line for line in str(error).splitlines() if "No ONNX function" in line), str(error))
        raise InputError(f"this guard cannot be written as ONNX: {said:.300}") from error
    if program is None:
        raise InputError("this guard cannot be written as ONNX: PyTorch gave no model")
    model = program.model_proto
    _clean(model)
    return model


def compared(model: bytes | str, found: Traced) -> float:
    """How far ONNX Runtime's scores, or features, are from PyTorch's, each relative to the larger of it and one.

    Raises:
        InputError: too far, or it cannot run the model.
    """
    runtime = library("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given = {name: value.numpy() for name, value in zip(found.inputs, found.examples, strict=True)}
        scores = session.run([found.outputs[0]], given)[0]
    except Exception as error:  # of ONNX Runtime
        raise InputError(f"ONNX Runtime cannot run what was exported: {str(error).splitlines()[0]:.300}") from error
    wanted = found.expected[0].double().numpy()
    apart = float((np.abs(scores - wanted) / np.maximum(np.abs(wanted), 1)).max())
    if not apart <= TOLERANCE:
        raise InputError(
            f"ONNX Runtime gives scores {np.round(scores, 4).tolist()} where PyTorch gives {np.round(wanted, 4).tolist()}; "
            "nothing was written"
        )
    return apart


def _write_large(path: Path, model: Any, found: Traced) -> Written:
    """A model and a second file with its numbers, each written atomically, the numbers first."""
    onnx = library("onnx", extra="onnx")
    with tempfile.TemporaryDirectory(dir=path.resolve().parent, prefix=".outfield-") as folder:
        there = Path(folder) / path.name
        data = Path(folder) / f"{path.name}.data"
        onnx.save_model(model, str(there), save_as_external_data=True, location=data.name)
        apart = compared(str(there), found)
        size = there.stat().st_size + data.stat().st_size
        for file, target in ((data, path.with_name(data.name)), (there, path)):
            file.replace(target)
    return _written(size, model, apart)


def _clean(model: Any) -> None:
    """Leave out where in this machine's files each step was traced, and call the number of rows N."""
    del model.metadata_props[:]
    del model.graph.value_info[:]
    for entry in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del entry.metadata_props[:]
        entry.doc_string = ""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"


def _written(size: int, model: Any, apart: float) -> Written:
    opset = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    inputs, outputs = (tuple(map(_shown, values)) for values in (model.graph.input, model.graph.output))
    return Written(size, opset, inputs, outputs, apart)


def _shown(value: Any) -> str:
    onnx = library("onnx", extra="onnx")
    kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name
    sides = [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
    return f"{value.name} {kind} [{', '.join(sides)}]"
