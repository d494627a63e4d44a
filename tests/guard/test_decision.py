"""Decisions: answers that are accepted with an accuracy, thresholds for each class, discoveries of a batch."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from tests.helpers.cluster import rows_of
from tests.helpers.guards import NAMES, labelled, noise, same, ssd_guard, trained, write_folder
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of
from outfield.adapters.graph import FieldsGraph
from outfield.guard import Decision
from outfield.guard.decision import divided
from outfield.scale import score_files


def rows(n, seed, hard=0.2):
    """Features of four classes with logits that are wrong the more often the less sure they are."""
    made = make_set(n, 8, 4, seed=seed)
    rng = np.random.default_rng(seed)
    doubt = rng.beta(1, 4, size=n) * 2
    wrong = rng.uniform(size=n) < hard * doubt
    answers = np.where(wrong, (made.labels.numpy() + 1) % 4, made.labels.numpy())
    logits = np.eye(4)[answers] * (6 - 4 * doubt)[:, None] + rng.normal(0, 0.05, (n, 4))
    return of.FeatureSet(made.features, labels=made.labels, logits=torch.tensor(logits, dtype=torch.float32))


@pytest.fixture(scope="module")
def guard():
    plan = {"detector": "SSD", "accuracy": 0.95, "threshold": "per class", "device": "cpu"}
    return of.Guard.build_rows(rows(600, 1), rows(3000, 2), **plan)


def test_accepted_answers_are_right_as_often_as_promised(guard):
    new = rows(4000, 3)
    verdicts = guard(new)
    accepted = np.array([one.accept for one in verdicts])
    right = (new.logits.argmax(1) == new.labels).numpy()
    assert right.mean() < 0.93  # there is something to refuse
    assert right[accepted].mean() > 0.95
    assert 0.4 < accepted.mean() < 0.99
    chances = np.array([one.p_right for one in verdicts])
    for low, high in ((0.0, 0.8), (0.8, 0.95), (0.95, 1.0)):
        inside = (chances >= low) & (chances < high)
        assert inside.sum() > 20
        assert right[inside].mean() == pytest.approx(chances[inside].mean(), abs=0.08)


def test_a_verdict_says_why_an_answer_is_not_accepted(guard):
    known = rows(300, 4)
    far = of.FeatureSet(-known.features, labels=known.labels, logits=known.logits)
    for one in (*guard(known), *guard(far)):
        assert one.accept == (one.why_not is None)
        assert (one.why_not == "unknown") == one.is_ood
        assert one.p_known == one.p_value
        assert {"accept", "p_known", "p_right", "why_not", "group"} <= one.to_dict().keys()
    assert {one.why_not for one in guard(known)} == {None, "unknown", "unsure"}
    assert {one.word for one in guard(known)} == {"ok", "OOD", "unsure"}
    assert not any(one.accept for one in guard(far))


def test_every_class_keeps_its_share(guard):
    new = rows(8000, 5)
    verdicts = guard(new)
    classes = new.logits.argmax(1).numpy()
    for index in range(4):
        assert 1 - verdicts.is_ood[classes == index].mean() > 0.91
        assert {one.group for one in verdicts if one.class_index == index} == {f"class {index}"}


def test_guards_without_a_decision_say_what_they_said():
    plain = of.Guard.build_rows(rows(200, 1), rows(100, 2), detector="SSD", device="cpu")
    assert plain.decision is None
    assert not {"accept", "p_right", "group", "why_not"} & plain(rows(5, 3))[0].to_dict().keys()
    assert list(plain(rows(5, 3)).table()) == [
        *("file", "class_index", "class_name", "score", "p_value", "is_ood", "triggered_by", "error", "p_value SSD")
    ]


def test_a_file_gives_equal_verdicts(guard, tmp_path):
    guard.save(tmp_path / "a.guard")
    again, new = of.Guard.load(tmp_path / "a.guard", "cpu"), rows(100, 6)
    assert all(same(one, other) for one, other in zip(guard(new), again(new), strict=True))
    assert repr(again.decision.acceptance) == repr(guard.decision.acceptance)


def test_a_ranking_may_divide_by_the_p_value(guard, tmp_path):
    """Equal to score − log p of the verdicts; less known answers are accepted later."""
    ranker, new = of.SIRC().fit(rows(600, 1)), rows(500, 7)
    known = [one.p_known for one in guard(new)]
    scores = ranker.score(new).double().numpy() - np.log(known)
    rule = of.Acceptance.fit(scores, np.zeros(500), scores, np.zeros(500), 0.9, source=ranker.fingerprint())
    rule = dataclasses.replace(rule, limit=float(np.median(scores)))
    made = of.Guard(guard.reader, guard.detector, guard.threshold, decision=Decision(None, ranker, rule, True))
    made.save(tmp_path / "a.guard")
    for one in (made, of.Guard.load(tmp_path / "a.guard", "cpu")):
        p_values = guard.threshold.p_value(guard.detector.score(new)).numpy()
        expected = (ranker.score(new).double().numpy() - np.log(p_values) <= rule.limit) & ~one(new).is_ood
        assert [verdict.accept for verdict in one(new)] == expected.tolist()
        assert "and the p-value" in one.decision.lines("rows")["accepts"]


def test_rows_that_test_an_accuracy_are_drawn_from_all_classes_alike():
    """Of classes with one held-out row each half as many set the threshold as test: none is kept on one side."""
    held = of.FeatureSet(np.ones((300, 2)), labels=np.arange(300), logits=np.eye(300))
    limits, tests = divided(held, 0.95, 0.9, 0)
    assert (len(limits), len(tests)) == (100, 200)


def test_folders_of_scores_have_the_decision(tmp_path):
    network, images = trained(tmp_path / "net.safetensors"), write_folder(tmp_path / "train", labelled(400, 1))
    plan = {"detector": "SSD", "accuracy": 0.9, "threshold": "per class", "device": "cpu"}
    guard = of.Guard.build(of.Backbone.open(str(network)), images, labelled(400, 2), **plan)
    guard.save(tmp_path / "a.guard")
    some = write_folder(tmp_path / "some", of.ImageArray(np.concatenate([labelled(20, 3).images, noise(10)])))
    assert score_files(tmp_path / "a.guard", str(some), str(tmp_path / "out"), device="cpu").rows == 30
    found, expected = rows_of(tmp_path / "out"), guard(some)
    assert [one["accept"] for one in found] == [one.accept for one in expected]
    assert [(one["group"], one["why_not"]) for one in found] == [(one.group, one.why_not) for one in expected]


def test_rows_through_the_commands(tmp_path):
    files = {"train": rows(600, 1), "held": rows(2000, 2), "test": rows(500, 3)}
    files["ood"] = of.FeatureSet(-files["test"].features, logits=files["test"].logits)
    for name, one in files.items():
        one.save(tmp_path / f"{name}.safetensors")
    train, held, test, ood = (tmp_path / f"{name}.safetensors" for name in ("train", "held", "test", "ood"))
    made = tmp_path / "my.guard"
    outfield("guard", "rows", train, "--held-out", held, "--detector", "SSD", "--accuracy", "0.95", "-o", made, code=0)
    done = outfield("guard", "evaluate", made, "--id", test, "--ood", ood, code=0)
    assert "accepted answers: ID" in done.said
    assert "accepted answers on ID data" in done.said
    scored = outfield("score", made, ood, "--fdr", "0.1", code=0)
    assert "at most 10.0 % of those called OOD are ID" in scored.said
    assert [one["is_ood"] for one in csv.DictReader(io.StringIO(scored.stdout))] == ["True"] * 500


def test_an_export_does_not_drop_what_a_guard_decides(tmp_path):
    images = labelled(300, 2)
    settings = {"detector": "SSD", "threshold": "per class", "device": "cpu"}
    guard = of.Guard.build(of.Backbone.open(str(trained(tmp_path / "net.safetensors"))), images, images, **settings)
    with pytest.raises(of.InputError, match="a graph holds one threshold alone"):
        FieldsGraph(guard)


def test_words_on_thresholds_of_classes():
    scores, classes = np.arange(100.0), np.repeat([0, 1, 2], [97, 1, 2])
    for counts, words in (
        ([97, 1, 2], "no class has a threshold of its own; these share one: all 3 classes"),
        ([60, 20, 20], "3 classes have thresholds of their own"),
        ([60, 30, 5, 5], "1 class has a threshold of its own; these share one: b, c, d"),
    ):
        rule = of.ClassThresholds.fit(scores, classes, counts, keep=0.9)
        assert Decision(rule).lines("rows", "abcd")["per class"] == words


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"accuracy": 1.0}, of.InputError, "accuracy"),
        ({"threshold": "each"}, of.InputError, "threshold"),
        (
            {"accuracy": 0.999},
            of.TooFewSamplesError,
            r"promise 98\.8 % right answers at most, not 99\.9 %.* about 13,480",
        ),
        ({"accuracy": 0.99}, of.TooFewSamplesError, "Pass a lower accuracy, or"),
    ],
)
def test_what_cannot_be_is_told(settings, error, message):
    with pytest.raises(error, match=message):
        of.Guard.build_rows(rows(300, 1), rows(400, 2), detector="SSD", device="cpu", **settings)


@pytest.mark.parametrize(("detector", "count"), [("SSD", 30), (None, 70)])
def test_so_many_held_out_rows_as_it_asks_for_do(detector, count):
    settings, good = {"detector": detector, "accuracy": 0.9, "device": "cpu"}, rows(300, 1, hard=0.02)
    with pytest.raises(of.TooFewSamplesError, match=f"{count} held-out rows; .* they could promise .* 90 %") as refused:
        of.Guard.build_rows(good, rows(count, 2), **settings)
    needed = int(str(refused.value).split("about ")[1].split()[0])
    made = of.Guard.build_rows(good, rows(needed, 2, hard=0.02), **settings)
    assert 3 * 29 <= made.decision.acceptance.tested[0] < 3 * 29 + 10
    with pytest.raises(of.TooFewSamplesError, match=r"pass at least \d+ rows") as refused:
        of.Guard.build_rows(good[:60], **settings)
    assert int(str(refused.value).split("at least ")[1].split(" ")[0]) == pytest.approx(2 * needed, abs=20)


def test_rows_without_classes_or_logits_are_told():
    plain = make_set(300, 8, 4, seed=1)
    bare = of.FeatureSet(plain.features, labels=plain.labels)
    for settings, message in (
        ({"accuracy": 0.9}, "logits and labels"),
        ({"threshold": "per class"}, "predicted class"),
    ):
        with pytest.raises(of.InputError, match=message):
            of.Guard.build_rows(bare, network_features=True, detector="SSD", device="cpu", **settings)


def test_images_through_the_commands(tmp_path):
    network, made = trained(tmp_path / "net.safetensors"), tmp_path / "my.guard"
    train, held = write_folder(tmp_path / "train", labelled(240, 1)), write_folder(tmp_path / "held", labelled(300, 2))
    strange = write_folder(tmp_path / "noise", of.ImageArray(noise(20)))
    build = (
        "guard",
        "build",
        network,
        "--held-out",
        held,
        "-o",
        made,
        "--detector",
        "SSD",
        "--accuracy",
        "0.9",
        "--images",
    )
    said = outfield(*build, train, "--per-class", code=0).said
    assert "accepts answers of which at least 90 % are right, with a confidence of 0.95" in said
    assert "no class has a threshold of its own" in " ".join(outfield("guard", "show", made).stdout.split())
    known = write_folder(tmp_path / "known", labelled(40, 5))
    done = outfield("guard", "check", made, known, strange, "--json", "--fdr", "0.2", code=0)
    found = json.loads(done.stdout)
    assert sum(one["is_ood"] for one in found[40:]) > 10
    assert all({*one["group"].split(", ")} <= {*NAMES} for one in found)
    assert "at most 20.0 % of those called OOD are ID" in done.said
    assert "p right" in outfield("guard", "check", made, strange).stdout
    outfield("guard", "check", made, strange, "--jsonl", "--fdr", "0.2", code=2)
    for rate in ("0", "1.5"):
        assert "--fdr" in outfield("guard", "check", made, strange, "--fdr", rate, code=2).said
    flat = write_folder(tmp_path / "flat", of.ImageArray(labelled(200, 3).images))
    assert "folders named after the network's classes" in outfield(*build, flat, code=2).said


def test_discoveries_take_the_place_of_the_threshold():
    guard = ssd_guard()
    verdicts = guard(of.ImageArray(np.concatenate([labelled(40, 3).images, noise(40)])))
    found = verdicts.discoveries(0.1)
    assert found[40:].mean() > 0.5
    changed = verdicts.with_discoveries(0.1)
    assert changed.is_ood.tolist() == found.tolist()
    assert all((one.triggered_by is None) or one.is_ood for one in changed)
    with pytest.raises(of.InputError, match="rate"):
        verdicts.discoveries(0)
