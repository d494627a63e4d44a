"""Published archives: got once, checked, and unpacked without leaving their folder."""

import hashlib
import io
import tarfile

import pytest
from tests.helpers.server import serving

import outfield as of
from outfield.images import DATASETS
from outfield.images.datasets import SHA256, fetch, unpack


@pytest.fixture
def server(monkeypatch):
    """``offer`` gives a file of this name and content, and its address."""

    def offer(name, content):
        monkeypatch.setitem(SHA256, name, hashlib.sha256(content).hexdigest())
        found.files[f"/{name}"] = content
        return f"{found.address}/{name}"

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as found:
        found.offer = offer
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


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_unpacked_and_not_kept(server, tmp_path, mode):
    name = "set.tar" + ".gz" * (mode != "w")
    url = server.offer(name, archive({"set/a.txt": b"new", "set/deep/b.txt": b"b", "./c.txt": b"c"}, mode))
    (tmp_path / "inner/set").mkdir(parents=True)
    (tmp_path / "inner/set/a.txt").write_text("old")
    (tmp_path / "inner/set/mine.txt").write_text("mine")
    fetch(url, tmp_path / "inner")
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    wanted = {"set/a.txt": "new", "set/deep/b.txt": "b", "c.txt": "c", "set/mine.txt": "mine"}
    assert found == {f"inner/{name}": text for name, text in wanted.items()}


def test_an_archive_that_is_there_is_not_got_again_and_stays(server, tmp_path):
    url = server.offer("set.tar.gz", archive({"a.txt": b"a"}))
    (tmp_path / "set.tar.gz").write_bytes(server.files["/set.tar.gz"])
    fetch(url, tmp_path)
    assert server.asked == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "set.tar.gz"]
    (tmp_path / "set.tar.gz").write_bytes(b"damaged")
    fetch(url, tmp_path)
    assert server.asked == ["/set.tar.gz"]


def test_a_plain_file_stays_as_it_is(server, tmp_path):
    fetch(server.offer("digits.mat", b"content"), tmp_path)
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
    for url in [url for row in DATASETS.values() for urls in row.downloads.values() for url in urls]:
        assert len(bytes.fromhex(SHA256[url.rpartition("/")[2]])) == 32
        assert url.startswith(("https://", "http://"))
