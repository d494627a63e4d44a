"""How a classifier is trained, as settings: what is done to the images, what is made small, and the paper's recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from outfield.classifier.outliers import Outliers
from outfield.config import configurable, require, require_choice, require_number, require_pair

# Augmentation of a whole batch at once, on the device where the images lie
#
# Every crop is a pair of small matrices: rows and columns of the result are weighted sums of rows and columns of the image. The
# weights are those of a bilinear resize with antialiasing, as in Pillow and torchvision, restricted to the crop.


ATTEMPTS = 10  # Draws of a crop before the largest one in the middle is taken, as in torchvision
LUMA = (0.299, 0.587, 0.114)  # What red, green and blue give to brightness


@configurable
@dataclass(frozen=True)
class Augmentation:
    """A crop of random area and shape, resized to the input's size, and a flip. The defaults are torchvision's.

    ``scale`` is the least and largest share of the image's area, ``ratio`` of width / height, drawn uniformly in its logarithm,
    ``flip`` the probability of a horizontal flip.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        require_pair("scale", self.scale, "[0.5, 1.0]", above=0, most=1.0)
        require_pair("ratio", self.ratio, "[0.5, 2.0]", above=0)
        require_number("flip", self.flip, least=0, most=1)

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Images (N, C, *size) of images (N, C, H, W), floating; the generator is on their device."""
        n, _, height, width = images.shape
        top, left, rows, columns = self.crops(n, height, width, generator)
        flipped = torch.rand(n, device=images.device, dtype=torch.float32, generator=generator) < self.flip
        vertical = resize_weights(top, rows, height, size[0]).to(images.dtype)
        horizontal = resize_weights(left, columns, width, size[1]).to(images.dtype)
        horizontal = torch.where(flipped[:, None, None], horizontal.flip(1), horizontal)
        return vertical[:, None] @ images @ horizontal[:, None].transpose(2, 3)

    def crops(
        self, n: int, height: int, width: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top, left, height and width of n crops (n,), whole pixels, as torchvision draws them."""
        device = generator.device
        uniform = torch.rand(4, n, ATTEMPTS, device=device, dtype=torch.float32, generator=generator)
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * uniform[0])
        low, high = (math.log(bound) for bound in self.ratio)
        ratio = torch.exp(low + (high - low) * uniform[1])
        columns, rows = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (columns >= 1) & (columns <= width) & (rows >= 1) & (rows <= height)
        first = fits.int().argmax(1, keepdim=True)  # 0 where none fits
        found = fits.any(1)
        middle_rows, middle_columns = _largest(height, width, self.ratio)
        rows = torch.where(found, rows.gather(1, first)[:, 0], middle_rows)
        columns = torch.where(found, columns.gather(1, first)[:, 0], middle_columns)
        top = torch.where(found, (uniform[2, :, 0] * (height - rows + 1)).floor(), ((height - rows) / 2).round())
        left = torch.where(found, (uniform[3, :, 0] * (width - columns + 1)).floor(), ((width - columns) / 2).round())
        return top, left, rows, columns


def _largest(height: int, width: int, ratio: tuple[float, float]) -> tuple[float, float]:
    """Height and width of the largest crop whose shape is allowed."""
    shape = width / height
    if shape < ratio[0]:
        return float(round(width / ratio[0])), float(width)
    if shape > ratio[1]:
        return float(height), float(round(height * ratio[1]))
    return float(height), float(width)


def resize_weights(start: Tensor, length: Tensor, inside: int, outside: int) -> Tensor:
    """Weights W (N, outside, inside) that resize [start, start + length) of ``inside`` pixels to ``outside`` ones.

    Result pixel i lies at c = start + (i + ½) s with s = length / outside and takes pixel j of the crop with a weight
    proportional to max(0, 1 − |j + ½ − c| / max(1, s)). ``start`` and ``length`` are whole pixels (N,).
    """
    scale = (length / outside)[:, None, None]
    made, pixel = (torch.arange(pixels, device=start.device, dtype=start.dtype) for pixels in (outside, inside))
    centre = start[:, None, None] + (made[:, None] + 0.5) * scale
    weights = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    first, last = start[:, None, None], (start + length)[:, None, None]
    weights = weights * ((pixel >= first) & (pixel < last))
    return weights / weights.sum(2, keepdim=True)


