"""Records to means and spreads, against closed forms; paired bootstrap, against a loop and where the truth is known."""

import math
import statistics

import numpy as np
import pytest
from tests.helpers.benchmark_samples import PROTOCOL as SIX
from tests.helpers.benchmark_samples import make_run
from tests.helpers.records import SMALL, record

import outfield as of
from outfield.benchmark import Key, Spread, level_columns, published, set_columns, summarise, summary
from outfield.benchmark.summary import SortedScores, counts_of_resamples


class TestSummary:
    def three_backbones(self):
        """Near sets differ by ±0.1 around x_bs; x_1s = 0.2, 0.4, x_2s = 0.5, 0.5, 0.8 and x_3s = 1.2."""
        found = []
        for backbone, values in {"one": [0.2, 0.4], "two": [0.5, 0.5, 0.8], "three": [1.2]}.items():
            for seed, x in enumerate(values):
                for ood, shift in {"a": 0.1, "b": -0.1, "c": 0.0, "d": 0.0}.items():
                    found.append(record(SMALL, "EBM", ood, x + shift, 1 - x - shift, backbone, seed))
        return found

    def test_closed_forms(self):
        found = self.three_backbones()
        cell = summarise(found, level_columns(found, SMALL))["EBM"]["near"]
        # σ₁² = 0.02 over the seeds of one, σ₂² = 0.03 over those of two; means 0.3, 0.6 and 1.2.
        assert cell.fpr95.mean == pytest.approx(0.7)
        assert cell.fpr95.over_seeds == pytest.approx(math.sqrt((0.02 + 0.03) / 2))
        assert cell.fpr95.over_backbones == pytest.approx(math.sqrt((0.4**2 + 0.1**2 + 0.5**2) / 2))
        assert cell.auroc.mean == pytest.approx(0.3)
        assert cell.auroc.over_seeds == pytest.approx(cell.fpr95.over_seeds)

    def test_the_average_is_over_sets_and_not_over_levels(self):
        found = [record(SMALL, "SSD", ood, x, 1 - x) for ood, x in {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.8}.items()]
        cells = summarise(found, level_columns(found, SMALL))["SSD"]
        assert {column: round(cell.fpr95.mean, 9) for column, cell in cells.items()} == {
            "near": 0.15, "mid": 0.3, "far": 0.8, "average": 0.35,
        }  # fmt: skip
        assert cells["near"].fpr95 == Spread(pytest.approx(0.15), None, None)
        assert list(summarise(found, set_columns(found, SMALL))["SSD"]) == ["a", "b", "c", "d", "average"]

    def test_one_seed_or_one_backbone_has_no_spread(self):
        found = [r for r in self.three_backbones() if r.backbone != "three"]
        only = [r for r in found if r.backbone == "one"]
        spread = summarise(only, level_columns(only, SMALL))["EBM"]["far"].fpr95
        assert (spread.over_seeds, spread.over_backbones) == (pytest.approx(math.sqrt(0.02)), None)
        first = [r for r in found if r.seed == 0]
        spread = summarise(first, level_columns(first, SMALL))["EBM"]["far"].fpr95
        assert (spread.over_seeds, spread.over_backbones) == (None, pytest.approx(0.3 / math.sqrt(2)))

    def test_missing_sets_are_left_out_of_means(self):
        found = [r for r in self.three_backbones() if r.ood not in ("a", "d")]
        columns = level_columns(found, SMALL)
        assert columns == {"near": ("b",), "mid": ("c",), "average": ("b", "c")}
        assert summarise(found, columns)["EBM"]["average"].fpr95.mean == pytest.approx(0.7 - 0.05)

    def test_a_published_figure_is_over_the_same_sets(self):
        cells = {"near": (50.0, 80.0), "a": (40.0, 90.0), "b": (50.0, 70.0), "d": (10.0, 95.0)}

        def found(column, *sets):
            return published({"KNN": cells}, {column: sets}, SMALL)["KNN"].get(column)

        assert found("near", "a", "b") == (50.0, 80.0)  # as printed, whatever its parts' mean is
        assert found("near", "b") == (50.0, 70.0)
        assert found("average", "a", "b", "d") == (pytest.approx(100 / 3), pytest.approx(85.0))
        assert found("average", "a", "c") is None


SHORT = of.Protocol("known", near=("a", "b"), mid=(), far=("c",))
SIZES = {"known": 37, "a": 23, "b": 41, "c": 29}


def scored(seed, sizes=SIZES, step=0.5):
    """Scores with many ties."""
    rng = np.random.default_rng(seed)
    return {
        name: (np.round((rng.standard_normal(n) + place / 2) / step) * step).astype(np.float32)
        for place, (name, n) in enumerate(sizes.items())
    }


def short_run(backbones=("one",), **more):
    run = of.BenchmarkRun(SHORT)
    for place, backbone in enumerate(backbones):
        run.scores[Key(backbone, "KNN")] = scored(10 * place, **more)
        for seed in (0, 1):
            run.scores[Key(backbone, "EBM", seed)] = scored(10 * place + 1 + seed, **more)
    return run


