"""Tables of columns, CSV and Parquet, and folders of images."""

import io
import random
from pathlib import Path

import numpy as np
from tests.fuzz.values import TEXTS

import outfield as of

CELLS = (
    "", "nan", "inf", "-inf", "1e400", "abc", "1;2", "true", "2024-01-01", "0x1F", "1_0", " 1 ", "99999999999999999999",
    '"1"', '"a,b"',
)  # fmt: skip
NAMES = ("feature_0", "label", "labels", "logit_0", "features", "logits", "spread_0", "x", "feature_07", "")


def csv(rng: random.Random, folder: Path) -> None:
    """Odd cells, names, encodings and separators; honest tables keep their numbers."""
    width, rows = rng.randint(1, 4), rng.randint(0, 6)
    numbers = [[rng.randint(-99, 99) / 4 for _ in range(width)] for _ in range(rows)]
    names = [f"feature_{i}" for i in range(width)]
    cells = [[repr(value) for value in row] for row in numbers]
    honest = rows > 0
    for _ in range(rng.choice([0, 0, 1, 2])):
        honest = False
        kind = rng.randrange(4)
        if kind == 0:
            odd = rng.choice(["feature_9", "label", "logit_0", "odin_logit_1", "id", *TEXTS[:20]])
            names[rng.randrange(width)] = odd
        elif cells and kind == 1:
            cells[rng.randrange(rows)][rng.randrange(width)] = rng.choice(CELLS)
        elif cells and kind == 2:
            rng.choice(cells).append("1")
        else:
            names.append(names[0])
    newline = rng.choice(["\n", "\r\n"])
    text = newline.join(",".join(row) for row in [names, *cells]) + newline
    encoding = rng.choice(["utf-8"] * 4 + ["utf-8-sig", "utf-16", "latin-1", "utf-32"])
    content = text.encode(encoding, errors="replace")
    if rng.random() < 0.1:
        content, honest = content[: rng.randrange(len(content) + 1)], False
    if rng.random() < 0.1:
        at = rng.randrange(len(content) + 1)
        content, honest = content[:at] + rng.choice([b"\xff\xfe", b"\x00", b'"', b"\r"]) + content[at:], False
    path = folder / "t.csv"
    path.write_bytes(content)
    found = of.open_features(path).in_memory() if rng.random() < 0.5 else of.FeatureSet.load(path)
    if honest and encoding in ("utf-8", "utf-8-sig"):
        np.testing.assert_array_equal(found.features.double().numpy(), np.array(numbers))  # quarters are exact


def parquet(rng: random.Random, folder: Path) -> None:
    """Odd types of columns."""
    import pyarrow
    import pyarrow.parquet

    rows, width = rng.randint(0, 6), rng.randint(1, 3)
    values = np.random.default_rng(rng.getrandbits(32)).integers(-50, 50, (rows, width)) / 4
    columns = {f"feature_{i}": pyarrow.array(values[:, i]) for i in range(width)}
    honest = rows > 0
    if rng.random() < 0.3:
        columns = {"features": pyarrow.array(values.tolist(), pyarrow.list_(pyarrow.float32()))}
    if rng.random() < 0.6:
        honest = False
        odd = rng.choice(
            [
                lambda: pyarrow.array([None] * rows, pyarrow.float32()),
                lambda: pyarrow.array(["a"] * rows),
                lambda: pyarrow.array([b"a"] * rows),
                lambda: pyarrow.array([True] * rows),
                lambda: pyarrow.array([[1.0]] * (rows - rows // 2) + [[1.0, 2.0]] * (rows // 2)),
                lambda: pyarrow.array([[None]] * rows, pyarrow.list_(pyarrow.float32())),
                lambda: pyarrow.array([None] * rows),
                lambda: pyarrow.array([1] * rows, pyarrow.timestamp("s")),
                lambda: pyarrow.array([1] * rows, pyarrow.decimal128(5, 2)),
                lambda: pyarrow.array(["a"] * rows).dictionary_encode(),
                lambda: pyarrow.array([{"a": 1}] * rows),
                lambda: pyarrow.array([float("nan")] * rows),
                lambda: pyarrow.array([2**63] * rows, pyarrow.uint64()),
                lambda: pyarrow.array(np.ones(rows, np.float16)),
            ]
        )()
        columns[rng.choice(NAMES)] = odd
    path = folder / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rng.choice([1, 2, 100]))
    found = of.open_features(path).in_memory() if rng.random() < 0.5 else of.FeatureSet.load(path)
    if honest:
        np.testing.assert_array_equal(found.features.double().numpy(), values)


def images(rng: random.Random, folder: Path) -> None:
    """Folders of pictures, some of them none."""
    from PIL import Image

    place = folder / "photos"
    for index in range(rng.randint(0, 3)):
        sub = place / rng.choice(["a", "b", "."])
        sub.mkdir(parents=True, exist_ok=True)
        mode = rng.choice(["RGB", "L", "RGBA", "P", "1", "I;16", "CMYK", "LA"])
        picture = Image.new(mode, (rng.randint(1, 6), rng.randint(1, 6)))
        kind = rng.choice(["png", "jpg", "bmp", "gif", "tif", "webp"])
        buffer = io.BytesIO()
        try:
            picture.save(buffer, {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind))
        except (OSError, ValueError):  # this kind cannot hold such a picture
            picture.convert("RGB").save(buffer, {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind))
        content = bytearray(buffer.getvalue())
        if rng.random() < 0.5:
            content = content[: rng.randrange(len(content) + 1)] + rng.randbytes(rng.randint(0, 9))
        if rng.random() < 0.1:
            content = bytearray(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
        (sub / f"{index}.{kind}").write_bytes(content)
    if rng.random() < 0.2 and place.exists():
        (place / "self").symlink_to(place)
    found = of.open_images(place)
    for index in range(len(found)):
        assert found[index].dtype == np.uint8
        assert found[index].ndim == 3


SURFACES = {f.__name__: f for f in (csv, parquet, images)}
