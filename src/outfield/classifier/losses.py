"""What a network is trained to make small, and how the outputs of a batch are judged beside it.

A loss is called with the network's outputs (B, K) and labels (B,), and gives the mean loss and how many rows were right. One
with ``views`` of 2 is given the outputs of two augmented copies of every image, (2 B, K), the first copies first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import configurable, require, require_number

Judged = tuple[Tensor, Tensor]  # Mean loss and number of rows that are right, both of no dimension


@configurable
@dataclass(frozen=True)
class CrossEntropy:
    """−log softmax(l)_y, the ordinary loss of a classifier; labels may be smoothed.

    Args:
        smoothing: share of the label that is spread evenly over all classes (Szegedy et al. 2016).
    """

    views: ClassVar[int] = 1
    supervised: ClassVar[bool] = True
    counts: ClassVar[str] = "training accuracy"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_number("smoothing", self.smoothing, least=0)
        require(self.smoothing < 1, "smoothing", self.smoothing, "a share below 1")

    def __call__(self, outputs: Tensor, labels: Tensor) -> Judged:
        loss = functional.cross_entropy(outputs, labels, label_smoothing=float(self.smoothing))
        return loss, (outputs.argmax(1) == labels).sum()


@configurable
@dataclass(frozen=True)
class LogitNorm:
    """Cross-entropy of l / (τ ‖l‖): confidence cannot be had by longer logits (Wei et al. 2022, LogitNorm).

    The network's logits are used as they are afterwards; only the training sees them normalised.

    Args:
        temperature: τ; the authors' 0.04 for CIFAR-10.
    """

    views: ClassVar[int] = 1
    supervised: ClassVar[bool] = True
    counts: ClassVar[str] = "training accuracy"
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
    read. The network's last layer is the projection, a linear one; features are its input, as ever.

    Args:
        temperature: τ.
        width: outputs of the projection.
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
    "cross-entropy": {},
    "smoothing": {"loss": '{"type": "CrossEntropy", "smoothing": 0.1}'},
    "logitnorm": {"loss": "LogitNorm"},
    "simclr": {"loss": "SimCLR", "augmentation": "Recoloured"},
}
# What ``outfield train --augment NAME`` stands for
AUGMENTATIONS: dict[str, dict[str, str]] = {
    "crops": {"augmentation": "Augmentation"},
    "shift": {"augmentation": "PadAndShift"},
    "recoloured": {"augmentation": "Recoloured"},
}