def rows_of(run, resamples, seed):
    """The rows that are drawn of each set, as documented: the ID set first, then OOD sets in the protocol's order."""
    names = (run.protocol.id, *run.protocol.ood)
    return {
        name: np.random.default_rng([seed, place]).integers(SIZES[name], size=(resamples, SIZES[name]))
        for place, name in enumerate(names, 1)
    }


def delta(run, backbone, detectors, rows, ood, metric):
    """By how much two detectors differ in each resample, by the functions that everyone uses."""

    def values(detector):
        seeds = [scores for key, scores in run.scores.items() if (key.backbone, key.detector) == (backbone, detector)]
        for ids, oods in zip(rows["known"], rows[ood], strict=True):
            yield statistics.fmean(metric(one["known"][ids], one[ood][oods]) for one in seeds)

    return np.subtract(*(list(values(detector)) for detector in detectors))


class TestResamples:
    @pytest.mark.parametrize("n", [1, 19, 20, 21, 100])
    def test_all_rows_once_are_no_resample(self, n):
        rng = np.random.default_rng(n)
        ids, oods = rng.random(n), rng.random(7) + 0.3
        found = SortedScores(ids, {"x": oods}).metrics(np.ones((n, 1), int), {"x": np.ones((7, 1), int)})
        assert found["x"][0] == pytest.approx([of.fpr95(ids, oods), of.auroc(ids, oods)], abs=1e-15)

    @pytest.mark.parametrize("part", [1, 50, 10**9])
    def test_drawn_as_documented_however_many_fit_in_memory(self, part, monkeypatch):
        monkeypatch.setattr(summary, "PART", part)
        found = list(counts_of_resamples({"x": 5, "y": 8}, 10, seed=2))
        assert len(found) == {1: 10, 50: 4, 10**9: 1}[part]
        for place, (name, n) in enumerate({"x": 5, "y": 8}.items(), 1):
            rows = np.random.default_rng([2, place]).integers(n, size=(10, n))
            counts = np.concatenate([one[name] for one in found], 1)
            assert counts.T.tolist() == [np.bincount(row, minlength=n).tolist() for row in rows]


class TestOneBackbone:
    def test_against_a_loop(self):
        run = short_run()
        rows, found = rows_of(run, 40, seed=5), run.compare("KNN", "EBM", resamples=40, coverage=0.8, seed=5)
        assert (found.first, found.second, found.backbones) == ("KNN", "EBM", ("one",))
        columns = {"a": "a", "b": "b", "c": "c", "near": "ab", "far": "c", "average": "abc"}
        assert list(found.fpr95) == list(found.auroc) == list(columns)
        for mine, metric in ((found.fpr95, of.fpr95), (found.auroc, of.auroc)):
            for column, sets in columns.items():
                deltas = np.mean([delta(run, "one", ("KNN", "EBM"), rows, ood, metric) for ood in sets], 0)
                assert mine[column].over_samples == pytest.approx(tuple(np.quantile(deltas, [0.1, 0.9])), abs=1e-12)
                assert mine[column].over_backbones is None
                assert mine[column].widest == mine[column].over_samples

    def test_the_difference_is_that_of_the_tables(self):
        run = make_run()
        found = run.compare("EBM", "SSD", resamples=2)
        for columns in (set_columns(run.records, SIX), level_columns(run.records, SIX)):
            cells = summarise(run.records, columns)
            for column in columns:
                for metric in ("fpr95", "auroc"):
                    means = [getattr(cells[name][column], metric).mean for name in ("EBM", "SSD")]
                    assert getattr(found, metric)[column].value == pytest.approx(means[0] - means[1], abs=1e-12)

    def test_equal_seeds_give_equal_intervals_and_others_other_ones(self):
        run = short_run()
        first = run.compare("KNN", "EBM", resamples=30)
        assert run.compare("KNN", "EBM", resamples=30, seed=0) == first
        assert run.compare("KNN", "EBM", resamples=30, seed=1).fpr95["a"].over_samples != first.fpr95["a"].over_samples

    def test_paired_is_narrower_than_apart(self):
        """Two detectors that are nearly one: what they share is not counted as uncertainty."""
        run, scores = of.BenchmarkRun(SHORT), scored(0, step=1e-6)
        run.scores = {Key("one", "A"): scores, Key("one", "B"): {n: s + 1e-3 * (s > 0) for n, s in scores.items()}}
        run.scores[Key("one", "C")] = scored(1, step=1e-6)
        near, apart = (run.compare("A", other, resamples=200).auroc["average"].over_samples for other in "BC")
        assert near[1] - near[0] < 0.1 * (apart[1] - apart[0])

    def test_coverage(self):
        """AUROC of N(0, 1) against N(1, 1) by two noisy copies of one score: the true difference is 0."""
        covered = 0
        for seed in range(120):
            rng = np.random.default_rng(seed)
            run = of.BenchmarkRun(of.Protocol("known", ("a",), (), ()))
            base = {"known": rng.standard_normal(100), "a": 1 + rng.standard_normal(100)}
            for name in "AB":
                noisy = {which: (s + 0.7 * rng.standard_normal(100)).astype(np.float32) for which, s in base.items()}
                run.scores[Key("one", name)] = noisy
            low, high = run.compare("A", "B", resamples=200, coverage=0.8, seed=seed).auroc["a"].over_samples
            covered += low <= 0 <= high
        assert 0.7 < covered / 120 < 0.9


