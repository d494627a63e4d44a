"""The documentation site: built without a warning, nothing loaded from elsewhere, every public name in it, no dead link."""

import doctest
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas
import pytest
import torch
import yaml
from tests.helpers.program import outfield
from tests.helpers.samples import make_set
from tests.helpers.texts import folder_of_topics, labelled

import docs_site
import docs_strings
import outfield as of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Links(HTMLParser):
    """What a page links to and loads, and what can be linked to in it."""

    def __init__(self, page):
        super().__init__()
        self.found, self.loaded, self.names = [], [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.names |= {given.get("id"), given.get("name")}
        if tag == "a" and given.get("href"):
            self.found.append(given["href"])
        place = given.get("src") or (given.get("href") if tag == "link" else None)
        if place:
            self.loaded.append(place)


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    pages = {page: Links(page) for page in site.rglob("*.html") if "results/cifar" not in str(page.relative_to(site))}
    assert len(pages) > 25
    for page, links in pages.items():
        if page.name == "404.html":
            continue  # its links are from the root of a server
        assert not [place for place in links.loaded if re.match(r"(https?:)?//", place)], page
        for link in links.found + links.loaded:
            if re.match(r"[a-z]+:", link):
                continue
            place, _, anchor = unquote(link).partition("#")
            target = (page.parent / place).resolve() if place else page
            assert target.is_file(), f"{page.relative_to(site)}: {link}"
            if anchor and target in pages and not anchor.startswith("__"):
                assert anchor in pages[target].names, f"{page.relative_to(site)}: {link}"


def test_styles_load_nothing_from_elsewhere(site):
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_public_name_is_in_the_reference(site):
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(r'<h2 id="outfield\.[\w.]*?(\w+)"', text))
    constants = {"__version__", "DETECTORS", "PROTOCOLS"}
    assert set(of.__all__) - shown - constants == set()
    assert set(of.DETECTORS) <= shown
    assert ":class:`" not in text
    assert ":meth:`" not in text


def test_the_reference_shows_what_docstrings_say(site):
    text = (site / "api" / "scores.html").read_text(encoding="utf-8")
    assert "Probability of ever raising a false alarm." in text
    assert "split conformal prediction" in text


def image_array(seed, high=255):
    pixels = np.random.default_rng(seed).integers(0, high, (60, 16, 16, 3), dtype=np.uint8)
    return of.ImageArray(pixels, np.arange(60) % 3)


@pytest.fixture(scope="module")
def prepared():
    """What the examples of the reference use."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    )
    train, held_out, test, ood = (make_set(n, seed=s, shift=3.0 * (s == 3)) for s, n in enumerate((120, 160, 90, 80)))
    rng = np.random.default_rng(0)
    return {
        "of": of, "np": np, "train": train, "held_out": held_out, "test": test, "ood": ood, "detector": of.SSD().fit(train),
        "images": image_array(0), "new_images": image_array(1), "noise": image_array(2, 90), "network": network.eval(),
        "backbone": of.Backbone(network.eval(), size=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        "frame": pandas.DataFrame({"age": rng.normal(40, 9, 300), "height": rng.normal(170, 9, 300)}),
        "topics": folder_of_topics(), "texts": labelled(100),
        "protocol": of.Protocol("mine", near=("noise",), mid=(), far=()),
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(docs_strings.EXAMPLES))
def test_examples_of_the_reference_run(name, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(docs_strings.EXAMPLES[name], dict(prepared))


def test_every_class_and_function_of_the_reference_has_an_example():
    known = {name: getattr(of, name) for name in {*of.__all__, *of.DETECTORS}}
    shown = {name: one for name, one in known.items() if callable(one)}
    told = {
        name: " ".join(str(one.__doc__) for one in (one, *vars(one).values()))
        for name, one in shown.items()
        if not (isinstance(one, type) and issubclass(one, Exception))
    }
    assert {name for name, text in told.items() if ">>>" not in text} - docs_strings.EXAMPLES.keys() == set()


@pytest.mark.parametrize("module", [docs_site, docs_strings])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def test_the_citation_is_of_this_version():
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert told["version"] == of.__version__
    assert told["cff-version"] == "1.2.0"
    assert told["license"] == "Apache-2.0"
    assert told["message"]
    assert told["authors"]


def test_every_command_and_option_is_on_the_page_of_commands():
    text = docs_site.commands()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    assert {"outfield guard build", "outfield drift", "outfield serve", "outfield doctor"} <= sections.keys()
    for name, part in sections.items():
        if name != "Of every command":
            told = outfield(*name.split()[1:], "--help", code=0).stdout
            assert set(re.findall(r"--[a-z][a-z-]*", told)) <= set(
                re.findall(r"--[a-z][a-z-]*", part + text.split("## Of every")[1])
            ) | {"--help"}
    assert "`--alpha`: Probability of ever raising a false alarm. Default: 0.01." in sections["outfield drift"]
    assert "\n\n```sh\noutfield guard show my.guard\n```" in sections["outfield guard show"]  # no part of the list


def test_the_page_for_a_package_index_is_made_of_the_readme():
    made = docs_site.index_page()
    assert (ROOT / "PYPI.md").read_text(encoding="utf-8") == made
    assert not re.search(r"\bMore:|Data, options|^(Extras|What a FeatureSet holds|The mathematics)", made, re.MULTILINE)
    assert "Serve: HTTP with metrics" in made
