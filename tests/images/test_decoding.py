"""Encoded images: what they become, that only raster formats are touched, and that every failure is ours and names the file."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

import outfield as of
from outfield.images import ImageFiles, decode, size_of


def pixels(height: int = 6, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(image, kind="PNG", **more):
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **more)
    return file.getvalue()


def held(orientation):
    """What a camera writes of how it was held."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_header(width, height):
    """A PNG of a few bytes that declares so many pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000))


# what images become


def test_grey_palette_and_transparent_images_become_colour(tmp_path):
    image = Image.fromarray(pixels())
    for mode in ("L", "1", "P", "RGBA", "LA", "CMYK"):
        image.convert(mode).save(tmp_path / f"{mode}.tif")
    found = ImageFiles.of(tmp_path)
    assert {found[index].shape for index in range(6)} == {(6, 5, 3)}
    assert np.array_equal(found[found.names.index("RGBA.tif")], pixels())


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparency_is_its_colours():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert decode(encoded(image, transparency=b"\x00\x80"), "a.png").tolist() == [[[10, 20, 30], [200, 100, 50]]]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_counts(kind):
    frames = [Image.new("RGB", (4, 3), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    more = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=100, **more)
    assert np.array_equal(decode(content, "a"), np.array(frames[0]))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_lies_as_the_camera_was_held(kind, orientation):
    exif = held(orientation)
    more = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(pixels(), kind, exif=exif, **more)
    with Image.open(io.BytesIO(content)) as image:
        expected = np.array(ImageOps.exif_transpose(image))
    found = decode(content, "a")
    assert np.array_equal(found, expected)
    assert found.shape == ((6, 5, 3) if orientation < 5 else (5, 6, 3))
    assert size_of(io.BytesIO(content), "a") == found.shape[:2]
    if orientation == 6 and kind == "PNG":  # to be turned clockwise by a quarter
        assert np.array_equal(found, np.rot90(pixels(), -1))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_the_size_is_known_without_decoding(kind, monkeypatch):
    content = encoded(pixels(), kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it is decoded"))
    assert size_of(io.BytesIO(content), "a") == pixels().shape[:2]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b"x", held(77)])
def test_a_broken_orientation_does_not_spoil_the_picture(exif):
    assert np.array_equal(decode(encoded(pixels(), exif=exif), "a.png"), pixels())


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_rather_than_cut_off(tmp_path, ending):
    values = np.array([[0, 128, 129, 257, 385, 386], [32767, 32768, 40_000, 65_278, 65_407, 65_535]], np.uint16)
    if ending == "pgm":
        (tmp_path / "deep.pgm").write_bytes(b"P5 6 2 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(tmp_path / f"deep.{ending}")
    found = ImageFiles.of(tmp_path)[0]
    wanted = np.floor(values / 257 + 0.5).astype(np.uint8)
    assert found.shape == (2, 6, 3)
    for channel in range(3):
        assert np.array_equal(found[:, :, channel], wanted)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_more_bits_and_floats_are_refused(tmp_path, kind):
    Image.fromarray(np.full((4, 4), 3, kind)).save(tmp_path / "deep.tif")
    with pytest.raises(
        of.FileFormatError, match=r"deep\.tif has more than 16 bits a channel, or floats .*; save it with"
    ):
        ImageFiles.of(tmp_path)[0]


# what is refused


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "webp", "ppm", "tif", "gif"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_broken_file_is_named(tmp_path, ending):
    path = tmp_path / f"broken.{ending}"
    Image.fromarray(pixels(40, 40)).save(path)
    ImageFiles.of(tmp_path)[0]
    whole = path.read_bytes()
    for content in (b"\x00" * 60, whole[:9], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(of.FileFormatError, match=rf"broken\.{ending} is truncated, or is not an image"):
            ImageFiles.of(tmp_path)[0]
    path.write_bytes(b"")
    for look in (lambda: ImageFiles.of(tmp_path)[0], lambda: ImageFiles.of(tmp_path).size):
        with pytest.raises(of.FileFormatError, match=rf"broken\.{ending} is empty"):
            look()


def test_postscript_named_png_starts_no_program(tmp_path, monkeypatch):
    started = tmp_path / "started"
    program = tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    (tmp_path / "images").mkdir()
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "images/a.png").write_bytes(content)
    found = ImageFiles.of(tmp_path / "images")
    for look in (lambda: found[0], lambda: found.size):
        with pytest.raises(of.FileFormatError, match=r"a\.png .*is not an image \(known formats are JPEG, PNG"):
            look()
    assert not started.exists()


@pytest.mark.parametrize("side", [13_500, 20_000, 2**31 - 1])
def test_a_decompression_bomb_is_refused_by_its_header(side):
    for look in (decode, lambda content, where: size_of(io.BytesIO(content), where)):
        with pytest.raises(of.InputError, match=r"a\.png is too large; make it smaller .*limit of 178956970 pixels"):
            look(png_header(side, side), "a.png")


@pytest.mark.parametrize(("raised", "expected", "message"), [
    (MemoryError(), of.InputError, "too little memory to decode a"),
    (AssertionError(), of.FileFormatError, r"not an image \(AssertionError\)"),
    (OSError(5, "Input/output error"), of.StorageError, "cannot read a: Input/output error"),
])  # fmt: skip
def test_whatever_pillow_raises_is_ours(monkeypatch, raised, expected, message):
    def fail(self, *_):
        raise raised

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail, raising=False)
    with pytest.raises(expected, match=message):
        decode(encoded(pixels()), "a")


def test_a_file_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(pixels()))
    monkeypatch.setattr("outfield.images.folder.BYTES_AT_MOST", 20)
    found = ImageFiles.of(tmp_path)
    for look in (lambda: found[0], found.fingerprint):
        with pytest.raises(of.InputError, match=r"a\.png is too large: an image file may have 20 bytes"):
            look()
