"""``Drift`` beside MAPIE's ``OnlineMartingaleTest`` on the same streams: false alarms, and samples until a change is found.

    pip install mapie
    python benchmarks/drift_mapie.py false
    python benchmarks/drift_mapie.py delay
    python benchmarks/drift_mapie.py delay --only "plugin, history" --streams 20 --quiet 0 --most 1000

Scores are normal, and a change makes a share of them three standard deviations higher, or moves all of them. Each stream has
calibration scores of its own, which every test is given, and every test has the same ``alpha``. MAPIE's takes its scores from
labelled samples; here its own steps are called with ours (``check`` compares them with its ``update``). It runs twice: begun with
``update`` on the calibration scores, as its documentation has it ("documented"), so that it bets on these, too, and with them as
its history alone ("history"), so that betting begins with the stream, as ours does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from mapie.exchangeability_testing import OnlineMartingaleTest

import outfield as of

Test = Callable[[np.ndarray, np.ndarray, float, int], int | None]
"""From calibration scores, a stream, alpha and a seed to the sample of the stream at which the alarm came: 0 before the first."""

CHANGES: dict[str, tuple[float, float]] = {  # share of the samples, standard deviations
    "5 % OOD": (0.05, 3.0),
    "10 % OOD": (0.1, 3.0),
    "20 % OOD": (0.2, 3.0),
    "50 % OOD": (0.5, 3.0),
    "all 0.25 higher": (1.0, 0.25),
    "all 0.25 lower": (1.0, -0.25),
}


def outfield_alarm(calibration: np.ndarray, stream: np.ndarray, alpha: float, seed: int) -> int | None:
    drift = of.Drift(of.Threshold.fit(calibration), alpha=alpha, seed=seed)
    for part in np.split(stream, range(1000, len(stream), 1000)):
        if drift.update(part):
            break
    found: int | None = drift.summary()["alarm_at"]
    return found


def mapie_test(method: str, betting: bool) -> Test:
    """MAPIE's test by one of its martingales, which bets on the calibration scores, too, if ``betting``."""

    jumper = method.startswith("jumper")

    def alarm(calibration: np.ndarray, stream: np.ndarray, alpha: float, seed: int) -> int | None:
        test = OnlineMartingaleTest(test_method=method, test_level=alpha, warn=False, random_state=seed)
        if jumper and not betting:
            test.burn_in = 1  # p-values before it may decide; the calibration scores make them exact from the first
        update = test.update_simple_jumper_martingale if jumper else test.update_plugin_martingale
        scores, crossed = np.concatenate([calibration, stream]), False
        for at in range(0 if betting else len(calibration), len(scores)):
            p_value = test.compute_p_value(scores[at], scores[:at])
            crossed |= bool(update(p_value) > test.reject_threshold)
            test.pvalue_history.append(p_value)
            if crossed and len(test.pvalue_history) >= test.burn_in:
                return max(0, at + 1 - len(calibration))
        return None

    return alarm


def check() -> None:
    """The steps above are those of MAPIE's ``update``."""

    class OfScores(OnlineMartingaleTest):  # type: ignore[misc]
        def _compute_non_conformity_scores(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:  # noqa: N803
            return y

    rng = np.random.default_rng(0)
    calibration, stream = rng.standard_normal(150), changed(rng, 400, 0.5, 3.0)
    for method in ("jumper_martingale", "plugin_martingale"):
        test = OfScores(test_method=method, test_level=0.01, warn=False, random_state=1)
        for part in (calibration, stream):
            test.update(np.zeros(len(part)), part)
        said = test.summary()
        theirs = None if test.is_exchangeable else max(0, said["stopping_time"] - len(calibration))
        assert mapie_test(method, True)(calibration, stream, 0.01, 1) == theirs, (method, said)


TESTS: dict[str, Test] = {
    "of.Drift": outfield_alarm,
    "MAPIE jumper, documented": mapie_test("jumper_martingale", True),
    "MAPIE jumper, history": mapie_test("jumper_martingale", False),
    "MAPIE plugin, documented": mapie_test("plugin_martingale", True),
    "MAPIE plugin, history": mapie_test("plugin_martingale", False),
}


def changed(rng: np.random.Generator, count: int, share: float, shift: float) -> np.ndarray:
    return rng.standard_normal(count) + shift * (rng.random(count) < share)


def streams(
    count: int, calibration: int, quiet: int, most: int, change: tuple[float, float]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Calibration scores and a stream, ``count`` times: the same ones for every test."""
    for number in range(count):
        rng = np.random.default_rng([calibration, quiet, number])
        yield (
            rng.standard_normal(calibration),
            np.concatenate([rng.standard_normal(quiet), changed(rng, most, *change)]),
        )


def false_alarms(options: argparse.Namespace, names: Sequence[str]) -> None:
    print("| calibration scores | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for calibration in options.calibration:
        cells = []
        for name in names:
            found = streams(options.streams, calibration, options.most, 0, (0.0, 0.0))
            alarms = sum(TESTS[name](*one, options.alpha, seed) is not None for seed, one in enumerate(found))
            cells.append(f"{alarms} of {options.streams:,}")
        print(f"| {calibration:,} | " + " | ".join(cells) + " |", flush=True)


def delays(options: argparse.Namespace, names: Sequence[str]) -> None:
    print("| quiet samples, change | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    (calibration,) = options.calibration[-1:]
    for quiet in options.quiet:
        for change, how in CHANGES.items():
            cells = []
            for name in names:
                began, rows, waited, early = time.process_time(), 0, [], 0
                for seed, one in enumerate(streams(options.streams, calibration, quiet, options.most, how)):
                    at = TESTS[name](*one, options.alpha, seed)
                    rows += calibration * ("documented" in name) + (len(one[1]) if at is None else at)
                    early += at is not None and at <= quiet
                    waited.append(np.inf if at is None else max(0, at - quiet))
                middle, late = np.quantile(waited, (0.5, 0.9), method="inverted_cdf")
                cells.append(f"{shown(middle)} ({shown(late)})" + (f", {early} before it" if early else ""))
                seconds = 1e6 * (time.process_time() - began) / max(rows, 1)
                cells[-1] += f" [{seconds:,.0f} µs a sample]" if options.time else ""
            print(f"| {quiet:,}, {change} | " + " | ".join(cells) + " |", flush=True)


def shown(samples: float) -> str:
    return "–" if np.isinf(samples) else f"{samples:,.0f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["false", "delay"])
    parser.add_argument("--streams", type=int, help="default: 1,000 without a change, 200 with one")
    parser.add_argument("--calibration", type=int, nargs="+", default=[200, 1000], help="delays: the last of them")
    parser.add_argument("--quiet", type=int, nargs="+", default=[0, 1000], help="samples before the change")
    parser.add_argument("--most", type=int, default=5000, help="samples without a change, or after it")
    parser.add_argument("--alpha", type=float, default=0.01)
    parser.add_argument(
        "--only", default="", help="tests with this in their name; default: all but plugin, which is slow"
    )
    parser.add_argument("--time", action="store_true", help="microseconds of a core a sample, too")
    options = parser.parse_args()
    check()
    chosen = [name for name in TESTS if (options.only in name if options.only else "plugin" not in name)]
    options.streams = options.streams or (1000 if options.what == "false" else 200)
    (false_alarms if options.what == "false" else delays)(options, chosen)