class TestSeveralBackbones:
    def test_against_a_loop(self):
        run = short_run(("one", "two", "three"))
        rows, found = rows_of(run, 30, seed=4), run.compare("EBM", "KNN", resamples=30, seed=4)
        assert found.backbones == ("one", "two", "three")
        chosen = np.random.default_rng([4, 0]).integers(3, size=(30, 3))
        for ood in "abc":
            deltas = np.stack([delta(run, b, ("EBM", "KNN"), rows, ood, of.fpr95) for b in found.backbones], 1)
            drawn = [np.mean([row[place] for place in places]) for row, places in zip(deltas, chosen, strict=True)]
            mine = found.fpr95[ood]
            assert mine.over_samples == pytest.approx(tuple(np.quantile(deltas.mean(1), [0.025, 0.975])), abs=1e-12)
            assert mine.over_backbones == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-12)
            assert mine.widest == mine.over_backbones

    def test_backbones_that_differ_widen_the_interval(self):
        run, better, worse = of.BenchmarkRun(SHORT), scored(0), scored(0)
        worse = {name: -values for name, values in worse.items()}
        run.scores = {Key("one", "A"): better, Key("one", "B"): worse, Key("two", "A"): worse, Key("two", "B"): better}
        found = run.compare("A", "B", resamples=100).auroc["average"]
        assert found.value == pytest.approx(0, abs=1e-12)
        assert found.over_samples == pytest.approx((0, 0), abs=1e-12)
        assert found.over_backbones[1] > 0.3
        assert found.over_backbones[0] < -0.3

    def test_only_those_that_both_were_scored_on(self):
        run = short_run(("one", "two"))
        del run.scores[Key("two", "KNN")]
        found = run.compare("KNN", "EBM", resamples=5)
        assert found.backbones == ("one",)
        assert found.fpr95["a"].over_backbones is None


class TestSets:
    def test_only_those_that_both_were_scored_on(self):
        run = short_run()
        run.scores[Key("one", "KNN")] = {n: s for n, s in run.scores[Key("one", "KNN")].items() if n != "a"}
        assert list(run.compare("KNN", "EBM", resamples=5).auroc) == ["b", "c", "near", "far", "average"]
        for seed in (1, 0):
            run.scores[Key("one", "EBM", seed)] = {n: s for n, s in scored(seed).items() if n != "c"}
            assert list(run.compare("KNN", "EBM", resamples=5).auroc) == ["b", "near", "average"]


class TestWrong:
    def test_names(self):
        with pytest.raises(of.UnknownNameError, match="no scores of a detector 'SSD'; there are KNN, EBM"):
            short_run().compare("KNN", "SSD")
        with pytest.raises(of.UnknownNameError, match="'KNM'"):
            short_run().compare("KNM", "EBM")
        with pytest.raises(of.UnknownNameError, match="it has no scores at all"):
            of.BenchmarkRun(SHORT).compare("KNN", "EBM")
        with pytest.raises(of.InputError, match="KNN cannot be compared with itself"):
            short_run().compare("KNN", "KNN")

    @pytest.mark.parametrize(
        ("setting", "said"),
        [({"resamples": 0}, "resamples is 0"), ({"coverage": 0}, "coverage is 0"), ({"coverage": 1.01}, "coverage is 1.01"),
         ({"seed": -1}, "seed is -1"), ({"resamples": 1.5}, "resamples is 1.5"), ({"seed": 0.5}, "seed is 0.5")],
    )  # fmt: skip
    def test_settings(self, setting, said):
        with pytest.raises(of.InputError, match=said):
            short_run().compare("KNN", "EBM", **setting)

    def test_nothing_in_common(self):
        run = short_run()
        run.scores[Key("two", "SSD")] = scored(3)
        with pytest.raises(of.InputError, match="KNN and SSD were not scored on the same backbone"):
            run.compare("KNN", "SSD")
        run.scores[Key("one", "MSP")] = {"known": run.scores[Key("one", "KNN")]["known"]}
        with pytest.raises(of.InputError, match="KNN and MSP were not scored on the same OOD set"):
            run.compare("KNN", "MSP")

    def test_other_rows(self):
        run = short_run()
        run.scores[Key("one", "SSD")] = scored(3, SIZES | {"b": 40})
        with pytest.raises(of.InputError, match="not scored on the same rows of one"):
            run.compare("KNN", "SSD")
