"""Building a guard: labels, detectors of all kinds, networks without stages, and what is said on the way."""

import logging
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.guards import NAMES, labelled, noise, same, small_guard, ssd_guard, trained, write_folder
from tests.helpers.networks import NORMALISED, Plain, seeded
from torch import nn

import outfield as of
from outfield.detectors import ViewsChoice
from outfield.guard import ImagePlan, build, describe_guard


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("network") / "net.safetensors")


@pytest.fixture(autouse=True)
def _few_are_judged(monkeypatch):
    monkeypatch.setattr(build, "JUDGED", 10)


def nameless(network, tmp_path):
    """The same weights without the names of the classes, as timm:NAME@FILE."""
    module, classifier, _ = of.load_classifier(network)
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    settings = {"size": classifier.size, "mean": classifier.mean, "std": classifier.std, "small_images": True}
    return of.Backbone.named("test_resnet", weights=tmp_path / "w.safetensors", device="cpu", **settings)


@pytest.mark.parametrize("files", [False, True])
def test_copies_of_an_image_stay_on_one_side(network, files, tmp_path):
    once = labelled(200, 1)
    images = of.ImageArray(np.tile(once.images, (3, 1, 1, 1)), np.tile(once.labels, 3), "pictures", NAMES)
    given = write_folder(tmp_path / "photos", images) if files else images
    guard = of.Guard.build(str(network), given, detector=of.KNN(k=1), device="cpu")
    assert guard.threshold.reference.min() > 1e-4  # a held-out copy of a training image would score 0


