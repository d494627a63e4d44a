"""Where a network comes from: a name, one line of text or a file; and how it is built again from its tensors alone.

A guard's file keeps the origin as JSON and the tensors beside it. A network without an origin, an ``nn.Module`` that was handed
over in Python or a program of ``torch.export``, can only be recognised, by its fingerprint.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from outfield.backbone.architectures import (
    LIBRARIES,
    PREFIXES,
    SMALL,
    create,
    load_classifier,
    load_weights,
    patch_settings,
    split_name,
    use_small_stem,
)
from outfield.backbone.preprocessing import PARTS, TENSOR, Preprocessing, adapted, as_tuple, check_size
from outfield.backbone.pretrained import PICKLES, Weights, timm_pretrained, torchvision_pretrained
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError, as_ours
from outfield.extras import library
from outfield.files import HEADER_NAME, PathLike, as_path, find_tensors, open_to_read, read_tensors
from outfield.modes import building

if TYPE_CHECKING:
    from outfield.backbone.onnx_network import FileNetwork

KINDS = ("library", "hf", "onnx")
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Origin:
    """Where a network comes from, without its weights: one of :data:`KINDS`, and the settings that build it, ready for JSON."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_library(
        cls, architecture: str, classes: int | None, small_images: bool, size: Sequence[int] | None = None
    ) -> Origin:
        """A network of timm or torchvision by name; the size of small images is kept where its weights depend on it."""
        settings: dict[str, Any] = {"architecture": architecture, "classes": classes, "small_images": small_images}
        if small_images and size is not None and "img_size" in patch_settings(architecture, size):
            settings["size"] = list(size)
        return cls("library", settings)

    @classmethod
    def of_json(cls, plain: Any) -> Origin:
        """What :meth:`to_json` gave."""
        kind = plain.get("kind") if isinstance(plain, dict) else plain
        if kind == "pt2":
            what = "its network is a program of torch.export, which guards no longer hold"
            raise FileFormatError(f"{what}; build the guard anew")
        if kind not in KINDS or not isinstance(plain.get("settings"), dict):
            raise FileFormatError(f"there is no kind of network {kind!r:.100}; known are {', '.join(KINDS)}")
        return cls(kind, plain["settings"])

    def to_json(self) -> dict[str, Any]:
        """The same as a plain dictionary."""
        return {"kind": self.kind, "settings": dict(self.settings)}

    def state(self, network: nn.Module) -> dict[str, Tensor]:
        """The tensors of the network from which, and from the settings, :meth:`build` makes it again."""
        found = {name: value.detach() for name, value in network.state_dict().items() if isinstance(value, Tensor)}
        return {"model": found["model"]} if self.kind == "onnx" else found

    def build(self, state: State, source: str) -> nn.Module:
        """The network of these tensors on the CPU, in evaluation mode; ``source`` is where they come from, for messages."""
        if self.kind == "onnx":
            from outfield.backbone.onnx_network import OnnxNetwork

            return OnnxNetwork(state["model"].cpu().numpy().tobytes(), source).eval()
        if self.kind == "hf":
            network = _of_config(self.settings, source)
        else:
            said, size = self.settings, as_tuple(self.settings.get("size", SMALL))
            check_size(size)
            small = size if said.get("small_images") else None
            with building():
                network = create(said.get("architecture"), said.get("classes"), small)
        load_weights(network, state, source)
        return network.eval()


class Trained(NamedTuple):
    """A network on the CPU, how it takes images, what to call it and its classes, and how it is built again."""

    network: nn.Module
    expects: Preprocessing | None
    name: str
    classes: int | None = None
    names: tuple[str, ...] = ()
    origin: Origin | None = None
    head: str | None = None
    projects: bool = False
    outliers: tuple[str, ...] = ()
    takes: tuple[tuple[int, int] | None, int | None] = (None, None)  # sides and channels, where a file fixes them


