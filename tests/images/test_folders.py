"""Which image files lie in a folder: links are followed once, and what is no file is said instead of waited for."""

from __future__ import annotations

import os
import socket

import pytest
from PIL import Image

import outfield as of
from outfield.images.files import ImageFiles
from outfield.images.folders import image_names


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)


def names(folder):
    return sorted(image_names(folder))


def test_a_link_to_the_folder_itself_adds_nothing(tmp_path):
    put(tmp_path / "set/a.png")
    (tmp_path / "set/loop").symlink_to(tmp_path / "set")
    (tmp_path / "set/dot").symlink_to(".")
    (tmp_path / "set/up").symlink_to("..")
    assert names(tmp_path / "set") == ["a.png"]
    assert len(ImageFiles.of(tmp_path / "set")) == 1


def test_links_among_classes_add_nothing_and_are_no_classes(tmp_path):
    for name in ("ant/a.png", "bee/b.png"):
        put(tmp_path / "set" / name)
    (tmp_path / "set/ant/other").symlink_to(tmp_path / "set/bee")
    (tmp_path / "set/bee/other").symlink_to(tmp_path / "set/ant")
    (tmp_path / "set/loop").symlink_to(tmp_path / "set")
    (tmp_path / "set/a first name").symlink_to(tmp_path / "set/bee")
    found = ImageFiles.of(tmp_path / "set")
    assert found.names == ("ant/a.png", "bee/b.png")
    assert found.classes == ("ant", "bee")


def test_links_that_double_at_every_level_end(tmp_path):
    """Without a memory of what was read this would be 2^30 folders."""
    for level in range(30):
        folder = tmp_path / f"set/{level}"
        folder.mkdir(parents=True)
        for link in ("one", "two"):
            (folder / link).symlink_to(f"../{level + 1}")
    put(tmp_path / "set/30/a.png")
    assert names(tmp_path / "set") == ["30/a.png"]


def test_a_link_to_elsewhere_is_followed_once(tmp_path):
    put(tmp_path / "elsewhere/a.png")
    put(tmp_path / "elsewhere/deep/b.png")
    (tmp_path / "set").mkdir()
    for link in ("first", "second"):
        (tmp_path / "set" / link).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "set")
    assert names(tmp_path / "set") == ["first/a.png", "first/deep/b.png"]


def test_a_link_to_a_file_counts_under_its_name(tmp_path):
    put(tmp_path / "set/a.png")
    (tmp_path / "set/b.png").symlink_to("a.png")
    assert names(tmp_path / "set") == ["a.png", "b.png"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to nowhere", "link to itself", "device"])
def test_what_is_named_like_an_image_and_is_no_file_is_refused(tmp_path, kind, monkeypatch):
    put(tmp_path / "a.png")
    odd = tmp_path / "odd.png"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        socket.socket(socket.AF_UNIX).bind("odd.png")
    else:
        odd.symlink_to({"link to nowhere": "none", "link to itself": "odd.png", "device": "/dev/zero"}[kind])
    with pytest.raises(of.StorageError, match=r"odd\.png: it is not an ordinary file"):
        ImageFiles.of(tmp_path)


def test_a_pipe_that_comes_later_is_not_waited_for(tmp_path):
    put(tmp_path / "a.png")
    found = ImageFiles.of(tmp_path)
    (tmp_path / "a.png").unlink()
    os.mkfifo(tmp_path / "a.png")
    for look in (lambda: found[0], lambda: found.size, found.fingerprint):
        with pytest.raises(of.StorageError, match=r"a\.png: it is not an ordinary file"):
            look()


def test_odd_things_of_other_names_are_left_alone(tmp_path):
    put(tmp_path / "a.png")
    os.mkfifo(tmp_path / "notes")
    (tmp_path / "loop").symlink_to("loop")
    assert names(tmp_path) == ["a.png"]


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    put(tmp_path / "secret/a.png")
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(of.StorageError, match=r"cannot read .*secret: Permission denied"):
        names(tmp_path)
