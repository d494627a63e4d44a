"""Progress on a real terminal: drawn while the work is silent, gone at the end, and never in the way."""

import subprocess
import sys

import pytest
from tests.helpers.terminal import python_on_terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

SILENT = """
import rich.live, rich.progress, time  # which the bar imports: a machine under load takes long for it
from outfield.progress import bar
with bar("features of photos", 50_000, "images") as advance:
    advance(1_234, note="a note that is long enough to be in the way of everything else on the line")
    time.sleep({seconds})
print("done")
"""


@pytest.mark.parametrize("columns", [100, 60])
def test_silent_work_is_never_silent_for_two_seconds(columns):
    session = python_on_terminal(SILENT.format(seconds=2.8), columns)
    assert session.code == 0
    assert session.usual_silence() < 2
    lines = [line for line in session.drawn() if line != "done"]
    assert len(lines) >= 3  # the time goes on
    wrong = [line for line in lines if "1,234/50,000" not in line or len(line) > columns]
    assert wrong == []
    assert session.left() == ["done"]


def test_short_work_draws_nothing():
    assert python_on_terminal(SILENT.format(seconds=0.2)).drawn() == ["done"]


@pytest.mark.parametrize(
    ("environment", "before"),
    [({"OUTFIELD_PROGRESS": "0"}, ""), ({}, "import outfield; outfield.show_progress(False)")],
)
def test_it_can_be_switched_off(environment, before):
    session = python_on_terminal(before + SILENT.format(seconds=1.2), **environment)
    assert session.drawn() == ["done"]


def test_nothing_is_drawn_where_there_is_no_terminal():
    done = subprocess.run(
        [sys.executable, "-c", SILENT.format(seconds=1.2)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_an_ascii_terminal_gets_ascii():
    session = python_on_terminal(SILENT.format(seconds=1.2), PYTHONIOENCODING="ascii")
    assert session.text.isascii()
    assert "1,234/50,000" in session.text
    assert "\\u" not in session.text


def test_a_title_cannot_move_the_cursor():
    session = python_on_terminal(SILENT.format(seconds=1.2).replace("features of photos", r"a\nb\x1b[2Jc"))
    assert any(line.startswith("a?b?[2Jc ") for line in session.drawn())


def test_blocks_in_one_another_and_messages_between():
    session = python_on_terminal("""
import sys, time
from outfield.progress import bar, hidden
with bar("benchmark", 2, "stages") as outer:
    for stage in range(2):
        outer(stage)
        with bar(f"fitting {stage}", 10, "steps") as advance:
            advance(5)
            time.sleep(0.9)
            with hidden():
                print(f"stage {stage} is done", file=sys.stderr)
    raise SystemExit(3)
""")
    assert session.code == 3
    assert any(line.startswith("benchmark ") and "1/2 stages" in line for line in session.drawn())
    assert any(line.startswith("fitting 1 ") and "5/10 steps" in line for line in session.drawn())
    assert session.left() == ["stage 0 is done", "stage 1 is done"]


def test_threads_and_forked_children():
    session = python_on_terminal("""
import os, threading, time
from outfield.progress import bar
def work(name):
    with bar(name, 100, "units") as advance:
        for i in range(100):
            advance(i)
            time.sleep(0.01)
threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(4)]
for thread in threads: thread.start()
time.sleep(0.7)
child = os.fork()
if not child:
    with bar("child", 3) as advance:
        advance(1)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for thread in threads: thread.join()
print("done")
""")
    assert session.code == 0, session.text
    assert session.left() == ["done"]


def test_a_terminal_that_goes_away_does_not_stop_the_work(tmp_path):
    session = python_on_terminal(f"""
import os, time
from outfield.progress import bar
with bar("work", 10) as advance:
    time.sleep(0.8)
    os.close(2)
    time.sleep(1.5)
open({str(tmp_path / "ended")!r}, "w").close()
""")
    assert session.code == 0
    assert (tmp_path / "ended").exists()
