"""An image classifier in a folder as transformers writes it: config.json, model.safetensors and preprocessor_config.json.

Nothing is downloaded, nothing is unpickled, and no code of the folder is run: its configuration names one of the architectures of
transformers, and its weights are safetensors.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from outfield.backbone.architectures import first_line, load_weights
from outfield.backbone.preprocessing import Preprocessing
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError
from outfield.extras import library
from outfield.files import open_to_read, reason
from outfield.modes import building

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def read_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The network on the CPU, in float32 and evaluation mode, and its configuration."""
    config = checked_config(read_json(folder / CONFIG), str(folder))
    if not any((folder / name).is_file() for name in WEIGHTS):
        what = f"cannot read {folder / WEIGHTS[0]}: there is no such file"
        raise StorageError(f"{what}; weights must be safetensors, as model.save_pretrained(folder) writes them")
    auto = library("transformers", extra="hf").AutoModelForImageClassification
    options = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    try:
        with building():
            network, found = auto.from_pretrained(str(folder), output_loading_info=True, **options)
    except Exception as error:  # each of hundreds of models may refuse in its own way
        raise FileFormatError(f"{folder} holds no network that transformers can build: {first_line(error)}") from error
    lacking = sorted(map(str, found.get("missing_keys", ()))) + sorted(map(str, found.get("mismatched_keys", ())))
    if lacking:
        raise FileFormatError(f"the weights in {folder} do not fit its configuration: {', '.join(lacking[:3])}")
    # Built once more of its tensors, as a file that carries it will do: what from_pretrained adds to its modules is left behind.
    again = build({"config": config}, network.float().state_dict(), str(folder))
    return again.eval(), config


def checked_config(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A configuration that builds an image classifier, as plain data."""
    names = config.get("architectures") or []
    if not isinstance(config.get("model_type"), str) or not any("ImageClassification" in str(name) for name in names):
        what = f"{source} holds no image classifier of transformers: its architectures are {names!r:.100}"
        raise FileFormatError(f"{what}, and one of them must end with ForImageClassification")
    if config.get("use_pretrained_backbone"):
        raise FileFormatError(f"{source} would download weights: its config.json says use_pretrained_backbone")
    return dict(config)


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """That of the folder's image processor; None where it has none."""
    path = folder / PROCESSOR
    if not path.is_file():
        return None
    try:
        return Preprocessing.of_processor(read_json(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes in their order; none where the configuration only has transformers' own LABEL_0, LABEL_1, ….

    >>> class_names({"id2label": {"0": "cat", "1": "dog"}}), class_names({"id2label": {"0": "LABEL_0"}})
    (('cat', 'dog'), ())
    """
    known = config.get("id2label")
    if not isinstance(known, Mapping) or sorted(map(str, known)) != sorted(str(i) for i in range(len(known))):
        return ()
    names = tuple(str(known.get(str(i), known.get(i))) for i in range(len(known)))
    return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names


def build(settings: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network of a configuration with these tensors."""
    given = settings.get("config")
    if not isinstance(given, Mapping):
        raise FileFormatError(f"{source} does not say how its network is built: there is no config")
    config = checked_config(given, source)
    transformers = library("transformers", extra="hf")
    try:
        with building():
            plain = copy.deepcopy(config)
            plain.pop("auto_map", None)
            made = transformers.AutoConfig.for_model(plain.pop("model_type"), **plain)
            network: nn.Module = transformers.AutoModelForImageClassification.from_config(made, trust_remote_code=False)
    except Exception as error:  # as above
        raise FileFormatError(f"{source} holds no network that transformers can build: {first_line(error)}") from error
    load_weights(network.float(), state, source)
    return network


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        with open_to_read(path) as file:
            found = json.loads(file.read())
    except OutfieldError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{path} does not hold a JSON object")
    return found
