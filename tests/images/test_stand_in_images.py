"""Stand-ins made of images: each kind does what it says, at any size, the same for the same seed and image."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.networks import Lookup, Plain, backbone, seeded
from tests.helpers.pictures import make_pictures

import outfield as of
from outfield.features.stand_in_rows import KINDS as FEATURE_KINDS
from outfield.images import check_free, write_stand_ins
from outfield.images.stand_in_images import CELL, GAP, KINDS, MARGIN, NAMES, jigsaw, resized

NEAR = ("turned90", "turned180", "mixed", "halves", "quarters", "inverted", "jigsaw2")
FAR = ("jigsaw8", "blocks", "phase")
SIZES = [(32, 32), (33, 47), (8, 8), (7, 5), (2, 3), (1, 1), (1, 9), (100, 30)]


def random_image(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def change(kind, image, partners=(), seed=0):
    return KINDS[kind].change(image, list(partners), np.random.default_rng(seed))


def tiles(image, grid):
    """The tiles of an image whose sides are multiples of the grid, row by row."""
    height, width = image.shape[0] // grid, image.shape[1] // grid
    return [
        image[r * height : (r + 1) * height, c * width : (c + 1) * width].tobytes()
        for r in range(grid)
        for c in range(grid)
    ]


class TestKinds:
    @pytest.mark.parametrize("size", SIZES, ids=str)
    @pytest.mark.parametrize("name", KINDS)
    def test_any_size(self, name, size):
        images = [random_image(size, seed) for seed in range(4)]
        before = [image.copy() for image in images]
        partners = images[1 : 1 + KINDS[name].partners]
        found = change(name, images[0], partners)
        assert found.shape == ((*size[::-1], 3) if name == "turned90" else (*size, 3))
        assert found.dtype == np.uint8
        assert all(np.array_equal(image, kept) for image, kept in zip(images, before, strict=True))
        if min(size) > 1:
            assert found.shape != images[0].shape or not np.array_equal(found, images[0])

    def test_turns(self):
        image = random_image((4, 6))
        both = {change("turned90", image, seed=seed).tobytes() for seed in range(20)}
        assert both == {np.rot90(image, k).tobytes() for k in (1, 3)}
        assert np.array_equal(change("turned180", image), np.rot90(image, 2))

    def test_mixed_is_the_mean(self):
        one, other = random_image((5, 6)), random_image((5, 6), 1)
        found = change("mixed", one, [other]).astype(int)
        assert set((2 * found - one.astype(int) - other.astype(int)).flatten()) == {0, 1}
        assert np.array_equal(change("mixed", one, [one]), one)

    def test_halves(self):
        one, other = np.full((4, 6, 3), 1, np.uint8), np.full((4, 6, 3), 2, np.uint8)
        found = {change("halves", one, [other], seed).tobytes() for seed in range(20)}
        beside, below = one.copy(), one.copy()
        beside[:, 3:], below[2:] = 2, 2
        assert found == {beside.tobytes(), below.tobytes()}

    def test_quarters(self):
        images = [np.full((4, 6, 3), value, np.uint8) for value in range(4)]
        found = change("quarters", images[0], images[1:])[..., 0]
        assert found.tolist() == [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2

    @pytest.mark.parametrize(("name", "grid"), [("jigsaw2", 2), ("jigsaw8", 8)])
    @pytest.mark.parametrize("size", [(32, 32), (16, 48)])
    def test_jigsaws_move_every_tile(self, name, grid, size):
        image = random_image(size)
        orders = set()
        for seed in range(5):
            found = change(name, image, seed=seed)
            before, after = tiles(image, grid), tiles(found, grid)
            assert sorted(before) == sorted(after)
            assert all(a != b for a, b in zip(before, after, strict=True))
            orders.add(found.tobytes())
        assert len(orders) > 1

    @pytest.mark.parametrize("size", [(33, 31), (9, 15), (17, 8)])
    def test_jigsaws_of_odd_sizes_leave_no_hole(self, size):
        """Every pixel is one of the image's, at another place."""
        image = np.arange(1, np.prod(size) + 1, dtype=np.uint32).reshape(*size, 1)
        found = jigsaw(image, [], np.random.default_rng(0), grid=8)
        assert set(found.flatten()) <= set(image.flatten())
        assert np.mean(found == image) < 0.2

    def test_blocks_have_their_mean_colour(self):
        image = random_image((32, 16))
        found = change("blocks", image)
        for r in range(8):
            for c in range(8):
                block = np.s_[4 * r : 4 * r + 4, 2 * c : 2 * c + 2]
                assert len(np.unique(found[block].reshape(-1, 3), axis=0)) == 1
                assert np.abs(found[block][0, 0] - image[block].reshape(-1, 3).mean(0)).max() <= 0.5

    def test_scrambled_phases_keep_amplitudes_and_the_mean(self):
        image = (128 + 20 * np.random.default_rng(0).standard_normal((32, 33, 3))).astype(np.uint8)  # nothing cut off
        found = change("phase", image)
        before, after = (np.abs(np.fft.rfft2(x.astype(float), axes=(0, 1))) for x in (image, found))
        assert np.allclose(before, after, rtol=0.05, atol=40)  # rounding to bytes alone gives 10 or so
        assert np.allclose(image.mean((0, 1)), found.mean((0, 1)), atol=0.2)
        corr = np.corrcoef(image[..., 0].flatten(), found[..., 0].flatten())[0, 1]
        assert abs(corr) < 0.2

    def test_partners_of_another_size_are_resized(self):
        one, other = np.full((6, 4, 3), 10, np.uint8), np.full((3, 9, 3), 30, np.uint8)
        assert np.array_equal(change("mixed", one, [other]), np.full((6, 4, 3), 20))
        assert set(change("halves", one, [other]).flatten()) == {10, 30}
        assert resized(other, 3, 9) is other


