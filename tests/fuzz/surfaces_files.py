"""Files: damaged, crafted, in odd places, read in odd pieces."""

import functools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.fuzz.values import scalar
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.files import Record, read_record, write_record


@functools.cache
def _contents() -> dict[str, bytes]:
    """A good file of every kind, by name."""
    import tempfile

    import pyarrow
    import pyarrow.parquet

    small = make_set(12, width=3, classes=2)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        small.save(folder / "set.safetensors")
        small.save(folder / "set.npz")
        np.savez(folder / "plain.npz", features=small.features.numpy(), labels=small.labels.numpy())
        np.savez_compressed(folder / "packed.npz", features=small.features.numpy(), logits=small.logits.numpy())
        np.save(folder / "plain.npy", small.features.numpy())
        rows = [",".join([*(f"feature_{i}" for i in range(3)), "label"])]
        rows += [f"{a},{b},{c},{i % 2}" for i, (a, b, c) in enumerate(small.features.tolist())]
        (folder / "set.csv").write_text("\n".join(rows) + "\n")
        columns = {f"feature_{i}": small.features[:, i].numpy() for i in range(3)}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "set.parquet")
        for name in of.DETECTORS:
            quick(name, **({"k": 3} if name == "KNN" else {})).fit(small).save(folder / f"{name}.detector.safetensors")
        of.Threshold.fit(np.arange(40.0)).save(folder / "t.threshold.safetensors")
        return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def _reader(name: str) -> Callable[[Path], Any]:
    if ".detector." in name:
        return lambda path: of.load(path).score(make_set(5, width=3, classes=2))
    if ".threshold." in name:
        return lambda path: of.Threshold.load(path).p_value([3.0])
    return lambda path: of.open_features(path).in_memory().features


def damaged(rng: random.Random, folder: Path) -> None:
    """Bytes flipped, cut, doubled: an error, or, where a checksum vouches for it, the very same content."""
    name = rng.choice(list(_contents()))
    content = bytearray(_contents()[name])
    for _ in range(rng.randint(1, 3)):
        early = rng.random() < 0.5
        at = min(int(rng.paretovariate(0.3)) - 1, len(content) - 1) if early else rng.randrange(len(content))
        kind = rng.randrange(6)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at] = rng.randrange(256)
        elif kind == 2:
            del content[at : at + rng.randint(1, 20)]
        elif kind == 3:
            content[at:at] = rng.randbytes(rng.randint(1, 20))
        elif kind == 4:
            del content[max(1, at) :]
        else:
            content[at : at + 8] = rng.choice([b"\xff" * 8, b"\x00" * 8, b"99999999", (2**62).to_bytes(8, "little")])
        if not content:
            break
    path = folder / name
    path.write_bytes(content)
    read = _reader(name)
    found = read(path)
    if name not in ("plain.npy", "plain.npz", "packed.npz", "set.csv", "set.parquet"):
        path.write_bytes(_contents()[name])
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(read(path))), f"{name} was changed and still read"
    assert torch.as_tensor(found).isfinite().all()


def _plain(rng: random.Random) -> Any:
    """Something that JSON can hold."""
    return rng.choice(
        [None, True, -1, 0, 3, 10**30, 0.5, -1.5, 1e308, "", "x", "MLP", [], [1, 2], {}, {"type": "MLP"}, {"type": "nope"}]
    )  # fmt: skip