def open_network(spec: str, settings: Mapping[str, Any], device: torch.device, trust: bool) -> Trained:
    """The network behind one line of text; see :meth:`outfield.Backbone.open`."""
    if spec.startswith("hf:"):
        return _with_settings(_of_hugging_face(as_path(spec.removeprefix("hf:"), "the folder behind hf:")), **settings)
    if spec.lower().endswith((".onnx", ".pt2", ".ep")):
        return _with_settings(_of_file(as_path(spec, "the network"), device, trust), **settings)
    if spec.partition(":")[0] in LIBRARIES:
        architecture, at, file = spec.partition("@")
        if at and not file:
            raise InputError(f"{spec!r} names no file after the @")
        return named_network(architecture, **{**settings, **({"weights": file} if at else {"pretrained": True})})
    if not spec.endswith((".safetensors", *PICKLES)) and not os.path.isfile(spec):
        known = "FILE.safetensors, timm:NAME, timm:NAME@FILE.safetensors, the same with torchvision:, hf:FOLDER"
        what = f"{spec!r} is not a network that Outfield can open"
        raise UnknownNameError(f"{what}; give {known}, FILE.onnx or FILE.pt2")
    if settings:
        raise InputError(f"{spec} carries its settings with it; {', '.join(settings)} cannot be given")
    return from_our_file(spec)


def named_network(
    architecture: str,
    weights: Weights | None = None,
    pretrained: bool = False,
    classes: int | None = None,
    small_images: bool | None = None,
    **settings: Any,
) -> Trained:
    """A network of timm or torchvision; the settings are those of :meth:`outfield.Backbone.named`."""
    if (weights is None) != bool(pretrained):
        raise InputError("give either weights or pretrained=True: a network needs one set of trained weights")
    if weights is not None:
        return _with_settings(_from_weights(architecture, weights, classes, small_images), **settings)
    if classes is not None or small_images:
        raise InputError("pretrained weights come with their own classes and stem; give neither")
    owner, name = split_name(architecture)
    with building():
        network = timm_pretrained(name) if owner == "timm" else torchvision_pretrained(name)
    called = architecture.removeprefix("timm:")
    return _with_settings(_of_library(architecture, network, called, small=False), **settings)


def from_our_file(path: PathLike, **asked: Any) -> Trained:
    """What ``outfield train`` wrote; settings of its classifier that are asked for, and are not None, must be these."""
    if not _is_ours(path):
        named = f"timm:resnet34@{path}, or in Python Backbone.named('resnet34', weights='{path}')"
        raise FileFormatError(f"{path} holds weights and nothing else; say of which architecture: {named}")
    network, made, _ = load_classifier(path)
    for name, value in asked.items():
        found = getattr(made, name)
        if value is not None and str(value).removeprefix("timm:") != str(found).removeprefix("timm:"):
            raise FileFormatError(f"{path} holds a classifier with {name} = {found!r}, not {value!r}")
    expects = Preprocessing(made.size, interpolation=TENSOR, mean=made.mean, std=made.std)
    origin = Origin.of_library(made.architecture, made.classes, made.small_images, made.size)
    trained = Trained(network, expects, Path(path).stem, made.classes, made.names, origin)
    return trained._replace(projects=made.projects, outliers=made.outliers)


def _with_settings(trained: Trained, preprocessing: Any = None, head: str | None = None, **parts: Any) -> Trained:
    """The network with the head and the preprocessing, or parts of it, that were given."""
    unknown = ", ".join(name for name in parts if name not in PARTS)
    if unknown:
        raise InputError(f"{trained.name} has no setting {unknown}; give {', '.join(PARTS)} or head")
    size, channels = trained.takes
    if size and not (parts.get("size") or parts.get("crop") or preprocessing):
        parts["size"] = size
    expects = adapted(trained.expects, preprocessing, **parts)
    if (channels or expects.channels, size or expects.size) != (expects.channels, expects.size):
        height, width = size or expects.size
        what = f"{trained.name} takes images of {height} × {width} with {channels} channels"
        gives = f"{expects.size[0]} × {expects.size[1]} with {expects.channels}"
        raise InputError(f"{what}, but its preprocessing gives {gives}")
    return trained._replace(expects=expects, head=trained.head if head is None else head)


def _of_file(path: Path, device: torch.device, trust: bool) -> Trained:
    """A network of ONNX or of torch.export, which has no origin: no guard holds it."""
    network: FileNetwork
    if path.suffix.lower() == ".onnx":
        from outfield.backbone.onnx_network import OnnxNetwork, read_model

        network, origin = OnnxNetwork(read_model(path), str(path)), Origin("onnx")
    elif trust:
        from outfield.backbone.exported_program import read_program

        network, origin = read_program(path, device), None
    else:
        what = f"{path} is opened by torch.export.load, which may run code that is in the file; where you trust it, say"
        raise InputError(f"{what} --trust, in Python trust=True; or export the network to ONNX, which runs no code")
    head = None if isinstance(network.head, nn.Linear) else "head"
    return Trained(network.eval(), None, path.stem, origin=origin, head=head, takes=(network.size, network.channels))


