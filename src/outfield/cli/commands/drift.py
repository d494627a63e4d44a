"""outfield drift."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from outfield.cli.app import FOUND, command, log, say
from outfield.cli.options import File, Number, Output, Share, check_places
from outfield.errors import InputError
from outfield.percent import counted

if TYPE_CHECKING:
    import numpy as np

    from outfield.scores import Drift, RowDrift, Threshold


@command(
    "outfield drift monday.csv tuesday.csv --threshold threshold.safetensors",
    "outfield drift today.jsonl --threshold threshold.safetensors --state drift.safetensors --fail-on-drift",
    "outfield drift verdicts.csv --threshold my.guard",
    "outfield drift p_values.parquet --calibration 1000 --json",
    "outfield drift today.csv --reference train.csv --state columns.safetensors",
)
def drift(
    files: Annotated[list[Path], Argument(help="Files with a column score or p_value, or rows for --reference.")],
    threshold: Annotated[File, Option(help="Threshold or guard of the scores; without it p-values are read.")] = None,
    reference: Annotated[
        File, Option(help="ID rows (table, features): compare each column of the files with them.")
    ] = None,
    calibration: Annotated[Number, Option(help="Held-out scores behind the p-values, without --threshold.")] = None,
    keep: Annotated[Share, Option(help="Share of ID samples to accept. Default: the threshold's.")] = None,
    alpha: Annotated[Share, Option(help="Probability of ever raising a false alarm. Default: 0.01.")] = None,
    window: Annotated[Number, Option(help="Number of last samples that count as recent. Default: 1000.")] = None,
    state: Annotated[File, Option(help="File that keeps what was seen between calls (.safetensors).")] = None,
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
    fail_on_drift: Annotated[bool, Option("--fail-on-drift", help=f"Exit with {FOUND} if there is drift.")] = False,
) -> None:
    """Tell whether new scores are still those of ID data: share OOD, p-values, and an alarm with a known error."""
    inputs = [*(("the scores", path) for path in files), ("the threshold", threshold or reference)]
    check_places(inputs, [Output("--state", state, (".safetensors",))])
    given = {"calibration": calibration, "keep": keep, "alpha": alpha, "window": window}
    settings = {name: value for name, value in given.items() if value is not None}
    with _alone(state):
        if reference is not None:
            if threshold is not None or settings.keys() - {"alpha"}:
                what = "--reference compares rows, which takes no --threshold"
                raise InputError(f"{what}, --calibration, --keep or --window")
            watch: Drift | RowDrift = _row_watch(state, reference, settings)
            for path in files:
                with _named(path):
                    watch.update(_rows(path))
        else:
            watch = _watch(state, threshold, settings)
            _take(watch, files)
        if state is not None:
            watch.save(state)
    told = watch.summary()
    say(json.dumps(told)) if as_json else _print(told)
    if fail_on_drift and watch.alarm:
        raise typer.Exit(FOUND)


@contextlib.contextmanager
def _alone(state: Path | None) -> Iterator[None]:
    """Wait until no other command is at work on a state in that folder: what two of them add must not be lost."""
    with contextlib.ExitStack() as stack:
        if state is not None:
            with contextlib.suppress(ImportError):  # there is no such lock on Windows
                import fcntl

                folder = os.open(os.path.dirname(os.path.realpath(state)), os.O_RDONLY)
                stack.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _take(watch: Drift, files: list[Path]) -> None:
    """Give the scores or p-values of files to a Drift."""
    from outfield.features import read_column

    names = ("bottom", *(("score",) if watch.threshold is not None else ()), "p_value")
    for path, (name, values, empty) in zip(files, [read_column(path, names) for path in files], strict=True):
        with _named(path):
            if name == "bottom":
                what = "these are verdicts on boxes, and those of one image are alike, so that alarms would be false"
                raise InputError(f"{what}; outfield serve watches one box of each image")
            if name == "score" and watch.threshold is not None:
                _check_guard(path, values, watch.threshold)
                watch.update(values)
            else:
                watch.update_p_values(values)
        if empty:
            log.info("%s: %s without %s", path, counted(empty, "row"), name)


def _check_guard(path: Path, scores: np.ndarray, rule: Threshold) -> None:
    """Refuse scores of another guard: the p-values beside them are not what this threshold gives."""
    from outfield.features import read_column

    try:
        told = read_column(path, ("p_value",))[1]
    except InputError:  # scores alone
        return
    own = rule.p_value(scores).numpy()
    wrong = [0] if len(told) != len(own) else [*(abs(told - own) > 1e-4).nonzero()[0]]
    if wrong:
        raise InputError(
            f"these are verdicts of another guard or threshold: beside score {scores[wrong[0]]:g} stands the p-value "
            f"{told[wrong[0]]:.4g}, which would be {own[wrong[0]]:.4g} here; pass the guard that gave them"
        )


def _rows(path: Path) -> Any:
    from outfield.features import TABLE_ENDINGS, FeatureSet, read_table

    return read_table(path) if path.suffix in TABLE_ENDINGS else FeatureSet.load(path).features


def _row_watch(state: Path | None, reference: Path, settings: dict[str, Any]) -> RowDrift:
    """The RowDrift to go on with: of the file, where it is there, or a new one."""
    from outfield.scores import RowDrift

    with _named(reference):
        new = RowDrift(_rows(reference), **settings)
    if state is None or not state.exists():
        return new
    found = RowDrift.load(state)
    if not found.same_reference(new) or found.alpha != settings.get("alpha", found.alpha):
        raise InputError(f"{state} was begun with another --reference or --alpha; begin another file")
    return found


def _watch(state: Path | None, threshold: Path | None, settings: dict[str, Any]) -> Drift:
    """The Drift to go on with: of the file, where it is there, or a new one."""
    from outfield.scores import Drift, Threshold

    rule: Threshold | None
    if threshold is not None and threshold.suffix == ".guard":
        from outfield.guard import open_guard

        rule = open_guard(threshold, device="cpu").threshold
    else:
        rule = None if threshold is None else Threshold.load(threshold)
    if state is not None and state.exists():
        found = Drift.load(state, rule)
        for name, value in settings.items():
            if (begun := getattr(found, name)) != value:
                raise InputError(f"--{name} is {value}, but {state} was begun with {begun}; begin another file")
        return found
    if rule is None and "calibration" not in settings:
        what = "what the scores are compared with is not known; pass --threshold FILE"
        raise InputError(f"{what}, or for p-values --calibration N, how many held-out scores they were computed with")
    return Drift(rule, **settings)


def _print(told: dict[str, Any]) -> None:
    from outfield.scores import in_words

    if "columns" in told:
        say(f"{counted(told['samples'], 'row')} of {counted(len(told['columns']), 'column')}")
        say(in_words(told, "row"))
        return
    say(
        f"{counted(told['samples'], 'sample')}, {100 * told['share_ood']:.1f} % OOD (95 % interval "
        f"{100 * told['share_low']:.1f} to {100 * told['share_high']:.1f}; {100 * told['expected']:.1f} expected of ID data), "
        f"{100 * told['recent_share']:.1f} % of the last {told['recent_samples']:,}"
    )
    bins = told["histogram"]
    for index, count in enumerate(bins):
        bar = "█" * round(40 * count / max(bins))
        say(f"  p up to {(index + 1) / len(bins):.2f}  {count:>10,}  {bar}".rstrip())
    say(in_words(told))
