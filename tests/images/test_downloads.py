"""Published archives: got once, checked, and unpacked without leaving their folder."""

import hashlib
import io
import tarfile

import pytest
from tests.helpers.server import serving

import outfield as of
from outfield.images import DATASETS
from outfield.images.datasets import Download, unpack


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as found:
        yield found


def archive(members, mode="w:gz"):
    """A tar of files by name; a TarInfo stands for itself."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for member, content in members.items():
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def odd(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def offered(server, name, content, into=""):
    server.files[f"/{name}"] = content
    return Download(f"{server.address}/{name}", hashlib.sha256(content).hexdigest(), into)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_unpacked_and_not_kept(server, tmp_path, mode):
    name = "set.tar" + ".gz" * (mode != "w")
    part = offered(server, name, archive({"set/a.txt": b"new", "set/deep/b.txt": b"b", "./c.txt": b"c"}, mode), "inner")
    (tmp_path / "inner/set").mkdir(parents=True)
    (tmp_path / "inner/set/a.txt").write_text("old")
    (tmp_path / "inner/set/mine.txt").write_text("mine")
    part.fetch(tmp_path)
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {
        "inner/set/a.txt": "new",
        "inner/set/deep/b.txt": "b",
        "inner/c.txt": "c",
        "inner/set/mine.txt": "mine",
    }


def test_an_archive_that_is_there_is_not_got_again_and_stays(server, tmp_path):
    part = offered(server, "set.tar.gz", archive({"a.txt": b"a"}))
    (tmp_path / "set.tar.gz").write_bytes(server.files["/set.tar.gz"])
    part.fetch(tmp_path)
    assert server.asked == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "set.tar.gz"]
    (tmp_path / "set.tar.gz").write_bytes(b"damaged")
    part.fetch(tmp_path)
    assert server.asked == ["/set.tar.gz"]


def test_a_plain_file_stays_as_it_is(server, tmp_path):
    offered(server, "digits.mat", b"content").fetch(tmp_path)
    assert (tmp_path / "digits.mat").read_bytes() == b"content"


@pytest.mark.parametrize("member", [
    "../outside.txt",
    "set/../../outside.txt",
    odd("link", tarfile.SYMTYPE, "../outside.txt"),
    odd("set/link", tarfile.SYMTYPE, "/etc/passwd"),
    odd("link", tarfile.LNKTYPE, "../outside.txt"),
    odd("device", tarfile.CHRTYPE),
])  # fmt: skip
def test_no_member_leaves_the_folder(tmp_path, member):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "a.tar").write_bytes(archive({"first.txt": b"1", member: b""}, "w"))
    with pytest.raises(of.FileFormatError, match=r"a\.tar is truncated, or is not a tar archive of plain files"):
        unpack(tmp_path / "a.tar", folder)
    assert [p.name for p in folder.iterdir()] == ["first.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "data"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_broken_archive_is_named(tmp_path, mode):
    content = archive({"a.bin": bytes(range(256)) * 400}, mode)
    (tmp_path / "data").mkdir()
    for broken in (content[: len(content) // 2], b"", b"no archive" * 99, content[:20]):
        (tmp_path / "a.tar").write_bytes(broken)
        with pytest.raises(of.FileFormatError, match=r"a\.tar is truncated, or is not a tar archive"):
            unpack(tmp_path / "a.tar", tmp_path / "data")


def test_the_table_names_whole_checksums_and_safe_or_checked_addresses():
    for row in DATASETS.values():
        for part in [part for parts in row.downloads.values() for part in parts]:
            assert len(part.sha256) == 64
            assert not set(part.sha256) - set("0123456789abcdef")
            assert part.url.startswith(("https://", "http://"))
