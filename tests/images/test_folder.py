"""Images in memory, in an .npz and in files: what comes out is what was put in, and what is wrong is said."""

import os
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

import outfield as of
from outfield.images import ImageArray, ImageFiles, image_names, open_images


def pixels(n: int = 4, height: int = 6, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.fixture
def classes_folder(tmp_path):
    """Three classes; as text, with its slash, the second would sort before the first."""
    folder = tmp_path / "insects"
    for name, image in zip(("ant/b.png", "ant/a.png", "ant-lion/c.BMP", "bee/deep/d.png"), pixels(), strict=True):
        save(folder / name, image)
    return folder


# ImageArray


@pytest.mark.parametrize(("images", "advice"), [
    (pixels()[..., 0], "numpy.repeat(images[..., None], 3, axis=3)"),
    (pixels().transpose(0, 3, 1, 2), "images.transpose(0, 2, 3, 1)"),
    (pixels() / 255, "(255 * images).round().astype(numpy.uint8)"),
])  # fmt: skip
def test_the_advice_for_a_wrong_array_makes_it_right(images, advice):
    with pytest.raises(of.InputError, match="they must be a numpy array, uint8") as caught:
        ImageArray(images)
    assert advice in str(caught.value)
    assert ImageArray(eval(advice, {"images": images, "numpy": np}))[0].shape == (6, 5, 3)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"images": [[1]]}, "list"),
    ({"images": pixels(0)}, r"uint8 of shape \(0, 6, 5, 3\); .*not empty"),
    ({"images": pixels()[0]}, r"uint8 of shape \(6, 5, 3\); "),
    ({"images": pixels().astype(np.int64)}, r"int64 of shape \(4, 6, 5, 3\); "),
    ({"labels": [0, 1]}, "4 images but 2 labels"),
    ({"labels": [0, 0, 0, -1]}, "down to -1"),
    ({"labels": [0.0, 0.0, 0.0, 0.5]}, "must be integers"),
    ({"labels": [0, 1, 2, 0], "classes": ["a", "b"]}, "a label 2 but only 2 names"),
])  # fmt: skip
def test_what_is_no_set_of_images(arguments, message):
    with pytest.raises(of.InputError, match=message):
        ImageArray(**{"images": pixels(), **arguments})


def test_the_fingerprint_of_an_array_follows_pixels_and_labels_and_not_strides_or_names():
    images = pixels()
    strided = np.asfortranarray(images)
    changed = images.copy()
    changed[-1, -1, -1, -1] ^= 1
    found = ImageArray(images, [0, 1, 0, 1]).fingerprint()
    assert found == ImageArray(strided, np.array([0, 1, 0, 1], np.uint8), "other").fingerprint()
    others = [
        ImageArray(changed, [0, 1, 0, 1]),
        ImageArray(images, [0, 1, 1, 1]),
        ImageArray(images),
        ImageArray(images.reshape(4, 5, 6, 3), [0, 1, 0, 1]),
    ]
    assert len({found, *(other.fingerprint() for other in others)}) == 5


# .npz


def test_an_npz_comes_back(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, images=pixels(), labels=np.array([2, 0, 1, 1], np.uint8), classes=["a", "b", "c"])
    found = open_images(path)
    assert np.array_equal(found.images, pixels())
    assert found.labels.tolist() == [2, 0, 1, 1]
    assert found.classes == ("a", "b", "c")
    assert found.name == "mine"
    np.savez(path, images=pixels())
    alone = open_images(path, "yours")
    assert (alone.name, alone.labels, alone.classes) == ("yours", None, None)