@pytest.mark.parametrize("kinds", [KINDS, FEATURE_KINDS], ids=["images", "features"])
def test_the_page_lists_every_kind(kinds):
    page = (Path(__file__).parents[2] / "docs/stand-ins.md").read_text()
    listed = "\n".join(f"| `{kind.name}` | {kind.level} | {kind.meaning} |" for kind in kinds.values())
    assert f"|---|---|---|\n{listed}\n\n" in page


class TestStandIns:
    def test_every_kind_of_every_image(self):
        images = make_pictures(n=6, name="pictures")
        made = of.stand_ins(images)
        assert list(made) == [*NEAR, *FAR]
        assert made.levels == {name: kind.level for name, kind in KINDS.items()}
        for name, one in made.items():
            assert (len(one), one.labels, one.classes, one.size) == (6, None, None, (16, 16))
            assert one.name == f"pictures, {name}"
            assert one[3].shape == (16, 16, 3)
            assert one[3].flags.c_contiguous
        assert {level: list(sets) for level, sets in made.by_level().items()} == {"near": list(NEAR), "far": list(FAR)}
        assert repr(made["blocks"]) == "StandInImages(pictures, blocks: 6 images, far)"

    def test_the_same_for_the_same_seed_and_image(self):
        images = make_pictures(n=12)
        whole, again, other = (of.stand_ins(images, seed=seed) for seed in (3, 3, 4))
        some = of.stand_ins(images, ["jigsaw8", "mixed", "halves", "phase"], seed=3, count=4)
        for name in some:
            backwards = [again[name][i] for i in reversed(range(12))][::-1]
            assert all(np.array_equal(whole[name][i], backwards[i]) for i in range(12))
            assert some[name].chosen == [0, 3, 6, 9]
            assert all(np.array_equal(some[name][i], whole[name][3 * i]) for i in range(4))
            assert any(not np.array_equal(whole[name][i], other[name][i]) for i in range(12))

    def test_mixes_are_with_another_class(self):
        labels = np.array([0, 0, 0, 1])
        images = np.zeros((4, 4, 4, 3), np.uint8) + np.array([0, 10, 20, 200], np.uint8)[:, None, None, None]
        found = of.stand_ins(of.ImageArray(images, labels), ["mixed", "quarters"])
        assert [int(found["mixed"][i][0, 0, 0]) for i in range(3)] == [100, 105, 110]
        assert set(found["quarters"][0].flatten()) == {0, 200}  # there are fewer than three of another class
        without = of.stand_ins(images, "mixed", seed=1)["mixed"]
        assert all(int(without[i][0, 0, 0]) != value for i, value in enumerate((0, 10, 20, 200)))

    def test_quarters_are_of_different_images(self):
        images = np.arange(8, dtype=np.uint8)[:, None, None, None] + np.zeros((8, 4, 4, 3), np.uint8)
        found = of.stand_ins(images, "quarters")["quarters"]
        assert all(len(np.unique(found[i])) == 4 for i in range(8))

    def test_images_of_different_sizes(self):
        images = [random_image((5, 8), 0), random_image((9, 6), 1)]
        made = of.stand_ins(images)
        assert made["mixed"].size is None
        assert of.stand_ins([images[0]] * 2)["turned90"].size == (8, 5)
        assert made["turned90"][0].shape == (8, 5, 3)
        assert made["mixed"][1].shape == (9, 6, 3)

    def test_features_of_them(self):
        images, network = make_pictures(n=8), backbone(seeded(Plain))
        rows = of.stand_ins(images, ["mixed", "turned90", "blocks"]).map(network.extract)
        levels = {level: list(sets) for level, sets in rows.by_level().items()}
        assert levels == {"near": ["mixed", "turned90"], "far": ["blocks"]}
        direct = network.extract(of.ImageArray(np.stack([of.stand_ins(images)["mixed"][i] for i in range(8)])))
        assert np.allclose(rows["mixed"].features, direct.features, atol=1e-5)
        assert rows["mixed"].labels is None

    def test_fingerprints(self):
        images = make_pictures(n=6)
        prints = {
            of.stand_ins(images, "mixed")["mixed"].fingerprint(),
            of.stand_ins(images, "halves")["halves"].fingerprint(),
            of.stand_ins(images, "mixed", seed=1)["mixed"].fingerprint(),
            of.stand_ins(images, "mixed", count=3)["mixed"].fingerprint(),
            of.stand_ins(make_pictures(n=6, seed=1), "mixed")["mixed"].fingerprint(),
        }
        assert len(prints) == 5
        assert of.stand_ins(images, "mixed")["mixed"].fingerprint() in prints

    @pytest.mark.parametrize(("arguments", "error", "message"), [
        ({"kinds": "blurred"}, of.UnknownNameError, "no stand-ins of the kind 'blurred'; there are turned90, "),
        ({"kinds": ["mixed", 3]}, of.UnknownNameError, "of the kind 3"),
        ({"kinds": []}, of.InputError, r"kinds is \[\]; it must be names of stand-ins"),
        ({"kinds": 7}, of.InputError, "kinds is 7; it must be names"),
        ({"seed": -1}, of.InputError, "seed is -1"),
        ({"count": 7}, of.InputError, "count is 7"),
    ])  # fmt: skip
    def test_what_is_refused(self, arguments, error, message):
        with pytest.raises(error, match=message):
            of.stand_ins(make_pictures(n=6), **arguments)

    def test_images_that_are_none(self):
        with pytest.raises(of.InputError, match="images is a str; wrap an array, uint8"):
            of.stand_ins("photos")
        with pytest.raises(of.InputError, match="one image in images; mixed mixes images and needs at least two"):
            of.stand_ins(make_pictures(n=1, name="images"), ["turned90", "mixed"])
        assert len(of.stand_ins(make_pictures(n=1), "turned90", count=1)["turned90"]) == 1
        with pytest.raises(of.InputError, match="image 1 is float64 of shape"):
            of.stand_ins([random_image((3, 3)), np.zeros((3, 3, 3))])
        with pytest.raises(of.InputError, match="image 0 is a list"):
            of.stand_ins([[1]])
        with pytest.raises(of.InputError, match="there are no images"):
            of.stand_ins([])

    def test_a_source_that_gives_something_else(self):
        found = of.stand_ins(Lookup([random_image((4, 4)), np.zeros((4, 4))]))
        with pytest.raises(of.InputError, match=r"image 1 of lookup is float64 of shape \(4, 4\); images are"):
            found["mixed"][0]
        assert found["inverted"][0].shape == (4, 4, 3)


