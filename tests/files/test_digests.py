"""What is read is compared with what was written: array by array in new files, all together in old ones."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
import torch
from tests.helpers.old_files import write_old, write_old_npz
from tests.helpers.samples import make_set

import outfield as of
from outfield.files import digests, storage, stored
from outfield.files.npy import find_npy
from outfield.files.npz import open_archive

FIELDS = ("features", "labels", "logits")


def flipped(path, piece):
    """Flip a bit of the file within the bytes ``piece``, which it must hold once."""
    content = bytearray(path.read_bytes())
    assert content.count(piece) == 1
    content[content.index(piece) + len(piece) // 2] ^= 1
    path.write_bytes(content)


def bytes_of(data, name):
    return data.tensors()[name].numpy().tobytes()


@pytest.fixture
def data():
    return make_set(n=300)


@pytest.mark.parametrize("read", FIELDS)
@pytest.mark.parametrize("damaged", FIELDS)
def test_exactly_what_is_read_is_compared(tmp_path, data, read, damaged):
    path = tmp_path / "set.safetensors"
    data.save(path)
    flipped(path, bytes_of(data, damaged))
    header, arrays = storage.find(path, "FeatureSet")
    assert header is not None
    if read == damaged:
        with pytest.raises(of.FileFormatError, match=f"changed after it was written.*its {read}"):
            arrays[read].read()
    else:
        assert torch.equal(arrays[read].read(), data.tensors()[read])
    with pytest.raises(of.FileFormatError, match="changed after it was written"):
        of.FeatureSet.load(path)


@pytest.mark.parametrize("read", FIELDS)
@pytest.mark.parametrize("damaged", FIELDS)
@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_old_files_are_compared_whole(tmp_path, data, read, damaged, ending):
    path = tmp_path / f"set{ending}"
    write = write_old_npz if ending == ".npz" else lambda path, tensors: write_old(path, "FeatureSet", {}, tensors)
    write(path, data.tensors())
    for source in (of.FeatureSet.load(path), of.open_features(path)):
        pieces = list(source.batches(70, [read]))
        assert torch.equal(torch.cat([piece[read] for piece in pieces]), data.tensors()[read])
    flipped(path, bytes_of(data, damaged))
    for use in (
        lambda: of.FeatureSet.load(path),
        lambda: list(of.open_features(path).batches(70, [read])),
        lambda: of.open_features(path).rows([0], [read]),
    ):
        with pytest.raises(of.FileFormatError, match=r"changed after|truncated"):
            use()


@pytest.mark.parametrize("name", ["MSP", "EnergyLogits"])
def test_a_flipped_bit_in_logits_does_not_become_a_score(tmp_path, name):
    data = make_set()
    data.save(tmp_path / "set.safetensors")
    detector = of.DETECTORS[name]().fit(data)
    stream = of.open_features(tmp_path / "set.safetensors")
    assert torch.equal(detector.score(stream), detector.score(data))
    flipped(tmp_path / "set.safetensors", bytes_of(data, "logits"))
    with pytest.raises(of.FileFormatError, match="its logits"):
        detector.score(of.open_features(tmp_path / "set.safetensors"))


def test_picked_rows_are_of_an_array_that_was_compared(tmp_path, data):
    path = tmp_path / "set.safetensors"
    data.save(path)
    flipped(path, bytes_of(data, "features"))
    stream = of.open_features(path)
    with pytest.raises(of.FileFormatError, match="its features"):
        stream.rows([0], ["features"])
    assert torch.equal(stream.rows([3, 1], ["labels"])["labels"], data.labels[[3, 1]])


def test_arrays_cannot_be_added_taken_away_or_exchanged(tmp_path, data):
    path = tmp_path / "set.safetensors"
    data.save(path)
    content = path.read_bytes()
    for old, new in ((b'"labels": {"dtype"', b'"slabel": {"dtype"'), (b'"dtype": "F32"', b'"dtype": "I32"')):
        assert old in content
        path.write_bytes(content.replace(old, new))
        with pytest.raises(of.FileFormatError, match="changed after it was written"):
            of.FeatureSet.load(path)


def test_a_header_that_lost_its_name_is_not_a_foreign_file(tmp_path, data):
    path = tmp_path / "set.safetensors"
    data.save(path)
    content = path.read_bytes()
    assert content.count(b'"outfield": ') == 1
    path.write_bytes(content.replace(b'"outfield": ', b'"outfielt": '))
    for use in (of.FeatureSet.load, of.open_features):
        with pytest.raises(of.FileFormatError, match="its header has another name"):
            use(path)


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".npy"])
def test_rows_of_a_file_that_changes_are_an_error(tmp_path, data, ending):
    path = tmp_path / f"set{ending}"
    np.save(path, data.features.numpy()) if ending == ".npy" else data.save(path)
    if ending == ".npy":
        array = find_npy(path)
    elif ending == ".npz":
        with open_archive(path) as archive:
            array = archive.find(["features"])["features"]
    else:
        array = storage.find(path, "FeatureSet")[1]["features"]
    with array.rows() as rows:
        assert np.array_equal(rows.read(200), data.features[:200])
        os.utime(path)  # as good as a change
        with pytest.raises(of.FileFormatError, match="changed while it was being read"):
            rows.read(100)
    with pytest.raises(of.FileFormatError, match="changed while it was being read"):
        array.read()


def test_a_header_is_as_it_will_be_read(tmp_path):
    header = {"numbers": {10: "ten", 9: "nine"}, "pair": (1, 2), "nothing": float("nan"), "text": "ä\udc80"}
    storage.write(tmp_path / "f.safetensors", "kind", header, {"t": torch.ones(3)})
    found, _ = storage.read(tmp_path / "f.safetensors", "kind")
    assert found["numbers"] == {"10": "ten", "9": "nine"}
    assert found["pair"] == [1, 2]
    assert found["text"] == header["text"]


def test_weights_that_are_still_trained_are_written_as_they_are(tmp_path):
    weights = torch.ones(2, 3, requires_grad=True)
    storage.write(tmp_path / "f.safetensors", "kind", {}, {"w": weights.T})
    assert torch.equal(storage.read(tmp_path / "f.safetensors", "kind")[1]["w"], torch.ones(3, 2))
    assert storage.fingerprint({"w": weights}) == storage.fingerprint({"w": weights.detach()})


def test_files_are_written_as_they_always_were(tmp_path):
    """Other versions read them: whoever changes these bytes changes the number of the format."""
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([True, False])}
    storage.write(tmp_path / "f.safetensors", "kind", {"entry": [1, 0.5, None, "ä"]}, tensors)
    content = (tmp_path / "f.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "c5b80cf8611b880b020895b133eb87aac82603e5d39c746aec042ef7bf086170"


def test_fingerprints_of_sets_and_detectors_stay(data):
    """They name kept results and the scores a threshold belongs to."""
    tensors = {"b": torch.arange(6).view(2, 3), "a": torch.tensor(1.5)}
    assert storage.fingerprint(tensors) == "ed949e43dda2d73aafa2bd3822cfac14b5fe4c995184976c202524c595e9590a"


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
@pytest.mark.parametrize("ours", [True, False])
def test_an_array_is_proved_once(tmp_path, monkeypatch, ending, ours):
    path = tmp_path / f"f{ending}"
    if ours:
        of.FeatureSet(np.ones((1000, 8))).save(path)
    elif ending == ".npz":
        np.savez(path, features=np.ones((1000, 8)))
    else:
        pytest.skip("a safetensors file of somebody else's has no digest")
    stream, read = of.open_features(path), []
    monkeypatch.setattr(stored, "fill", counting(stored.fill, read))
    stream.rows([3])
    first = sum(read)
    stream.rows([5])
    assert first >= 64_000 + 64
    assert sum(read) - first == 64


def counting(fill, read):
    def counted(file, view, *others):
        read.append(len(view))
        return fill(file, view, *others)

    return counted


def test_a_single_number_out_of_a_longer_row():
    """Torch calls it contiguous whatever its stride is."""
    row = torch.arange(6.0)
    assert storage.fingerprint({"a": row[1:2:3]}) == storage.fingerprint({"a": torch.tensor([1.0])})
    assert storage.fingerprint({"a": torch.arange(6.0).reshape(3, 2)[:1, 1]}) == storage.fingerprint(
        {"a": torch.tensor([1.0])}
    )
    assert storage.fingerprint({"a": torch.arange(6.0).reshape(3, 2)[:, 1]}) == storage.fingerprint(
        {"a": torch.tensor([1.0, 3.0, 5.0])}
    )


@pytest.mark.parametrize("piece", [1, 7, 64, 2**26])
def test_a_fingerprint_does_not_depend_on_the_pieces_it_is_computed_in(monkeypatch, piece):
    tensors = {
        "rows": torch.arange(35, dtype=torch.float64).view(5, 7).T,
        "one": torch.tensor(3.5),
        "none": torch.empty(0, 4),
        "narrow": torch.empty(4, 0),
        "ints": torch.arange(9),
    }
    whole = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        whole.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode() + value.numpy().tobytes())
    monkeypatch.setattr(digests, "PIECE", piece)
    assert digests.fingerprint(tensors) == whole.hexdigest()


def test_no_more_than_a_piece_of_a_tensor_is_copied_at_once(monkeypatch):
    monkeypatch.setattr(digests, "PIECE", 64)
    rows, seen = torch.zeros(10, 8), []
    monkeypatch.setattr(digests.Fingerprint, "update", lambda self, content: seen.append(len(content)))
    digests.fingerprint({"rows": rows})
    assert seen == [2, 2, 2, 2, 2]
