"""A figure as SVG inside a page: letters in the page's font, colours from the page, nothing that two SVGs share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from outfield.report.drawing import svg_text
from outfield.report.escaping import visible


def inline_svg(figure: Any, label: str, prefix: str, colours: Mapping[str, str]) -> str:
    """A figure as an ``svg`` element of a page.

    Args:
        figure: What to draw.
        label: What it shows, for those who do not see it.
        prefix: Of the ids in it; different for each SVG of a page.
        colours: By a colour of the figure ("#2f6fde"), what stands for it on the page ("var(--id)").
    """
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", svg_text(figure)))
    for node in root.iter():
        node.tag = node.tag.partition("}")[2]
        node.attrib = {key.partition("}")[2] or key: value for key, value in node.attrib.items()}
    for parent in root.iter("defs"):
        for child in parent.findall("style"):  # its rules would hold for the whole page
            parent.remove(child)
    used = [node.attrib["id"] for node in root.iter() if "id" in node.attrib and node.tag != "g"]
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(dict.fromkeys(used))}
    for node in root.iter():
        _tidy(node, ids, colours)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": visible(label)}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _tidy(node: ElementTree.Element, ids: Mapping[str, str], colours: Mapping[str, str]) -> None:
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
            value = ids[value]
        elif key in ("href", "clip-path"):
            value = re.sub(r"#([\w.-]+)", lambda match: f"#{ids[match[1]]}", value)
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
