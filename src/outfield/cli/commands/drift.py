"""outfield drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from outfield.cli.app import FOUND, command, log, say
from outfield.cli.options import File, Input, Number, Output, check_places
from outfield.errors import InputError

if TYPE_CHECKING:
    from outfield.scores import Drift

BAR = 40  # characters of the longest bar of the histogram


@command(
    "outfield drift monday.csv tuesday.csv --threshold threshold.safetensors",
    "outfield drift today.jsonl --threshold threshold.safetensors --state drift.safetensors --fail-on-drift",
    "outfield drift verdicts.csv --threshold my.guard",
    "outfield drift p_values.parquet --calibration 1000 --json",
)
def drift(
    files: Annotated[list[Path], Argument(help="Files with a column score or p_value: .csv, .jsonl, .parquet, .npz.")],
    threshold: Annotated[File, Option(help="Threshold or guard of the scores; without it p-values are read.")] = None,
    calibration: Annotated[Number, Option(help="Held-out scores behind the p-values, without --threshold.")] = None,
    keep: Annotated[float | None, Option(help="Share of ID samples to accept. Default: the threshold's.")] = None,
    alpha: Annotated[float | None, Option(help="Probability of ever raising a false alarm. Default: 0.01.")] = None,
    window: Annotated[Number, Option(help="Number of last samples that count as recent. Default: 1000.")] = None,
    state: Annotated[File, Option(help="File that keeps what was seen between calls (.safetensors).")] = None,
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
    fail_on_drift: Annotated[bool, Option("--fail-on-drift", help=f"Exit with {FOUND} if there is drift.")] = False,
) -> None:
    """Tell whether new scores are still those of ID data: share OOD, p-values, and an alarm with a known error."""
    inputs = [Input("the scores", path) for path in files]
    inputs += [] if threshold is None else [Input("the threshold", threshold)]
    if state is not None:
        check_places(inputs, [Output("--state", state, (".safetensors",))])
    given = {"calibration": calibration, "keep": keep, "alpha": alpha, "window": window}
    watch = _watch(state, threshold, {name: value for name, value in given.items() if value is not None})

    from outfield.features import read_column

    names = ("p_value",) if watch.threshold is None else ("score", "p_value")
    columns = [read_column(path, names) for path in files]
    for path, (name, values, empty) in zip(files, columns, strict=True):
        try:
            watch.update(values) if name == "score" else watch.update_p_values(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        if empty:
            log.info("%s: %s rows have no %s", path, f"{empty:,}", name)
    if state is not None:
        watch.save(state)
    say(json.dumps(watch.summary())) if as_json else _print(watch.summary())
    if fail_on_drift and watch.alarm:
        raise typer.Exit(FOUND)


def _watch(state: Path | None, threshold: Path | None, settings: dict[str, Any]) -> Drift:
    """The Drift to go on with: of the file, where it is there, or a new one."""
    from outfield.scores import Drift, Threshold

    if threshold is not None and threshold.suffix == ".guard":
        from outfield.guard import open_guard

        rule: Threshold | None = open_guard(threshold, device="cpu").threshold
    else:
        rule = None if threshold is None else Threshold.load(threshold)
    if state is not None and state.exists():
        found = Drift.load(state, rule)
        for name, value in settings.items():
            if getattr(found, name) != value:
                begun = getattr(found, name)
                raise InputError(f"--{name} is {value}, but {state} was begun with {begun}; begin another file")
        return found
    if rule is None and "calibration" not in settings:
        raise InputError(
            "what the scores are compared with is not known; pass --threshold FILE, or for p-values --calibration N, how many "
            "held-out scores they were computed with"
        )
    return Drift(rule, **settings)


def _print(told: dict[str, Any]) -> None:
    say(
        f"{told['samples']:,} samples, {100 * told['share_ood']:.1f} % OOD (95 % interval {100 * told['share_low']:.1f} to "
        f"{100 * told['share_high']:.1f}; {100 * told['expected']:.1f} expected of ID data), "
        f"{100 * told['recent_share']:.1f} % of the last {told['recent_samples']:,}"
    )
    bins = told["histogram"]
    for index, count in enumerate(bins):
        bar = "█" * round(BAR * count / max(bins))
        say(f"  p up to {(index + 1) / len(bins):.2f}  {count:>10,}  {bar}".rstrip())
    found = f"DRIFT, found after {told['alarm_at']:,} samples" if told["alarm"] else "no drift found"
    say(
        f"{found}: evidence e^{told['largest_log_wealth']:.1f}, alarm at e^{told['limit']:.1f} "
        f"(a false one, ever, with probability {told['alpha']:g} at most)"
    )
