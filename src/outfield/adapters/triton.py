"""A guard as a model of NVIDIA's Triton Inference Server: an ONNX file and its configuration, in a model repository.

Network, detector and threshold are one graph, so that one model does it all; images are decoded, resized and cropped by whoever
asks, as the parameter ``outfield.preprocessing`` of the configuration says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from outfield.adapters.onnx import to_onnx
from outfield.adapters.told import about
from outfield.adapters.written import Written, new_folder, size_of
from outfield.errors import InputError
from outfield.files.paths import PathLike, as_path
from outfield.guard.guard import Guard

TYPES = {"uint8": "UINT8", "float32": "FP32", "bool": "BOOL", "int64": "INT64"}
MOST_ROWS = 64
"""Images that the server may put together."""
DELAY = 1000
"""Microseconds that it waits for more."""
BATCHES = (f"dynamic_batching {{\n  max_queue_delay_microseconds: {DELAY}\n}}",)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def to_triton(guard: Guard, repository: PathLike, name: str = "guard", *, takes: str = "pixels") -> Written:
    """Write a guard as a model of a Triton repository: ``NAME/config.pbtxt`` and ``NAME/1/model.onnx``.

    Args:
        guard: on the CPU.
        repository: a folder; other models in it stay as they are.
        name: of the model.
        takes: see :func:`outfield.adapters.onnx.to_onnx`.

    Raises:
        InputError: the guard cannot be exported, the name cannot be, or such a model is there already.
        StorageError: the folder could not be written.
    """
    check_name(name)
    with new_folder(as_path(repository) / name) as folder:
        (folder / "1").mkdir()
        found = to_onnx(guard, folder / "1" / "model.onnx", takes=takes)
        text = configuration(name, found, about(guard, takes), ('backend: "onnxruntime"', *BATCHES))
        (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        size = size_of(folder)
    return found._replace(size=size)


def check_name(name: str) -> None:
    """Whether a model can have a name.

    Raises:
        InputError: it cannot.
    """
    if not NAME.fullmatch(name):
        raise InputError(f"name is {name!r}; a model's name has letters, digits and _ . - only")


def configuration(name: str, found: Written, said: Mapping[str, str], how: Sequence[str]) -> str:
    """The text of ``config.pbtxt``.

    Args:
        name: of the model.
        found: what goes in and what comes out.
        said: parameters.
        how: it is run, as lines.
    """
    alone = not any("ensemble" in line for line in how)  # an ensemble hands on what its steps give
    inputs, outputs = (",\n".join(_tensor(one, alone) for one in values) for values in (found.inputs, found.outputs))
    lines = [
        f'name: "{name}"',
        f"max_batch_size: {MOST_ROWS}",
        f"input [\n{inputs}\n]",
        f"output [\n{outputs}\n]",
        *how,
    ]
    for key, text in said.items():
        lines.append(f'parameters {{\n  key: "{key}"\n  value {{ string_value: {_quoted(text)} }}\n}}')
    return "\n".join([*lines, ""])


def _tensor(shown: str, reshape: bool) -> str:
    """One input or output, without the number of rows; one number a row is a shape of its own to Triton."""
    name, kind, shape = shown.split(" ", 2)
    sides = shape.strip("[]").split(", ")[1:] or ["1"]
    dims = f"dims: [ {', '.join(sides)} ]"
    if reshape and ", " not in shape:
        dims += "\n    reshape { shape: [ ] }"
    return f'  {{\n    name: "{name}"\n    data_type: TYPE_{TYPES[kind]}\n    {dims}\n  }}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