def _from_weights(architecture: str, weights: Weights, classes: int | None, small_images: bool | None) -> Trained:
    """A network by name with weights of a safetensors file or a state dict; they say what is None."""
    split_name(architecture)
    state, source, name = weights, "weights", architecture.removeprefix("timm:")
    if isinstance(weights, str | os.PathLike):
        if _is_ours(weights):
            return from_our_file(weights, architecture=architecture, classes=classes, small_images=small_images)
        state, source, name = read_tensors(weights)[1], str(weights), Path(weights).stem
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"weights is {type(weights).__name__}; it must be a safetensors file or a filled state dict")
    wrong = [key for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if wrong:
        raise InputError(f"{source} has no tensor under {wrong[0]!r}; a state dict has nothing but tensors, by name")
    with building():
        network = create(architecture, classes)
        wanted = _width(state, network) if classes is None else None
        if wanted is not None and wanted != _width(network.state_dict(), network):
            network = create(architecture, wanted)
        stem, weight = getattr(network, "conv1", None), _entry(state, "conv1.weight")
        found = isinstance(stem, nn.Conv2d) and weight is not None and weight.shape[-1] == 3 < stem.kernel_size[-1]
        small = found if small_images is None else small_images
        if small:
            use_small_stem(network, architecture)
    load_weights(network, state, source)
    return _of_library(architecture, network, name, small)


def _of_library(architecture: str, network: nn.Module, name: str, small: bool) -> Trained:
    """A network of a library, with the library's own preprocessing; small images are resized to 32 × 32."""
    owner, model = split_name(architecture)
    if owner == "timm":
        expects = Preprocessing.of_timm(network)
    else:
        models = library("torchvision.models", extra="images")
        expects = Preprocessing.of_torchvision(models.get_model_weights(model).DEFAULT.transforms())
    if small:
        expects = replace(expects, resize=SMALL, crop=None, interpolation=TENSOR, fit="exact")
    origin = Origin.of_library(architecture, _width(network.state_dict(), network), small)
    return Trained(network.eval(), expects, name, origin=origin)


def _is_ours(path: PathLike) -> bool:
    """Whether Outfield wrote a safetensors file."""
    if Path(path).suffix in PICKLES:
        safe = Path(path).with_suffix(".safetensors")
        raise FileFormatError(
            f"{path} would have to be unpickled, which can run any code; convert it once, where you trust it: "
            f'safetensors.torch.save_file(torch.load("{path}", weights_only=True), "{safe}")'
        )
    return HEADER_NAME in find_tensors(path).metadata


def _entry(state: State, name: str) -> Tensor | None:
    """An entry of a state dict, whose names may all have a prefix."""
    return next((state[prefix + name] for prefix in PREFIXES if prefix + name in state), None)


def _width(state: State, network: nn.Module) -> int | None:
    """How many outputs the head has in a state dict: what timm calls the classifier, or the last linear layer."""
    timm_own = getattr(network, "get_classifier", None)
    classifier = timm_own() if callable(timm_own) else None
    named = [name for name, module in network.named_modules() if module is classifier]
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    weight = _entry(state, f"{(named or linear or [''])[-1]}.weight")
    return None if weight is None else len(weight)


# A folder as transformers writes it: config.json, model.safetensors and preprocessor_config.json
#
# Nothing is downloaded, nothing is unpickled, and no code of the folder is run: its configuration names one of the architectures
# of transformers, and its weights are safetensors.

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
IMAGES, TEXTS = "ImageClassification", "SequenceClassification"
TASKS = {
    IMAGES: ("image classifier", "it is one of images: --images, in Python Backbone.open"),
    TEXTS: ("text classifier", "it is one of texts: outfield guard build --texts, in Python outfield.Texts"),
}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@contextlib.contextmanager
def _building(source: str) -> Iterator[None]:
    """What transformers needs while it builds, without its own progress bar; what it raises becomes an error of ours."""
    logs = library("transformers.utils.logging", extra="hf")
    shown = logs.is_progress_bar_enabled()
    logs.disable_progress_bar()
    try:
        with as_ours(f"{source} holds no network that transformers can build"), building():
            yield
    finally:
        if shown:
            logs.enable_progress_bar()


def open_text_classifier(folder: Path) -> tuple[Trained, str, Any]:
    """A text classifier of transformers, its tokenizer as JSON, and how many tokens of a text that gives, if it says so."""
    trained, tokens, settings = _of_hugging_face(folder, TEXTS), folder / TOKENIZER, folder / TOKENIZER_SETTINGS
    if not tokens.is_file():
        what = "AutoTokenizer.from_pretrained(…).save_pretrained(folder) writes it"
        raise StorageError(f"there is no {TOKENIZER} in {folder}; {what}")
    limit = _read_json(settings).get("model_max_length") if settings.is_file() else None
    return trained, json.dumps(_read_json(tokens), ensure_ascii=False), limit


def _of_hugging_face(folder: Path, task: str = IMAGES) -> Trained:
    config = _checked_config(_read_json(folder / CONFIG), str(folder), task)
    _check_weights(folder)
    auto = getattr(library("transformers", extra="hf"), f"AutoModelFor{task}")
    options = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    with _building(str(folder)):
        network, found = auto.from_pretrained(str(folder), output_loading_info=True, **options)
    lacking = sorted(map(str, found.get("missing_keys", ()))) + sorted(map(str, found.get("mismatched_keys", ())))
    if lacking:
        raise FileFormatError(f"the weights in {folder} do not fit its configuration: {', '.join(lacking[:3])}")
    # Built once more of its tensors, as a file that carries it will do: what from_pretrained adds to its modules is left behind.
    origin = Origin("hf", {"config": config} | ({} if task == IMAGES else {"task": task}))
    names = _class_names(config)
    again = origin.build(network.float().state_dict(), str(folder))
    processor = folder / PROCESSOR
    expects = Preprocessing.of_processor(_read_json(processor)) if processor.is_file() else None
    return Trained(again, expects, folder.resolve().name, len(names) or None, names, origin)


def _check_weights(folder: Path) -> None:
    """Refuse a folder without safetensors, or whose list of them leads out of it."""
    if (folder / WEIGHTS).is_file():
        return
    if not (folder / INDEX).is_file():
        raise StorageError(f"there is no {WEIGHTS} in {folder}; model.save_pretrained(folder) writes it")
    for name in _read_json(folder / INDEX).get("weight_map", {}).values():
        if Path(name).name != name:
            raise FileFormatError(f"{folder / INDEX} names the file {name!r:.100}; weights lie in the folder itself")


def _checked_config(config: Mapping[str, Any], source: str, task: str) -> dict[str, Any]:
    """A configuration that builds a classifier of images or of texts, as plain data."""
    names = config.get("architectures") or []
    of = [one for one in TASKS if any(one in str(name) for name in names)]
    if not isinstance(config.get("model_type"), str) or task not in of:
        what = f"{source} holds no {TASKS[task][0]} of transformers: its architectures are {names!r:.100}"
        raise FileFormatError(f"{what}, {TASKS[of[0]][1] if of else f'and one of them must end with For{task}'}")
    if config.get("use_pretrained_backbone"):
        raise FileFormatError(f"{source} would download weights: its config.json says use_pretrained_backbone")
    return dict(config)


def _class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes in their order; none where the configuration only has transformers' own LABEL_0, LABEL_1, …."""
    known = config.get("id2label")
    if not isinstance(known, Mapping) or {*map(str, known)} != {*map(str, range(len(known)))}:
        return ()
    names = tuple(str(known[number]) for number in sorted(known, key=int))
    return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names


def _of_config(settings: Mapping[str, Any], source: str) -> nn.Module:
    """The network of a configuration, with weights of nobody."""
    task = settings.get("task", IMAGES)
    if task not in TASKS:
        unknown = f"{source} holds a network for {task!r:.100}"
        raise FileFormatError(f"{unknown}, which this version of Outfield does not know")
    plain = copy.deepcopy(_checked_config(settings["config"], source, task))
    plain.pop("auto_map", None)
    transformers = library("transformers", extra="hf")
    with _building(source):
        made = transformers.AutoConfig.for_model(plain.pop("model_type"), **plain)
        network: nn.Module = getattr(transformers, f"AutoModelFor{task}").from_config(made, trust_remote_code=False)
    return network.float()


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    with open_to_read(path) as file, as_ours(f"{path} cannot be read as JSON"):
        found = json.loads(file.read())
    if not isinstance(found, dict):
        raise FileFormatError(f"{path} does not hold a JSON object")
    return found
