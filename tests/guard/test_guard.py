"""A guard of a small trained network: every kind of input, files, and what its p-values promise."""

import io
import os
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.guards import NAMES, labelled, noise, same, small_guard, ssd_guard, trained, write_folder
from torch.utils.data import DataLoader, TensorDataset

import outfield as of


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("network") / "net.safetensors")


@pytest.fixture(scope="module")
def guard(network):
    return small_guard(network)


@pytest.fixture(scope="module")
def image():
    return labelled(1, 7).images[0]


def encoded(image, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


def test_noise_is_ood_and_pictures_are_not(guard):
    far, near = guard(noise(40)), guard(labelled(100, 5))
    assert far.is_ood.all()
    assert near.is_ood.mean() < 0.2
    assert all(one.triggered_by in guard.members for one in far)
    assert all(one.triggered_by is None for one in near if not one.is_ood)
    assert [one.class_name for one in near].count(NAMES[0]) > 20


class TestInputs:
    def test_every_kind_of_one_image_has_the_same_verdict(self, guard, image, tmp_path):
        Image.fromarray(image).save(tmp_path / "a.png")
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        normalised = guard.backbone.input.preparation(torch.device("cpu"), torch.float32, torch.contiguous_format)
        expected = guard(image)
        assert isinstance(expected, of.Verdict)
        (tmp_path / "b.png").write_bytes(content := encoded(image))
        kinds = [
            tmp_path / "a.png", str(tmp_path / "b.png"), content, bytearray(content), io.BytesIO(content),
            Image.open(tmp_path / "a.png"), Image.fromarray(image), tensor, tensor.float() / 255, tensor.double() / 255,
        ]  # fmt: skip
        assert all(same(guard(one), expected) for one in kinds)
        assert same(guard(normalised(torch.from_numpy(image)[None])[0], normalised=True), expected)

    def test_several_images_have_the_same_verdicts_however_they_come(self, guard, tmp_path):
        images = labelled(6, 8)
        folder = write_folder(tmp_path / "flat", of.ImageArray(images.images)) / "images"
        expected = guard(images.images)
        assert isinstance(expected, of.Verdicts)
        assert len(expected) == 6
        tensor = torch.from_numpy(images.images).permute(0, 3, 1, 2)
        loader = DataLoader(TensorDataset(tensor, torch.from_numpy(images.labels)), batch_size=6)
        ways = [images, [*images.images], tensor, folder, [folder], sorted(folder.iterdir()), loader]
        ways += [DataLoader([*tensor], batch_size=6), DataLoader([{"image": one} for one in tensor], batch_size=6)]
        for way in ways:
            found = guard(way)
            assert len(found) == 6
            assert all(same(a, b) for a, b in zip(found, expected, strict=True))
        assert [one.file for one in guard(folder)] == [str(path) for path in sorted(folder.iterdir())]

    def test_files_that_were_opened(self, guard, image, tmp_path):
        path = tmp_path / "a.png"
        Image.fromarray(image).save(path)
        with path.open("rb") as file:
            found = guard(file)
            assert same(found, guard(image))
            assert found.file == str(path)
            with pytest.raises(of.InputError, match="gave nothing; open images with 'rb'"):
                guard(file)  # which is read to its end
        with pytest.raises(of.StorageError, match="closed"):
            guard(file)
        for wrong in (io.StringIO("text"), path.open(encoding="latin-1")):
            with wrong, pytest.raises(of.InputError, match="str, not bytes"):
                guard(wrong)
        with path.open() as file, pytest.raises(of.OutfieldError, match="TextIOWrapper"):
            guard(file)

    def test_iterators(self, guard, tmp_path):
        images = labelled(6, 8).images
        expected = guard(images)
        folder = write_folder(tmp_path / "flat", of.ImageArray(images)) / "images"
        for found in (
            guard(image for image in images),
            guard(iter([images[:2], images[2], images[3:]])),
            guard(map(encoded, images)),
            guard(path for path in sorted(folder.iterdir())),
            of.Verdicts([*guard.stream(iter(images))]),
        ):
            assert isinstance(found, of.Verdicts)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
        assert len(guard(iter(images[:1]))) == 1
        normalised = torch.zeros(3, *guard.backbone.input.size)
        found = guard(iter([normalised] * 2), normalised=True)
        assert [one.score for one in found] == guard(torch.stack([normalised] * 2), normalised=True).scores.tolist()
        with pytest.raises(of.InputError, match="gives nothing"):
            guard(iter(()))

    def test_an_iterator_need_not_end(self, guard, monkeypatch):
        monkeypatch.setattr(guard.reader, "rows", 4)
        images, drawn = labelled(4, 8).images, []

        def endless():
            while True:
                drawn.append(1)
                yield images[len(drawn) % 4]

        stream = guard.stream(endless())
        found = [next(stream) for _ in range(5)]
        assert len(drawn) == 8
        assert found[0].score == pytest.approx(guard(images[1]).score, rel=1e-4)
        batches = guard.stream(iter([images[:3], images[:3], images[:3]]))
        assert sum(1 for _ in batches) == 9

    def test_a_list_keeps_its_order_and_its_duplicates(self, guard, tmp_path):
        images = labelled(3, 9)
        for number, image in enumerate(images.images):
            Image.fromarray(image).save(tmp_path / f"{number}.png")
        given = [tmp_path / "2.png", images.images[0], tmp_path / "2.png", images.images[1:2]]
        found = guard(given)
        assert [one.file for one in found] == [str(tmp_path / "2.png"), None, str(tmp_path / "2.png"), None]
        assert same(found[0], found[2])
        assert not same(found[0], found[1])

    def test_normalised_batches(self, guard):
        images = torch.from_numpy(labelled(4, 12).images)
        prepare = guard.backbone.input.preparation(torch.device("cpu"), torch.float32, torch.contiguous_format)
        ready = prepare(images)
        before = ready.clone()
        found = guard(ready, normalised=True)
        assert all(same(a, b) for a, b in zip(found, guard(images.numpy()), strict=True))
        assert torch.equal(ready, before)
        assert len(guard([*ready], normalised=True)) == 4

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (3, "cannot look at this int"),
            ([], "empty list"),
            (np.zeros((4, 4), np.uint8), r"\(N, H, W, 3\)"),
            (np.zeros((4, 4, 3), np.float32), "uint8"),
            (torch.zeros(4, 4), r"shape \(4, 4\)"),
            (torch.zeros(1, 4, 4), r"\(3, H, W\)"),
            (torch.full((3, 4, 4), 1.5), "normalised=True"),
            (torch.full((3, 4, 4), -0.1), "from -0.1 to -0.1"),
            (torch.zeros(3, 4, 4, dtype=torch.int64), "int64"),
            ({"a": 1}, "cannot look at this dict"),
            ([[1.5]], r"numpy\.array\(x, dtype=numpy\.uint8\)"),
            (np.zeros((1, 1, 4, 4, 3), np.uint8), "images of the array: uint8 of shape"),
        ],
    )
    def test_what_is_no_image_is_refused(self, guard, wrong, said):
        with pytest.raises(of.InputError, match=said):
            guard(wrong)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            *((torch.zeros(shape), "takes (3, 16, 16)") for shape in [(3, 17, 16), (2, 3, 16, 15), (1, 16, 16), (2, 1, 16, 16)]),
            (torch.zeros(3, 16, 16, dtype=torch.uint8), "floating"), ([np.zeros((16, 16, 3), np.uint8)], "something else"),
        ],
    )  # fmt: skip
    def test_normalised_images_are_as_the_network_takes_them(self, guard, given, said):
        with pytest.raises(of.InputError, match=re.escape(said)):
            guard(given, normalised=True)


