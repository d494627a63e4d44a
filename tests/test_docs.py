"""What the documentation says of itself and of the code: links lead somewhere, files and rooms that it names are there."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "outfield"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def without_code(text: str) -> str:
    """Markdown without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What headings of a page are linked by, as GitHub makes it: small letters, hyphens for spaces, nothing but words."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found) | set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    text = without_code(page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text):
        if re.match(r"[a-z]+:", link):
            continue  # not ours to check
        place, _, anchor = link.partition("#")
        target = page if not place else (page.parent / place)
        assert target.exists(), f"{link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_are_there(page):
    for name in re.findall(r"`(?:python )?([\w./-]+\.py)`", page.read_text()):
        places = [ROOT / name, PACKAGE / name, PACKAGE / "energy" / name]
        assert any(place.exists() for place in places), f"there is no {name}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_shares_are_written_in_one_way(page):
    """94.0 %, with a space."""
    text = re.sub(r"`[^`]*`", "", without_code(page.read_text()))
    assert re.findall(r"\d%", text) == []


class TestArchitecture:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    leaves = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))

    def test_every_room_has_its_sentence(self):
        rows = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", self.page, re.MULTILINE))
        assert sorted(rows) == self.rooms
        assert all(sentence.endswith(".") and len(sentence) > 30 for sentence in rows.values())
        assert not [leaf for leaf in self.leaves if f"`{leaf}`" not in self.page]

    def test_the_layers_are_those_that_are_checked(self):
        checked = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)[1]
        layers = [re.findall(r"\w+", line) for line in re.findall(r'^ +"([^"]+)"', checked, re.MULTILINE)]
        told = re.search(r"Imports go downward only.*?: (`cli`.*?) → leaves", self.page, re.DOTALL)[1]
        shown = [re.findall(r"`(\w+)`", layer) for layer in told.split("→")]
        names = [sorted(set(layer) - {"__main__"}) for layer in layers]
        assert [sorted(layer) for layer in shown] == names[:-1]
        assert set(names[-1]) <= {*self.leaves, *self.rooms}

    def test_the_picture_has_every_room_and_is_small(self, monkeypatch):
        spec = importlib.util.spec_from_file_location("architecture", ROOT / "tools" / "architecture.py")
        tool = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, tool)
        spec.loader.exec_module(tool)
        assert sorted(tool.ROOMS) == self.rooms
        file = ROOT / "docs" / "images" / "architecture.png"
        assert file.stat().st_size < 150_000
        assert Image.open(file).width > 1000

    def test_names_of_the_code_are_right(self):
        """Every folder or file, and every name in capitals, that the page mentions."""
        for place in re.findall(r"`([\w/]+/)`", self.page):
            assert (PACKAGE / place).is_dir(), place
        for name, file in re.findall(r"`([A-Z]+)` in `([\w/]+\.py)`", self.page):
            assert f"\n{name}" in (PACKAGE / file).read_text(), (name, file)