@configurable
@dataclass(frozen=True)
class PadAndShift:
    """A shift by up to ``pad`` pixels in each direction, black where nothing is, and a flip: most CIFAR recipes' augmentation."""

    pad: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        require_number("pad", self.pad, least=0, whole=True)
        require_number("flip", self.flip, least=0, most=1)

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Augment images (N, C, H, W), floating; those of another size are resized to ``size`` first."""
        n, _, height, width = images.shape
        if (height, width) != tuple(size):
            images = functional.interpolate(images, size, mode="bilinear", antialias=True)
        uniform = torch.rand(3, n, device=images.device, dtype=torch.float32, generator=generator)
        down, right = ((uniform[:2] * (2 * self.pad + 1)).floor() - self.pad).to(torch.int64)
        vertical, horizontal = (_shifted(by, side, images.dtype) for by, side in ((down, size[0]), (right, size[1])))
        horizontal = torch.where((uniform[2] < self.flip)[:, None, None], horizontal.flip(1), horizontal)
        return vertical[:, None] @ images @ horizontal[:, None].transpose(2, 3)


def _shifted(by: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """Matrices (N, side, side) that move pixels by ``by`` (N,): row i is pixel i + by, or nothing."""
    pixel = torch.arange(side, device=by.device)
    return (pixel[None, None, :] == pixel[None, :, None] + by[:, None, None]).to(dtype)


@configurable
@dataclass(frozen=True)
class Recoloured:
    """A crop and a flip with other brightness, contrast, saturation and hue, or grey: for training without labels.

    Factors of brightness, contrast and saturation lie within 1 ± 0.8 · ``strength``, hue turns by up to 0.2 · ``strength`` of the
    circle; ``share`` and ``grey`` are the probabilities that colours change and that an image becomes grey.
    """

    crop: Augmentation = Augmentation(scale=(0.2, 1.0))
    strength: float = 0.5
    share: float = 0.8
    grey: float = 0.2

    def __post_init__(self) -> None:
        require(isinstance(self.crop, Augmentation), "crop", self.crop, "an Augmentation")
        for name in ("strength", "share", "grey"):
            require_number(name, getattr(self, name), least=0, most=1)

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Augment images (N, 3, H, W), floating, of 0 … 255."""
        made = self.crop(images, size, generator)
        uniform = torch.rand(6, len(made), device=made.device, dtype=torch.float32, generator=generator)
        change = 2 * uniform[:4] - 1
        brighter, contrast, saturation = 1 + 0.8 * self.strength * change[:3]
        angle = 2 * math.pi * 0.2 * self.strength * change[3]
        colours = _colours(saturation, angle, uniform[5] < self.grey) * brighter[:, None, None]
        keep = uniform[4] >= self.share
        grey_alone = _colours(torch.ones_like(angle), torch.zeros_like(angle), uniform[5] < self.grey)
        colours = torch.where(keep[:, None, None], grey_alone, colours).to(made.dtype)
        contrast = torch.where(keep, torch.ones_like(contrast), contrast).to(made.dtype)[:, None, None, None]
        made = torch.einsum("nij,njhw->nihw", colours, made)
        middle = torch.einsum("c,nchw->n", made.new_tensor(LUMA), made) / (size[0] * size[1])
        return (middle[:, None, None, None] + contrast * (made - middle[:, None, None, None])).clamp(0, 255)


def _colours(saturation: Tensor, angle: Tensor, grey: Tensor) -> Tensor:
    """Matrices (N, 3, 3) of colours: Y = LUMA · (r, g, b) stays; chroma is turned about the grey axis, lengthened, or gone."""
    saturation = torch.where(grey, torch.zeros_like(saturation), saturation)
    y = angle.new_tensor(LUMA).expand(3, 3)  # every row gives the brightness
    axis = angle.new_tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)  # × (1, 1, 1) / √3
    chroma = torch.eye(3, device=angle.device) - y
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    turned = cosine * chroma + sine * (chroma @ axis @ chroma)
    return y + saturation[:, None, None] * turned


# Losses
#
# A loss is called with the network's outputs (B, K) and labels (B,), and gives the mean loss and how many rows were right. One
# with ``views`` of 2 is given the outputs of two augmented copies of every image, (2 B, K), the first copies first.


Judged = tuple[Tensor, Tensor]  # Mean loss and number of rows that are right, both of no dimension


class _OfLabels:
    views: ClassVar[int] = 1
    supervised: ClassVar[bool] = True
    counts: ClassVar[str] = "training accuracy"


@configurable
@dataclass(frozen=True)
class CrossEntropy(_OfLabels):
    """−log softmax(l)_y, with a share ``smoothing`` of the label spread evenly over all classes (Szegedy et al. 2016)."""

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_number("smoothing", self.smoothing, least=0)
        require(self.smoothing < 1, "smoothing", self.smoothing, "a share below 1")

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        loss = functional.cross_entropy(outputs, labels, label_smoothing=float(self.smoothing))
        return loss, (outputs.argmax(1) == labels).sum()


