"""Downloads: only the file that is meant arrives, and what stood there stays until it does."""

import hashlib
import socket

import pytest
from tests.helpers.server import serving

import outfield as of
from outfield.files import download_file as download
from outfield.files import sha256_of


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as found:
        yield found


CONTENT = bytes(range(256)) * 9000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_the_file_that_is_meant_arrives(server, tmp_path):
    server.files["/a.bin"] = CONTENT
    server.moved["/old"] = "/a.bin"
    for number, path in enumerate(("/a.bin", "/old")):
        download(server.address + path, tmp_path / str(number), SHA256)
        assert (tmp_path / str(number)).read_bytes() == CONTENT
        assert sha256_of(tmp_path / str(number)) == SHA256
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("path", "said"), [
    ("/other", "sent another file: its SHA-256 is"),
    ("/short", r"sent [\d,]+ of|IncompleteRead"),
    ("/long", "sent another file"),
    ("/none", "404"),
    ("/away", "use https"),
    ("/local", "is not allowed"),
])  # fmt: skip
def test_anything_else_leaves_what_was_there(server, tmp_path, path, said):
    server.files |= {"/other": CONTENT[:-1] + b"x", "/short": CONTENT[:-1], "/long": CONTENT + b"more"}
    server.declared = {"/short": len(CONTENT)}
    server.moved = {"/away": "ftp://127.0.0.1/a", "/local": f"file://{tmp_path}/there"}
    (tmp_path / "there").write_text("old")
    with pytest.raises((of.StorageError, of.FileFormatError), match=said) as caught:
        download(server.address + path, tmp_path / "there", SHA256)
    assert "127.0.0.1" in str(caught.value)
    assert (tmp_path / "there").read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["there"]


def test_a_server_that_is_silent_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("outfield.files.download.SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(of.StorageError, match=rf"cannot download {address}: .*timed out"):
            download(address, tmp_path / "a", SHA256)


@pytest.mark.parametrize("sha256", [SHA256[:8], SHA256[:63], "", SHA256[:7], "g" * 64])
def test_http_needs_the_whole_checksum_and_https_a_part_of_it(server, tmp_path, sha256):
    server.files["/a.bin"] = CONTENT
    with pytest.raises(of.StorageError, match="use https, or know all 64 digits of its SHA-256"):
        download(f"{server.address}/a.bin", tmp_path / "a", sha256)
    assert server.asked == []
    assert list(tmp_path.iterdir()) == []
