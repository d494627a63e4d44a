"""Writes the ``__init__.pyi`` of every room and of the package from their doors: what type checkers and editors see.

``python tools/stubs.py`` writes them, ``--check`` says which are not current. A new detector is found by itself.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from outfield.detectors.registry import homes as detector_homes

PACKAGE = Path(__file__).parent.parent / "src" / "outfield"
FIRST = '"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""'


def names_of(file: Path) -> dict[str, str]:
    """Module → names, as the ``door(__name__, {…})`` of an ``__init__.py`` has them; empty where there is no door."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "door":
            return {str(home): names for home, names in ast.literal_eval(node.args[1]).items()}
    return {}


def stub(file: Path) -> str:
    """The text of the ``__init__.pyi`` beside ``file``; empty where it has no door."""
    homes = names_of(file)
    if not homes:
        return ""
    package = ".".join(("outfield", *file.parent.relative_to(PACKAGE).parts))
    found = {name: f"{package}.{home}" for home, names in homes.items() for name in names}
    if package == "outfield.detectors":
        found |= detector_homes() | dict.fromkeys(("DETECTORS", "register"), "outfield.detectors.registry")
    if package == "outfield":
        found |= dict.fromkeys(detector_homes(), "outfield.detectors") | {"__version__": "outfield.version"}
    lines = [f"from {found[name]} import {name} as {name}" for name in sorted(found, key=lambda n: (found[n], n))]
    listed = "".join(f'    "{name}",\n' for name in sorted(found))
    return "\n".join((FIRST, "", *lines, "", f"__all__ = [\n{listed}]", ""))


def main() -> int:
    """Write the stubs, or with --check name those that are not current; 1 if there are any."""
    old = []
    for file in sorted(PACKAGE.rglob("__init__.py")):
        text, target = stub(file), file.with_suffix(".pyi")
        if text and (not target.exists() or target.read_text(encoding="utf-8") != text):
            old.append(str(target))
            if "--check" not in sys.argv:
                target.write_text(text, encoding="utf-8")
    print("\n".join(old) or "every stub is current")
    return int(bool(old) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
