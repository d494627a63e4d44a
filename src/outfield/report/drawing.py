"""The look that all figures share: colours, Matplotlib's settings, and how a figure becomes a file."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

from outfield.files.atomic import PathLike, write_bytes

INK, MUTED = "#1d2433", "#6b7488"
ID, NEAR, FAR = "#2f6fde", "#e08a1e", "#c23b4b"
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#c4cad6",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
}


def save(figure: Figure, path: PathLike, dpi: int = 150) -> None:
    """Write a figure as PNG, atomically."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    write_bytes(path, buffer.getvalue())
