"""An image classifier in a folder as transformers writes it: config.json, model.safetensors and preprocessor_config.json.

Nothing is downloaded, nothing is unpickled, and no code of the folder is run: its configuration names one of the architectures of
transformers, and its weights are safetensors.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outfield.backbone.architectures import as_ours, load_weights
from outfield.backbone.preprocessing import Preprocessing
from outfield.errors import FileFormatError, InputError, StorageError
from outfield.extras import library
from outfield.files import find_tensors, open_to_read
from outfield.modes import building

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAKES = ("arange", "empty", "full", "linspace", "ones", "rand", "randn", "zeros")  # operations that make a new tensor


class _NotLarger(TorchDispatchMode):
    """Ends the building of a network that becomes far larger than the weights of these shapes, before it takes all memory."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.tensors, self.numbers = 1000 + 10 * len(shapes), 10**6 + 4 * sum(math.prod(shape) for shape in shapes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in MAKES:
            self.tensors, self.numbers = self.tensors - 1, self.numbers - made.numel()
            if min(self.tensors, self.numbers) < 0:
                raise ValueError(f"{CONFIG} describes a network that is far larger than its weights")
        return made


@contextlib.contextmanager
def _building(config: Mapping[str, Any], shapes: Sequence[Sequence[int]], source: str) -> Iterator[None]:
    """What transformers needs while it builds; whatever it raises becomes an error of ours."""
    labels = config.get("num_labels")
    if labels is not None and not any(shape and shape[0] == labels for shape in shapes):
        raise FileFormatError(f"{source} says that there are {labels!r:.50} labels, but no weight has so many rows")
    with as_ours(f"{source} holds no network that transformers can build"), building(), _NotLarger(shapes):
        yield


def read_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The network on the CPU, in float32 and evaluation mode, and its configuration."""
    config = checked_config(read_json(folder / CONFIG), str(folder))
    shapes = [array.shape for file in _weight_files(folder) for array in find_tensors(file).arrays.values()]
    auto = library("transformers", extra="hf").AutoModelForImageClassification
    options = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    with _building(config, shapes, str(folder)):
        network, found = auto.from_pretrained(str(folder), output_loading_info=True, **options)
    lacking = sorted(map(str, found.get("missing_keys", ()))) + sorted(map(str, found.get("mismatched_keys", ())))
    if lacking:
        raise FileFormatError(f"the weights in {folder} do not fit its configuration: {', '.join(lacking[:3])}")
    # Built once more of its tensors, as a file that carries it will do: what from_pretrained adds to its modules is left behind.
    again = build({"config": config}, network.float().state_dict(), str(folder))
    return again.eval(), config


def _weight_files(folder: Path) -> list[Path]:
    """The files of the weights, which lie in the folder itself."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        what = f"cannot read {folder / WEIGHTS}: there is no such file"
        raise StorageError(f"{what}; weights must be safetensors, as model.save_pretrained(folder) writes them")
    listed = read_json(folder / INDEX).get("weight_map")
    names = sorted(map(str, set(listed.values()))) if isinstance(listed, dict) else []
    for name in names:
        if Path(name).name != name:
            raise FileFormatError(f"{folder / INDEX} names the file {name!r:.100}; weights lie in the folder itself")
    return [folder / name for name in names]


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
    with _building(config, [value.shape for value in state.values()], source):
        plain = copy.deepcopy(config)
        plain.pop("auto_map", None)
        made = transformers.AutoConfig.for_model(plain.pop("model_type"), **plain)
        network: nn.Module = transformers.AutoModelForImageClassification.from_config(made, trust_remote_code=False)
    load_weights(network.float(), state, source)
    return network


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    with open_to_read(path) as file, as_ours(f"{path} cannot be read as JSON"):
        found = json.loads(file.read())
    if not isinstance(found, dict):
        raise FileFormatError(f"{path} does not hold a JSON object")
    return found
