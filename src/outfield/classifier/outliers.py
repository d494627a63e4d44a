"""Made-up images as outliers of a training: the network learns its classes, and to be undecided about these.

They are made of the training images, whole batches at a time on the device where these lie, as :func:`outfield.stand_ins` makes
the kinds of the same names. A network's file says which kinds it saw; these neither choose nor judge its detectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import configurable, require, require_choice, require_number, require_pair
from outfield.images import KINDS

Images = Tensor  # floating, 0 … 255, (N, C, H, W)
Change = Callable[[Images, Sequence[Images], torch.Generator], Images]


@configurable
@dataclass(frozen=True)
class Outliers:
    """Outlier exposure (Hendrycks et al. 2019) without outliers: a loss on made-up images beside that of the classes.

    loss = loss(ID) + ``weight`` · L, and over the made-up images x L is, with l(x) the logits and K classes,
    the mean of −1/K Σ_k log softmax(l)_k where ``form`` is "uniform"; where it is "energy" (Liu et al. 2020), with the energy
    E = −log Σ_k exp l_k and the ``margins`` (a, b), the mean of max(0, b − E)² over them and of max(0, E − a)² over ID images.

    Args:
        kinds: of stand-ins, names of :data:`outfield.images.KINDS`; equally many of each.
        share: made-up images for each training image of a batch.
        weight: of L.
        form: "uniform" or "energy".
        margins: energies that ID images should stay below and made-up ones above.
    """

    kinds: tuple[str, ...] = ("turned90", "turned180", "jigsaw2", "blocks")
    share: float = 0.5
    weight: float = 0.5
    form: str = "uniform"
    margins: tuple[float, float] = (-10.0, -3.0)

    def __post_init__(self) -> None:
        good = isinstance(self.kinds, tuple | list) and len(self.kinds) > 0 and set(self.kinds) <= CHANGES.keys()
        require(good, "kinds", self.kinds, f"names of stand-ins, any of {', '.join(CHANGES)}")
        left = {kind.level for name, kind in KINDS.items() if name not in self.kinds}
        right = "such that a near and a far kind are left to choose detectors"
        require(left == {"near", "far"}, "kinds", self.kinds, right)
        require_number("share", self.share, above=0, most=1)
        require_number("weight", self.weight, least=0)
        require_choice("form", self.form, ("uniform", "energy"))
        require_pair("margins", self.margins, "[-10, -3]")

    def count(self, batch: int, parts: int) -> int:
        """Made-up images of a batch, equally many for each part of it."""
        return parts * max(1, round(self.share * batch / parts))

    def made(self, images: Images, labels: Tensor, count: int, generator: torch.Generator) -> Images:
        """``count`` images made of a batch; those that are mixed are of different classes where no class has half of it."""
        n = len(images)
        by_class = labels.argsort(stable=True)
        order = torch.randperm(n, device=images.device, generator=generator)
        place = order[torch.arange(count, device=images.device) % n]
        found = torch.empty_like(images[:1]).expand(count, *images.shape[1:]).clone()
        for first, name in enumerate(self.kinds):
            own = place[first :: len(self.kinds)]
            if len(own):
                others = [images[by_class[(own + step * n // 4) % n]] for step in (2, 1, 3)]
                found[first :: len(self.kinds)] = CHANGES[name](images[by_class[own]], others, generator)
        return found

    def loss(self, known: Tensor, made: Tensor) -> Tensor:
        """``weight`` · L of the logits of ID images and of made-up ones."""
        if self.form == "uniform":
            return -self.weight * functional.log_softmax(made, 1).mean()
        low, high = self.margins
        above = functional.relu(-known.logsumexp(1) - low) ** 2
        below = functional.relu(high + made.logsumexp(1)) ** 2
        return self.weight * (above.mean() + below.mean())


def joined(known: Tensor, made: Tensor, parts: int) -> Tensor:
    """ID rows and made-up ones as one batch, of which each of the ``parts`` has both in proportion."""
    return torch.cat([known.unflatten(0, (parts, -1)), made.unflatten(0, (parts, -1))], 1).flatten(0, 1)


def parted(rows: Tensor, made: int, parts: int) -> tuple[Tensor, Tensor]:
    """What :func:`joined` joined, ``made`` of them made up."""
    each = rows.unflatten(0, (parts, -1))
    known = each.shape[1] - made // parts
    return each[:, :known].flatten(0, 1), each[:, known:].flatten(0, 1)


def _drawn(n: int, images: Images, generator: torch.Generator) -> Tensor:
    """A number below ``n`` for each image (N, 1, 1, 1)."""
    drawn = torch.rand(len(images), 1, 1, 1, device=images.device, generator=generator)
    return (drawn * n).floor()


def _turned90(images: Images, others: Sequence[Images], generator: torch.Generator) -> Images:
    require(images.shape[2] == images.shape[3], "kinds", "turned90", "of square images; leave it out for others")
    return torch.where(_drawn(2, images, generator) > 0, images.rot90(1, (2, 3)), images.rot90(3, (2, 3)))


def _halves(images: Images, others: Sequence[Images], generator: torch.Generator) -> Images:
    lower, right = _second_half(images)
    return torch.where(torch.where(_drawn(2, images, generator) > 0, lower, right), others[0], images)


def _quarters(images: Images, others: Sequence[Images], generator: torch.Generator) -> Images:
    lower, right = _second_half(images)
    left = torch.where(lower, others[0], images)
    return torch.where(right, torch.where(lower, others[1], others[2]), left)


def _second_half(images: Images) -> tuple[Tensor, Tensor]:
    """Which pixels are in the lower half (1, 1, H, W), and which in the right one."""
    height, width = images.shape[2:]
    row, column = (torch.arange(side, device=images.device) >= (side + 1) // 2 for side in (height, width))
    return row[None, None, :, None].expand(1, 1, height, width), column[None, None, None, :].expand(1, 1, height, width)


def _jigsaw(images: Images, others: Sequence[Images], generator: torch.Generator, grid: int) -> Images:
    n, _, height, width = images.shape
    rows, columns = height // grid, width // grid  # what is left over at the right and below stays
    whole = images[:, :, : rows * grid, : columns * grid]
    tiles = whole.unflatten(3, (grid, columns)).unflatten(2, (grid, rows)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.rand(n, grid * grid, device=images.device, generator=generator).argsort(1)
    source = torch.empty_like(order).scatter_(1, order, order.roll(1, 1))  # one cycle: no tile at its own place
    moved = tiles.gather(1, source[:, :, None, None, None].expand_as(tiles)).unflatten(1, (grid, grid))
    found = images.clone()
    found[:, :, : rows * grid, : columns * grid] = moved.permute(0, 3, 1, 4, 2, 5).reshape(whole.shape)
    return found


def _blocks(images: Images, others: Sequence[Images], generator: torch.Generator) -> Images:
    height, width = (max(1, min(8, side // 2)) for side in images.shape[2:])
    return functional.interpolate(functional.adaptive_avg_pool2d(images, (height, width)), images.shape[2:])


def _phase(images: Images, others: Sequence[Images], generator: torch.Generator) -> Images:
    shape = images.shape[2:]
    noise = torch.fft.rfft2(torch.randn(len(images), 1, *shape, device=images.device, generator=generator))
    turn = noise / noise.abs().clamp(min=torch.finfo(torch.float32).tiny)
    turn[:, :, 0, 0] = 1
    found: Tensor = torch.fft.irfft2(torch.fft.rfft2(images).abs() * turn, s=shape)
    return found.clamp(0, 255)


# What each kind does, by the names of :data:`outfield.images.KINDS`
CHANGES: dict[str, Change] = {
    "turned90": _turned90, "turned180": lambda images, *_: images.flip(2, 3),
    "mixed": lambda images, others, _: (images + others[0]) / 2, "halves": _halves, "quarters": _quarters,
    "inverted": lambda images, *_: 255 - images,
    "jigsaw2": partial(_jigsaw, grid=2), "jigsaw8": partial(_jigsaw, grid=8), "blocks": _blocks, "phase": _phase,
}  # fmt: skip
