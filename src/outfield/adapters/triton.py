"""A guard as a model of NVIDIA's Triton Inference Server: an ONNX file and its configuration in a repository; or an ensemble.

Network, detector and threshold are one graph, so that one model does it all; images are decoded, resized and cropped by the
client, as the parameter ``outfield.preprocessing`` of the configuration says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from outfield.adapters.graph import Written, about, new_folder, size_of
from outfield.adapters.onnx import to_onnx
from outfield.errors import InputError
from outfield.files import PathLike, as_path
from outfield.guard import Guard

TYPES = {"uint8": "UINT8", "float32": "FP32", "bool": "BOOL", "int64": "INT64"}
MOST_ROWS = 64  # images that the server may put together
BATCHING = "dynamic_batching {\n  max_queue_delay_microseconds: 1000\n}"
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
        found = _write_model(folder, guard, name, about(guard, takes), takes=takes)
        return found._replace(size=size_of(folder))


def _write_model(folder: Path, guard: Guard, name: str, said: Mapping[str, str], **how: str) -> Written:
    """``1/model.onnx``, by :func:`~outfield.adapters.onnx.to_onnx`, and ``config.pbtxt``."""
    (folder / "1").mkdir()
    found = to_onnx(guard, folder / "1" / "model.onnx", **how)
    text = configuration(name, found, said, ('backend: "onnxruntime"', BATCHING))
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    return found


def check_name(name: str) -> None:
    """Refuse a name that a model cannot have."""
    if not NAME.fullmatch(name):
        raise InputError(f"name is {name!r}; a model's name has letters, digits and _ . - only")


def configuration(name: str, found: Written, said: Mapping[str, str], how: Sequence[str]) -> str:
    """The text of ``config.pbtxt``: inputs and outputs as ``found``, parameters ``said``, and lines that say how it is run."""
    alone = not any("ensemble" in line for line in how)  # an ensemble hands on what its steps give
    inputs, outputs = (",\n".join(_tensor(one, alone) for one in values) for values in (found.inputs, found.outputs))
    lines = [
        f'name: "{name}"', f"max_batch_size: {MOST_ROWS}", f"input [\n{inputs}\n]", f"output [\n{outputs}\n]", *how,
    ]  # fmt: skip
    for key, text in said.items():
        quoted = json.dumps(text, ensure_ascii=False)
        lines.append(f'parameters {{\n  key: "{key}"\n  value {{ string_value: {quoted} }}\n}}')
    return "\n".join([*lines, ""])


def _tensor(shown: str, reshape: bool) -> str:
    """One input or output, without the number of rows; one number a row is a shape of its own to Triton."""
    name, kind, shape = shown.split(" ", 2)
    sides = shape.strip("[]").split(", ")[1:] or ["1"]
    dims = f"dims: [ {', '.join(sides)} ]"
    if reshape and ", " not in shape:
        dims += "\n    reshape { shape: [ ] }"
    return f'  {{\n    name: "{name}"\n    data_type: TYPE_{TYPES[kind]}\n    {dims}\n  }}'


def to_triton_ensemble(guard: Guard, repository: PathLike, name: str = "guard", *, takes: str = "pixels") -> Written:
    """Write a guard as three models of a Triton repository: ``NAME_network``, ``NAME_detector``, and the ensemble ``NAME``.

    See :func:`to_triton`; it takes "pixels" or "normalised".
    """
    check_name(name)
    if takes == "features":
        raise InputError("takes is 'features'; an ensemble takes images: 'pixels' or 'normalised'")
    home, names = as_path(repository), (f"{name}_network", f"{name}_detector")
    with (
        new_folder(home / name) as whole,  # which is put in its place last, when its steps are there
        new_folder(home / names[0]) as network,
        new_folder(home / names[1]) as detector,
    ):
        first = _write_model(network, guard, names[0], {}, takes=takes, gives="features")
        last = _write_model(detector, guard, names[1], {}, takes="features")
        label = [one for one in first.outputs if one.startswith("label ")]
        found = last._replace(inputs=first.inputs, outputs=(*last.outputs, *label))
        (whole / "1").mkdir()  # of a version, which holds nothing
        how = ('platform: "ensemble"', _scheduling({names[0]: first, names[1]: last}))
        text = configuration(name, found, about(guard, takes), how)
        (whole / "config.pbtxt").write_text(text, encoding="utf-8")
        return found._replace(size=sum(map(size_of, (whole, network, detector))))


def _scheduling(written: dict[str, Written]) -> str:
    """Which value of which step goes where; values are called as they are in the steps."""
    steps = []
    for model, found in written.items():
        lines = [f'      model_name: "{model}"', "      model_version: -1"]
        for kind, values in (("input", found.inputs), ("output", found.outputs)):
            names = (value.split(" ")[0] for value in values)
            lines += [f'      {kind}_map {{ key: "{name}" value: "{name}" }}' for name in names]
        steps.append("    {\n" + "\n".join(lines) + "\n    }")
    return "ensemble_scheduling {\n  step [\n" + ",\n".join(steps) + "\n  ]\n}"
