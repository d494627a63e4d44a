"""Sets by name: they are looked for in the promised order, got on request, and what is missing is named."""

import hashlib
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.published import pixels, save, textures_folder, write
from tests.helpers.server import serving

import outfield as of
from outfield.images import DATASETS, ImageArray, find
from outfield.images.datasets import SHA256, Layout, NamedSet

# where find looks


def test_the_order_of_places(tmp_path, small):
    """Each place is taken only while none before it is there: they are filled from the last to the first."""
    small("textures", test=1)

    def fill(place, mark):
        if place.suffix == ".npz":
            np.savez(place, images=np.full((1, 4, 4, 3), mark, np.uint8))
        elif place.suffix == ".txt":
            write(place, "dotted/a.jpg\n")
            save(place.parent.parent / "images/dotted/a.jpg", np.full((4, 4, 3), mark, np.uint8))
        else:
            save(place / "dotted/a.png", np.full((4, 4, 3), mark, np.uint8))

    places = [tmp_path / name for name in ("textures", "textures/test", "dtd/labels/test1.txt")]
    places += [tmp_path / name for name in ("dtd/dtd/labels/test1.txt", "textures.npz", "textures_test.npz")]
    for mark, place in enumerate(places):
        fill(place, mark)
        found = find("textures", "test", tmp_path)
        assert int(found[0].max()) == mark
        assert found.name == "textures"


def test_an_undivided_set_is_for_testing_only(tmp_path):
    save(tmp_path / "mine/a.png", pixels()[0])
    np.savez(tmp_path / "other.npz", images=pixels())
    for name, count in (("mine", 1), ("other", 4)):
        assert len(find(name, "test", tmp_path)) == count
        with pytest.raises(of.UnknownNameError, match=f"{name}_train.npz"):
            find(name, "train", tmp_path)


def test_a_set_with_splits_is_not_taken_as_classes_named_train_and_test(tmp_path):
    save(tmp_path / "mine/train/ant/a.png", pixels()[0])
    assert find("mine", "train", tmp_path).classes == ("ant",)
    with pytest.raises(of.UnknownNameError):
        find("mine", "test", tmp_path)


def test_a_row_of_ones_own(tmp_path, monkeypatch):
    read = Layout("its index", {"test": "mine/index.txt"}, lambda place: ImageArray(pixels(int(place.read_text()))))
    monkeypatch.setitem(DATASETS, "mine", NamedSet("My set", (read,), counts={"test": 3}))
    write(tmp_path / "mine/index.txt", "3")
    assert len(find("mine", "test", tmp_path)) == 3
    write(tmp_path / "mine/index.txt", "2")
    with pytest.raises(of.FileFormatError, match=r"index\.txt leads to 2 images, but the published set has 3"):
        find("mine", "test", tmp_path)


def test_nothing_there_lists_every_place(tmp_path):
    with pytest.raises(of.StorageError) as caught:
        find("textures", "test", tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"Textures (test) is not in {tmp_path}; looked for"
    looked = [line.strip().partition(": ") for line in lines[1:-1]]
    published = ["dtd/dtd/labels/test1.txt", "dtd/labels/test1.txt"]
    expected = ["textures_test.npz", "textures.npz", *published, *(f"textures/{path}" for path in published)]
    expected += ["textures/test", "textures", "dtd/test", "dtd"]
    assert [path.removeprefix(f"{tmp_path}/") for path, _, _ in looked] == expected
    assert all(what for _, _, what in looked)
    assert "uint8 (N, H, W, 3)" in looked[0][2]
    home = "its home is https://www.robots.ox.ac.uk/~vgg/data/dtd"
    assert lines[-1] == f"download=True gets it; {home}"


def test_what_cannot_be_asked_for(tmp_path):
    with pytest.raises(of.UnknownNameError, match=r"unknown set 'cifar11'; known: cifar10(.|\n)*cifar11_test\.npz"):
        find("cifar11", "test", tmp_path)
    for split in ("val", None, np.array(["train", "test"])):
        with pytest.raises(of.InputError, match=r"split is .*; it must be train or test"):
            find("cifar10", split, tmp_path)
    for folder in (None, b"bytes", 3, "a\0b", ""):
        with pytest.raises(of.InputError, match="folder is"):
            find("cifar10", "test", folder)
    with pytest.raises(of.UnknownNameError, match="unknown set"):
        find("x" * 300, "test", tmp_path)
    for name in ("", "..", "a/b", None, 3, "a\0b"):
        with pytest.raises(of.InputError, match="without folders"):
            find(name, "test", tmp_path)
    with pytest.raises(of.StorageError, match="no such folder"):
        find("cifar10", "test", tmp_path / "none")


# downloading


@pytest.fixture
def server(monkeypatch, tmp_path_factory):
    """Offers the Textures, as small as the other tests make them, at another address than the published one."""
    made = tmp_path_factory.mktemp("published")
    textures_folder(made / "dtd")
    with tarfile.open(made / "dtd.tar.gz", "w:gz") as archive:
        archive.add(made / "dtd", "dtd")
    content = (made / "dtd.tar.gz").read_bytes()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as found:
        found.files["/dtd.tar.gz"] = content
        monkeypatch.setitem(SHA256, "dtd.tar.gz", hashlib.sha256(content).hexdigest())
        downloads = dict.fromkeys(("train", "test"), (f"{found.address}/dtd.tar.gz",))
        monkeypatch.setitem(DATASETS, "textures", replace(DATASETS["textures"], downloads=downloads))
        yield found


def test_a_download_happens_once_and_only_when_asked_for(tmp_path, server, small):
    small("textures", train=1, test=2)
    folder = tmp_path / "new"
    folder.mkdir()
    with pytest.raises(of.StorageError, match="download=True gets it"):
        find("textures", "test", folder)
    assert server.asked == []
    folder.rmdir()
    for split, count in (("test", 2), ("test", 2), ("train", 1)):
        assert len(find("textures", split, folder, download=True)) == count
    assert server.asked == ["/dtd.tar.gz"]


def test_a_download_mends_a_damaged_published_set_but_not_ones_own_file(tmp_path, server, small):
    small("textures", test=2)
    textures_folder(tmp_path / "dtd/dtd")
    (tmp_path / "dtd/dtd/images/dotted/a.jpg").unlink()
    assert len(find("textures", "test", tmp_path, download=True)) == 2
    assert len(server.asked) == 1
    (tmp_path / "textures.npz").write_bytes(b"broken")
    with pytest.raises(of.FileFormatError, match=r"textures\.npz is truncated"):
        find("textures", "test", tmp_path, download=True)
    assert len(server.asked) == 1


def test_a_download_that_fails_says_where_to_get_the_set(tmp_path, server):
    home = r"its home is https://www\.robots"
    server.files["/dtd.tar.gz"] = server.files["/dtd.tar.gz"][:-1] + b"x"
    with pytest.raises(of.FileFormatError, match=rf"cannot download Textures: .* sent another file: .*; {home}"):
        find("textures", "test", tmp_path, download=True)
    server.files.clear()
    with pytest.raises(of.StorageError, match=rf"cannot download Textures: cannot download .* 404.*; {home}"):
        find("textures", "test", tmp_path, download=True)
    with pytest.raises(of.StorageError, match=r"has to be downloaded by hand; its home is http://cs231n"):
        find("tinyimagenet", "test", tmp_path, download=True)