def crafted(rng: random.Random, folder: Path) -> None:
    """A file whose checksum is right and whose content is not: refused, or it works."""
    name = rng.choice([name for name in _contents() if ".detector." in name or ".threshold." in name])
    kind = "detector" if ".detector." in name else "Threshold"
    path = folder / name
    path.write_bytes(_contents()[name])
    header, tensors = read_record(path, kind)
    header = {key: value for key, value in header.items() if key not in ("format", "kind", "sha256", "digests")}
    for _ in range(rng.randint(1, 2)):
        if rng.random() < 0.5 or not tensors:
            place = header
            if isinstance(header.get("settings"), dict) and header["settings"] and rng.random() < 0.5:
                place = header["settings"]
            key = rng.choice(list(place))
            if rng.random() < 0.3:
                del place[key]
            else:
                place[key] = _plain(rng)
        else:
            key = rng.choice(list(tensors))
            value = tensors[key]
            tensors[key] = rng.choice(
                [
                    lambda: value[:0],
                    lambda: value[..., :1],
                    lambda: value.reshape(-1),
                    lambda: value[None],
                    lambda: value.to(torch.int64),
                    lambda: value.to(torch.float16),
                    lambda: value.to(torch.bool),
                    lambda: value * float("nan"),
                    lambda: value * float("inf"),
                    lambda: -value,
                    lambda: value.flip(0) if value.ndim else value,
                    lambda: torch.zeros(()),
                ]
            )()
            if rng.random() < 0.2:
                del tensors[key]
            if rng.random() < 0.1:
                tensors["extra"] = torch.zeros(2)
    write_record(path, kind, Record(header, tensors))
    found = torch.as_tensor(_reader(name)(path))
    assert found.isfinite().all(), "a crafted file was taken and gives no numbers"


def paths(rng: random.Random, folder: Path) -> None:
    """Odd places to read from and to write to."""
    os.symlink(folder / "loop", folder / "loop")
    os.mkfifo(folder / "fifo.npz")
    (folder / "a folder.safetensors").mkdir()
    (folder / "not utf8 \udcff.npz").write_bytes(b"x")
    odd = rng.choice(
        [
            *(
                folder / name
                for name in ("loop", "loop/x.npz", "fifo.npz", "a folder.safetensors", "not utf8 \udcff.npz")
            ),
            *(
                folder / name
                for name in ("x" * 300 + ".npz", "no/such/x.safetensors", "x.unknown", "x", "missing.npz#part")
            ),
            *("\x00.npz", b"x.npz", "", ".", "/", "/dev/null", "/dev/zero", "/proc/self/mem", scalar(rng)),
        ]
    )
    small = make_set(8)
    rng.choice(
        [
            lambda: of.FeatureSet.load(odd),
            lambda: of.open_features(odd),
            lambda: of.open_images(odd),
            lambda: of.load(odd),
            lambda: of.Threshold.load(odd),
            lambda: of.load_classifier(odd),
            lambda: small.save(odd) if not str(odd).startswith("/dev") else None,
            lambda: of.SSD().fit(small).save(odd) if not str(odd).startswith("/dev") else None,
            lambda: quick("EBM").fit(small, checkpoint=odd) if not str(odd).startswith("/dev") else None,
        ]
    )()


def streams(rng: random.Random, folder: Path) -> None:
    """A file read in any pieces, or row by row, is the file read whole."""
    data = make_set(rng.randint(1, 40), width=rng.randint(1, 5))
    path = folder / rng.choice(["s.safetensors", "s.npz"])
    data.save(path)
    if rng.random() < 0.3:
        path = folder / "c.npz"
        np.savez_compressed(path, **{name: value.numpy() for name, value in data.tensors().items()})
    stream = of.open_features(path)
    size = rng.choice([1, 2, 3, 7, 100]) if rng.random() < 0.8 else scalar(rng)
    if isinstance(size, int) and abs(size) > 10**6:
        size = 10**6
    pieces = list(stream.batches(size))
    for name, value in data.tensors().items():
        there = torch.cat([piece[name] for piece in pieces]) if name in data.row_fields else stream.constant(name)
        assert torch.equal(there, value), name
    index = [rng.randrange(len(data)) for _ in range(rng.randint(0, 5))] if rng.random() < 0.7 else scalar(rng)
    found = stream.rows(index)
    assert torch.equal(found["features"], data.features[torch.as_tensor(index, dtype=torch.int64)])


SURFACES = {f.__name__: f for f in (damaged, crafted, paths, streams)}
