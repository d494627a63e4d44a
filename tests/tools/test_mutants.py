"""`make mutants`: which changes are made, which are left alone, and the whole loop on a small package."""

import ast
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutation.child import Work
from mutation.equivalent import Equivalent
from mutation.project import Project
from mutation.sample import all_mutants, draw
from mutation.server import Server
from mutation.sites import mutants_of

ROOT = Path(__file__).resolve().parents[2]


def changed(source: str) -> set[tuple[str, str]]:
    """Kind and changed line of every mutant."""
    return {(mutant.kind, mutant.after) for mutant in mutants_of("a.py", source.encode())}


@pytest.mark.parametrize(("source", "expected"), [
    ("a < b", {("compare", "a <= b"), ("compare", "a >= b")}),
    ("a is not b", {("compare", "a is b")}),
    ("(a) not in (b)", {("compare", "(a) in (b)")}),
    ("a == b != c", {("compare", "a != b != c"), ("compare", "a == b == c")}),
    ("a + (b)", {("arithmetic", "a - (b)")}),
    ("a ** -b", {("arithmetic", "a * -b"), ("arithmetic", "a ** b")}),
    ("a + 'text'", {("string", 'a + "textX"')}),
    (
        "a and not (b or c)",
        {("boolean", f"a {line}") for line in ("or not (b or c)", "and  (b or c)", "and not (b and c)")},
    ),
    ("f(7)", {("constant", "f(8)")}),
    ("f(0.5)", {("constant", "f(1.0)")}),
    ("f(0.0)", {("constant", "f(1.0)")}),
    ("f(True)", {("constant", "f(False)")}),
    ("f('key')", {("string", 'f("keyX")')}),
    ("f('words for people')", set()),
    ("f(a, key=b)", {("keyword", "f(a, )")}),
    ("f(key=(b), other=c)", {("keyword", "f( other=c)"), ("keyword", "f(key=(b), )")}),
    ("(a - b).abs()", {("arithmetic", "(a + b).abs()"), ("call", "(a - b)")}),
    ("a.detach()", {("call", "a")}),
    ("torch.abs(a)", {("call", "(a)")}),
    ("a.min()", {("swap", "a.max()")}),
    ("max(a, b)", {("swap", "min(a, b)")}),
    ("a.clamp(min=b)", {("swap", "a.clamp(max=b)"), ("keyword", "a.clamp()")}),
    ("a[:n]", {("slice", "a[:]")}),
    ("a[i]", set()),
])  # fmt: skip
def test_expressions(source, expected):
    assert changed(f"x = {source}") == {(kind, f"x = {after}") for kind, after in expected}


@pytest.mark.parametrize(("source", "expected"), [
    ("f()", {("statement", "pass")}),
    ("a += b", {("statement", "pass"), ("arithmetic", "a -= b")}),
    ("self.a = b", {("statement", "pass")}),
    ("if a:\n    b = c", {("condition", "if not (a):")}),
    ("if a:\n    raise b", {("condition", "if not (a):"), ("condition", "if False:")}),
    (
        "def f(a: int = 1) -> int:\n    return a",
        {("default", "def f(a: int = 2) -> int:"), ("return", "return None")},
    ),
    ("for a in b:\n    continue", {("statement", "break")}),
    ("x = [a for a in b if a]", {("condition", "x = [a for a in b if not (a)]")}),
])  # fmt: skip
def test_statements(source, expected):
    assert changed(source) == expected


def test_what_no_test_should_see_is_left_alone():
    source = '''
"""The module."""
import logging
from typing import TYPE_CHECKING, Literal
__all__ = ["f"]
if TYPE_CHECKING:
    X = 1
Kind = Literal["a", "b"]
logger = logging.getLogger("name")

@dataclass(frozen=True)
class A:
    """A class."""
    x: Literal["a"]

    def __repr__(self):
        return "A" + str(1 + 2)

    @triton.jit
    def kernel(self):
        return 1 + 2

def f(x: "int") -> "int":
    """key"""
    logger.info("x", 1)
    warnings.warn("x", stacklevel=2)
    error = InputError("key", 1 + 2)
    z = as_tensor("x", x)
    text = f"{1 + 2:.3f}"
    raise ValueError("x", 1 < 2)
'''
    assert changed(source) == set()


@pytest.fixture(scope="module")
def found():
    """Every change of two rooms."""
    return all_mutants(Project(ROOT), ["scores", "files"])


@pytest.fixture(scope="module")
def samples(found):
    return [draw(Project(ROOT), found, 60, seed) for seed in (3, 3, 4)]


def test_every_change_keeps_the_lines_and_those_that_are_drawn_are_valid(found, samples):
    read = Project(ROOT).read
    changes = [mutant for room in found.values() for mutant in room]
    assert len(changes) > 500
    assert all(m.apply(read(m.file)).count(b"\n") == read(m.file).count(b"\n") for m in changes)
    for mutant in {*samples[0], *samples[2]}:
        ast.parse(mutant.apply(read(mutant.file)))  # a SyntaxError where it is not valid


def test_the_sample_is_in_proportion_and_follows_its_seed(found, samples):
    sample, again, other = samples
    room_of = Project(ROOT).room_of
    expected = 60 * len(found["scores"]) / (len(found["scores"]) + len(found["files"]))
    assert abs(sum(room_of(mutant.file) == "scores" for mutant in sample) - expected) < 1
    assert len(set(sample)) == 60
    assert sample == again != other


