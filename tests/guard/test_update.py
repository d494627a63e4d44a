"""New versions of a guard: recalibrated on unselected samples, fitted again; p-values stay valid, biased ways are refused."""

import numpy as np
import pytest
from scipy.stats import binom
from tests.guard.test_decision import rows as labelled_rows
from tests.guard.test_rows import people
from tests.helpers.guards import labelled, noise, ssd_guard, write_folder
from tests.helpers.program import outfield
from tests.helpers.service import png

import outfield as of
from outfield.guard import ReviewFolder, classes_of


def plain(n, seed, shift=0.0):
    """Features of a network without classes."""
    rows = np.random.default_rng(seed).normal(size=(n, 4)) + 6
    rows[:, 0] += shift
    return of.FeatureSet(rows.astype(np.float32))


@pytest.fixture(scope="module")
def guard():
    return of.Guard.build_rows(plain(400, 0), plain(200, 1), network_features=True, detector="SSD", device="cpu")


def keep_rows(folder, guard, rows, sample):
    """Rows kept as a service does; their IDs."""
    made, before = ReviewFolder(folder), {*ReviewFolder(folder).ids()} if folder.exists() else set()
    for row, verdict in zip(rows.features.tolist(), guard(rows), strict=True):
        made.add({"verdict": verdict.to_dict(), "row": {"features": row}}, None, sample)
    return [own for own in made.ids() if own not in before]


class TestValidity:
    """Of shifted ID traffic with OOD inputs in it."""

    def draws(self, guard, seen, count=1000, size=40, alphas=(0.05, 0.1, 0.2, 0.5)):
        """How often a new ID input's p-value is at most each α, when ``seen`` says what of a sample counts."""
        rng, found = np.random.default_rng(7), np.zeros(len(alphas), int)
        for _ in range(count):
            sample = plain(size, int(rng.integers(2**40)), shift=3.0)
            new = guard.updated(sample=sample[seen(guard(sample))])
            p_value = new(plain(1, int(rng.integers(2**40)), shift=3.0))[0].p_value
            found += p_value <= np.array(alphas)
        return dict(zip(alphas, found, strict=True)), count

    def test_p_values_hold_after_an_update_with_a_random_sample(self, guard):
        found, count = self.draws(guard, lambda verdicts: np.ones(len(verdicts), bool))
        for alpha, times in found.items():
            assert times <= binom.ppf(0.9999, count, alpha), alpha
        assert found[0.5] > 0.4 * count  # and are not just large

    def test_what_was_accepted_is_no_sample(self, guard):
        found, count = self.draws(guard, lambda verdicts: ~verdicts.is_ood, count=200, size=80)
        assert found[0.1] > 1.5 * binom.ppf(0.9999, count, 0.1)  # this is what the checks below keep out