class TestBroken:
    def test_a_broken_image_is_told_in_its_place(self, guard, tmp_path):
        images = labelled(3, 13).images
        for number, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / f"{number}.png")
        (tmp_path / "1.png").write_bytes(b"not a picture")
        with pytest.raises(of.FileFormatError, match=r"1\.png"):
            guard(tmp_path)
        for given in (tmp_path, sorted(tmp_path.iterdir()), [tmp_path]):
            found = guard(given, on_error="skip")
            assert [one.word for one in found] == [found[0].word, "error", found[2].word]
            assert "1.png" in found[1].error
            assert found[1].score is None
            assert len(found.failed) == 1
            assert np.isnan(found.scores[1])
            assert not found.is_ood[1]
        good = guard([images[0], images[2]])
        assert same(found[0], good[0])
        assert same(found[2], good[1])

    def test_one_broken_image(self, guard, tmp_path):
        with pytest.raises(of.StorageError, match="no such file"):
            guard(tmp_path / "none.png")
        told = guard(tmp_path / "none.png", on_error="skip")
        assert "no such file" in told.error
        assert guard(b"", on_error="skip").error is not None
        with pytest.raises(of.InputError, match="on_error is 'ignore'"):
            guard(tmp_path / "none.png", on_error="ignore")


def test_p_values_of_fresh_id_images_are_valid(network):
    """P(p ≤ α) ≤ α: over guards with calibration images of their own, the share of fresh images below α.

    Of a guard with n calibration images the share varies around α by √(α(1 − α) / n); of 8 guards by a third of that.
    """
    found, opened, train = [], of.Backbone.load(network, device="cpu"), labelled(120, 1)
    for seed in range(8):
        guard = of.Guard.build(opened, train, labelled(160, 100 + seed), detector="SSD", seed=seed, device="cpu")
        found.append(guard(labelled(200, 200 + seed)).p_values)
    p_values = np.concatenate(found)
    for level in (0.05, 0.2, 0.5):
        slack = 3.5 * np.sqrt(level * (1 - level) * (1 / (8 * 160) + 1 / len(p_values)))
        assert (p_values <= level).mean() <= level + slack
        assert (p_values <= level).mean() >= level - slack - 1 / 161