def test_a_judged_change_is_found_again_when_its_line_has_moved():
    entry = Equivalent("a.py", "compare", "x = a < b", "because", becomes="x = a <= b")
    for above in ("", "y = 1\n\n"):
        mutants = mutants_of("a.py", f"{above}x = a < b".encode())
        assert [mutant.after for mutant in mutants if entry.matches(mutant)] == ["x = a <= b"]
    assert not any(entry.matches(mutant) for mutant in mutants_of("a.py", b"x = a < c"))


@dataclass(frozen=True)
class Endless(Work):
    """Work that does not end by itself, in a process of its own."""

    busy: bool = True

    def run(self, folder):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(self.environment["NOTED"]).write_text(str(child.pid))
        while True:
            if not self.busy:
                time.sleep(1)


@pytest.mark.parametrize(("seconds", "wall", "busy"), [(0, 100, True), (100, 0.7, False)])
def test_time_is_limited_and_nothing_is_left_running(tmp_path, seconds, wall, busy):
    server, noted = Server(), tmp_path / "pid"
    environment = {**os.environ, "NOTED": str(noted)}
    try:
        assert server.run(Endless(tmp_path, environment, seconds, wall, busy)).code is None
    finally:
        server.close()
    end = time.monotonic() + 60
    while _runs(int(noted.read_text())) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(int(noted.read_text()))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


NUMBERS = """
LIMIT = 3

def larger(a, b):
    return a if a > b else b

def unseen(a):
    return a + 1

def clipped(a):
    return larger(a, LIMIT)
"""
SPOKEN = """
def answer():
    return 40 + 2
"""
TESTS = """
import os
import subprocess
import sys

import pytest
from small.room.numbers import clipped, larger


@pytest.fixture(scope="module")
def number():
    return clipped(2)


def test_larger():
    assert larger(1, 2) == larger(2, 1) == 2


def test_unrelated(number):
    pass


def test_clipped(number):
    assert number == 3


def test_in_a_process():
    done = subprocess.run([sys.executable, "-m", "small"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "42"


def test_fails_anyway():
    assert False


def test_fails_where_a_module_is_replaced():
    assert "MUTANT_MODULE" not in os.environ
    assert larger(1, 2)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A package with one room, its tests, and a module that runs only in a process of its own."""
    root = tmp_path_factory.mktemp("project")
    files = {
        "src/small/__init__.py": "",
        "src/small/__main__.py": "from small.room.spoken import answer\n\nprint(answer())\n",
        "src/small/room/__init__.py": "",
        "src/small/room/numbers.py": NUMBERS,
        "src/small/room/spoken.py": SPOKEN,
        "tests/room/test_numbers.py": TESTS,
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program, where = str(ROOT / "tools/mutants.py"), ["--root", str(root), "--package", "src/small"]
    command = [sys.executable, program, *where, "--cold"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUTANT_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins would be imported anew for each mutant
    return subprocess.run([*command, *options], capture_output=True, text=True, env=environment, timeout=600)


def kept(root: Path) -> dict[tuple[str, str], dict[str, str]]:
    lines = (root / "build/mutants/results.jsonl").read_text().splitlines()
    return {(record["kind"], record["after"]): record for record in map(json.loads, filter(None, lines))}


@pytest.fixture(scope="module")
def done(small) -> subprocess.CompletedProcess[str]:
    """A whole run, in which no file may change."""
    before = {path: path.read_bytes() for path in small.rglob("*.py")}
    done = run(small, "--rooms", "room", "--at-least", "0.9")
    assert {path: path.read_bytes() for path in small.rglob("*.py")} == before
    return done


def test_the_whole_loop(small, done):
    assert done.returncode == 1, done.stderr
    assert "left out, for it fails without any mutant: tests/room/test_numbers.py::test_fails_anyway" in done.stdout

    results = kept(small)
    status = {change: record["status"] for change, record in results.items()}
    assert status["compare", "return a if a >= b else b"] == "survived"  # equivalent
    assert status["arithmetic", "return a - 1"] == "survived"  # no test runs it
    assert status["constant", "return a + 2"] == "survived"
    assert status["return", "return None"] == "caught"
    assert status["compare", "return a if a <= b else b"] == "caught"
    assert results["constant", "LIMIT = 4"]["caught_by"].endswith("::test_clipped")
    assert results["arithmetic", "return 40 - 2"]["caught_by"].endswith("::test_in_a_process")
    assert results["constant", "return 41 + 2"]["caught_by"].endswith("::test_in_a_process")
    assert "src/small/room/numbers.py:5  compare" in done.stdout
    assert "  - return a if a > b else b\n  + return a if a >= b else b" in done.stdout


def test_a_run_that_was_cut_off_goes_on(small, done):
    path = small / "build/mutants/results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept_lines, cut = lines[:-3], lines[-3][:30]  # the last line was being written
    path.write_text("".join([*kept_lines, cut]))
    again = run(small, "--rooms", "room", "--at-least", "0.5", "--resume")
    assert again.returncode == 0, again.stderr
    assert "3 mutants, 5 tests" in again.stdout
    assert again.stdout.partition("\n\n")[2] == done.stdout.partition("\n\n")[2]