@configurable
@dataclass(frozen=True)
class LogitNorm(_OfLabels):
    """Cross-entropy of l / (τ ‖l‖): confidence cannot be had by longer logits (Wei et al. 2022, LogitNorm).

    The network's logits are used as they are afterwards; only the training sees them normalised. τ is ``temperature``, the
    authors' 0.04 for CIFAR-10.
    """

    temperature: float = 0.04

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, above=0)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        length = outputs.norm(dim=1, keepdim=True) + 1e-7
        loss = functional.cross_entropy(outputs / (length * self.temperature), labels)
        return loss, (outputs.argmax(1) == labels).sum()


@configurable
@dataclass(frozen=True)
class SimCLR:
    """Of two augmented copies of an image, each must find the other among all copies in the batch (Chen et al. 2020).

    −log( e^{zᵢ·zⱼ/τ} / Σ_{k≠i} e^{zᵢ·z_k/τ} ) with z the outputs, normalised, and j the other copy of i's image. No label is
    read. The network's last layer is the projection, a linear one of ``width`` outputs; features are its input, as ever.
    """

    views: ClassVar[int] = 2
    supervised: ClassVar[bool] = False
    counts: ClassVar[str] = "pairs found"
    temperature: float = 0.5
    width: int = 128

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, above=0)
        require_number("width", self.width, least=2, whole=True)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        z = functional.normalize(outputs, dim=1)
        n = len(z)
        itself = torch.eye(n, dtype=torch.bool, device=z.device)
        near = (z @ z.T / self.temperature).masked_fill(itself, float("-inf"))
        other = torch.arange(n, device=z.device).roll(n // 2)
        # Two right copies are one image that was recognised.
        return functional.cross_entropy(near, other), (near.argmax(1) == other).sum() / self.views


Loss = CrossEntropy | LogitNorm | SimCLR

# What ``outfield train --loss NAME`` stands for: settings of the recipe
LOSSES: dict[str, dict[str, str]] = {
    "cross-entropy": {}, "smoothing": {"loss": '{"type": "CrossEntropy", "smoothing": 0.1}'},
    "logitnorm": {"loss": "LogitNorm"}, "simclr": {"loss": "SimCLR", "augmentation": "Recoloured"},
}  # fmt: skip
# What ``outfield train --outliers NAME`` stands for
OUTLIERS: dict[str, dict[str, str]] = {"none": {}, "stand-ins": {"outliers": "Outliers"}}
# What ``outfield train --augment NAME`` stands for
AUGMENTATIONS: dict[str, dict[str, str]] = {
    "crops": {"augmentation": "Augmentation"},
    "shift": {"augmentation": "PadAndShift"},
    "recoloured": {"augmentation": "Recoloured"},
}


@configurable
@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a learning rate that falls; defaults as in the paper, which gives no batch size.

    A large batch is faster, and imitates batches of ``small_batch`` images: batch normalisation takes its statistics over equal
    parts of the batch, none smaller than that, and the rate is multiplied by the number of parts, after a warm-up. Where the
    batch cannot be cut so (it is too small, it is a prime, the network has no batch normalisation), it is taken as it is.

    Args:
        epochs: passes over the training images.
        batch_size: images of a step; the last images of an epoch that do not fill a batch are left out of it.
        small_batch: images of the batch that a larger one imitates; 0 to take ``batch_size`` as it is.
        learning_rate: of a batch that imitates none.
        warm_up: share of the training, rounded up to epochs, over which a multiplied rate, or AdamW's, climbs from a tenth of its
            height; smaller than the first milestone, where there are milestones.
        momentum: of Nesterov; AdamW has its own.
        weight_decay: on every parameter.
        milestones: shares of the training after which the rate is divided by ten; only of the schedule "steps".
        augmentation: of the training images: :class:`Augmentation` (crops), :class:`PadAndShift`, or :class:`Recoloured`.
        precision: "float32", "bfloat16", or "auto": bfloat16 on a GPU that has it.
        compile: pass the network through torch.compile; "auto" does so on a GPU where the run is long enough to pay for it.
        schedule: how the rate falls after the warm-up: "steps", at the milestones, or "cosine", from its height towards 0
            along half a cosine, a little after each epoch.
        loss: what is made small: :class:`CrossEntropy`, :class:`LogitNorm`, or :class:`SimCLR`, which reads no label.
        optimiser: "sgd", or "adamw", which transformers need: with a rate of about 0.001 and a decay of about 0.05.
        outliers: :class:`Outliers`, made-up images that the network learns to be undecided about; none if None.
    """

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"schedule": "steps", "loss": CrossEntropy(), "optimiser": "sgd", "outliers": None}
    )

    epochs: int = 200
    batch_size: int = 512
    small_batch: int = 128
    learning_rate: float = 0.1
    warm_up: float = 0.025
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[float, ...] = (0.5, 0.75)
    augmentation: Augmentation | PadAndShift | Recoloured = Augmentation()
    precision: str = "auto"
    compile: str | bool = "auto"
    schedule: str = "steps"
    loss: Loss = CrossEntropy()
    optimiser: str = "sgd"
    outliers: Outliers | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 2), ("small_batch", 0)):
            require_number(name, getattr(self, name), least=least, whole=True)
        require(self.small_batch != 1, "small_batch", 1, "at least 2, or 0 for the batch as it is")
        require_number("learning_rate", self.learning_rate, above=0)
        for name, most in (("warm_up", math.inf), ("momentum", 1), ("weight_decay", math.inf)):
            require_number(name, getattr(self, name), least=0, most=most)
        many = isinstance(self.milestones, tuple | list)
        require(many, "milestones", self.milestones, "a list of shares of the training")
        for share in self.milestones:
            require_number("milestones", share, above=0, most=1)
        ascending = list(self.milestones) == sorted(self.milestones)
        require(ascending, "milestones", self.milestones, "shares of the training, ascending")
        require_choice("schedule", self.schedule, ("steps", "cosine"))
        limit = "1" if self.schedule == "cosine" else f"the first milestone, {self._first_fall:g}"
        require(self.warm_up < self._first_fall, "warm_up", self.warm_up, f"a share of the training below {limit}")
        made = self.augmentation
        augments = callable(made) and not isinstance(made, type)
        require(augments, "augmentation", made, "one of Augmentation, PadAndShift, Recoloured")
        require_choice("precision", self.precision, ("auto", "float32", "bfloat16"))
        require_choice("optimiser", self.optimiser, ("sgd", "adamw"))
        good = isinstance(self.loss, CrossEntropy | LogitNorm | SimCLR)
        require(good, "loss", self.loss, "one of CrossEntropy, LogitNorm, SimCLR")
        fits = self.outliers is None or (isinstance(self.outliers, Outliers) and self.loss.supervised)
        require(fits, "outliers", self.outliers, "Outliers beside a loss of labels, or none")
        said = isinstance(self.compile, bool) or (isinstance(self.compile, str) and self.compile == "auto")
        require(said, "compile", self.compile, "true, false or auto")

    @property
    def _first_fall(self) -> float:
        """Share of the training by which the warm-up must be over."""
        return 1.0 if self.schedule == "cosine" else min(self.milestones, default=1.0)

    @property
    def parts(self) -> int:
        """Into how many equal parts batch normalisation cuts a batch.

        >>> [Recipe(batch_size=size).parts for size in (64, 128, 300, 509, 512)]
        [1, 1, 2, 1, 4]
        """
        most = self.batch_size // self.small_batch if self.small_batch else 1
        return max((parts for parts in range(1, most + 1) if self.batch_size % parts == 0), default=1)

    @property
    def height(self) -> float:
        """The learning rate after the warm-up."""
        return self.learning_rate * self.parts

    @property
    def climb(self) -> int:
        """Epochs of warm-up: none of SGD without a multiplied rate, none in a training so short that the rate already falls."""
        climbs = self.parts > 1 or self.optimiser == "adamw"
        epochs = math.ceil(self.warm_up * self.epochs) if climbs else 0
        return epochs if epochs < self._first_fall * self.epochs else 0

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        With the schedule "cosine" it is height · ½ (1 + cos(π (epoch − climb) / (epochs − climb))) after the warm-up.

        >>> [round(Recipe().rate(epoch), 4) for epoch in (0, 5, 99, 100, 150)]
        [0.04, 0.4, 0.4, 0.04, 0.004]
        >>> [round(Recipe(batch_size=128, schedule="cosine").rate(epoch), 4) for epoch in (0, 50, 100, 150, 199)]
        [0.1, 0.0854, 0.05, 0.0146, 0.0]
        """
        if epoch < self.climb:
            return self.height * (0.1 + 0.9 * epoch / self.climb)
        if self.schedule == "cosine":
            return self.height * 0.5 * (1 + math.cos(math.pi * (epoch - self.climb) / (self.epochs - self.climb)))
        return self.height * 0.1 ** sum(epoch >= share * self.epochs for share in self.milestones)