class TestWritten:
    def test_folders_that_can_be_opened(self, tmp_path):
        images = make_pictures(n=6)
        made = of.stand_ins(images, ["turned90", "jigsaw8"], count=3)
        write_stand_ins(made, tmp_path / "made")
        assert Image.open(tmp_path / "made/examples.png").width == 2 * MARGIN + NAMES + 3 * CELL + 2 * GAP
        assert sorted(os.listdir(tmp_path)) == ["made"]
        assert sorted(os.listdir(tmp_path / "made")) == ["examples.png", "far", "near"]
        assert sorted(os.listdir(tmp_path / "made/far/jigsaw8")) == ["000000.png", "000002.png", "000004.png"]
        again = of.open_images(tmp_path / "made/near/turned90")
        assert all(np.array_equal(again[i], made["turned90"][i]) for i in range(3))

    def test_the_sheet(self, tmp_path):
        images = make_pictures(n=20)
        write_stand_ins(of.stand_ins(images), tmp_path / "made")
        page = np.asarray(Image.open(tmp_path / "made/examples.png"))
        assert page.shape == (2 * MARGIN + 11 * (CELL + GAP) - GAP, 2 * MARGIN + NAMES + 8 * (CELL + GAP) - GAP, 3)
        left, top = MARGIN + NAMES, MARGIN
        first = page[top : top + CELL, left : left + CELL]
        assert np.array_equal(first, np.kron(images[0], np.ones((6, 6, 1), np.uint8)))
        names = page[:, MARGIN : MARGIN + NAMES]
        for row in range(11):
            assert (names[top + row * (CELL + GAP) :][:CELL] < 100).any()  # a name stands before each

    def test_all_or_nothing(self, tmp_path):
        """The second image cannot be read."""
        made = of.stand_ins(Lookup([random_image((4, 4)), np.zeros((4, 4))]), "inverted")
        with pytest.raises(of.InputError, match="image 1 of lookup"):
            write_stand_ins(made, tmp_path / "made")
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_folder_is_taken_and_another_is_not(self, tmp_path):
        made = of.stand_ins(make_pictures(n=2), "inverted")
        (tmp_path / "empty").mkdir()
        write_stand_ins(made, tmp_path / "empty")
        assert len(of.open_images(tmp_path / "empty/near/inverted")) == 2
        with pytest.raises(of.InputError, match="empty holds something"):
            write_stand_ins(made, tmp_path / "empty")
        with pytest.raises(of.InputError, match="is no folder"):
            check_free(tmp_path / "empty/examples.png")
        with pytest.raises(of.StorageError, match="there is no folder"):
            check_free(tmp_path / "none/made")
        assert sorted(os.listdir(tmp_path)) == ["empty"]
