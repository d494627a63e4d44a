"""outfield detectors: every detector once, below what it needs, at any width."""

import re
import sys

from tests.helpers.program import outfield
from tests.helpers.terminal import on_terminal

import outfield as of
from outfield.cli.app import print_groups
from outfield.detectors import describe


def on_screen(columns):
    """The lines that are left on a terminal of so many columns, without the colours."""
    session = on_terminal([sys.executable, "-m", "outfield", "detectors", "--no-progress"], columns)
    assert session.code == 0
    return [re.sub(r"\x1b\[[0-9;]*[mK]", "", line) for line in "".join(text for _, text in session.pieces).splitlines()]


def listed(lines):
    """Names by heading, as they are printed."""
    found = {}
    for line in lines[1:-1]:
        if line and not line.startswith(" "):
            found[line] = []
        elif re.match(r"  \S", line):
            found[list(found)[-1]].append(line.split()[0])
    return found


def test_every_detector_is_listed_once_below_what_it_needs():
    done = outfield("detectors", code=0)
    lines = done.stdout.splitlines()
    assert lines[0] == "detectors by what they need (higher score = more OOD)"
    assert lines[-1] == "outfield detectors NAME tells more of one, and every setting that it has."
    groups = listed(lines)
    assert groups == {
        f"{needs} ({len(group)})": [one.name for one in group] for needs, group in describe.detector_groups().items()
    }
    assert sorted(name for group in groups.values() for name in group) == sorted(of.DETECTORS)
    assert (
        "  MSP               Maximum softmax probability (Hendrycks & Gimpel 2017)" in lines
    )  # a line each, in a pipe


def test_it_fits_a_terminal():
    lines = on_screen(80)
    assert max(map(len, lines)) <= 80
    assert listed(lines) == listed(outfield("detectors").stdout.splitlines())
    starts = {re.match(r"  \S+ +", line).end() for line in lines if re.match(r"  \S", line)}
    starts |= {len(line) - len(line.lstrip()) for line in lines if line.startswith("   ")}
    assert len(starts) == 1  # what they are stands below one another
    words = " ".join(" ".join(lines).split())
    for one in describe.entries():
        assert f"{one.what.rstrip('.')} ({one.reference})" in words
    assert not [line for line in lines if re.match(r" +(\d{4}|al\.)", line)]  # years stay with their names


def test_those_that_need_least_come_first():
    order = list(describe.detector_groups())
    assert order[:3] == ["logits", "logits, labels to fit", "logits at the perturbed input"]
    assert order[3:5] == ["features", "features, labels to fit"]
    assert order.index("logits and features") < order.index("logits and features, labels to fit")
    assert order.index("features, the classifier's last layer to fit") < order.index("logits and features")
    for group in describe.detector_groups().values():
        assert [one.name for one in group] == sorted((one.name for one in group), key=str.casefold)


def test_three_things_in_words():
    entry = describe.Entry("X", "", "", ("features", "labels", "stage2", "logits"), ("features", "stage2", "logits"))
    assert entry.needs == "logits, features and stage2, labels to fit"


def test_a_terminal_that_is_hardly_there(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_groups("title", {"group": [("name", "word " * 9 + "no\xa0break")]})
    lines = capsys.readouterr().out.splitlines()
    assert "title" in lines[0]
    assert lines[-2:] == ["  name  word word word word word word", "        word word word no break"]


def test_what_is_told_of_one_has_no_marks_for_the_reference():
    told = outfield("detectors", "KNN", code=0).stdout
    assert "(outfield.detectors.Neighbours)" in told
    assert 'With index="ivf" or "hnsw" only' in told
    assert "`" not in told
