"""Labelled images in memory, as training reads them, and some of them held out to compare recipes on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outfield.backbone import read_all
from outfield.config import require, require_number
from outfield.errors import InputError
from outfield.files import Fingerprint
from outfield.images import ImageSource, check_source

SEED = 0  # Of the choice of held-out images: the same for every training, so that recipes are compared on the same ones


@dataclass(frozen=True, eq=False)
class Pixels:
    """Labelled images of one size: bytes (N, 3, H, W) in channels-last order, labels int64 (N,) from 0, a name for messages."""

    images: Tensor
    labels: Tensor
    name: str = "images"

    @classmethod
    def of(cls, source: ImageSource, size: tuple[int, int], *, labelled: bool = True) -> Pixels:
        """All images of a source in memory, resized to ``size``; without ``labelled``, every label is 0."""
        check_source(source)
        labels = torch.zeros(len(source), dtype=torch.int64)
        if labelled:
            if source.labels is None:
                raise InputError(f"{source.name} has no labels; a classifier is trained on labelled images")
            labels = torch.from_numpy(source.labels)
        return cls(read_all(source, size), labels, source.name)

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> Pixels:
        """On the device, if half of its free memory holds them; else they stay, and travel in pieces."""
        if device.type == "cuda" and self.images.numel() < torch.cuda.mem_get_info(device)[0] // 2:
            return Pixels(self.images.to(device), self.labels.to(device), self.name)
        return self

    def select(self, chosen: Tensor) -> Pixels:
        """The images for which ``chosen``, bool (N,), is true."""
        index = chosen.nonzero().flatten().to(self.images.device)
        images = self.images[index].contiguous(memory_format=torch.channels_last)
        return Pixels(images, self.labels[index.to(self.labels.device)], self.name)

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, in [0, 1], from the counts of the 256 values."""
        values, counts = torch.arange(256, dtype=torch.float64) / 255, torch.zeros(3, 256, dtype=torch.float64)
        for piece in self.images.split(4096):
            counts += torch.stack([torch.bincount(one.flatten(), minlength=256).cpu() for one in piece.unbind(1)])
        share = counts / counts.sum(1, keepdim=True)
        mean = (share * values).sum(1)
        std = (share * (values - mean[:, None]) ** 2).sum(1).sqrt()
        means, stds = (tuple(round(one, 6) for one in numbers.tolist()) for numbers in (mean, std))
        return means, stds

    def fingerprint(self) -> str:
        """Digest of pixels and labels."""
        digest = Fingerprint()
        digest.begin("images", self.images.dtype, tuple(self.images.shape))
        for piece in self.images.split(4096):
            digest.update(piece.permute(0, 2, 3, 1).contiguous().cpu())
        digest.begin("labels", self.labels.dtype, tuple(self.labels.shape))
        digest.update(self.labels.cpu().contiguous())
        return digest.hexdigest()


def check_share(share: float) -> None:
    """Raise an :class:`InputError` unless ``share`` is a number above 0 and below 1."""
    require_number("hold_out", share, above=0)
    require(share < 1, "hold_out", share, "a share of the training images, above 0 and below 1")


def split_off(pixels: Pixels, share: float) -> tuple[Pixels, Pixels]:
    """The images to train on, and those that are held out, both in the order they had.

    Of each class of n images round(share · n) are held out: the first of them in one random order of all images, which
    depends on their number alone. A larger share therefore holds out what a smaller one does, and more.

    >>> two_of_each = Pixels(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]))
    >>> [part.labels.tolist() for part in split_off(two_of_each, 0.5)]
    [[0, 1], [0, 1]]
    """
    check_share(share)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(SEED))
    labels = pixels.labels.cpu()
    out = torch.zeros(len(pixels), dtype=torch.bool)
    for label in labels.unique().tolist():
        own = order[labels[order] == label]
        count = round(share * len(own))
        if count == len(own):
            raise InputError(f"hold_out is {share:g}; of the {count} images of class {label} none would be left")
        out[own[:count]] = True
    if not out.any():
        raise InputError(f"hold_out is {share:g}; that is less than half an image of each class of {pixels.name}")
    return pixels.select(~out), pixels.select(out)
