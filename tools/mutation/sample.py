"""A random sample of mutants, the same for the same seed."""

from __future__ import annotations

import random

from mutation.mutant import Mutant
from mutation.project import Project
from mutation.sites import mutants_of


def all_mutants(project: Project, rooms: list[str]) -> dict[str, list[Mutant]]:
    """Every mutant of each room."""
    found: dict[str, list[Mutant]] = {}
    for room in rooms:
        files = [file for file in project.room_files(room) if (project.root / file).exists()]
        if not files:
            raise SystemExit(f"--rooms: {room!r} is not a room in {project.package}")
        found[room] = [mutant for file in files for mutant in mutants_of(file, project.read(file))]
    return found


def draw(project: Project, mutants: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """A sample of `count`, each room in proportion to its mutants, in random order."""
    drawn: list[Mutant] = []
    for room, share in _shares({room: len(found) for room, found in mutants.items()}, count).items():
        order = random.Random(f"{seed} {room}").sample(mutants[room], len(mutants[room]))
        valid = (mutant for mutant in order if mutant.is_valid(project.read(mutant.file)))
        drawn += [mutant for mutant, _ in zip(valid, range(share), strict=False)]
    random.Random(seed).shuffle(drawn)
    return drawn


def _shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Whole numbers in proportion to the sizes, whose sum is `count`, or all there is."""
    whole = sum(sizes.values())
    count = min(count, whole)
    exact = {room: count * size / whole for room, size in sizes.items()} if whole else {}
    shares = {room: int(share) for room, share in exact.items()}
    by_rest = sorted(exact, key=lambda room: shares[room] - exact[room])
    for room in by_rest[: count - sum(shares.values())]:
        shares[room] += 1
    return shares
