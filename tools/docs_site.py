"""Hooks of the documentation site (mkdocs.yml): pages that are made of other files, and links that lead there.

The README becomes the first page, CHANGELOG and CONTRIBUTING pages of their own, and the reference is written from the public
names, so that none can be missing, as the page of all commands is from the program. On GitHub the files are read as they are.
``python tools/docs_site.py`` writes PYPI.md, the README for a package index.
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
    made["commands.md"] = commands()
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


def commands() -> str:
    """The page of all commands and their options, as the program has them."""
    from typer.main import get_command

    from outfield.cli import app

    blocks = ["# All commands", "What `outfield COMMAND --help` prints, of every command."]
    shared: dict[str, str] = {}
    waiting = [("outfield", get_command(app))]
    while waiting:
        name, one = waiting.pop(0)
        inner: dict[str, Any] = getattr(one, "commands", {})
        waiting = [(f"{name} {key}", inner[key]) for key in sorted(inner)] + waiting
        if inner:
            continue
        own = {_usage(option): _help(option) for option in one.params}
        common = {
            usage: text
            for usage, text in own.items()
            if usage in ("`--verbose`, `-v`", "`--quiet`, `-q`", "`--no-progress`")
        }
        shared |= common
        blocks += [f"## {name}", (one.help or "").strip()]
        blocks += ["\n".join(f"- {usage}: {text}" for usage, text in own.items() if usage not in common)]
        examples = [line for line in (one.epilog or "").split("\n\n") if line.startswith("outfield")]
        blocks += ["\n".join(["```sh", *examples, "```"])]
    blocks += ["## Of every command", "\n".join(f"- {usage}: {text}" for usage, text in shared.items())]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _usage(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _help(option: Any) -> str:
    text = (option.help or "").strip()
    plain = isinstance(option.default, str | int | float) and not isinstance(option.default, bool)
    return text + (f" Default: {option.default}." if plain and "Default" not in text else "")


def index_page() -> str:
    """The README as a package index shows it: without the picture and links to files beside it, of which the words stay.

    Sentences that say no more than where such links lead are left out.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("the picture above: ", "")
    text = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n", "", text, flags=re.MULTILINE)
    link = r"\[([^\]\n]+)\]\((?!https:)[^)\s]+\)"
    alone = rf"(?:[A-Z][^.:\n]*: )?{link}(?:(?:, | and ){link})*\."
    text = re.sub(rf"^{alone}\n|(?<=\.) {alone}|{link} · ", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", re.sub(link, r"\1", text))


if __name__ == "__main__":
    (ROOT / "PYPI.md").write_text(index_page(), encoding="utf-8")