class TestFile:
    def test_saved_and_loaded_are_equal_to_the_bit(self, guard, tmp_path):
        guard.save(tmp_path / "my.guard")
        again = of.Guard.load(tmp_path / "my.guard", device="cpu")
        for given in (labelled(20, 14), noise(5)):
            assert all(same(a, b) for a, b in zip(guard(given), again(given), strict=True))
        assert repr(again) == repr(guard)
        assert again.names == NAMES
        assert again.provenance == guard.provenance
        assert again.threshold.value == guard.threshold.value
        again.save(tmp_path / "again.guard")
        assert (tmp_path / "again.guard").read_bytes() == (tmp_path / "my.guard").read_bytes()

    @pytest.mark.parametrize("detector", [None, "KNN"])
    def test_half_the_bits_give_the_same_verdicts_as_the_file(self, guard, network, tmp_path, detector):
        small = small_guard(network, float16=True, detector=detector)
        large = guard if detector is None else small_guard(network, detector=detector)
        small.save(tmp_path / "small.guard")
        large.save(tmp_path / "large.guard")
        again = of.Guard.load(tmp_path / "small.guard", device="cpu")
        given = labelled(20, 14)
        assert all(same(a, b) for a, b in zip(small(given), again(given), strict=True))
        sizes = [(tmp_path / f"{name}.guard").stat().st_size for name in ("small", "large")]
        assert sizes[0] < 0.7 * sizes[1]
        np.testing.assert_allclose(small.threshold.value, large.threshold.value, rtol=0.2)

    def test_a_network_given_in_python_is_recognised(self, network, tmp_path):
        module = of.load_classifier(network)[0]
        backbone = of.Backbone(module, size=16, mean=(0.5,) * 3, std=(0.5,) * 3, name="mine", names=NAMES)
        guard = small_guard(backbone, detector="SSD")
        guard.save(tmp_path / "my.guard")
        with pytest.raises(of.InputError, match=r"does not hold its network \(mine\).*network=MODULE"):
            of.Guard.load(tmp_path / "my.guard")
        again = of.Guard.load(tmp_path / "my.guard", network=of.load_classifier(network)[0])
        assert same(again(noise(1)[0]), guard(noise(1)[0]))
        other = of.load_classifier(network)[0]
        with torch.no_grad():
            next(other.parameters()).view(-1)[0] += 1e-3
        with pytest.raises(of.InputError, match=r"not the one that .*my\.guard was built with"):
            of.Guard.load(tmp_path / "my.guard", network=other)

    def test_other_files_are_refused(self, guard, network, tmp_path):
        with pytest.raises(of.FileFormatError, match="holds a classifier, not a guard"):
            of.Guard.load(network)
        with pytest.raises(of.StorageError, match="no such file"):
            of.Guard.load(tmp_path / "none.guard")
        with pytest.raises(of.InputError, match=r"\.guard or \.safetensors"):
            guard.save(tmp_path / "my.pt")
        guard.save(tmp_path / "my.guard")
        content = (tmp_path / "my.guard").read_bytes()
        (tmp_path / "cut.guard").write_bytes(content[:-5])
        with pytest.raises(of.FileFormatError, match="truncated"):
            of.Guard.load(tmp_path / "cut.guard")
        (tmp_path / "changed.guard").write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        with pytest.raises(of.FileFormatError, match="changed"):
            of.Guard.load(tmp_path / "changed.guard")

    def test_a_guard_of_a_later_version_says_so(self, guard, tmp_path, monkeypatch):
        monkeypatch.setattr("outfield.guard.guard.PLAIN", 3)
        guard.save(tmp_path / "new.guard")
        monkeypatch.undo()
        with pytest.raises(of.FileFormatError, match="guard of version 3"):
            of.Guard.load(tmp_path / "new.guard")


