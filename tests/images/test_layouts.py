"""Published sets on disk: every layout is read as it was written, and a broken file is named."""

import hashlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.io import savemat
from tests.helpers.published import pixels, save, textures_folder, write
from tests.helpers.trap import Trap

import outfield as of
from outfield.images import ImageFiles, datasets, find


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def planes(images):
    """Images as CIFAR stores them: (N, 3072), channel by channel."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


# CIFAR


def binary_cifar10(folder, images, labels):
    """Five train files and a test file, each of all the images."""
    folder.mkdir(parents=True)
    records = np.concatenate([np.array(labels, np.uint8)[:, None], planes(images)], axis=1)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        turned = np.roll(records, int(name[-1]) if name[-1] != "h" else 0, axis=0)
        (folder / f"{name}.bin").write_bytes(turned.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(10)) + "\n\n")


@pytest.mark.parametrize("inside", ["", "cifar10"])
def test_binary_cifar10(tmp_path, small, inside):
    small("cifar10", train=20, test=4)
    binary_cifar10(tmp_path / inside / "cifar-10-batches-bin", pixels(), [3, 0, 9, 1])
    test, train = find("cifar10", "test", tmp_path), find("cifar10", "train", tmp_path)
    assert np.array_equal(test.images, pixels())
    assert test.labels.tolist() == [3, 0, 9, 1]
    assert test.classes == tuple(f"class {i}" for i in range(10))
    assert train.labels.tolist() == [1, 3, 0, 9, 9, 1, 3, 0, 0, 9, 1, 3, 3, 0, 9, 1, 1, 3, 0, 9]
    assert np.array_equal(train.images[:4], np.roll(pixels(), 1, axis=0))


def test_binary_cifar100_has_the_fine_labels(tmp_path, small):
    small("cifar100", train=4, test=4)
    labels = np.array([[1, 30], [2, 99], [3, 0], [19, 5]], np.uint8)
    records = np.concatenate([labels, planes(pixels())], axis=1)
    (tmp_path / "cifar-100-binary").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"cifar-100-binary/{split}.bin").write_bytes(records.tobytes())
        found = find("cifar100", split, tmp_path)
        assert np.array_equal(found.images, pixels())
        assert found.labels.tolist() == [30, 99, 0, 5]
        assert found.classes is None  # their file is not there


def test_broken_binary_cifar(tmp_path, small):
    folder = tmp_path / "cifar-10-batches-bin"
    binary_cifar10(folder, pixels(), [3, 0, 9, 1])
    with pytest.raises(of.FileFormatError, match="leads to 4 images, but the published set has 10,000"):
        find("cifar10", "test", tmp_path)
    small("cifar10", train=20, test=4)
    path = folder / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(of.FileFormatError, match=r"test_batch\.bin is truncated.*12,291 bytes, not records of 3,073"):
        find("cifar10", "test", tmp_path)
    path.write_bytes(b"\x0a" * 4 * 3073)
    with pytest.raises(of.FileFormatError, match="a label 10 but only 10 names"):
        find("cifar10", "test", tmp_path)
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(of.StorageError, match=r"cannot read .*data_batch_4\.bin: there is no such file"):
        find("cifar10", "train", tmp_path)


def python_cifar10(folder, images, labels, extra=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name in datasets.CIFAR10:
        entry = {"data": planes(images), "labels": list(labels), "extra": extra}
        (folder / name).write_bytes(pickle.dumps(entry, protocol=2))
    shared = "class 0"  # the same object twice, which a pickle holds once
    names = {"first": shared, "label_names": [shared, *(f"class {i}" for i in range(1, 10))]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))


def publish(monkeypatch, table, folder):
    """Let the files in the folder be the published ones."""
    for name in table:
        monkeypatch.setitem(table, name, md5(folder / name))


def test_python_cifar_of_the_published_bytes(tmp_path, small, monkeypatch):
    small("cifar10", train=20, test=4)
    folder = tmp_path / "cifar-10-batches-py"
    python_cifar10(folder, pixels(), [3, 0, 9, 1])
    publish(monkeypatch, datasets.CIFAR10, folder)
    found = find("cifar10", "test", tmp_path)
    assert np.array_equal(found.images, pixels())
    assert found.labels.tolist() == [3, 0, 9, 1]
    assert found.classes == tuple(f"class {i}" for i in range(10))
    train = find("cifar10", "train", tmp_path)
    assert np.array_equal(train.images, np.concatenate([pixels()] * 5))
    assert train.labels.tolist() == [3, 0, 9, 1] * 5


def test_python_cifar100_has_the_fine_labels(tmp_path, small, monkeypatch):
    small("cifar100", train=4, test=4)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        entry = {"data": planes(pixels()), "fine_labels": [30, 99, 0, 5], "coarse_labels": [1, 2, 3, 19]}
        (folder / name).write_bytes(pickle.dumps(entry, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {i}" for i in range(100)]}, protocol=2))
    publish(monkeypatch, datasets.CIFAR100, folder)
    for split in ("train", "test"):
        found = find("cifar100", split, tmp_path)
        assert np.array_equal(found.images, pixels())
        assert found.labels.tolist() == [30, 99, 0, 5]
        assert found.classes[99] == "class 99"


def test_python_cifar_of_the_published_bytes_is_not_unpickled_either(tmp_path, small, monkeypatch):
    """Another file of the same MD5 can be made by whoever chooses both."""
    small("cifar10", test=4)
    folder = tmp_path / "cifar-10-batches-py"
    python_cifar10(folder, pixels(), [3, 0, 9, 1], Trap(tmp_path / "sprung"))
    publish(monkeypatch, datasets.CIFAR10, folder)
    assert find("cifar10", "test", tmp_path).labels.tolist() == [3, 0, 9, 1]
    (folder / "batches.meta").write_bytes(pickle.dumps({"names": Trap(tmp_path / "sprung")}, protocol=2))
    publish(monkeypatch, datasets.CIFAR10, folder)
    with pytest.raises(of.FileFormatError, match=r"batches\.meta has no list 'label_names'"):
        find("cifar10", "test", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_python_cifar_as_python_2_wrote_it(tmp_path, small, monkeypatch):
    """Protocol 2, text as bytes, the array's content too; lists of more than a thousand are added in several steps."""
    small("cifar10", test=1)
    folder = tmp_path / "cifar-10-batches-py"
    python_cifar10(folder, pixels(), [3, 0, 9, 1])
    content = planes(pixels(1)).tobytes()
    program = (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x04testq\x03U\x06labelsq\x04]q\x05(K\x03e(K\x09eU\x04dataq\x06"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00" + content + b"tbU\x09filenames]U\x05a.pngau."
    )
    assert pickle.loads(program, encoding="latin1")["labels"] == [3, 9]
    (folder / "test_batch").write_bytes(program.replace(b"(K\x03e(K\x09e", b"(K\x03e"))
    publish(monkeypatch, datasets.CIFAR10, folder)
    found = find("cifar10", "test", tmp_path)
    assert np.array_equal(found.images, pixels(1))
    assert found.labels.tolist() == [3]
    (folder / "test_batch").write_bytes(program)
    publish(monkeypatch, datasets.CIFAR10, folder)
    with pytest.raises(of.OutfieldError, match="1 image but 2 labels"):
        find("cifar10", "test", tmp_path)


@pytest.mark.parametrize("damaged", ["data_batch_5", "batches.meta"])
def test_one_other_file_of_python_cifar_is_named(tmp_path, monkeypatch, damaged):
    folder = tmp_path / "cifar-10-batches-py"
    python_cifar10(folder, pixels(), [3, 0, 9, 1])
    publish(monkeypatch, datasets.CIFAR10, folder)
    (folder / damaged).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(of.FileFormatError, match=rf"{damaged} is truncated or changed: its MD5 is \w+, that of"):
        find("cifar10", "train", tmp_path)
    assert not (tmp_path / "sprung").exists()
    (folder / damaged).unlink()
    with pytest.raises(of.StorageError, match=f"{damaged}: there is no such file"):
        find("cifar10", "train", tmp_path)


def test_the_checksums_are_those_that_torchvision_knows():
    from torchvision.datasets import CIFAR10, CIFAR100

    for ours, theirs in ((datasets.CIFAR10, CIFAR10), (datasets.CIFAR100, CIFAR100)):
        listed = map(tuple, theirs.train_list + theirs.test_list)
        assert list(ours.items()) == [*listed, (theirs.meta["filename"], theirs.meta["md5"])]


# SVHN


def svhn_file(path, labels):
    savemat(path, {"X": pixels(len(labels)).transpose(1, 2, 3, 0), "y": np.array(labels)[:, None]})


def test_svhn(tmp_path, small, monkeypatch):
    small("svhn", test=4)
    path = tmp_path / "test_32x32.mat"
    svhn_file(path, [10, 1, 9, 10])
    with pytest.raises(of.FileFormatError, match=r"test_32x32\.mat is truncated or changed.*cdce80dfb2a2c4c6"):
        find("svhn", "test", tmp_path)
    monkeypatch.setitem(datasets.SHA256, path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    found = find("svhn", "test", tmp_path)
    assert np.array_equal(found.images, pixels())
    assert found.labels.tolist() == [0, 1, 9, 0]
    assert found.classes[9] == "9"
    assert found.images.flags.c_contiguous


# sets of files


@pytest.mark.parametrize("where", ["dtd/dtd", "dtd", "textures/dtd/dtd"])
def test_textures(tmp_path, small, where):
    small("textures", train=1, test=2)
    textures_folder(tmp_path / where)
    found = find("textures", "test", tmp_path)
    assert isinstance(found, ImageFiles)
    assert found.classes == ("banded", "dotted")
    assert found.labels.tolist() == [1, 0]
    assert np.array_equal(found[1], pixels()[2])
    assert np.array_equal(find("textures", "train", tmp_path)[0], pixels()[1])


def test_broken_textures(tmp_path, small):
    textures_folder(tmp_path / "dtd/dtd")
    with pytest.raises(of.FileFormatError, match="leads to 2 images, but the published set has 1,880"):
        find("textures", "test", tmp_path)
    (tmp_path / "dtd/dtd/images/banded/c.jpg").unlink()
    with pytest.raises(of.FileFormatError, match=r"banded/c\.jpg is missing; .*test1\.txt lists it"):
        find("textures", "test", tmp_path)
    write(tmp_path / "dtd/dtd/labels/test1.txt", "")
    with pytest.raises(of.FileFormatError, match=r"test1\.txt is empty"):
        find("textures", "test", tmp_path)


@pytest.mark.parametrize("name", ["../../../secret.jpg", "/secret.jpg", "dotted/../../../secret.jpg", "a\0b.jpg"])
def test_a_list_that_leads_out_of_the_set_is_refused(tmp_path, small, name):
    small("textures", test=2)
    small("places365", test=1)
    small("tinyimagenet", test=1)
    save(tmp_path / "secret.jpg", pixels()[0])
    textures_folder(tmp_path / "dtd/dtd")
    write(tmp_path / "dtd/dtd/labels/test1.txt", f"dotted/a.jpg\n{name}\n")
    places_folder(tmp_path)
    write(tmp_path / "places365_val.txt", f"/{name} 0\n")
    tiny_folder(tmp_path / "tiny-imagenet-200")
    (tmp_path / "tiny-imagenet-200/test").rename(tmp_path / "away")
    write(tmp_path / "tiny-imagenet-200/val/val_annotations.txt", f"{name}\tn02\t0\t0\t1\t1\n")
    for set_name in ("textures", "places365", "tinyimagenet"):
        with pytest.raises(of.FileFormatError, match=r"not lead to the published set: names holds .*secret|b\.jpg"):
            find(set_name, "test", tmp_path)


def places_folder(folder):
    save(folder / "val_256/Places365_val_00000001.jpg", pixels()[0])
    save(folder / "val_256/Places365_val_00000002.jpg", pixels()[1])
    save(folder / "data_256_standard/a/abbey/1.jpg", pixels()[2])
    write(folder / "categories_places365.txt", "/a/airfield 0\n/a/abbey 1\n")
    write(folder / "places365_val.txt", "Places365_val_00000001.jpg 1\nPlaces365_val_00000002.jpg 0\n")
    write(folder / "places365_train_standard.txt", "/a/abbey/1.jpg 1\n")


@pytest.mark.parametrize("where", ["", "places365"])
def test_places365(tmp_path, small, where):
    small("places365", train=1, test=2)
    places_folder(tmp_path / where)
    found = find("places365", "test", tmp_path)
    assert found.classes == ("a/airfield", "a/abbey")
    assert found.labels.tolist() == [1, 0]
    assert np.array_equal(found[1], pixels()[1])
    train = find("places365", "train", tmp_path)
    assert train.labels.tolist() == [1]
    assert np.array_equal(train[0], pixels()[2])


@pytest.mark.parametrize(("text", "message"), [
    ("Places365_val_00000001.jpg one\n", r"places365_val\.txt should hold lines of a name and a number"),
    ("Places365_val_00000001.jpg 0\nPlaces", r"places365_val\.txt is truncated"),
    ("Places365_val_00000001.jpg 2\n", "a label 2 but only 2 names"),
    (None, r"places365_val\.txt: there is no such file"),
])  # fmt: skip
def test_a_broken_list_of_places(tmp_path, small, text, message):
    small("places365", test=1)
    places_folder(tmp_path)
    listing = tmp_path / "places365_val.txt"
    listing.unlink() if text is None else listing.write_text(text)
    with pytest.raises(of.OutfieldError, match=message):
        find("places365", "test", tmp_path)


def tiny_folder(folder):
    save(folder / "train/n02/images/n02_0.JPEG", pixels()[0])
    save(folder / "train/n01/images/n01_0.JPEG", pixels()[1])
    write(folder / "train/n01/n01_boxes.txt", "n01_0.JPEG\t0\t0\t62\t44\n")
    save(folder / "val/images/val_0.JPEG", pixels()[2])
    save(folder / "val/images/val_1.JPEG", pixels()[3])
    write(folder / "val/val_annotations.txt", "val_1.JPEG\tn02\t0\t32\t44\t62\nval_0.JPEG\tn01\t5\t5\t9\t9\n")
    save(folder / "test/images/test_0.JPEG", pixels()[3])
    save(folder / "test/images/test_1.JPEG", pixels()[0])


def test_tinyimagenet(tmp_path, small):
    small("tinyimagenet", train=2, test=2)
    folder = tmp_path / "tiny-imagenet-200"
    tiny_folder(folder)
    train, test = find("tinyimagenet", "train", tmp_path), find("tinyimagenet", "test", tmp_path)
    assert train.classes == ("n01", "n02")
    assert train.labels.tolist() == [0, 1]
    assert np.array_equal(train[0], pixels()[1])
    assert test.labels is None
    assert np.array_equal(test[0], pixels()[3])
    (folder / "test").rename(tmp_path / "away")
    val = find("tinyimagenet", "test", tmp_path)
    assert val.labels.tolist() == [1, 0]
    assert np.array_equal(val[0], pixels()[3])


# LSUN


def test_lsun(tmp_path, small):
    lmdb = pytest.importorskip("lmdb")
    small("lsun", test=4)
    for index, image in enumerate(pixels()):
        save(tmp_path / f"{index}.png", image)
    with lmdb.open(str(tmp_path / "test_lmdb")) as database, database.begin(write=True) as transaction:
        for index in range(4):
            transaction.put(f"key {index}".encode(), (tmp_path / f"{index}.png").read_bytes())
    found = find("lsun", "test", tmp_path)
    assert isinstance(found, datasets.LmdbImages)
    assert np.array_equal(found[2], pixels()[2])
    assert found.labels is None
    assert np.array_equal(pickle.loads(pickle.dumps(found))[3], pixels()[3])
    assert found.fingerprint() == find("lsun", "test", tmp_path).fingerprint()
    with ThreadPoolExecutor(4) as pool:  # LMDB refuses a second opening in one process
        many = np.stack([*pool.map(found.__getitem__, [0, 1, 2, 3] * 25)])
    assert np.array_equal(many, np.tile(pixels(), (25, 1, 1, 1)))
    from torch.utils.data import DataLoader

    loader = DataLoader(found, batch_size=2, num_workers=2, collate_fn=list)
    assert np.array_equal(np.stack([image for batch in loader for image in batch]), pixels())


def test_an_lsun_that_was_cut_short_does_not_end_the_process(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "test_lmdb")) as database, database.begin(write=True) as transaction:
        for index in range(40):
            transaction.put(f"key {index}".encode(), bytes(5000))
    file = tmp_path / "test_lmdb/data.mdb"
    os.truncate(file, 8 * 4096)
    with pytest.raises(of.FileFormatError, match=r"test_lmdb is truncated: it has 32,768 of [\d,]+ bytes"):
        find("lsun", "test", tmp_path)


def test_broken_lsun(tmp_path):
    pytest.importorskip("lmdb")
    (tmp_path / "test_lmdb").mkdir()
    (tmp_path / "test_lmdb/data.mdb").write_bytes(b"no database" * 1000)
    with pytest.raises(of.FileFormatError, match="test_lmdb is truncated, or is not an LMDB"):
        find("lsun", "test", tmp_path)
    (tmp_path / "test_lmdb/data.mdb").unlink()
    os.mkfifo(tmp_path / "test_lmdb/data.mdb")
    with pytest.raises(of.StorageError, match=r"data\.mdb"):
        find("lsun", "test", tmp_path)