class TestLabels:
    def test_names_come_from_the_folders_where_the_network_has_none(self, network, tmp_path):
        guard = small_guard(nameless(network, tmp_path), detector="SSD")
        assert guard.names == NAMES
        assert guard.provenance["accuracy"] == 1.0
        assert guard.provenance["labels"] == "given"
        guard.save(tmp_path / "my.guard")
        assert of.Guard.load(tmp_path / "my.guard", device="cpu").names == NAMES

    def test_without_labels_the_network_says_them(self, network, caplog):
        images, held = (of.ImageArray(labelled(n, seed).images) for n, seed in ((200, 1), (160, 2)))
        with caplog.at_level(logging.INFO, "outfield"):
            guard = of.Guard.build(str(network), images, held, detector="SSD", device="cpu")
        assert "not in folders named after the network's classes: its predictions serve as labels" in caplog.text
        assert guard.provenance["accuracy"] is None
        assert guard.provenance["labels"] == "predicted"
        assert guard(noise(20)).is_ood.all()
        with_labels = ssd_guard()  # on these pictures the network is always right
        assert same(guard(noise(1)[0]), with_labels(noise(1)[0]))

    @pytest.mark.parametrize("named", [False, True])
    def test_folders_of_other_classes_than_the_networks(self, network, tmp_path, caplog, named):
        pictures = labelled(200, 1)
        images = of.ImageArray(pictures.images, pictures.labels // 2, "two", ("one", "other"))
        backbone = of.Backbone.load(network, device="cpu") if named else nameless(network, tmp_path)
        with caplog.at_level(logging.INFO, "outfield"):
            guard = of.Guard.build(backbone, images, device="cpu")
        assert "not the network's 4 classes: the detector uses its features, not its logits" in caplog.text
        assert "logits" not in guard.detector.needs_to_score
        assert guard.provenance["labels"] == "folders"
        assert guard.provenance["accuracy"] is None
        assert guard(pictures.images[0]).label == (NAMES[0] if named else "0")  # what the network sees
        mixture = of.Guard.build(backbone, images, detector="GaussianMixture", device="cpu").detector
        assert mixture.record().tensors["means"].shape[0] == 2
        assert "logits" in of.Guard.build(backbone, images, detector="MSP", device="cpu").detector.needs_to_score

    def test_folders_of_some_of_the_networks_classes(self, network, tmp_path, caplog):
        pictures = labelled(400, 1)
        kept = pictures.labels > 1
        some = of.ImageArray(pictures.images[kept], pictures.labels[kept] - 2, "two", NAMES[2:])
        whole = of.Backbone.load(network, device="cpu")
        with caplog.at_level(logging.INFO, "outfield"):
            guard = of.Guard.build(whole, some, device="cpu")
        assert "of the network's 4 classes the guard keeps the 2 that are folders" in caplog.text
        assert guard.names == NAMES[2:]
        assert guard.provenance["accuracy"] == 1.0
        logits = [one.extract(some, labels=False).logits for one in (guard.backbone, whole)]
        torch.testing.assert_close(logits[0], logits[1][:, 2:])
        guard.save(tmp_path / "my.guard")
        assert same(of.Guard.load(tmp_path / "my.guard", device="cpu")(some[0]), guard(some[0]))
        about = {"preprocessing": whole.preprocessing, "names": NAMES}
        # One that was given in Python, whose file does not hold the network.
        own = of.Guard.build(of.Backbone(whole.network, **about), some, device="cpu")
        assert own.names == NAMES
        assert "logits" not in own.detector.needs_to_score
        assert own.provenance["accuracy"] == 1.0

    def test_a_wrong_order_of_classes_is_seen(self, network, tmp_path, caplog):
        pictures = labelled(200, 1)
        images = of.ImageArray(pictures.images, (pictures.labels + 1) % 4, "turned", NAMES)
        with caplog.at_level(logging.INFO, "outfield"):
            of.Guard.build(nameless(network, tmp_path), images, detector="SSD", device="cpu")
        assert "right on 0.0 % of the held-out images, no more than by guessing" in caplog.text

    def test_one_class_alone(self, network):
        pictures = labelled(800, 1)
        images = of.ImageArray(pictures.images[pictures.labels == 1], name="one")
        guard = of.Guard.build(str(network), images, device="cpu")
        assert guard(noise(10)).is_ood.all()

    def test_class_folders_of_which_the_network_knows_some(self, network):
        pictures = labelled(200, 1)
        images = of.ImageArray(pictures.images, pictures.labels, "animals", ("across", "dog", "cow", "hen"))
        said = "animals cannot be used: the network has no class 'dog'; its classes are across, down"
        with pytest.raises(of.InputError, match=said):
            of.Guard.build(str(network), images, detector="SSD", device="cpu")

    def test_classes_are_found_by_name_whatever_their_order(self, network):
        pictures = labelled(200, 1)
        turned = of.ImageArray(pictures.images, 3 - pictures.labels, "turned", NAMES[::-1])
        guard = of.Guard.build(str(network), turned, labelled(160, 2), detector="SSD", device="cpu")
        assert guard.provenance["accuracy"] == 1.0
        assert same(guard(noise(1)[0]), ssd_guard()(noise(1)[0]))
        assert turned.classes == NAMES[::-1]


class TestFirstLook:
    def test_a_size_that_does_not_suit_the_network_is_told(self, network, caplog):
        class Sees16(nn.Module):
            def forward(self, images):
                return images * (images.shape[-1] == 16)

        good = of.Backbone.load(network, device="cpu")
        about = {"mean": good.preprocessing.mean, "std": good.preprocessing.std, "names": NAMES}
        wrong = of.Backbone(nn.Sequential(Sees16(), good.network), size=32, **about)
        with caplog.at_level(logging.INFO, "outfield"):
            small_guard(wrong, detector="SSD")
        assert re.search(r"right on \d\d\.\d % of 200 images at 32 × 32 pixels, but on 100.0 % at 16 × 16", caplog.text)
        assert "--size 16x16, in Python size=(16, 16)" in caplog.text
        caplog.clear()
        small_guard(network, detector="SSD")
        assert "× 16" not in caplog.text

    def test_what_will_be_done(self, network, caplog):
        with caplog.at_level(logging.INFO, "outfield"):
            small_guard(network)
        assert "200 images fit the detector, 90 choose its members, 70 set its threshold; 1,000 made-up" in caplog.text
        assert re.search(r"images \(stand-ins\) play OOD: at least \d+ s for the network\n", caplog.text)


class TestQuality:
    def test_the_share_of_stand_ins_that_is_caught(self, network):
        held = labelled(160, 2)
        guard = small_guard(network, held, detector="SSD", seed=3)
        made = of.stand_ins(held, seed=3, count=10).map(lambda images: guard(images).is_ood.mean())
        expected = {level: np.mean([*found.values()]) for level, found in made.by_level().items()}
        assert guard.provenance["caught"] == pytest.approx(expected)
        assert expected["far"] > 0.2

    @pytest.mark.parametrize(
        ("near", "far", "word"),
        [(0.75, 0.9, "good"), (0.74, 1, "fair"), (1, 0.89, "fair"), (0.5, 0.75, "fair"), (0.49, 1, "weak"), (1, 0.7, "weak")],
    )  # fmt: skip
    def test_in_words(self, network, tmp_path, near, far, word):
        guard = ssd_guard()
        guard.provenance["caught"] = {"near": near, "far": far}
        guard.save(tmp_path / "my.guard")
        assert repr(guard).endswith(f"; quality: {word})")
        expected = f"{word}. It catches {100 * near:.0f} % of near and {100 * far:.0f} % of far stand-ins"
        assert describe_guard(tmp_path / "my.guard")["quality"].startswith(expected)

    def test_files_that_do_not_say_it(self, network, tmp_path):
        guard = ssd_guard()
        del guard.provenance["caught"]
        guard.save(tmp_path / "old.guard")
        assert "quality" not in repr(guard)
        assert "quality" not in describe_guard(tmp_path / "old.guard")


class TestDetectors:
    @pytest.mark.parametrize("detector", ["KNN", "MSP", "ODIN", "Fused", of.SSD(field="stage2"), of.Mahalanobis()])
    def test_any_detector(self, network, tmp_path, detector):
        guard = small_guard(network, detector=detector)
        guard.save(tmp_path / "my.guard")
        again = of.Guard.load(tmp_path / "my.guard", device="cpu")
        found = guard(labelled(20, 5))
        assert all(same(a, b) for a, b in zip(found, again(labelled(20, 5)), strict=True))
        assert set(found[0].members) == set(guard.members)
        assert found.is_ood.mean() < 0.4

    def test_the_given_detector_is_left_alone(self, network):
        given = of.SSD()
        small_guard(network, detector=given)
        with pytest.raises(of.NotFittedError):
            given.score(None)

    def test_views_are_the_same_when_images_are_judged(self, network, tmp_path):
        guard, plain = small_guard(network, detector="SSD", views="flip"), ssd_guard()
        image = labelled(1, 6).images[0]
        assert guard(image).score != plain(image).score
        np.testing.assert_allclose(guard(image).score, guard(image[:, ::-1].copy()).score, rtol=1e-4)
        guard.save(tmp_path / "my.guard")
        assert same(of.Guard.load(tmp_path / "my.guard", device="cpu")(image), guard(image))

    def test_the_same_twice(self, network, tmp_path):
        for name in ("one", "other"):
            made = of.Guard.build(str(network), labelled(80, 1), labelled(80, 2), seed=3, device="cpu")
            made.save(tmp_path / f"{name}.guard")
        assert (tmp_path / "one.guard").read_bytes() == (tmp_path / "other.guard").read_bytes()


def test_a_network_without_stages():
    layers = (nn.Flatten(), nn.Linear(16 * 16 * 3, 12), nn.ReLU(), nn.Linear(12, 4))
    backbone = of.Backbone(seeded(lambda: nn.Sequential(*layers)), size=16, **NORMALISED)
    guard = of.Guard.build(backbone, labelled(200, 1), labelled(100, 2), device="cpu")
    assert not guard.provenance["stages"]
    assert len(guard(labelled(5, 3))) == 5
    assert backbone.names == ()  # the one that was given is left alone


def test_rows_of_the_guards_own_network_are_judged(network):
    guard = ssd_guard()
    images = labelled(12, 4)
    rows = guard.backbone.extract(images, precision="float32")
    assert all(same(a, b) for a, b in zip(guard.judge(rows), guard(images), strict=True))
    other = of.Backbone.load(network, device="cpu")
    with torch.no_grad():
        next(other.network.parameters()).view(-1)[0] += 1
    with pytest.raises(of.InputError, match="network is"):
        guard.judge(other.extract(images))


def test_pixels_are_prepared_one_by_one_and_judged_together(network):
    guard = ssd_guard()
    images = [*labelled(3, 4).images, noise(1, size=40)[0]]
    ready = torch.stack([guard.prepare(image) for image in images])
    assert ready.shape == (4, 16, 16, 3)
    found = guard.judge_pixels(ready, ["a", "b", "c", "d"])
    assert [one.file for one in found] == ["a", "b", "c", "d"]
    assert all(same(a, b) for a, b in zip(found, guard(images), strict=True))
    with pytest.raises(of.InputError, match="one image"):
        guard.prepare(labelled(3, 4).images)
    for wrong in (ready.float(), ready[0], ready[:, :15], ready[..., :1], ready[:0], ready.numpy()):
        with pytest.raises(of.InputError, match=r"uint8 \(N, 16, 16, 3\)"):
            guard.judge_pixels(wrong)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep": 0}, "keep is 0"), ({"seed": -1}, "seed is -1"),
        ({"max_train": 0}, "max_train is 0"), ({"detector": 3}, "detector is 3"), ({"detector": "nothing"}, "nothing"),
        ({"views": "nine"}, "views is 'nine'"), ({"device": "tpu?"}, "device"), ({"precision": "int8"}, "precision is 'int8'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(network, settings, said):
    with pytest.raises(of.InputError, match=said):
        small_guard(network, **settings)


def test_what_is_no_network():
    with pytest.raises(of.InputError, match=r"wrap a network, outfield\.Backbone"):
        of.Guard.build(seeded(Plain), labelled(200, 1))
    with pytest.raises(of.UnknownNameError):
        of.Guard.build("nothing", labelled(200, 1))


def test_a_network_that_its_library_builds_otherwise_is_refused_before_the_work(network):
    """As torchvision's GoogLeNet and Inception do, which change a setting once they have their published weights."""
    backbone = of.Backbone.load(network, device="cpu")
    backbone.network.transform_input = True
    with pytest.raises(of.InputError, match=r"a guard cannot hold net.*other settings"):
        small_guard(backbone)
    backbone = of.Backbone.load(network, device="cpu")
    del backbone.network.bn1.running_mean
    with pytest.raises(of.InputError, match=r"a guard cannot hold net.*1 of 80 tensors are missing.*bn1\.running_mean"):
        small_guard(backbone)


class TestViews:
    def test_stand_ins_choose_them(self, network, monkeypatch, caplog):
        seen = {}

        def choose(rows_of, device):
            seen.update({views: rows_of(views) for views in ("one", "flip")})
            return ViewsChoice("flip", {"one": 0.3, "flip": 0.25})

        monkeypatch.setattr(build, "choose_views", choose)
        with caplog.at_level(logging.INFO, "outfield"):
            guard = small_guard(network, views="auto")
        assert guard.reader.views == of.Views.of("flip")
        assert "views flip (one 30.0, flip 25.0)" in caplog.text
        assert [rows.train.about.get("views") for rows in seen.values()] == ["one", "flip"]
        expected = small_guard(network, views="flip")
        assert same(guard(noise(1)[0]), expected(noise(1)[0]))
        for rows in seen.values():
            assert len(rows.train) == 200
            assert len(rows.held_out) == guard.provenance["choose"]
            assert {len(one) for one in rows.stand_ins.values()} == {len(rows.held_out)}

    def test_for_other_detectors_they_are_named(self, network):
        with pytest.raises(of.InputError, match=r"views are chosen for Auto alone; with SSD name them: one, flip, six"):
            small_guard(network, detector="SSD", views="auto")


class TestHeldOut:
    @pytest.mark.parametrize(("total", "expected"), [(177, 59), (300, 100), (900, 240), (2000, 400), (40_000, 5000)])
    def test_how_many_are_split_off(self, total, expected):
        assert ImagePlan().held_out(None, total).sum() == expected

    def test_too_few_images(self):
        plan = ImagePlan()
        assert plan.held_out(None, 118).sum() == 59
        with pytest.raises(of.TooFewSamplesError, match=r"117 images, and 59 .* at least 118"):
            plan.held_out(None, 117)
        with pytest.raises(of.TooFewSamplesError):  # every class keeps its only image
            plan.held_out(np.arange(200), 200)

    def test_no_image_is_in_two_parts(self, caplog):
        images = labelled(300, 1)
        images.images[:, 0, 0] = np.stack([np.arange(300) % 256, np.arange(300) // 256, np.zeros(300)], 1)
        with caplog.at_level(logging.INFO, "outfield"):
            parts = ImagePlan().divide(images, None)
        found = [{tuple(pixel) for pixel in part.images[:, 0, 0].tolist()} for part in parts]
        assert [len(part) for part in found] == [200, 60, 40]
        assert len(set.union(*found)) == 300
        assert "100 of 300 images are held out" in caplog.text

    def test_given_images_are_divided_by_what_they_are_for(self):
        train = labelled(200, 1)
        for plan, count, expected in (
            (ImagePlan(), 159, [200, 90, 69]),
            (ImagePlan(), 59, [200, 40, 19]),
            (ImagePlan(detector="SSD"), 159, [200, None, 159]),
        ):
            parts = plan.divide(train, labelled(count, 2))
            assert [None if part is None else len(part) for part in parts] == expected
        with pytest.raises(of.TooFewSamplesError, match="58 held-out images; at least 59"):
            ImagePlan().divide(train, labelled(58, 2))

    def test_a_detector_is_fitted_on_so_many_at_most(self, caplog):
        with caplog.at_level(logging.INFO, "outfield"):
            train = ImagePlan(max_train=100).to_train(labelled(200, 1))
        assert np.bincount(train.labels).tolist() == [25, 25, 25, 25]
        assert "fitted on 100 of 200" in caplog.text
        assert len(ImagePlan(max_train=200).to_train(train)) == 100

    def test_classes_of_one_image_each(self):
        choose, calibrate = ImagePlan().to_choose(labelled(80, 2), np.arange(80))
        assert (len(choose), len(calibrate)) == (50, 30)