class TestWhatMayCalibrate:
    @pytest.fixture
    def folder(self, guard, tmp_path):
        """A folder with 60 of a random sample and 30 refused, of which nobody has looked at anything."""
        folder = tmp_path / "kept"
        keep_rows(folder, guard, plain(60, 3, shift=3.0), sample=True)
        keep_rows(folder, guard, plain(30, 4, shift=4.0), sample=False)
        return folder

    def reviewed(self, folder, which="rs", known=lambda number: number % 6 != 0):
        made = ReviewFolder(folder)
        for number, own in enumerate(made.ids()):
            if own[0] in which:
                made.review(own, known(number), None)
        return made

    def test_the_random_sample_sets_the_threshold(self, guard, folder):
        made = self.reviewed(folder)
        new = guard.updated(folder)
        known = [one for one in map(made.item, made.ids()) if one["sample"] and one["review"]["known"]]
        assert new.threshold.reference.tolist() == sorted(one["verdict"]["score"] for one in known)
        assert new.threshold.keep == guard.threshold.keep
        assert new.detector is guard.detector
        told = new.provenance["updated"][-1]
        assert told["random"]
        assert told["calibrate"] == len(known) == 50
        assert told["before"] == [guard.threshold.value, 200]
        assert told["window"][0] <= told["window"][1]
        assert [one[:2] for one in told["changes"]] == [["sample, known", 50], ["others, known", 25], ["unknown", 15]]
        again = new.updated(sample=plain(50, 9))
        assert len(again.provenance["updated"]) == 2

    def test_what_changes_is_told(self, guard, folder):
        self.reviewed(folder)
        new = guard.updated(folder)
        told = new.provenance["updated"][-1]
        rows = plain(60, 3, shift=3.0)
        known = rows[np.array([number % 6 != 0 for number in range(60)])]
        before, after = (~one(known).is_ood for one in (guard, new))
        turned = [int((before & ~after).sum()), int((after & ~before).sum())]
        assert told["changes"][0] == ["sample, known", 50, int(before.sum()), int(after.sum()), *turned]
        assert turned[1] > 0
        reference = guard.threshold.reference
        assert told["held_out"] == [200, *(int((reference <= one.threshold.value).sum()) for one in (guard, new))]

    def test_refused_inputs_alone_may_not_calibrate(self, guard, folder, tmp_path):
        self.reviewed(folder, "r")
        for own in [one for one in ReviewFolder(folder).ids() if one[0] == "s"]:
            for file in folder.glob(f"{own}*"):
                file.unlink()
        plain(50, 5).save(tmp_path / "picked.safetensors")
        for given in (folder, tmp_path / "picked.safetensors", None):
            for train in (None, plain(300, 6)):
                with pytest.raises(of.InputError, match="p-values would not hold for what arrives"):
                    guard.updated(given, train=train)
        sample = plain(60, 7, shift=3.0)
        new = guard.updated(folder, sample=sample)
        assert new.threshold.reference.tolist() == sorted(guard(sample).scores.tolist())

    def test_a_sample_that_people_have_half_reviewed_may_not_calibrate(self, guard, folder):
        made = self.reviewed(folder, "r")
        ids = [own for own in made.ids() if own[0] == "s"]
        for own in ids[:40]:
            made.review(own, True, None)
        with pytest.raises(of.InputError, match=f"20 of 60 inputs .* not reviewed, the first {ids[40]}"):
            guard.updated(folder)
        new = guard.updated(folder, until=made.item(ids[39])["time"])
        assert len(new.threshold.reference) == 40

    def test_rows_that_train_do_not_calibrate(self, guard, folder):
        sample, train = plain(60, 3, shift=3.0), plain(300, 6)
        self.reviewed(folder)
        both = of.FeatureSet.join([train, sample])
        new = guard.updated(folder, train=both)
        told = new.provenance["updated"][-1]
        assert told["refitted"]
        assert told["copies"] == 50  # of the unknown ones of the sample nobody said that they are known
        assert told["trained"] == 300 + 10 + 25
        assert len(new.threshold.reference) == 50
        with pytest.raises(of.InputError, match="all training inputs are in the sample"):
            guard.updated(sample=sample, train=sample)

    @pytest.mark.parametrize(("until", "message"), [("soon", "it must be a time"), ("1999-01-01", "no known inputs")])
    def test_times(self, guard, folder, until, message):
        self.reviewed(folder)
        with pytest.raises(of.InputError, match=message):
            guard.updated(folder, until=until)

    def test_too_few_are_told(self, guard):
        with pytest.raises(of.TooFewSamplesError, match="pass at least 19"):
            guard.updated(sample=plain(18, 3))

    def test_other_folders_and_other_kinds(self, guard, folder, tmp_path):
        self.reviewed(folder)
        with pytest.raises(of.InputError, match="holds no kept inputs"):
            guard.updated(tmp_path)
        (tmp_path / "a.json").write_text("{}")
        own = next(iter(ReviewFolder(folder).ids()))
        (folder / f"{own}.review.json").write_text('{"known": true, "class": "cat"}')
        with pytest.raises(of.InputError, match="the class 'cat', which this guard does not have"):
            guard.updated(folder)
        (folder / f"{own}.json").write_text("{")
        with pytest.raises(of.FileFormatError, match="damaged"):
            guard.updated(folder)


