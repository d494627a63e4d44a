"""Backbone: a trained classifier as a function from images to a FeatureSet, in one pass over them."""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone.extraction import Extraction, read
from outfield.backbone.origin import Origin, Trained, from_our_file, named_network, open_network
from outfield.backbone.perturbation import Odin, Perturb
from outfield.backbone.preprocessing import TENSOR, Preprocessing, adapted, as_tuple, check_names, shown_numbers
from outfield.backbone.pretrained import Weights
from outfield.backbone.views import Views
from outfield.config import require, require_choice, require_number
from outfield.errors import InputError, MissingFieldError, OutfieldError, OutfieldWarning
from outfield.features import NETWORK, FeatureSet, network_text
from outfield.files import PathLike
from outfield.files import fingerprint as digest_of
from outfield.images import ON_ERROR, ImageSource, Skipped, check_source, summary
from outfield.modes import resolve_device
from outfield.progress import bar

# Where in memory a thing lies, as ``repr`` of a function has it: another place in each process
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
OUTPUTS = ("logits", "odin_logits")  # fields that a network without classes does not have


class Backbone:
    """Any PyTorch classifier: features are the input of its last linear layer.

    The network runs where its parameters are, exactly once for each image (or view of it), and is left as it was: modes,
    gradients, hooks. If it draws random numbers, they come from a generator of their own with a fixed seed. Inputs are
    channels-last where the weights are (``network.to(memory_format=torch.channels_last)``, faster on GPUs).

    Args:
        network: convolutional or transformer, from images (N, 3, H, W) to logits (N, K); (N, 1, H, W) where ``mean`` and
            ``std`` have one number, and images are converted to grey.
        size: height and width it expects; images of another size are resized to exactly it, by bilinear interpolation.
        mean: of each channel, in [0, 1], subtracted from the images.
        std: of each channel, by which they are then divided.
        preprocessing: how the network takes images where it is deployed, instead of the three: an
            :class:`outfield.Preprocessing`, or anything that :meth:`outfield.Preprocessing.of` takes, such as a transform of
            torchvision.
        head: dotted name of the layer whose input are the features; by itself the last linear layer, if its output is the
            network's.
        name: what to call it in tables and errors.
        classes: how many; known after the first pass if None.
        names: of the classes, or none.

    Attributes:
        classes: How many classes the network tells apart; None as long as nobody said and it has not run.
        origin: How the network is built again from its tensors; None where only its owner knows.
        projects: Whether it was trained without labels: its outputs are no logits, and :meth:`extract` leaves them out.
        outliers: Kinds of stand-ins that it saw in training (:class:`outfield.Outliers`), which must not choose its detectors.

    Raises:
        InputError: a setting that cannot be.
    """

    origin: Origin | None = None
    projects: bool = False
    outliers: tuple[str, ...] = ()

    def __init__(
        self,
        network: nn.Module,
        *,
        size: int | Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        preprocessing: Any = None,
        head: str | None = None,
        name: str = "backbone",
        classes: int | None = None,
        names: Sequence[str] = (),
    ) -> None:
        if not isinstance(network, nn.Module) or isinstance(network, torch.jit.ScriptModule):
            raise InputError(f"network is a {type(network).__name__}; it must be an nn.Module that was not scripted")
        require(head is None or (isinstance(head, str) and bool(head)), "head", head, "the name of a layer, or None")
        require(isinstance(name, str), "name", name, "a text")
        self.network, self.head, self.name, self.names = _unwrapped(network), head, name, as_tuple(names)
        check_names(self.names)
        self.preprocessing = adapted(None, preprocessing, size=size, mean=mean, std=std)
        self.classes = len(self.names) or None if classes is None else classes
        if self.classes is not None:
            require_number("classes", self.classes, least=1, whole=True)
        if self.names and self.classes != len(self.names):
            raise InputError(f"there are {len(self.names)} names for {self.classes} classes")

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "auto") -> Self:
        """The classifier in a file that ``outfield train`` wrote.

        Raises:
            StorageError: there is no such file.
            FileFormatError: truncated, changed, or not a classifier.
        """
        return cls._of(from_our_file(path), resolve_device(device))

    @classmethod
    def named(
        cls,
        architecture: str,
        *,
        weights: Weights | None = None,
        pretrained: bool = False,
        classes: int | None = None,
        small_images: bool | None = None,
        size: int | Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        crop: int | Sequence[int] | None = None,
        interpolation: str | None = None,
        preprocessing: Any = None,
        head: str | None = None,
        device: str | torch.device = "auto",
    ) -> Self:
        """A network of timm ("resnet34", "timm:resnet34") or torchvision ("torchvision:resnet18").

        Args:
            architecture: its name.
            weights: a safetensors file, ours or a plain state dict, or a state dict.
            pretrained: the library's own weights instead, which are downloaded.
            classes: how many; as the weights say if None.
            small_images: with the 3 × 3 stem of :class:`outfield.Classifier`; as the weights say if None.
            size: see :class:`Backbone`; if None, images are resized and cropped as the library does it (to 32 × 32 with a small
                stem).
            mean: see :class:`Backbone`; the library's if None.
            std: likewise.
            crop: side or sides of the part that is cut out of the middle; ``size`` is then what the shorter edge is resized to.
            interpolation: see :class:`outfield.Preprocessing`; the library's if None.
            preprocessing: see :class:`Backbone`; the library's if None.
            head: see :class:`Backbone`.
            device: where to run; "auto" for a GPU where there is one.

        Raises:
            UnknownNameError: the library has no such model.
            FileFormatError: the weights do not fit, or would have to be unpickled.
            StorageError: a file cannot be read, or weights not downloaded.
        """
        target = resolve_device(device)
        way: dict[str, Any] = {"size": size, "crop": crop, "mean": mean, "std": std, "interpolation": interpolation}
        way |= {"preprocessing": preprocessing, "head": head}
        return cls._of(named_network(architecture, weights, pretrained, classes, small_images, **way), target)

    @classmethod
    def open(cls, spec: str, device: str | torch.device = "auto", *, trust: bool = False, **settings: Any) -> Self:
        """A backbone from one line of text.

        Args:
            spec: ``FILE.safetensors`` that ``outfield train`` wrote; ``timm:NAME`` or ``torchvision:NAME`` with the library's
                weights; ``timm:NAME@FILE.safetensors`` or ``torchvision:NAME@FILE.safetensors`` with others; ``hf:FOLDER`` for an
                image classifier that transformers wrote (extra ``hf``); ``FILE.onnx`` (extra ``onnx``; without gradients);
                ``FILE.pt2``, which ``torch.export.save`` wrote, with ``trust``.
            device: where to run; "auto" for a GPU where there is one. ONNX runs on the CPU.
            trust: open a ``.pt2`` file, by ``torch.export.load``, which may run code that is in it. Nothing else runs any.
            settings: others of :meth:`named`; of ``hf:``, ``.onnx`` and ``.pt2`` the preprocessing and the head.

        Raises:
            UnknownNameError: it is none of these.
            OutfieldError: the network cannot be read or built.
        """
        require(isinstance(spec, str), "spec", spec, "a text such as FILE.safetensors or timm:NAME")
        target = resolve_device(device)
        return cls._of(open_network(spec, settings, target, trust), target)

    @classmethod
    def _of(cls, trained: Trained, device: torch.device) -> Self:
        network = trained.network.to(device)
        if device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)
        about: dict[str, Any] = {"name": trained.name, "classes": trained.classes, "names": trained.names}
        made = cls(network, preprocessing=trained.expects, head=trained.head, **about)
        made.origin, made.projects, made.outliers = trained.origin, trained.projects, trained.outliers
        return made

    def narrowed(self, kept: Sequence[int]) -> Self | None:
        """The same network with these of its classes alone; None where its last layer cannot be cut so."""
        origin, names = self.origin, tuple(self.names[index] for index in kept)
        if origin is None or origin.kind not in ("library", "hf"):
            return None
        narrow = Origin(origin.kind, {**origin.settings, "classes": len(kept)})
        if origin.kind == "hf":
            labels = {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {}}
            narrow = Origin(origin.kind, {"config": {**origin.settings["config"], **labels}})
        state = origin.state(self.network)
        for name, layer in self.network.named_modules():
            if isinstance(layer, nn.Linear) and layer.out_features == self.classes:
                parts = [f"{name}.{part}" for part in ("weight", "bias")]
                state |= {part: state[part][[*kept]] for part in parts if part in state}
        try:
            built = narrow.build({key: value.cpu() for key, value in state.items()}, self.name)
        except OutfieldError:  # other layers are as wide, or the last one is of another kind
            return None
        about: dict[str, Any] = {"name": self.name, "classes": len(kept), "names": names, "head": self.head}
        return self._of(Trained(built, self.preprocessing, origin=narrow, **about), self.device)

    @property
    def input(self) -> Preprocessing:
        """The preprocessing, for its size, mean and std."""
        return self.preprocessing

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """An image, uint8 (H, W, 3), as bytes that only have to be normalised; see :meth:`outfield.Preprocessing.pixels`."""
        return self.preprocessing.pixels(image)

    @property
    def device(self) -> torch.device:
        """Where the network's parameters are, and it runs.

        Raises:
            InputError: on several devices, or nowhere.
        """
        places = {tensor.device for tensor in (*self.network.parameters(), *self.network.buffers())}
        if len(places) > 1 or torch.device("meta") in places:
            shown = ", ".join(sorted(str(place) for place in places))
            raise InputError(f"the network of {self.name} is on {shown}; put it on one device: network.to('cpu')")
        return places.pop() if places else torch.device("cpu")

    def __repr__(self) -> str:
        way, expects = self.preprocessing, str(self.preprocessing)
        classes = "" if self.classes is None else f", {self.classes} classes"
        classes = ", without classes" if self.projects else classes
        if way.interpolation == TENSOR:
            normalised = f"mean {shown_numbers(way.mean)}, std {shown_numbers(way.std)}"
            expects = f"images of {way.size[0]} × {way.size[1]}, {normalised}"
        return f"Backbone({self.name}: {type(self.network).__name__}, {expects}{classes})"

    def fingerprint(self) -> str:
        """SHA-256 of what decides its outputs: weights, layers and their settings, preprocessing, head; not the name.

        Settings are those that ``repr(network)`` shows, such as strides.
        """
        kinds = [(name, type(module).__name__) for name, module in self.network.named_modules()]
        state = {name: value for name, value in self.network.state_dict().items() if isinstance(value, Tensor)}
        way = self.preprocessing
        numbers = [float(value) for value in (*way.size, *way.mean, *way.std)]
        settings = f"{kinds}|{ADDRESS.sub('', repr(self.network))}|{numbers}|{self.head}|"
        if way.interpolation != TENSOR:  # else size, mean and std say it all
            settings += f"{way!r}|"
        return hashlib.sha256((settings + digest_of(state)).encode()).hexdigest()

    def extract(
        self,
        images: ImageSource,
        *,
        stages: bool = False,
        views: Views | str | int | None = None,
        odin: Odin | None = None,
        perturb: Perturb | None = None,
        labels: bool | None = None,
        batch_size: int = 512,
        workers: int | None = None,
        precision: str = "auto",
        on_error: str = "fail",
        skipped: list[Skipped] | None = None,
    ) -> FeatureSet:
        """Features, logits, spread (where there is a feature map), and labels of images, in one pass over them.

        A network that was trained without labels has no logits, and labels are attached only where ``labels`` is True.

        Where the logits are a linear layer of the features, the set has that layer, too: ``head_weight`` and ``head_bias``.

        Args:
            images: see :func:`outfield.open_images` and :class:`outfield.ImageArray`.
            stages: give ``stage1``, ``stage2``, …, too: what the network's blocks give (layer1, layer2, … of a ResNet, the blocks
                of a transformer), each as the mean over positions, or over tokens: without
                the class token and the like where the network says how many of them there are, or the features are the first
                token. At most 8, evenly spread where there are more; the last block is left out where its mean is the features.
                ``about`` of the set has the name of each block.
            views: average every field over views of each image: "flip" (itself and its mirror image), "six" (with four shifted
                copies), a number of them, or :class:`outfield.Views`; ``about`` of the set says which. The time grows with their
                number.
            odin: give ``odin_logits`` too, at the cost of a backward pass and another forward pass.
            perturb: give every field at the image that :class:`outfield.Perturb` makes of it, by a detector's gradient; at the
                same cost, and not together with ``odin``. ``about`` of the set says so.
            labels: attach the images' labels, where they have any. If None, those whose classes are the network's, by their names
                or (where the network's have none) their number; others are left out with a warning. True makes these an error.
            batch_size: images that the network is given at once, at most; halved, with a warning, where memory ends. A CPU is
                given fewer large ones, which is no slower there.
            workers: processes that decode image files; 0 for none, None for as many as there are cores, up to 8.
            precision: "float32", "float16" or "bfloat16" (by autocast), or "auto": float16 on a GPU, else float32. A batch
                whose outputs are not finite in half precision is done again in float32, with a warning. A network whose
                weights are not float32 runs as it is.
            on_error: "fail" ends with an error at an image that cannot be read; "skip" leaves it out, with a warning that tells
                how many and which.
            skipped: a list that gets everything which was left out.

        Raises:
            InputError: no images, labels beyond the network's classes or of other ones, a network that cannot be looked into,
                outputs that are not finite, stages of a network that has none, or too little memory for one image.
        """
        check_source(images)
        if not len(images):
            raise InputError(f"there is no image in {images.name}")
        require_number("batch_size", batch_size, least=1, whole=True)
        require(labels is None or isinstance(labels, bool | np.bool_), "labels", labels, "True, False or None")
        require_choice("on_error", on_error, ON_ERROR)
        extraction = Extraction(self, odin, precision, stages, Views.of(views), perturb)
        at_once = extraction.at_once(batch_size)
        fields: dict[str, Tensor] = {}
        missing: dict[int, str] = {}  # numbers of images that cannot be read, and why
        done, kept = 0, None
        pinned, skips = extraction.device.type == "cuda", missing if on_error == "skip" else None
        batches = read(images, self.preprocessing, at_once, workers, pinned, skips)
        with (
            bar(f"features of {images.name}", len(images), "images") as advance,
            contextlib.closing(batches),
            contextlib.closing(extraction.run(batches, at_once)) as pieces,
        ):
            for start, piece in pieces:
                if not fields:
                    kept = self._labels(images, labels, piece["logits"].shape[1])
                    fields = {name: value.new_empty(len(images), value.shape[1]) for name, value in piece.items()}
                for name, value in piece.items():
                    fields[name][start : start + len(value)] = value
                done = start + len(piece["features"])
                advance(done + len(missing))
        left_out = _left_out(images, missing, done)
        if skipped is not None:
            skipped += left_out
        names = images.names
        if missing:
            there = np.delete(np.arange(len(images)), list(missing))
            kept = None if kept is None else kept[there]
            names = None if names is None else tuple(names[index] for index in there)
        found = {name: value[:done] for name, value in fields.items() if not self.projects or name not in OUTPUTS}
        if not self.projects:
            found |= extraction.last_layer()
        about = {**extraction.about(), NETWORK: network_text(self.name, self.fingerprint())}
        return FeatureSet(**found, labels=kept, about=about, names=names)

    def _labels(self, images: ImageSource, wanted: bool | None, classes: int) -> np.ndarray | None:
        """The labels that rows keep, checked, once the network has run and its number of logits is known."""
        labels = images.labels if wanted else None
        if (wanted is None and not self.projects) or (wanted and self.names):
            labels, why = match_labels(images, self.names, classes)
            if why and wanted:
                raise InputError(f"{images.name}: {why}; leave labels out with --no-labels, in Python labels=False")
            if why:
                told = f"the labels of {images.name} are left out: {why}; for OOD images that is right (labels=False says so)"
                warnings.warn(told, OutfieldWarning, stacklevel=3)  # where extract was called
        if self.classes is None:
            self.classes = classes
        if classes != self.classes:
            raise InputError(f"the network of {self.name} gives {classes} logits, but classes is {self.classes}")
        top = -1 if labels is None or self.projects else int(labels.max())
        if top >= classes:
            what = f"{images.name} has a label {top}, but the network of {self.name} knows {classes} classes"
            raise InputError(f"{what}, from 0; extract OOD images with --no-labels, in Python labels=False")
        return labels