class TestManyFiles:
    def test_errors_stay_in_their_places_whatever_decodes(self, guard, tmp_path):
        """Across batches, workers, and at both ends."""
        images = labelled(70, 15).images
        for number, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / f"{number:03d}.png")
        broken = {0, 1, 31, 32, 33, 64, 68, 69}
        for number in broken:
            (tmp_path / f"{number:03d}.png").write_bytes(b"broken")
        expected = guard(images).scores
        for workers in (0, 2):
            found = guard(tmp_path, on_error="skip", workers=workers)
            assert [one.file for one in found] == [str(tmp_path / f"{number:03d}.png") for number in range(70)]
            assert {i for i, one in enumerate(found) if one.error is not None} == broken
            assert all(one.file in one.error for one in found if one.error is not None)
            good = [i for i in range(70) if i not in broken]
            np.testing.assert_allclose(found.scores[good], expected[good], rtol=1e-3)

    def test_pipes_and_empty_folders_are_told(self, guard, tmp_path):
        (tmp_path / "some").mkdir()
        (tmp_path / "empty").mkdir()
        os.mkfifo(tmp_path / "some" / "b.png")
        for name in "ac":
            Image.fromarray(noise(1)[0]).save(tmp_path / "some" / f"{name}.png")
        found = guard([tmp_path / "some", tmp_path / "empty"], on_error="skip")
        assert [one.word for one in found] == ["OOD", "error", "OOD", "error"]
        assert [one.file for one in found[:3]] == [str(tmp_path / "some" / f"{name}.png") for name in "abc"]
        assert "not an ordinary file" in found[1].error
        assert "no image in" in found[3].error
        with pytest.raises(of.StorageError, match="ordinary"):
            guard(tmp_path / "some")

    def test_broken_images_are_left_out_of_what_a_guard_is_built_of(self, network, tmp_path):
        train, held = write_folder(tmp_path / "t", labelled(200, 1)), write_folder(tmp_path / "h", labelled(160, 2))
        for path in (train / "across" / "0000.png", held / "across" / "0000.png", held / "down" / "0001.png"):
            path.write_bytes(b"broken")
        with pytest.warns(of.OutfieldWarning, match="could not be read"):
            guard = of.Guard.build(str(network), train, held, detector="SSD", device="cpu")
        assert guard.provenance["train"] == 199
        assert guard.provenance["choose"] + guard.provenance["calibrate"] == 158
        with pytest.raises(of.FileFormatError, match=r"0000\.png"):
            of.Guard.build(str(network), train, held, detector="SSD", device="cpu", on_error="fail")


def test_rows_without_logits_get_them_from_the_last_layer(network):
    guard = ssd_guard()
    rows = guard.backbone.extract(labelled(6, 3), workers=0)
    assert guard.widths == {"features": rows.features.shape[1], "logits": 4}
    expected, found = guard.judge(rows), guard.judge(of.FeatureSet(rows.features))
    assert [one.to_dict() for one in found] == [one.to_dict() for one in expected]
    with pytest.raises(of.InputError, match="features has 95 columns; this guard's network gives 96"):
        guard.judge(of.FeatureSet(rows.features[:, 1:]))
    guard.reader._last_layer.clear()  # a network whose last layer is something else
    with pytest.raises(of.InputError, match="pass logits"):
        guard.judge(of.FeatureSet(rows.features))
