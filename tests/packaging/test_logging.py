"""Messages go to loggers under "outfield": silent unless somebody listens."""

from __future__ import annotations

import logging

from tests.helpers.samples import make_set

import outfield as of

PROTOCOL = of.Protocol("cifar10", near=("a",), mid=(), far=())


def test_the_library_says_what_it_does_to_those_who_listen(caplog):
    sets = {"train": make_set(n=60), "test": make_set(n=30, seed=1), "a": make_set(n=30, seed=2, shift=1.0)}
    with caplog.at_level(logging.INFO, logger="outfield"):
        of.benchmark_features(PROTOCOL, {"net": sets}, detectors={"SSD": of.SSD()}, seeds=1, device="cpu", layout=False)
    assert "net: fitting SSD" in caplog.messages
