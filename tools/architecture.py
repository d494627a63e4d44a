"""Draws docs/images/architecture.png: the rooms of the package, and the way of the data through them.

python tools/architecture.py docs/images/architecture.png
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from outfield.report import save_figure as save
from outfield.report.canvas import FAINT, ID, INK, MID, MUTED, NEAR, RULE, new_figure


@dataclass(frozen=True)
class Box:
    """A room: where it stands (its middle, in units of the grid), how large it is, and what it holds."""

    x: float
    y: float
    words: str
    width: float = 1.6
    height: float = 0.95
    colour: str = ID


TOP, WAY, BELOW = 4.05, 2.75, 1.35
ROOMS = {
    "cli": Box(1.55, TOP, "a command each", 3.1, 0.62, MUTED),
    "serve": Box(4.8, TOP, "HTTP, a web page", 3.1, 0.62, MUTED),
    "scale": Box(8.05, TOP, "any size, on Ray", 3.1, 0.62, MUTED),
    "adapters": Box(11.45, TOP, "scikit-learn, pyod, ONNX", 3.5, 0.62, MUTED),
    "images": Box(0.8, WAY, "pixels from\nfolders, archives"),
    "backbone": Box(2.75, WAY, "a network,\nrun once"),
    "features": Box(4.7, WAY, "rows: a set\nor a stream"),
    "detectors": Box(6.65, WAY, "fit and score,\none file each"),
    "scores": Box(8.55, WAY, "threshold,\nmetrics"),
    "benchmark": Box(10.5, WAY, "detectors × sets\n→ records"),
    "report": Box(12.4, WAY, "tables, figures,\na page"),
    "classifier": Box(2.75, BELOW, "trains\na network", colour=NEAR),
    "guard": Box(8.55, BELOW, "network to threshold,\none verdict", colour=NEAR),
    "energy": Box(6.65, BELOW, "densities, chains,\ntheir training", colour=NEAR),
    "studies": Box(11.45, BELOW, "toys, demo", colour=NEAR),
    "files": Box(6.6, 0.3, "written atomically, with checksums, never unpickled", 13.2, 0.62, MID),
}
LEAVES = Box(6.6, -0.52, "which everyone may use: settings, errors, devices, progress", 13.2, 0.62, MUTED)
WAYS = [
    ("images", "backbone", "pixels"),
    ("backbone", "features", "FeatureSet"),
    ("features", "detectors", "fields"),
    ("detectors", "scores", "(N,) scores"),
    ("scores", "benchmark", "metrics"),
    ("benchmark", "report", "records"),
    ("classifier", "backbone", ""),
    ("energy", "detectors", ""),
    ("studies", "report", ""),
    ("scores", "guard", ""),
]
"""From which room what goes to which."""


def draw(path: str) -> None:
    """Write the picture."""
    figure = new_figure(13.6, 5.2)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.2, 13.4), ylim=(-0.95, 4.95))
    axes.set_axis_off()
    axes.text(0, 4.62, "The way of the data", fontsize=15, fontweight="bold", color=INK, va="center")
    axes.text(
        13.2,
        4.62,
        "a score is higher for what is more out-of-distribution",
        fontsize=10.5,
        color=MUTED,
        va="center",
        ha="right",
    )
    for name, box in ROOMS.items():
        _box(axes, name, box)
    _box(axes, "leaves", LEAVES)
    for start, end, words in WAYS:
        _arrow(axes, ROOMS[start], ROOMS[end], words)
    save(figure, path, dpi=110)


def _box(axes: Any, name: str, box: Box) -> None:
    x, y = box.x - box.width / 2, box.y - box.height / 2
    axes.fill(
        [x, x + box.width, x + box.width, x], [y, y, y + box.height, y + box.height], color=box.colour, alpha=0.09, lw=0
    )
    axes.plot([x, x + box.width, x + box.width, x, x], [y, y, y + box.height, y + box.height, y], color=RULE, lw=1)
    axes.plot([x, x], [y, y + box.height], color=box.colour, lw=3, solid_capstyle="butt")
    flat = box.width > 3
    if flat:
        axes.text(x + 0.16, box.y, name, fontsize=12, fontweight="bold", color=INK, va="center")
        axes.text(x + 1.35, box.y, box.words, fontsize=10, color=MUTED, va="center")
        return
    axes.text(x + 0.14, y + box.height - 0.2, name, fontsize=12, fontweight="bold", color=INK, va="center")
    axes.text(x + 0.14, y + 0.32, box.words, fontsize=8.6, color=MUTED, va="center", linespacing=1.25)


def _arrow(axes: Any, start: Box, end: Box, words: str) -> None:
    """From the side of one room that faces the other, to that of the other."""
    if start.y == end.y:
        a, b = (start.x + start.width / 2 + 0.02, start.y), (end.x - end.width / 2 - 0.02, end.y)
    elif end.y < start.y:
        a, b = (start.x, start.y - start.height / 2 - 0.03), (end.x, end.y + end.height / 2 + 0.03)
    else:
        aside = 0.4 if abs(start.x - end.x) >= 0.1 else 0
        a, b = (start.x, start.y + start.height / 2 + 0.03), (end.x - aside, end.y - end.height / 2 - 0.03)
    axes.annotate("", b, a, arrowprops={"arrowstyle": "-|>", "color": MUTED, "lw": 1.3, "shrinkA": 0, "shrinkB": 0})
    if words:
        axes.text((a[0] + b[0]) / 2, start.y + 0.6, words, fontsize=8.6, color=INK, ha="center", va="bottom")
        axes.plot([(a[0] + b[0]) / 2] * 2, [start.y + 0.08, start.y + 0.58], color=FAINT, lw=1)


if __name__ == "__main__":
    draw(sys.argv[1])
