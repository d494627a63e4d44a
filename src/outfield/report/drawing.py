"""How figures are drawn: their colours, the look of axes and letters, and how they become files.

Matplotlib's settings belong to the whole process, so they stay as they are: what a figure looks like is said to its own axes
and letters. This is the one module that imports Matplotlib, which comes with the extra ``outfield[report]``.
"""

from __future__ import annotations

import io
from typing import Any

from outfield.extras import library
from outfield.files.atomic import PathLike, write_bytes
from outfield.report.escaping import visible

Figure: Any = library("matplotlib.figure", extra="report").Figure
Line2D: Any = library("matplotlib.lines", extra="report").Line2D
Patch: Any = library("matplotlib.patches", extra="report").Patch
PathPatch: Any = library("matplotlib.patches", extra="report").PathPatch
Path: Any = library("matplotlib.path", extra="report").Path
Text: Any = library("matplotlib.text", extra="report").Text
MaxNLocator: Any = library("matplotlib.ticker", extra="report").MaxNLocator
MultipleLocator: Any = library("matplotlib.ticker", extra="report").MultipleLocator
Colormap: Any = library("matplotlib.colors", extra="report").LinearSegmentedColormap
RendererSVG: Any = library("matplotlib.backends.backend_svg", extra="report").RendererSVG

INK, MUTED = "#1d2433", "#6b7488"
FAINT, RULE = "#dfe3ea", "#c4cad6"
ID, NEAR, MID, FAR = "#2f6fde", "#e08a1e", "#5e2a84", "#c23b4b"
FONT = "DejaVu Sans"
SIZE = 9.5
"""Points of a letter, where nothing else is said."""


def new_figure(width: float, height: float, layout: str | None = None) -> Any:
    """An empty figure of so many inches, without a window and without pyplot."""
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def subplots(figure: Any, rows: int = 1, columns: int = 1, **place: Any) -> Any:
    """Axes in a grid (rows, columns), in the look of all figures.

    Args:
        figure: Where they go.
        rows: How many below each other.
        columns: How many beside each other.
        place: Of the grid, such as ``left`` and ``wspace``.
    """
    found = figure.subplots(rows, columns, squeeze=False, gridspec_kw=place)
    for axes in found.flat:
        prepare(axes)
    return found


def prepare(axes: Any) -> None:
    """Give axes the look of all figures: thin lines to the left and below, muted numbers, no grid."""
    axes.set_facecolor("white")
    axes.grid(visible=False)
    for side, spine in axes.spines.items():
        spine.set(edgecolor=RULE, linewidth=0.8, visible=side in ("left", "bottom"))
    axes.tick_params(which="both", color=MUTED, labelcolor=MUTED, labelsize=SIZE, labelfontfamily=FONT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=MUTED, fontsize=SIZE)


def finish(figure: Any) -> Any:
    """The figure with its letters in one font, and as they are: a dollar sign begins no formula."""
    for text in figure.findobj(Text):
        text.set(fontfamily=FONT, usetex=False, parse_math=False)
        text.set_text("\n".join(map(visible, text.get_text().split("\n"))))
    return figure


def save(figure: Any, path: PathLike, dpi: int = 150) -> None:
    """Write a figure as PNG, atomically."""
    buffer = io.BytesIO()
    finish(figure).savefig(buffer, format="png", dpi=dpi, facecolor="white", transparent=False)
    write_bytes(path, buffer.getvalue())


class _Letters(RendererSVG):  # type: ignore[misc]
    """SVG whose letters are letters, not outlines, whatever ``svg.fonttype`` says."""

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: bool = False, mtext: Any = None
    ) -> None:
        self._draw_text_as_text(gc, x, y, s, prop, angle, ismath, mtext)


def svg_text(figure: Any) -> str:
    """A figure as SVG without a background; its ids are random."""
    figure = finish(figure)
    figure.set_dpi(72)
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)
    buffer = io.StringIO()
    width, height = figure.get_size_inches() * 72
    renderer = _Letters(width, height, buffer, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    figure.draw(renderer)
    renderer.finalize()
    return buffer.getvalue()