def test_decisions_are_made_anew():
    plan = {"detector": "SSD", "threshold": "per class", "device": "cpu"}
    made = of.Guard.build_rows(labelled_rows(600, 1), labelled_rows(3000, 2), accuracy=0.95, **plan)

    def moved(n, seed):
        one = labelled_rows(n, seed, hard=0.3)
        return of.FeatureSet(one.features * 1.3 + 0.3, labels=one.labels, logits=one.logits)

    new, later = made.updated(sample=moved(3000, 3)), moved(6000, 4)
    verdicts = new(later)
    right = (later.logits.argmax(1) == later.labels).numpy()
    accepted = np.array([one.accept for one in verdicts])
    assert [one.refused for one in verdicts] == (~accepted).tolist()
    assert right.mean() < 0.91
    assert right[accepted].mean() > 0.945
    classes = later.logits.argmax(1).numpy()
    assert min(1 - verdicts.is_ood[classes == index].mean() for index in range(4)) > 0.92
    assert new.decision.per_class.pool_of.tolist() == made.decision.per_class.pool_of.tolist()
    with pytest.raises(of.InputError, match="labels"):
        made.updated(sample=of.FeatureSet(later.features, logits=later.logits))
    pooled = of.Guard.build_rows(labelled_rows(600, 1), labelled_rows(3000, 2), **plan).updated(sample=moved(130, 5))
    assert int(pooled.decision.per_class.pool_of.max()) < 3  # each alone would have too few
    assert pooled.decision.per_class.limits.isfinite().all()


def test_a_table_is_fitted_again_with_rows_that_people_know(tmp_path):
    table = people(300, 0)
    guard = of.Guard.build_rows(table, label="group", missing="median", detector="SSD", device="cpu")
    assert classes_of(guard) == guard.table.classes
    made = ReviewFolder(tmp_path / "kept")
    cells = people(40, 5).drop(columns="group").to_dict("records")
    for number, row in enumerate(cells):
        cells = {name: None if value != value else value for name, value in row.items()}
        made.add({"verdict": {}, "row": cells}, None, number < 30)
    for own in made.ids():
        made.review(own, True, guard.table.classes[0])
    table.to_csv(tmp_path / "train.csv", index=False)
    new = guard.updated(made.path, train=tmp_path / "train.csv")
    assert new.provenance["updated"][0]["trained"] == 310
    assert len(new.threshold.reference) == 30
    assert (new.table.label, new.table.missing) == ("group", "median")
    assert [column.name for column in new.table.columns] == [column.name for column in guard.table.columns]


def test_images_through_the_command(tmp_path):
    ssd_guard().save(tmp_path / "my.guard")
    guard, made = of.Guard.load(tmp_path / "my.guard", "cpu"), ReviewFolder(tmp_path / "kept")
    before = (tmp_path / "my.guard").read_bytes()
    pictures = labelled(70, 8)
    for number, (image, verdict) in enumerate(zip(pictures.images, guard(pictures), strict=True)):
        made.add({"verdict": verdict.to_dict()}, png(image), number < 50)
    for image in noise(4):
        made.add({"verdict": {}}, png(image), False)
    for number, own in enumerate(made.ids()):
        made.review(own, number < 70, pictures.classes[pictures.labels[number]] if number < 70 else None)
    update = ("guard", "update", tmp_path / "my.guard", "--accept", made.path, "--device", "cpu", "-o")
    done = outfield(*update, tmp_path / "new.guard", code=0)
    assert "sample, known" in done.stdout
    assert "of the earlier held-out images it accepts" in done.said
    new = of.Guard.load(tmp_path / "new.guard", "cpu")
    assert len(new.threshold.reference) == 50
    assert "calibrated on 50 of a random sample of" in " ".join(
        outfield("guard", "show", tmp_path / "new.guard").stdout.split()
    )
    train = write_folder(tmp_path / "train", labelled(200, 1))
    done = outfield(*update, tmp_path / "refit.guard", "--refit", train, code=0)
    assert "fitted again on 220 images" in done.said
    assert "outfield guard evaluate" in done.said
    known = of.Guard.load(tmp_path / "refit.guard", "cpu").provenance
    assert (known["train"], known["calibrate"], known["labels"]) == (220, 50, "given")
    assert outfield(*update, tmp_path / "my.guard", code=2).said.count("would overwrite the guard")
    assert (tmp_path / "my.guard").read_bytes() == before
    done = outfield(*update[:3], "--accept", train, "-o", tmp_path / "x.guard", code=2)
    assert "only such may choose a threshold" in done.said
    assert not (tmp_path / "x.guard").exists()
    sample = write_folder(tmp_path / "sample", labelled(40, 9))
    outfield(*update[:3], "--sample", sample, "-o", tmp_path / "declared.guard", code=0)
