"""Colours of the page, light and dark."""

from __future__ import annotations

from outfield.report.drawing import FAINT, FAR, ID, INK, MUTED, NEAR, RULE
from outfield.report.figures.chart import DETECTOR_LOOKS, LEVEL_COLOURS, LEVEL_INKS, SPARE_COLOURS

DARK = {
    INK: "#e4e8f0",
    MUTED: "#9ba5b8",
    RULE: "#4a5364",
    FAINT: "#2a303d",
    ID: "#4d86f2",
    NEAR: "#e8952c",
    LEVEL_COLOURS["mid"]: "#cdb2f5",
    FAR: "#cf4459",
    **dict(
        zip(
            (*(colour for colour, _ in DETECTOR_LOOKS.values()), *SPARE_COLOURS),
            (
                *("#828894", "#e0860f", "#ca3517", "#2c68dc", "#f0abd5", "#835689", "#6fe07d", "#af95ff"),
                *("#3fb5c0", "#e08a52", "#a9bb63", "#ea7fae", "#8b97b3", "#d6b53c", "#8fd468", "#7fb4e6"),
            ),
            strict=True,
        )
    ),
}
"""What each colour of the figures becomes on a dark page."""
THEME = {
    "page": ("#f8f9fb", "#11141b"),
    "card": ("#ffffff", "#171b24"),
    "ink": (INK, DARK[INK]),
    "soft": ("#596275", "#9ba5b8"),
    "line": ("#dfe3ea", "#2b3140"),
    "hair": ("#eef0f4", "#222835"),
    "accent": ("#1f5fd0", "#7aa8ff"),
    "tint": ("47 111 222", "91 149 245"),
    "near-ink": (LEVEL_INKS["near"], "#f0ab55"),
    "mid-ink": (LEVEL_INKS["mid"], "#cdb2f5"),
    "far-ink": (LEVEL_INKS["far"], "#f07f8f"),
    "good": ("#1a6b3c", "#6fd39b"),
    "mixed": ("#8a5200", "#f0b860"),
    "bad": ("#b02f40", "#f28b98"),
    "open": ("#596275", "#9ba5b8"),
}
"""The page's own colours, light and dark."""


def variable(colour: str) -> str:
    """Name of the CSS variable that stands for a colour of the figures."""
    return f"--c{colour[1:]}"


def colours() -> str:
    """Every colour as a CSS variable: light, dark where the reader or the system wants that, light again on paper."""
    light = {f"--{name}": pair[0] for name, pair in THEME.items()} | {variable(colour): colour for colour in DARK}
    dark = {f"--{name}": pair[1] for name, pair in THEME.items()} | {variable(c): d for c, d in DARK.items()}
    one, other = (";".join(f"{name}:{value}" for name, value in both.items()) for both in (light, dark))
    return (
        f":root{{color-scheme:light;{one}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{other}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{other}}}}}\n"
    )
