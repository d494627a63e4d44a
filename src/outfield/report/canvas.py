"""The look of figures (colours, axes, letters), and how a figure becomes a PNG or SVG inside a page.

Matplotlib's settings belong to the whole process, so they stay as they are: what a figure looks like is said to its own axes
and letters. This is the one module that imports Matplotlib, which comes with the extra ``outfield[report]``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from outfield.extras import library
from outfield.files import PathLike, write_bytes
from outfield.report.table import visible

Figure: Any = library("matplotlib.figure", "report").Figure
Line2D: Any = library("matplotlib.lines", "report").Line2D
Text: Any = library("matplotlib.text", "report").Text
Path: Any = library("matplotlib.path", "report").Path
_patches, _ticker = library("matplotlib.patches", "report"), library("matplotlib.ticker", "report")
Patch, PathPatch = _patches.Patch, _patches.PathPatch
MaxNLocator, MultipleLocator = _ticker.MaxNLocator, _ticker.MultipleLocator
Colormap: Any = library("matplotlib.colors", "report").LinearSegmentedColormap
RendererSVG: Any = library("matplotlib.backends.backend_svg", "report").RendererSVG

INK, MUTED = "#1d2433", "#6b7488"
FAINT, RULE = "#dfe3ea", "#c4cad6"
ID, NEAR, MID, FAR = "#2f6fde", "#e08a1e", "#5e2a84", "#c23b4b"
FONT = "DejaVu Sans"
SIZE = 9.5  # points of a letter, where nothing else is said


def new_figure(width: float, height: float, layout: str | None = None) -> Any:
    """An empty figure of so many inches, without a window and without pyplot."""
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def subplots(figure: Any, rows: int = 1, columns: int = 1, **place: Any) -> Any:
    """Axes in a grid (rows, columns), in the look of all figures; ``place`` of the grid, such as ``left`` and ``wspace``."""
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


def faint_grid(axes: Any, axis: str = "both") -> None:
    """Faint lines behind what is drawn."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)


def frame(axes: Any) -> None:
    """A line all around, and no ticks: for maps and clouds of points."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)


def finish(figure: Any) -> Any:
    """The figure with its letters in one font, and as they are: a dollar sign begins no formula."""
    for text in figure.findobj(Text):
        text.set(fontfamily=FONT, usetex=False, parse_math=False)
        text.set_text("\n".join(map(visible, text.get_text().split("\n"))))
    return figure


def save_figure(figure: Any, path: PathLike, dpi: int = 150) -> None:
    """Write a figure as PNG, atomically."""
    buffer = io.BytesIO()
    finish(figure).savefig(buffer, format="png", dpi=dpi, facecolor="white", transparent=False)
    write_bytes(path, buffer.getvalue())


class _Letters(RendererSVG):  # type: ignore[misc]
    """SVG with letters instead of outlines, and ids that are numbers after a prefix, whatever Matplotlib's settings say."""

    def __init__(self, *given: Any, prefix: str, **more: Any) -> None:
        self._ids: dict[tuple[str, str], str] = {}
        self._prefix = prefix
        super().__init__(*given, **more)

    def _make_id(self, type: str, content: object) -> str:
        return self._ids.setdefault((type, str(content)), f"{self._prefix}-{len(self._ids)}")

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: bool = False, mtext: Any = None
    ) -> None:
        self._draw_text_as_text(gc, x, y, s, prop, angle, ismath, mtext)


def svg_text(figure: Any, prefix: str = "figure") -> str:
    """A figure as SVG without a background; its ids begin with ``prefix``."""
    finish(figure).set_dpi(72)
    for one in (figure, *figure.axes):
        one.patch.set_visible(False)
    buffer = io.StringIO()
    size, about = figure.get_size_inches() * 72, dict.fromkeys(("Creator", "Date", "Format", "Type"))
    renderer = _Letters(*size, buffer, metadata=about, prefix=prefix)
    figure.draw(renderer)
    renderer.finalize()
    return buffer.getvalue()


def inline_svg(figure: Any, label: str, prefix: str, colours: Mapping[str, str]) -> str:
    """A figure as an ``svg`` element of a page in its ``colours``, its ids after ``prefix``; without a label it is decoration."""
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", svg_text(figure, prefix)))
    for node in root.iter():
        node.tag, node.text, node.tail = node.tag.partition("}")[2], (node.text or "").strip() or None, None
        named = {key.partition("}")[2] or key: value for key, value in node.attrib.items()}
        shown = {key: _tidy(key, value, prefix, colours) for key, value in named.items()}
        node.attrib = {key: value for key, value in shown.items() if value}
    for parent in root.iter("defs"):
        for child in parent.findall("style"):  # its rules would hold for the whole page
            parent.remove(child)
    told = {"role": "img", "aria-label": visible(label)} if label else {"aria-hidden": "true"}
    root.attrib = {"viewBox": root.attrib["viewBox"], **told}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _tidy(key: str, value: str, prefix: str, colours: Mapping[str, str]) -> str:
    """An attribute with short coordinates, ids of its own, and colours and font of the page; empty where it says nothing."""
    if key == "d":
        return _short_path(value)
    if key in ("x", "y", "width", "height", "transform"):
        return "" if value.startswith("rotate(-0 ") else _rounded(value)
    if key == "style":
        value = re.sub(r"font-family:[^;]*;?\s*", "", value)
        return re.sub(r"#[0-9a-f]{6}\b", lambda match: colours.get(match[0], match[0]), value)
    return value if key != "id" or prefix in value else ""


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), text)


def _short_path(path: str) -> str:
    """A path in as few characters as a tenth of a point needs; a stroke shorter than a point becomes a dot.

    >>> _short_path("M 10.04 20.06 \\nL 10.2 20.06 \\nM 1 2 L 30 40 z")
    'M10 20.1h0M1 2L30 40z'
    """

    def dot(match: re.Match[str]) -> str:
        near = abs(float(match[1]) - float(match[3])) < 1
        return f"M{match[1]} {match[2]}h0" if near else match[0]

    path = re.sub(r"\s*([A-Za-z])\s*", r"\1", _rounded(" ".join(path.split())))
    return re.sub(r"M([-\d.]+) ([-\d.]+)L(?=([-\d.]+) \2(?![\d.]))[-\d.]+ [-\d.]+(?=M|$)", dot, path)
