"""Fill the tables of a results page from the results that lie in the folder beside it.

    outfield report run.safetensors --out docs/results/cifar10
    python benchmarks/results_page.py docs/results/cifar10.md

Each table stands between ``<!-- NAME -->`` and ``<!-- end -->``; names are those of
:func:`outfield.report.benchmark_tables.all_tables`. The words around them are written by hand.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from outfield.files import write_bytes
from outfield.report import read_run
from outfield.report.benchmark_tables import all_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", type=Path, nargs="+")
    for page in parser.parse_args().pages:
        write_bytes(page, filled(page).encode())
        print(page)


def filled(page: Path) -> str:
    """The page's text with its tables made from the results."""
    run = read_run(page.with_suffix(""))
    made = all_tables(run)

    def table(found: re.Match[str]) -> str:
        if found[1] not in made:
            raise SystemExit(f"{page} has a place for {found[1]!r}; there are {', '.join(made)}")
        chosen = made[found[1]]
        notes = "".join(f"\n{note}\n" for note in chosen.notes)
        return f"<!-- {found[1]} -->\n**{chosen.title}**\n\n{chosen.markdown()}\n{notes}<!-- end -->"

    text = page.read_text()
    done, places = re.subn(r"<!-- (?!end)([^>]+?) -->\n(?:(?!<!-- ).)*<!-- end -->", table, text, flags=re.DOTALL)
    if 2 * places != text.count("<!-- "):
        raise SystemExit(f"{page}: every <!-- NAME --> needs an <!-- end --> before the next")
    return done


if __name__ == "__main__":
    main()
