"""How a deployed network takes images: resized, cropped and normalised exactly as its own library does it, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import require, require_choice, require_number
from outfield.errors import InputError, as_ours
from outfield.extras import library

# Pillow's; all but "nearest" average over what falls together when an image becomes smaller
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
TENSOR = "tensor"  # Bilinear with antialiasing as PyTorch computes it: what the networks of ``outfield train`` are trained with
PARTS = ("size", "crop", "mean", "std", "interpolation")  # Of a preprocessing, that can be given one by one
MOST_SIDE = 2**14  # Height and width of an input, at most
# A resized image may have this many pixels, or this many times those that the network takes; a thin strip would need more
PIXELS_ANYWAY, WIDEST = 2**24, 64


@dataclass(frozen=True)
class Preprocessing:
    """The way of an image into a network: grey if it has one channel, resized, cropped about the middle, normalised.

    tensor = (pixels / 255 − mean) / std

    Args:
        resize: Length of the shorter edge, the ratio of the edges kept; or height and width; None leaves the size as it is.
        crop: Height and width of the part that is cut out of the middle; None for all of it. An image that is smaller is padded.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming", as Pillow has them; or "tensor",
            bilinear as PyTorch does it, which takes a height and a width alone.
        mean: Of each channel, in [0, 1].
        std: Of each channel.
        channels: 3, or 1 for a network of grey images, to which colour is then converted before anything else.
        fit: What a height and a width to resize to mean: "exact" gives these, whatever the image's ratio; "cover" keeps the
            ratio and covers both; "contain" keeps it and stays within both.
        fill: Colour of what is padded, a number from 0 to 255 for each channel; black if None.
        place: Where the crop begins if an odd number of pixels is cut off: "nearest" rounds as torchvision and timm do,
            "down" as transformers does.

    Raises:
        InputError: A setting that cannot be, or images of different sizes would leave it in different sizes.

    >>> recipe = Preprocessing(resize=8, crop=(6, 6), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> recipe.tensor(np.full((20, 10, 3), 255, np.uint8)).shape, recipe.size
    (torch.Size([3, 6, 6]), (6, 6))
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    channels: int = 3
    fit: str = "exact"
    fill: tuple[int, ...] | None = None
    place: str = "nearest"

    def __post_init__(self) -> None:
        for name in ("resize", "crop", "mean", "std", "fill"):
            object.__setattr__(self, name, as_tuple(getattr(self, name)))
        for name, sides in (("resize", as_pair(self.resize)), ("crop", self.crop)):
            if sides is not None:
                check_size(sides, name)
        require_choice("interpolation", self.interpolation, (*INTERPOLATIONS, TENSOR))
        require_choice("fit", self.fit, ("exact", "cover", "contain"))
        require_choice("place", self.place, ("nearest", "down"))
        require(self.channels in (1, 3), "channels", self.channels, "3 or 1")
        check_normalisation(self.mean, self.std, self.channels)
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if self.fill is not None:
            good = isinstance(self.fill, tuple) and len(self.fill) == self.channels
            good = good and all(isinstance(value, int) and 0 <= value < 256 for value in self.fill)
            require(good, "fill", self.fill, "a number from 0 to 255 for each channel, or None")
        self._check_sizes()

    def _check_sizes(self) -> None:
        exact = isinstance(self.resize, tuple) and self.fit == "exact"
        if self.interpolation == TENSOR and (not exact or self.crop is not None):
            what = f"interpolation {TENSOR!r} takes a height and a width to resize to, and no crop"
            raise InputError(f"{what}; for {self.resize} and {self.crop} choose one of {', '.join(INTERPOLATIONS)}")
        if not isinstance(self.resize, tuple) and self.fit != "exact":
            raise InputError(f"fit is {self.fit!r}, which needs a height and a width to resize to, not {self.resize}")
        if self.crop is None and not exact:
            what = f"resize is {self.resize!r} and crop is None: images would leave in different sizes"
            raise InputError(f"{what}; give crop=(height, width), or a height and a width to resize to")

    @classmethod
    def of(cls, given: Any) -> Preprocessing:
        """From whatever says how a network takes images.

        Args:
            given: A Preprocessing; a dictionary of :meth:`to_json`, of a ``preprocessor_config.json`` or of timm's data config; a
                network of timm; or a transform of torchvision.

        Raises:
            InputError: It is none of these, or does something that a Preprocessing cannot say.
        """
        if isinstance(given, Preprocessing):
            return given
        if isinstance(given, Mapping):
            if "resize" in given:
                return cls.of_json(given)
            return cls.of_timm(given) if "input_size" in given else cls.of_processor(given)
        return cls.of_timm(given) if hasattr(given, "pretrained_cfg") else cls.of_torchvision(given)

    @classmethod
    def of_timm(cls, given: Any) -> Preprocessing:
        """That of timm's evaluation transform, to the bit.

        Args:
            given: A network of timm, or a data config (``timm.data.resolve_model_data_config``).
        """
        from outfield.backbone.transforms import from_timm

        return from_timm(given)

    @classmethod
    def of_torchvision(cls, given: Any) -> Preprocessing:
        """That of a transform for evaluation.

        Args:
            given: ``weights.transforms()``, or a ``Compose`` of Resize, CenterCrop, Grayscale, ToTensor and Normalize.
        """
        from outfield.backbone.transforms import from_torchvision

        return from_torchvision(given)

    @classmethod
    def of_processor(cls, given: Any) -> Preprocessing:
        """That of an image processor of transformers.

        Args:
            given: The content of its ``preprocessor_config.json``.
        """
        from outfield.backbone.transforms import from_processor

        return from_processor(given)

    @classmethod
    def of_json(cls, given: Any) -> Self:
        """What :meth:`to_json` gave.

        Raises:
            InputError: Something is unknown or cannot be.
        """
        names = ", ".join(field.name for field in fields(cls))
        with as_ours(f"a preprocessing has {names}", InputError, TypeError):
            return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for JSON, from which :meth:`of_json` makes an equal one."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what the network is given."""
        return self.crop or self.resize  # type: ignore[return-value]  # where there is no crop, there are two sides

    def __str__(self) -> str:
        """One line for people."""
        steps = ["grey"] if self.channels == 1 else []
        if self.resize is not None:
            sides = self.resize if isinstance(self.resize, tuple) else (self.resize,)
            fit = "" if self.fit == "exact" else f" ({self.fit})"
            how = "bilinear by PyTorch" if self.interpolation == TENSOR else self.interpolation
            steps.append(f"resize {' × '.join(map(str, sides))}{fit} {how}")
        if self.crop is not None:
            steps.append(f"crop {self.crop[0]} × {self.crop[1]}")
        return ", ".join([*steps, f"mean {shown_numbers(self.mean)}", f"std {shown_numbers(self.std)}"])

    def keeps(self, size: tuple[int, int]) -> bool:
        """Whether pixels of images of this height and width stay as they are."""
        return self.channels == 3 and self.resized(*size) == size == self.size

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image behind the resizing and before the crop."""
        if self.resize is None:
            return height, width
        if not isinstance(self.resize, tuple):
            short, long = sorted((height, width))
            other = int(self.resize * long / short)
            return (other, self.resize) if width <= height else (self.resize, other)
        if self.fit == "exact":
            return self.resize
        ratios = height / self.resize[0], width / self.resize[1]
        ratio = min(ratios) if self.fit == "cover" else max(ratios)
        return round(height / ratio), round(width / ratio)

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """An image as bytes that only have to be normalised.

        Args:
            image: uint8 (H, W, 3), or grey: (H, W) or (H, W, 1).

        Returns:
            uint8 (h, w, channels), with h and w those of :attr:`size`.

        Raises:
            InputError: It is no such image, or would become too large on its way.
            MissingExtraError: Pillow is not installed.
        """
        image = _checked(image)
        height, width = self.resized(*image.shape[:2])
        most = max(image.shape[0] * image.shape[1], PIXELS_ANYWAY, WIDEST * math.prod(self.size))
        if not 0 < height * width <= most:
            what = f"an image of {image.shape[0]} × {image.shape[1]} would be resized to {height} × {width}"
            raise InputError(f"{what}; from 1 to {most:,} pixels are possible")
        if self.channels == 1 and image.shape[2] == 3:
            image = to_grey(torch.from_numpy(image)[None])[0].numpy()
        elif self.channels == 3 and image.shape[2] == 1:
            image = np.repeat(image, 3, axis=2)
        if image.shape[:2] != (height, width):
            image = self._resized(image, height, width)
        return np.ascontiguousarray(self._cropped(image))

    def _resized(self, image: np.ndarray, height: int, width: int) -> np.ndarray:
        if self.interpolation == TENSOR:
            return resize(torch.from_numpy(image)[None], (height, width))[0].numpy()
        pillow = library("PIL.Image", extra="images")
        method = getattr(pillow.Resampling, self.interpolation.upper())
        flat = image[:, :, 0] if self.channels == 1 else image
        found = np.array(pillow.fromarray(flat).resize((width, height), method))
        return found.reshape(height, width, self.channels)

    def _cropped(self, image: np.ndarray) -> np.ndarray:
        """The middle of an image, padded where it is too small."""
        if self.crop is None:
            return image
        sides = list(zip(self.crop, image.shape[:2], strict=True))
        if any(wanted > side for wanted, side in sides):
            padded = np.empty((*(max(pair) for pair in sides), self.channels), np.uint8)
            padded[:] = self.fill or 0
            top, left = (max(0, wanted - side) // 2 for wanted, side in sides)
            padded[top : top + image.shape[0], left : left + image.shape[1]] = image
            image = padded
        cut = [side - wanted for wanted, side in zip(self.crop, image.shape[:2], strict=True)]
        top, left = (round(pixels / 2) if self.place == "nearest" else pixels // 2 for pixels in cut)
        return image[top : top + self.crop[0], left : left + self.crop[1]]

    def tensor(self, image: np.ndarray) -> Tensor:
        """An image as the network takes it, float32 (channels, h, w).

        Args:
            image: See :meth:`pixels`.
        """
        prepare = self.preparation(torch.device("cpu"), torch.float32, torch.contiguous_format)
        return prepare(torch.from_numpy(self.pixels(image))[None])[0]

    def preparation(
        self, device: torch.device, dtype: torch.dtype, layout: torch.memory_format
    ) -> Callable[[Tensor], Tensor]:
        """A function from bytes (N, H, W, 3 or 1), which :meth:`pixels` gave or "tensor" resizes, to what the network takes."""
        numbers = torch.tensor((self.mean, self.std), device=device, dtype=torch.float32)
        mean, std = numbers[:, :, None, None]

        def prepare(pixels: Tensor) -> Tensor:
            there = pixels.to(device, non_blocking=True)
            resized = resize(to_grey(there) if self.channels == 1 else there, self.size)
            images = resized.permute(0, 3, 1, 2).to(torch.float32, memory_format=layout)
            return images.div_(255).sub_(mean).div_(std).to(dtype)

        return prepare


def _checked(image: Any) -> np.ndarray:
    """An image with three dimensions, in one piece of memory."""
    shape: tuple[int, ...] = image.shape if isinstance(image, np.ndarray) and image.dtype == np.uint8 else ()
    if 0 in shape or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))):
        what = f"{image.dtype} of shape {shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"the image is {what}; it must be a numpy array, uint8 (H, W, 3), or grey (H, W) or (H, W, 1)")
    whole = np.ascontiguousarray(image if image.ndim == 3 else image[:, :, None])
    return whole if whole.flags.writeable else whole.copy()


def to_grey(pixels: Tensor) -> Tensor:
    """Bytes (N, H, W, 3) as grey ones (N, H, W, 1), to the bit as Pillow converts colour; grey ones stay as they are."""
    if pixels.shape[-1] == 1:
        return pixels
    red, green, blue = pixels.to(torch.int32).unbind(-1)
    return (((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8)).unsqueeze(-1)


def resize(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Bytes (N, H, W, C) to bytes of another height and width, (N, h, w, C), by bilinear interpolation with antialiasing."""
    if tuple(pixels.shape[1:3]) == size:
        return pixels
    images = pixels.permute(0, 3, 1, 2).to(torch.float32)
    resized = functional.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    return resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def adapted(own: Preprocessing | None, whole: Any = None, **parts: Any) -> Preprocessing:
    """What is given as a whole, or the network's own with these parts; with a crop, a size of one side is the shorter edge's."""
    said = {name: as_tuple(value) for name, value in parts.items() if value is not None}
    if whole is not None:
        if said:
            raise InputError(f"give either preprocessing or {', '.join(said)}")
        return Preprocessing.of(whole)
    size, crop = said.pop("size", None), said.pop("crop", None)
    missing = [name for name in ("size", "mean", "std") if parts.get(name) is None]
    if own is None and missing:
        options = f"give {', '.join(missing)} ({', '.join(f'--{name}' for name in missing)}), or preprocessing"
        raise InputError(f"this network does not say how it takes images; {options}")
    settings = {"mean": own.mean, "std": own.std, **said} if own else said
    grey = isinstance(settings["mean"], tuple) and len(settings["mean"]) == 1
    settings["channels"] = 1 if grey else 3
    if own is not None and size is None and crop is None:
        return replace(own, **settings)
    if crop is None:
        return Preprocessing(as_pair(size), **{"interpolation": TENSOR, **settings})
    if own is None:
        return Preprocessing(size, as_pair(crop), **settings)
    if own.interpolation != TENSOR:
        settings.setdefault("interpolation", own.interpolation)
    return Preprocessing(own.resize if size is None else size, as_pair(crop), **settings)


def as_tuple(value: Any) -> Any:
    """A sequence, array or tensor of numbers as a tuple; anything else as it is, to be refused by a check."""
    found = value.tolist() if isinstance(value, np.ndarray | np.generic | Tensor) else value
    return tuple(found) if isinstance(found, Sequence) and not isinstance(found, str | bytes) else found


def as_pair(value: Any) -> Any:
    """Two sides; one side is both."""
    sides = as_tuple(value)
    return (sides, sides) if isinstance(sides, int) else sides


def check_size(size: Any, name: str = "size") -> None:
    """Refuse what is no height and width."""
    require(isinstance(size, tuple) and len(size) == 2, name, size, "a height and a width")
    for side in size:
        require_number(name, side, least=1, most=MOST_SIDE, whole=True)


def check_normalisation(mean: Any, std: Any, channels: int = 3) -> None:
    """Refuse what are no means and standard deviations of three channels, or of one."""
    count = "one number" if channels == 1 else "three numbers"
    for name, value, above in (("mean", mean, -math.inf), ("std", std, 0.0)):
        require(isinstance(value, tuple) and len(value) == channels, name, value, count)
        for number in value:
            require_number(name, number, above=above)


def shown_numbers(numbers: Iterable[float]) -> str:
    """Numbers as people read them."""
    return f"({', '.join(f'{number:.4g}' for number in numbers)})"


def check_names(names: Any) -> None:
    """Refuse what are no names of classes."""
    good = isinstance(names, tuple) and all(isinstance(one, str) for one in names)
    require(good, "names", names, "the names of the classes, each a text")
