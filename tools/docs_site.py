"""Hooks of the documentation site (mkdocs.yml): pages that are made of other files, and links that lead there.

The README becomes the first page, CHANGELOG and CONTRIBUTING pages of their own, and the reference is written from the public
names, so that none can be missing. On GitHub the same files are read as they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
from stubs import PACKAGE, names_of  # mkdocs looks for hooks by their file alone

ROOT = Path(__file__).resolve().parents[1]
MOVED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES = {
    "data": ("Data", "What detectors take: rows of features, in memory or in a file, and images.", ("features", "images")),
    "detectors": ("Detectors", "`fit` and `score`, higher = more OOD. Each is on the command line, too.", ("detectors",)),
    "energy": ("Energies and training", "What the learned detectors are made of.", ("energy",)),
    "scores": ("Scores, thresholds, drift", "Vectors of numbers: decisions, metrics, and what tells of drift.", ("scores",)),
    "networks": ("Networks and images", "From images to features, and training.", ("backbone", "classifier", "progress")),
    "guard": ("Guard", "An image in, a verdict out.", ("guard",)),
    "benchmark": ("Benchmark", "Detectors × sets × seeds × backbones.", ("benchmark",)),
    "errors": ("Errors", "One tree: every error that Outfield raises on purpose is an `OutfieldError`.", ("errors",)),
}  # fmt: skip
ADAPTERS = {
    "scikit-learn": ("sklearn", "OutfieldDetector"),
    "pyod": ("pyod", "OutfieldDetector"),
    "pytorch-ood": ("pytorch_ood", "OutfieldFeatures", "OutfieldLogits"),
    "OpenOOD": ("openood", "OutfieldPostprocessor"),
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in MOVED.items()}
    made |= {f"api/{name}.md": text for name, text in reference().items()}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them."""
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, place: str) -> str:
    """A page's text with links to files of the repository turned into links between pages.

    Args:
        markdown: The text.
        place: Where the page is, from docs/ on.

    >>> relinked("[a](docs/drift.md#b) [c](CONTRIBUTING.md) [d](LICENSE) ![e](docs/images/f.png)", "index.md")
    '[a](drift.md#b) [c](contributing.md) d ![e](images/f.png)'
    >>> relinked("[a](../CONTRIBUTING.md#b) [c](cifar10/) [d](../method.md)", "results/cifar10.md")
    '[a](../CONTRIBUTING.md#b) c [d](../method.md)'
    >>> relinked("[a](../CONTRIBUTING.md#b) `[c](d/)`", "drift.md")
    '[a](contributing.md#b) `[c](d/)`'
    """
    from_root = place in MOVED.values()
    up = "../" * place.count("/")

    def target(found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        link, sharp, anchor = found["link"].partition("#")
        if re.match(r"[a-z]+:", link) or not link:
            return found[0]
        if from_root:
            inside = link.removeprefix("docs/")
            known = link.startswith("docs/")
        else:
            known = not link.startswith(f"{up}../")
            inside = link if known else link.removeprefix(f"{up}../")
        if not known:
            inside = MOVED.get(inside, "")
        if not inside or inside.endswith("/"):
            return found["text"].removeprefix("!").strip("[]")
        return f"{found['text']}({up if not known else ''}{inside}{sharp}{anchor})"

    pattern = r"(?P<code>^```.*?^```|`[^`\n]+`)|(?P<text>!?\[[^\]]*\])\((?P<link>[^)\s]+)\)"
    return re.sub(pattern, target, markdown, flags=re.MULTILINE | re.DOTALL)


def reference() -> dict[str, str]:
    """The pages of the reference, by name: each public name with its docstring."""
    from outfield.detectors.registry import homes

    places, pages = _places(), {}
    for page, (title, words, rooms) in PAGES.items():
        names = {name: place for name, (home, place) in places.items() if home in rooms}
        if page == "detectors":
            names = {name: place for name, place in names.items() if name not in ("DETECTORS", "load", *homes())}
            names |= {
                name: f"{home}.{name}" for name, home in sorted(homes().items(), key=lambda item: item[0].casefold())
            }
            names |= {"load": "outfield.detectors.base.load"}
        blocks = [_block(place, short=page == "detectors" and name in homes()) for name, place in names.items()]
        pages[page] = (
            "\n\n".join([f"# {title}", f"{words} All names are those of `import outfield as of`.", *blocks]) + "\n"
        )
    adapters = [f"## {title}\n\n" + "\n\n".join(_block(f"outfield.adapters.{module}.{name}", level=3) for name in names)
                for title, (module, *names) in ADAPTERS.items()]  # fmt: skip
    pages["adapters"] = (
        "\n\n".join(["# Adapters", "How they are used: [in other libraries](../adapters.md).", *adapters]) + "\n"
    )
    return pages


def _places() -> dict[str, tuple[str, str]]:
    """The room of each public name, and where the name is defined, as the doors have it."""
    found = {}
    for home, names in names_of(PACKAGE / "__init__.py").items():
        door = PACKAGE / home / "__init__.py"
        inner = {name: module for module, own in names_of(door).items() for name in own} if door.exists() else {}
        for name in names:
            place = f"{home}.{inner[name]}" if name in inner else home
            found[name] = (home, f"outfield.{place}.{name}")
    return found


def _block(place: str, short: bool = False, level: int = 2) -> str:
    """What mkdocstrings writes a class or function for; ``short`` without methods, which are those of the base."""
    options = f"    options:\n      heading_level: {level}\n" + ("      members: false\n" if short else "")
    return f"::: {place}\n{options}".rstrip()
