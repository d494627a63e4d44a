"""Which images are held out, and what each of them is for."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.helpers.guards import NAMES, labelled

import outfield as of
from outfield.guard.held_out import needed, split_off, stratified
from outfield.guard.parts import divide, means_the_same, with_network_labels


def test_how_many_are_needed():
    assert needed(0.95, False) == 19
    assert needed(0.95, True) == 59
    assert needed(0.99, True) == 139


@pytest.mark.parametrize(("total", "expected"), [(177, 59), (300, 100), (900, 240), (2000, 400), (40_000, 5000)])
def test_how_many_are_split_off(total, expected):
    assert split_off(None, total, 59, 0).sum() == expected


def test_too_few_images():
    assert split_off(None, 118, 59, 0).sum() == 59
    with pytest.raises(of.TooFewSamplesError, match=r"117 images, of which 59 .* at least 118"):
        split_off(None, 117, 59, 0)
    with pytest.raises(of.TooFewSamplesError):  # every class keeps its only image
        split_off(np.arange(200), 200, 59, 0)


class TestStratified:
    labels = np.repeat([0, 1, 2, 7], [100, 50, 10, 1])

    def test_every_class_gives_in_proportion_and_keeps_one(self):
        for seed in range(5):
            chosen = stratified(self.labels, 161, 32, seed)
            counts = np.bincount(self.labels[chosen], minlength=8)
            assert chosen.sum() == 32
            assert abs(counts[0] - 20) <= 1
            assert abs(counts[1] - 10) <= 1
            assert abs(counts[2] - 2) <= 1
            assert counts[7] == 0
        assert stratified(self.labels, 161, 161, 0).sum() == 157

    def test_the_seed_decides(self):
        one, same, other = (stratified(self.labels, 161, 32, seed) for seed in (3, 3, 4))
        assert (one == same).all()
        assert (one != other).any()

    def test_every_image_is_as_likely_as_another_of_its_class(self):
        total = sum(stratified(self.labels, 161, 32, seed).astype(int) for seed in range(400))
        share = total[:100] / 400
        assert abs(share.mean() - 0.2) < 0.01
        assert share.max() < 0.32
        assert share.min() > 0.09


class TestDivide:
    def test_no_image_is_in_two_parts(self, caplog):
        images = labelled(300, 1)
        images.images[:, 0, 0] = np.stack([np.arange(300) % 256, np.arange(300) // 256, np.zeros(300)], 1)
        with caplog.at_level(logging.INFO, "outfield"):
            parts = divide(images, None, 0.95, True, 0)
        each = (parts.train, parts.choose, parts.calibrate)
        found = [{tuple(pixel) for pixel in part.images[:, 0, 0].tolist()} for part in each]
        assert [len(part) for part in found] == [200, 60, 40]
        assert len(set.union(*found)) == 300
        assert parts.split
        assert "100 of 300 images are held out" in caplog.text

    def test_given_images_are_divided_by_what_they_are_for(self):
        parts = divide(labelled(200, 1), labelled(159, 2), 0.95, True, 0)
        assert [len(part) for part in (parts.train, parts.choose, parts.calibrate)] == [200, 90, 69]
        assert not parts.split
        parts = divide(labelled(200, 1), labelled(159, 2), 0.95, False, 0)
        assert parts.choose is None
        assert len(parts.calibrate) == 159
        fewest = divide(labelled(200, 1), labelled(59, 2), 0.95, True, 0)
        assert (len(fewest.choose), len(fewest.calibrate)) == (40, 19)
        with pytest.raises(of.TooFewSamplesError, match="58 held-out images; at least 59"):
            divide(labelled(200, 1), labelled(58, 2), 0.95, True, 0)

    def test_a_detector_is_fitted_on_so_many_at_most(self, caplog):
        with caplog.at_level(logging.INFO, "outfield"):
            parts = divide(labelled(200, 1), labelled(159, 2), 0.95, True, 0, most=100)
        assert np.bincount(parts.train.labels).tolist() == [25, 25, 25, 25]
        assert "fitted on 100 of 200" in caplog.text
        assert len(divide(labelled(200, 1), labelled(159, 2), 0.95, True, 0, most=200).train) == 200

    def test_classes_of_one_image_each(self):
        held = of.ImageArray(labelled(80, 2).images, np.arange(80))
        parts = divide(labelled(200, 1), held, 0.95, True, 0)
        assert len(parts.choose) == 50
        assert len(parts.calibrate) == 30


class TestLabels:
    def test_classes_are_found_by_name(self):
        images = of.ImageArray(labelled(4, 1).images, [0, 1, 1, 0], "some", ("left", "across"))
        found = with_network_labels(images, NAMES)
        assert found.labels.tolist() == [2, 0, 0, 2]
        assert found.classes == NAMES
        assert images.labels.tolist() == [0, 1, 1, 0]
        assert with_network_labels(images, ()) is images

    def test_an_unknown_class_is_refused(self):
        images = of.ImageArray(labelled(2, 1).images, [0, 1], "some", ("left", "zebra"))
        with pytest.raises(of.InputError, match=r"some has a class 'zebra'.*across, down, left, right"):
            with_network_labels(images, NAMES)

    def test_numbers_of_classes_must_agree_where_names_are_not_known(self):
        assert means_the_same(labelled(8, 1), 4)
        assert not means_the_same(labelled(8, 1, classes=3), 4)
        assert not means_the_same(of.ImageArray(labelled(8, 1).images), 4)
        assert means_the_same(of.ImageArray(labelled(8, 1).images, [0, 1, 2, 0, 1, 2, 0, 1]), 4)
        assert not means_the_same(of.ImageArray(labelled(8, 1).images, [0, 1, 2, 0, 1, 2, 0, 4]), 4)
