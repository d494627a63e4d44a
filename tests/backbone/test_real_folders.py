"""Folders as they are: broken images are left out and told, labels that mean other classes too, and the rest is right."""

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.networks import NORMALISED, Lookup, Plain, seeded
from tests.helpers.program import outfield

import outfield as of
from outfield.backbone import read
from outfield.images import Skipped


def picture(seed, size=(20, 24)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def backbone(**settings):
    return of.Backbone(seeded(Plain), size=16, name="mine", **NORMALISED, **settings)


@pytest.fixture
def folder(tmp_path):
    """Four classes of three pictures; of one class a picture is broken, too large, another format, a pipe, a link to nowhere."""
    place = tmp_path / "photos"
    for label, owner in enumerate("abcd"):
        (place / owner).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(picture(10 * label + number)).save(place / owner / f"{number}.png")
    content = io.BytesIO()
    Image.fromarray(picture(0, (100, 100))).save(content, "PNG")
    (place / "a/broken.png").write_bytes(content.getvalue()[:3000])
    (place / "b/empty.jpg").write_bytes(b"")
    (place / "b/script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    os.mkfifo(place / "c/pipe.png")
    (place / "c/nowhere.png").symlink_to(place / "missing.png")
    (place / "d/null.png").symlink_to("/dev/zero")
    (place / "d/again.png").symlink_to(place / "d/0.png")
    return place


GOOD = ["a/0.png", "a/1.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png", "c/0.png", "c/1.png", "c/2.png", "d/0.png", "d/1.png",
        "d/2.png", "d/again.png"]  # fmt: skip
BAD = {"a/broken.png", "b/empty.jpg", "b/script.png", "c/pipe.png", "c/nowhere.png", "d/null.png"}


class TestSkipping:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_rest_is_kept_with_its_names_and_labels(self, folder, workers):
        images = of.open_images(folder, on_error="skip")
        skipped: list[Skipped] = []
        said = r"6 of 19 images of photos could not be read and are left out: .* 3 others"
        with pytest.warns(of.OutfieldWarning, match=said):
            found = backbone().extract(images, on_error="skip", skipped=skipped, workers=workers, batch_size=3)
        assert list(found.names) == sorted(GOOD)
        assert found.labels.tolist() == ["abcd".index(name[0]) for name in sorted(GOOD)]
        assert {one.name for one in skipped} == BAD
        reasons = {one.name: one.reason for one in skipped}
        assert "broken.png is truncated" in reasons["a/broken.png"]
        assert "pipe.png: it is not an ordinary file" in reasons["c/pipe.png"]
        clean = Lookup([images[images.names.index(name)] for name in sorted(GOOD)])
        assert torch.allclose(found.features, backbone().extract(clean).features, atol=1e-5)

    def test_by_default_the_first_one_is_an_error(self, folder):
        with pytest.raises(of.StorageError, match="not an ordinary file"):
            of.open_images(folder)
        images = of.open_images(folder, on_error="skip")
        with pytest.raises(of.FileFormatError, match=r"broken\.png is truncated"):
            backbone().extract(images)

    def test_where_nothing_can_be_read(self, tmp_path):
        for name in ("a.png", "b.png"):
            (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(of.InputError, match="2 of 2 images"):
            backbone().extract(of.open_images(tmp_path, on_error="skip"), on_error="skip")

    def test_images_without_names_have_numbers(self):
        skipped: list[Skipped] = []
        images = Lookup([picture(i) for i in range(4)], broken=2)
        with pytest.warns(of.OutfieldWarning, match="1 of 4 images of lookup could not be read and is left out: pict"):
            found = backbone().extract(images, on_error="skip", skipped=skipped)
        assert skipped == [("image 2", "picture 2 is broken")]
        assert (len(found), found.names) == (3, None)

    def test_a_folder_that_may_not_be_read(self, tmp_path, monkeypatch):
        (tmp_path / "a/deep").mkdir(parents=True)
        Image.fromarray(picture(0)).save(tmp_path / "a/0.png")
        scan = os.scandir

        def refusing(place):
            if os.path.basename(place) == "deep":
                raise PermissionError(13, "Permission denied", str(place))
            return scan(place)

        monkeypatch.setattr(os, "scandir", refusing)
        with pytest.raises(of.StorageError, match=r"cannot read .*deep: Permission denied"):
            of.open_images(tmp_path)
        images = of.open_images(tmp_path, on_error="skip")
        assert images.names == ("a/0.png",)
        assert [one.name for one in images.refused] == ["a/deep"]

    def test_a_missing_library_is_no_broken_image(self, monkeypatch):
        class Needing(Lookup):
            def __getitem__(self, index):
                raise of.MissingExtraError("this needs PIL")

        with pytest.raises(of.MissingExtraError, match="PIL"):
            backbone().extract(Needing([picture(0)]), on_error="skip")

    def test_a_batch_of_which_nothing_is_left(self):
        class Half(Lookup):
            def __getitem__(self, index):
                if index < 4:
                    raise of.InputError("no")
                return self.images[index]

        missing: dict[int, str] = {}
        way = backbone().preprocessing
        batches = list(read(Half([picture(i) for i in range(6)]), way, 2, 0, False, missing))
        assert [len(batch) for batch in batches] == [2]
        assert list(missing) == [0, 1, 2, 3]


class TestLabels:
    def labelled(self, classes, labels=(0, 1, 0)):
        images = of.ImageArray(np.stack([picture(i) for i in range(3)]), labels=list(labels), name="set")
        images.classes = None if classes is None else tuple(classes)
        return images

    def test_other_classes_are_left_out_with_a_note(self):
        with pytest.warns(of.OutfieldWarning, match="labels of set are left out: the network has no class 'x'"):
            assert backbone(names=list("abcd")).extract(self.labelled("ax")).labels is None
        with pytest.warns(of.OutfieldWarning, match="left out: it has 2 classes, the network 4"):
            assert backbone().extract(self.labelled("ax")).labels is None

    def test_without_names_their_number_counts(self):
        assert backbone().extract(self.labelled("wxyz")).labels.tolist() == [0, 1, 0]
        assert backbone().extract(self.labelled(None)).labels.tolist() == [0, 1, 0]
        with pytest.raises(of.InputError, match="label 7"):
            backbone().extract(self.labelled(None, (0, 7, 0)))


class TestCommand:
    @pytest.fixture
    def network(self, tmp_path):
        config = of.Classifier("test_resnet", 4, False, (32, 32), names=tuple("abcd"))
        of.save_classifier(tmp_path / "net.safetensors", config, config.build().state_dict())
        return tmp_path / "net.safetensors"

    def test_a_real_folder(self, folder, network, tmp_path):
        out = tmp_path / "f.safetensors"
        done = outfield("extract", network, folder, "-o", out, "--on-error", "skip", "--device", "cpu", code=0)
        assert "warning: 6 of 19 images of photos could not be read and are left out" in done.said
        assert "accuracy of the network on these images:" in done.said
        found = of.FeatureSet.load(out)
        assert list(found.names) == sorted(GOOD)
        assert found.labels.tolist() == ["abcd".index(name[0]) for name in found.names]
        assert outfield("extract", network, folder, "-o", out, "--device", "cpu").returncode == 3
        assert outfield("extract", network, folder, "-o", out, "--on-error", "ignore").returncode == 2

    def test_a_folder_of_other_classes(self, network, tmp_path):
        for name in ("x/0.png", "y/1.png"):
            (tmp_path / "ood" / name).parent.mkdir(parents=True)
            Image.fromarray(picture(0)).save(tmp_path / "ood" / name)
        command = ("extract", network, tmp_path / "ood", "-o", tmp_path / "f.npz", "--device", "cpu")
        done = outfield(*command, code=0)
        assert "the labels of ood are left out: the network has no class 'x'" in done.said
        assert "accuracy" not in done.said
        assert of.FeatureSet.load(tmp_path / "f.npz").labels is None
        assert outfield(*command, "--labels").returncode == 2
        assert "left out" not in outfield(*command, "--no-labels").said

    def test_preprocessing_by_hand(self, tmp_path):
        import timm
        from safetensors.torch import save_file

        save_file(timm.create_model("test_vit", num_classes=4).state_dict(), tmp_path / "w.safetensors")
        (tmp_path / "one").mkdir()
        Image.fromarray(picture(0, (200, 300))).save(tmp_path / "one/a.png")
        spec = f"timm:test_vit@{tmp_path / 'w.safetensors'}"
        common = (spec, tmp_path / "one", "-o", tmp_path / "f.npz", "--device", "cpu")
        given = "--size 180 --crop 160x160 --mean 0.1,0.2,0.3 --std 0.5,0.6,0.7 --interpolation box"
        done = outfield("extract", *common, *given.split(), code=0)
        assert "resize 180 box, crop 160 × 160, mean (0.1, 0.2, 0.3), std (0.5, 0.6, 0.7)" in done.said
        way = of.Preprocessing(180, (160, 160), "box", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
        wanted = of.Backbone.open(spec, "cpu", preprocessing=way).extract(of.open_images(tmp_path / "one"))
        assert torch.equal(of.FeatureSet.load(tmp_path / "f.npz").features, wanted.features)
        for wrong in (("--size", "x"), ("--crop", "1x2x3"), ("--mean", "a,b"), ("--size", "100000000")):
            bad = outfield("extract", *common, *wrong, code=2)
            assert wrong[0] in bad.said
