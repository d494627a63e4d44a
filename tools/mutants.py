"""Changes the code in small ways, one at a time, and looks whether a test fails.

    python tools/mutants.py --rooms energy scores --count 300 --seed 0

A mutant that no test notices has survived: a test is missing, or the change changes nothing (then it belongs into
tools/mutation/equivalent.toml, with the reason). No file is changed, so it can be interrupted at any time.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from mutation.choice import Choice
from mutation.equivalent import Constant, Equivalent, Everywhere, read_equivalent
from mutation.measured import Measured, environment
from mutation.mutant import Mutant
from mutation.project import Project
from mutation.results import ResultsFile, share_caught, survivors, table
from mutation.sample import all_mutants, draw
from mutation.server import WARM, Server
from mutation.sites import mutants_of
from mutation.trial import Result, Trials, result

ROOMS = ["energy", "scores", "detectors", "files", "features", "benchmark"]
PROGRESS = 15.0  # seconds between two lines


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rooms", nargs="+", default=ROOMS, metavar="ROOM", help="folders of the package to mutate")
    parser.add_argument("--count", type=int, default=300, help="how many mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE[:LINE]", help="every mutant of these places")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="only these kinds of changes")
    parser.add_argument("--survivors", action="store_true", help="only those that survived the last run")
    parser.add_argument("--list", action="store_true", help="print the sample, run nothing")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was cut off")
    parser.add_argument("--at-least", type=float, default=0.95, help="share that must be caught")
    parser.add_argument(
        "--tests", nargs="+", default=[], metavar="PATH", help="run only tests of these files and folders"
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help=argparse.SUPPRESS)
    parser.add_argument("--package", default="src/outfield", help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)  # import nothing beforehand but pytest
    return parser.parse_args()


def chosen_mutants(project: Project, asked: argparse.Namespace, kept: ResultsFile) -> list[Mutant]:
    """The sample, or what `--only` or `--survivors` ask for."""
    if asked.only:
        asked.rooms = sorted({project.room_of(_file(project, place)) for place in asked.only})
    mutants = all_mutants(project, asked.rooms)
    if asked.kinds:
        mutants = {room: [one for one in found if one.kind in asked.kinds] for room, found in mutants.items()}
    every = [mutant for found in mutants.values() for mutant in found]
    if asked.survivors:
        last = kept.read(any_digest=True)
        return [mutant for mutant in every if mutant.key in last and last[mutant.key].status == "survived"]
    if asked.only:
        places = [(_file(project, place), place.partition(":")[2]) for place in asked.only]
        wanted = [
            one for one in every if any(one.file == file and line in ("", str(one.line)) for file, line in places)
        ]
        return [mutant for mutant in wanted if mutant.is_valid(project.read(mutant.file))]
    return draw(project, mutants, asked.count, asked.seed)


def stale(project: Project) -> list[Equivalent | Constant]:
    """Judged changes that the code no longer has, because their lines changed or their files are gone."""
    judged = [entry for entry in read_equivalent() if not isinstance(entry, Everywhere)]
    found = {file: mutants_of(file, project.read(file)) for file in project.source_files}
    return [entry for entry in judged if not any(map(entry.matches, found.get(entry.file, ())))]


def _file(project: Project, place: str) -> str:
    """The source file that `FILE[:LINE]` means; the end of its name is enough."""
    name = place.partition(":")[0]
    found = [file for file in project.source_files if file == name or file.endswith(f"/{name}")]
    if len(found) != 1:
        raise SystemExit(f"--only: {name!r} names {len(found)} source files, not one")
    return found[0]


def run(project: Project, mutants: list[Mutant], asked: argparse.Namespace, kept: ResultsFile) -> list[Result]:
    """Try the mutants, keep each result as it comes, and say now and then how far it is."""
    judged = read_equivalent()
    known = kept.read() if asked.resume else {}
    if not (asked.resume or asked.survivors or asked.only):
        kept.clear()
    results = [known[mutant.key] for mutant in mutants if mutant.key in known]
    left = [mutant for mutant in mutants if mutant.key not in known]
    equivalent = [mutant for mutant in left if any(entry.matches(mutant) for entry in judged)]
    results += [result(mutant, "equivalent") for mutant in equivalent]
    left = [mutant for mutant in left if mutant not in equivalent]
    if not left:
        return results
    server = Server()
    try:
        server.warm(["pytest"] if asked.cold else WARM)
        measured = Measured(project)
        measured.bring_up_to_date(server, asked.jobs)
        choice = Choice(project, measured.tests())
        print(f"{len(left)} mutants, {len(choice.tests)} tests", flush=True)
        start = shown = time.monotonic()
        for done, one in enumerate(Trials(project, choice, server, asked.jobs).run(left), 1):
            kept.add(one)
            results.append(one)
            if time.monotonic() - shown > PROGRESS or done == len(left):
                shown = time.monotonic()
                _show(results, done, len(left), shown - start)
    finally:
        server.close()
    return results


def _show(results: list[Result], done: int, whole: int, passed: float) -> None:
    counts = Counter(one.status for one in results)
    words = ", ".join(f"{counts[name]} {name}" for name in ("caught", "timed out", "survived") if counts[name])
    rest = passed / done * (whole - done)
    print(f"{done}/{whole}: {words}; {passed / done:.1f} s a mutant, about {rest / 60:.0f} min left", flush=True)


def main() -> int:
    """Run the command line; 0 when enough mutants were caught."""
    asked = arguments()
    tests = tuple(path.rstrip("/") for path in asked.tests)
    project = Project(asked.root.resolve(), asked.package, tests)
    kept = ResultsFile(project.work / "results.jsonl", project.whole_digest)
    mutants = chosen_mutants(project, asked, kept)
    if asked.list:
        for mutant in sorted(mutants, key=lambda one: (one.file, one.start)):
            print(f"{mutant.file}:{mutant.line}  {mutant.kind}\n  - {mutant.before}\n  + {mutant.after}")
        for entry in stale(project) if project.root == Path(__file__).resolve().parents[1] else ():
            print(f"no longer in the code, drop it from equivalent.toml: {entry}")
        print(f"{len(mutants)} mutants")
        return 0
    # Threads and the import path have to be settled before anything is imported for the children.
    os.environ.update(environment(project))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = run(project, mutants, asked, kept)
    except KeyboardInterrupt:
        print("\ninterrupted; --resume goes on", file=sys.stderr)
        return 130
    share = share_caught(results)
    print(f"\n{survivors(results)}\n\n{table(project, results)}\n\nshare caught: {share:.1%}")
    return 0 if share >= asked.at_least else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries imported only for the children would complain at a usual end
