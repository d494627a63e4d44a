"""HTML, element by element. Text is escaped wherever it is put in; only :class:`Html` goes in as it is."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

Value = str | bool | int | None
VOID = {"meta", "link", "br", "hr"}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Any text as HTML.

    >>> escape('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def element(name: str, /, *children: object, **attributes: Value) -> Html:
    """An element. Attributes whose value is None or False are left out; ``class_`` is class, ``aria_label`` aria-label.

    >>> element("a", "1 < 2", href="#x", class_="link", hidden=True, title=None)
    '<a href="#x" class="link" hidden>1 &lt; 2</a>'
    """
    parts = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(attribute)
        elif value is not None and value is not False:
            parts.append(f'{attribute}="{escape(value)}"')
    if name in VOID:
        return Html(f"<{' '.join(parts)}>")
    return Html(f"<{' '.join(parts)}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Elements and text, one after the other; None is nothing."""
    return Html("".join(escape(child) for child in children if child is not None))


def inline_svg(figure: Figure, label: str, prefix: str, colours: Mapping[str, str], style: Mapping[str, Any]) -> Html:
    """A figure as SVG inside a page: letters in the page's font, colours from the page, nothing that two SVGs share.

    Args:
        figure: what to draw.
        label: what it shows, for those who do not see it.
        prefix: of the ids in it; different for each SVG of a page.
        colours: by a colour of the figure ("#2f6fde"), what stands for it on the page ("var(--id)").
        style: settings of Matplotlib to draw it with.
    """
    buffer = io.StringIO()
    bare: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({**style, "svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=bare)
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", buffer.getvalue()))
    for node in root.iter():
        node.tag = node.tag.partition("}")[2]
        node.attrib = {key.partition("}")[2] or key: value for key, value in node.attrib.items()}
        _tidy(node, prefix, colours)
    for parent in root.iter("defs"):
        for child in parent.findall("style"):  # its rules would hold for the whole page
            parent.remove(child)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return Html(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def _tidy(node: ElementTree.Element, prefix: str, colours: Mapping[str, str]) -> None:
    """One node: short coordinates, ids of its own, colours and font of the page."""
    node.text = (node.text or "").strip() or None
    node.tail = None
    if node.tag == "g":
        node.attrib.pop("id", None)
    for key, value in list(node.attrib.items()):
        if key == "d":
            value = _short_path(value)
        elif key in ("x", "y", "width", "height"):
            value = _rounded(value)
        elif key == "transform":
            value = "" if value.startswith("rotate(-0 ") else _rounded(value)
        elif key == "id":
            value = f"{prefix}-{value}"
        elif key == "href":
            value = value.replace("#", f"#{prefix}-")
        elif key == "clip-path":
            value = value.replace("url(#", f"url(#{prefix}-")
        elif key == "style":
            value = re.sub(r"font-family:[^;]*;?\s*", "", value)
            value = re.sub(r"#[0-9a-f]{6}\b", lambda match: colours.get(match[0], match[0]), value)
        if value:
            node.attrib[key] = value
        else:
            del node.attrib[key]


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), text)


def _short_path(path: str) -> str:
    """A path in as few characters as a tenth of a point needs; a stroke shorter than a point becomes a dot.

    >>> _short_path("M 10.04 20.06 \\nL 10.2 20.06 \\nM 1 2 L 30 40 z")
    'M10 20.1h0M1 2L30 40z'
    """
    path = re.sub(r"\s*([A-Za-z])\s*", r"\1", _rounded(" ".join(path.split())))
    return re.sub(r"M([-\d.]+) ([-\d.]+)L(?=([-\d.]+) \2(?![\d.]))[-\d.]+ [-\d.]+(?=M|$)", _dot, path)


def _dot(match: re.Match[str]) -> str:
    near = abs(float(match[1]) - float(match[3])) < 1
    return f"M{match[1]} {match[2]}h0" if near else match[0]