def _unwrapped(network: nn.Module) -> nn.Module:
    """The network itself, out of what compiles or parallelises it: neither calls its layers' hooks."""
    parallel = isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = getattr(network, "module" if parallel else "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else network


def _left_out(images: ImageSource, missing: dict[int, str], done: int) -> list[Skipped]:
    """What could not be read, with a warning where :meth:`Backbone.extract` was called; an error where that is every image."""
    names = images.names or [f"image {index}" for index in range(len(images))]
    found = [Skipped(names[index], reason) for index, reason in sorted(missing.items())]
    found += getattr(images, "refused", ())
    told = summary(found, len(images) + len(found) - len(missing), images.name) if found else ""
    if not done:
        raise InputError(told)
    if found:
        warnings.warn(told, OutfieldWarning, stacklevel=3)
    return found


def match_labels(images: ImageSource, names: tuple[str, ...], classes: int) -> tuple[np.ndarray | None, str]:
    """The labels of images as a network counts its classes, told by their names; None, and why, where they mean others."""
    if images.labels is None or images.classes is None:
        return images.labels, ""
    if not names:
        same = len(images.classes) == classes
        return (images.labels, "") if same else (None, f"it has {len(images.classes)} classes, the network {classes}")
    number = {one: label for label, one in enumerate(names)}
    strange = [one for one in images.classes if one not in number]
    if strange:
        return None, f"the network has no class {strange[0]!r:.100}"
    return np.array([number[one] for one in images.classes], np.int64)[images.labels], ""


def accuracy(features: FeatureSet) -> float:
    """The share of samples whose largest logit is that of their label.

    >>> accuracy(FeatureSet([[0.0], [0.0]], logits=[[1.0, 2.0], [3.0, 1.0]], labels=[1, 1]))
    0.5
    """
    if features.logits is None or features.labels is None:
        raise MissingFieldError(f"accuracy needs logits and labels; there are {', '.join(features.shapes)}")
    return float((features.logits.argmax(1) == features.labels).double().mean())