@pytest.mark.parametrize(("arrays", "error", "message"), [
    ({"images": pixels(), "extra": np.ones(1)}, of.FileFormatError, "holds images, extra; expected images.*labels"),
    ({"labels": np.zeros(4, int)}, of.FileFormatError, r"holds labels; expected images, uint8"),
    ({}, of.FileFormatError, "holds nothing"),
    ({"images": pixels(), "classes": np.array(["a", 1], object)}, of.FileFormatError, "plain arrays"),
    ({"images": pixels(), "classes": np.arange(2)}, of.InputError, "classes is int64 .* vector of text"),
    ({"images": pixels(), "labels": np.zeros(3, int)}, of.InputError, "4 images but 3 labels"),
    ({"images": pixels()[..., 0]}, of.InputError, "grey images become colour"),
])  # fmt: skip
def test_an_npz_of_something_else(tmp_path, arrays, error, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(error, match=message) as caught:
        open_images(path)
    assert str(path) in str(caught.value)


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(of.StorageError, match="no such file"):
        open_images(tmp_path / "none.npz")
    with pytest.raises(of.StorageError, match="no such file"):
        open_images(tmp_path / "none")
    with pytest.raises(of.StorageError, match="no such folder"):
        ImageFiles.of(tmp_path / "none")
    with pytest.raises(of.StorageError, match=r'find\("cifar10", split, folder\), .*--data FOLDER'):
        open_images("cifar10")
    for path in ("cifar10.npz", "sets/cifar10"):
        with pytest.raises(of.StorageError, match=r"no such file or folder$"):
            open_images(path)
    with pytest.raises(of.InputError, match=r"no image in .*\.jpg"):
        open_images(tmp_path)
    for path in (None, b"bytes", ""):
        with pytest.raises(of.InputError, match="source is"):
            open_images(path)
    (tmp_path / "images.txt").write_text("none")
    with pytest.raises(of.StorageError, match=r"\.npz file or a folder"):
        open_images(tmp_path / "images.txt")


# folders


def test_sub_folders_are_classes_as_in_torchvision(classes_folder):
    (classes_folder / "bee/notes.txt").write_text("not an image")
    (classes_folder / "bee/._d.png").write_bytes(b"what some systems leave beside a file")
    (classes_folder / ".cache").mkdir()
    os.mkfifo(classes_folder / "bee/notes")
    found = open_images(classes_folder)
    assert found.names == ("ant/a.png", "ant/b.png", "ant-lion/c.BMP", "bee/deep/d.png")
    assert found.classes == ("ant", "ant-lion", "bee")
    assert found.labels.tolist() == [0, 0, 1, 2]
    assert found.name == "insects"
    assert repr(found) == "ImageFiles(insects: 4 images, 3 classes)"
    for index, original in enumerate((1, 0, 2, 3)):
        assert found[index].dtype == np.uint8
        assert np.array_equal(found[index], pixels()[original])
    save(classes_folder / "z.png", pixels()[0])  # an image beside them: they are no classes
    beside = open_images(classes_folder)
    assert (len(beside), beside.labels, beside.classes) == (5, None, None)


def test_files_of_one_size_have_that_size(classes_folder, monkeypatch):
    monkeypatch.setattr("outfield.images.folder.decode", None)  # headers are enough
    found = open_images(classes_folder)
    assert found.size == (6, 5)
    shutil.rmtree(classes_folder)
    assert found.size == (6, 5)


def test_files_of_several_sizes_have_none(classes_folder):
    save(classes_folder / "ant/b.png", pixels(height=5, width=6)[0])
    (classes_folder / "bee/deep/d.png").write_bytes(b"broken")
    assert open_images(classes_folder).size is None  # the first two differ; what follows is not looked at
    (classes_folder / "ant/b.png").unlink()
    with pytest.raises(of.FileFormatError, match=r"d\.png is truncated"):
        assert open_images(classes_folder).size
    found = open_images(classes_folder)
    (classes_folder / "bee/deep/d.png").unlink()
    for look in (lambda: found.size, lambda: found[found.names.index("bee/deep/d.png")]):
        with pytest.raises(of.StorageError, match=r"d\.png: there is no such file"):
            look()


def test_the_order_and_labels_are_torchvisions(classes_folder):
    from torchvision.datasets import ImageFolder

    theirs, ours = ImageFolder(classes_folder), ImageFiles.of(classes_folder)
    assert [ours.where(index) for index in range(4)] == [path for path, _ in theirs.samples]
    assert ours.labels.tolist() == theirs.targets
    assert list(ours.classes) == theirs.classes


def test_a_class_without_images_is_refused(classes_folder):
    (classes_folder / "cicada").mkdir()
    with pytest.raises(of.FileFormatError, match="cicada holds no image"):
        ImageFiles.of(classes_folder)


def test_the_fingerprint_of_files_follows_content_names_and_labels_and_not_the_place(classes_folder, tmp_path):
    found = ImageFiles.of(classes_folder).fingerprint()
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(classes_folder, copy)
    assert ImageFiles.of(copy, "other").fingerprint() == found
    names = ImageFiles.of(copy).names
    prints = {found, ImageFiles(copy, names).fingerprint(), ImageFiles(copy, names, [0, 0, 1, 1]).fingerprint()}
    save(copy / "ant/a.png", pixels(seed=1)[0])
    prints.add(ImageFiles.of(copy).fingerprint())
    shutil.copy(classes_folder / "ant/a.png", copy / "ant/a.png")
    assert ImageFiles.of(copy).fingerprint() == found
    (copy / "ant/a.png").rename(copy / "ant/aa.png")
    prints.add(ImageFiles.of(copy).fingerprint())
    assert len(prints) == 5


@pytest.mark.parametrize("name", ["../secret.png", "ant/../../secret.png", "/secret.png", "", "a\0b.png", ".."])
def test_a_name_that_leads_out_of_the_folder_is_refused(classes_folder, name):
    save(classes_folder.parent / "secret.png", pixels()[0])
    with pytest.raises(of.InputError, match="the name of a file in"):
        ImageFiles(classes_folder, ["ant/a.png", name])
    assert len(ImageFiles(classes_folder, ["ant/a.png", "ant/..a.png", "a..b/c.png"])) == 3


def test_files_given_by_name(classes_folder):
    found = ImageFiles(classes_folder, ["bee/deep/d.png", "ant/a.png"], [1, 0])
    assert np.array_equal(found[0], pixels()[3])
    with pytest.raises(of.InputError, match="no images"):
        ImageFiles(classes_folder, [])
    with pytest.raises(of.InputError, match="2 images but 1 label"):
        ImageFiles(classes_folder, ["a.png", "b.png"], [0])


def test_pickling_takes_names_and_not_pixels(tmp_path):
    for index in range(10):
        save(tmp_path / f"{index}.png", pixels(1, 200, 200, seed=index)[0])
    content = pickle.dumps(ImageFiles.of(tmp_path))
    assert len(content) < 2000
    assert np.array_equal(pickle.loads(content)[3], pixels(1, 200, 200, seed=3)[0])


# which files lie in a folder


def put(path):
    save(path, pixels(1)[0])


def names(folder):
    return sorted(image_names(folder))


def test_links_among_classes_add_nothing_and_are_no_classes(tmp_path):
    for name in ("ant/a.png", "bee/b.png"):
        put(tmp_path / "set" / name)
    (tmp_path / "set/ant/other").symlink_to(tmp_path / "set/bee")
    (tmp_path / "set/bee/other").symlink_to(tmp_path / "set/ant")
    (tmp_path / "set/loop").symlink_to(tmp_path / "set")
    (tmp_path / "set/dot").symlink_to(".")
    (tmp_path / "set/up").symlink_to("..")
    (tmp_path / "set/a first name").symlink_to(tmp_path / "set/bee")
    found = ImageFiles.of(tmp_path / "set")
    assert found.names == ("ant/a.png", "bee/b.png")
    assert found.classes == ("ant", "bee")


def test_a_link_to_elsewhere_is_followed_once(tmp_path):
    put(tmp_path / "elsewhere/a.png")
    put(tmp_path / "elsewhere/deep/b.png")
    (tmp_path / "elsewhere/c.png").symlink_to("a.png")  # a file counts under each of its names
    (tmp_path / "set").mkdir()
    for link in ("first", "second"):
        (tmp_path / "set" / link).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "set")
    assert names(tmp_path / "set") == ["first/a.png", "first/c.png", "first/deep/b.png"]


@pytest.mark.parametrize("target", [None, "none", "odd.png", "/dev/zero"])
def test_what_is_named_like_an_image_and_is_no_file_is_refused(tmp_path, target):
    put(tmp_path / "a.png")
    odd = tmp_path / "odd.png"
    os.mkfifo(odd) if target is None else odd.symlink_to(target)
    with pytest.raises(of.StorageError, match=r"odd\.png: it is not an ordinary file"):
        ImageFiles.of(tmp_path)
