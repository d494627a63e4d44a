"""Generated features as large as ImageNet's, with a spectrum like that of a network's, for ``benchmarks/thousand.py``.

x = max(o + (m_c + ε diag(λ)^½) Qᵀ, 0), float16: o an offset from 0.2 to 1.5 in each column, λ_i ∝ 1 / i with a mean of 0.09
(so a column's standard deviation is 0.3), Q a random rotation, m_c the mean of a class with variance λ_i / (4 √i) along axis i.
Classes so lie about 45 apart in squared Mahalanobis distance, and the best linear rule gets some of them wrong. Logits are
those of that rule, W = m Λ⁻¹ Qᵀ, b = −½ m Λ⁻¹ mᵀ − W o.

Rows are written in parts, each from its own seed: the first parts of a large file are those of a small one. A GPU draws other
numbers than a CPU does.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import outfield as of

ROWS, WIDTH, CLASSES, QUERIES = 1_281_167, 2_048, 1_000, 50_000
PART = 16_384
SPREAD = 0.3
"""Standard deviation of a column within a class, before rows are cut off at 0."""
FIELDS = ("features", "labels", "logits")


@dataclass(frozen=True)
class Size:
    """How much is generated: training rows, their width, classes, and rows to score that are no training rows."""

    rows: int
    width: int
    classes: int
    queries: int


class Generator:
    """Rows in classes, on a device."""

    def __init__(self, width: int, classes: int, device: torch.device) -> None:
        source = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=source, device=device)

        order = torch.arange(1, width + 1, device=device)
        variances = 1 / order
        variances *= SPREAD**2 / variances.mean()
        self.rotation = torch.linalg.qr(normal(width, width)).Q
        self.roots = variances.sqrt()
        self.means = normal(classes, width) * self.roots / (2 * order**0.25)
        self.offset = 0.2 + 1.3 * torch.rand(width, generator=source, device=device)
        scaled = self.means / variances
        self.weight = scaled @ self.rotation.T
        self.bias = -0.5 * (scaled * self.means).sum(1) - self.weight @ self.offset

    def part(self, number: int, rows: int) -> dict[str, Tensor]:
        """Features (rows, D) and logits (rows, K) in float16 and labels (rows,), from the seed ``number``."""
        source = torch.Generator(self.roots.device).manual_seed(1 + number)
        labels = torch.randint(len(self.means), (rows,), generator=source, device=self.roots.device)
        z = torch.randn(rows, len(self.roots), generator=source, device=self.roots.device) * self.roots
        z = ((z + self.means[labels]) @ self.rotation.T + self.offset).clamp_min_(0).half()
        logits = torch.addmm(self.bias, z.float(), self.weight.T).half()
        return {"features": z, "labels": labels, "logits": logits}


def make(folder: Path, size: Size, device: str) -> None:
    """Write ``train_*.npy`` and ``test_*.npy``, ``head_*.npy``, and at last ``size.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = Generator(size.width, size.classes, torch.device(device))
    np.save(folder / "head_weight.npy", generator.weight.cpu().numpy())
    np.save(folder / "head_bias.npy", generator.bias.cpu().numpy())
    _write(folder, "train", generator, size.rows, 0)
    _write(folder, "test", generator, size.queries, 10**6)
    (folder / "size.json").write_text(json.dumps(asdict(size)))


def _write(folder: Path, name: str, generator: Generator, rows: int, first: int) -> None:
    shapes = {"features": (rows, len(generator.roots)), "labels": (rows,), "logits": (rows, len(generator.means))}
    files = {field: (folder / f"{name}_{field}.npy").open("wb") for field in FIELDS}
    for field, file in files.items():
        kind = "<i8" if field == "labels" else "<f2"
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shapes[field]})
    for start in range(0, rows, PART):
        part = generator.part(first + start // PART, min(PART, rows - start))
        for field, file in files.items():
            file.write(part[field].cpu().numpy().data)
    for file in files.values():
        file.close()


def size_of(folder: Path) -> Size:
    """What :func:`make` wrote there."""
    return Size(**json.loads((folder / "size.json").read_text()))


def opened(folder: Path, name: str) -> of.FeatureStream:
    """The rows called ``name``, "train" or "test", with labels, logits and the classifier's last layer."""
    beside = {field: folder / f"{name}_{field}.npy" for field in ("labels", "logits")}
    head = {field: folder / f"{field}.npy" for field in ("head_weight", "head_bias")}
    return of.open_features(folder / f"{name}_features.npy", **beside, **head)


def forget(folder: Path) -> None:
    """Ask the system to drop what it keeps of the training rows in memory, once they are on disk."""
    with (folder / "train_features.npy").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
