"""A guard as an ensemble of NVIDIA's Triton Inference Server: the network, then the detector, each a model of its own.

One graph does the same with less (:mod:`outfield.adapters.triton`). An ensemble is for servers where the network is a model
already, or where several detectors judge what one network gives.
"""

from __future__ import annotations

from outfield.adapters.onnx import to_onnx
from outfield.adapters.told import about
from outfield.adapters.triton import BATCHES, check_name, configuration
from outfield.adapters.written import Written, new_folder, size_of
from outfield.errors import InputError
from outfield.files.paths import PathLike, as_path
from outfield.guard.guard import Guard

NETWORK, DETECTOR = "network", "detector"
"""The steps, whose models are called NAME_network and NAME_detector."""


def to_triton_ensemble(guard: Guard, repository: PathLike, name: str = "guard", *, takes: str = "pixels") -> Written:
    """Write a guard as three models of a Triton repository: ``NAME_network``, ``NAME_detector``, and the ensemble ``NAME``.

    Args:
        guard: on the CPU.
        repository: a folder; other models in it stay as they are.
        name: of the ensemble.
        takes: "pixels" or "normalised", see :func:`outfield.adapters.onnx.to_onnx`.

    Raises:
        InputError: the guard cannot be exported, the name cannot be, or such a model is there already.
        StorageError: a folder could not be written.
    """
    check_name(name)
    if takes == "features":
        raise InputError("takes is 'features'; an ensemble takes images: 'pixels' or 'normalised'")
    home = as_path(repository)
    models = {step: f"{name}_{step}" for step in (NETWORK, DETECTOR)}
    with (
        new_folder(home / name) as whole,  # which is put in its place last, when its steps are there
        new_folder(home / models[NETWORK]) as network,
        new_folder(home / models[DETECTOR]) as detector,
    ):
        written = {}
        for step, folder, how in (
            (NETWORK, network, {"takes": takes, "gives": "features"}),
            (DETECTOR, detector, {"takes": "features"}),
        ):
            (folder / "1").mkdir()
            written[step] = to_onnx(guard, folder / "1" / "model.onnx", **how)
            text = configuration(models[step], written[step], {}, ('backend: "onnxruntime"', *BATCHES))
            (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        label = [one for one in written[NETWORK].outputs if one.startswith("label ")]
        apart = written[DETECTOR].apart
        found = Written(
            0, written[DETECTOR].opset, written[NETWORK].inputs, (*written[DETECTOR].outputs, *label), apart
        )
        (whole / "1").mkdir()  # of a version, which holds nothing
        text = configuration(name, found, about(guard, takes), ('platform: "ensemble"', _scheduling(models, written)))
        (whole / "config.pbtxt").write_text(text, encoding="utf-8")
        return found._replace(size=sum(map(size_of, (whole, network, detector))))


def _scheduling(models: dict[str, str], written: dict[str, Written]) -> str:
    """Which value of which step goes where; values are called as they are in the steps."""
    steps = []
    for step in (NETWORK, DETECTOR):
        maps = [
            f'      {kind}_map {{ key: "{one}" value: "{one}" }}'
            for kind, values in (("input", written[step].inputs), ("output", written[step].outputs))
            for one in (value.split(" ")[0] for value in values)
        ]
        lines = [f'      model_name: "{models[step]}"', "      model_version: -1", *maps]
        steps.append("    {\n" + "\n".join(lines) + "\n    }")
    return "ensemble_scheduling {\n  step [\n" + ",\n".join(steps) + "\n  ]\n}"
