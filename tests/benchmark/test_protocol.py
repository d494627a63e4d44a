"""Protocols: the ID and OOD sets of a benchmark, by level."""

import pytest

import outfield as of
from outfield.benchmark import PROTOCOLS, Protocol
from outfield.images import DATASETS


def test_the_papers_protocols_name_known_sets():
    for name in ("cifar10", "cifar100"):
        protocol = PROTOCOLS[name]
        assert protocol.id == protocol.key == name
        assert protocol.name == ""
        assert protocol.neighbours == {"cifar10": 50, "cifar100": 200}[name]
        assert len(protocol.ood) == 6
        assert {protocol.id, *protocol.ood} == set(DATASETS) - {"mnist"}


def test_openoods_protocols():
    for id_set, other in (("cifar10", "cifar100"), ("cifar100", "cifar10")):
        protocol = PROTOCOLS[f"openood-{id_set}"]
        assert (protocol.id, protocol.name, protocol.key) == (id_set, f"openood-{id_set}", f"openood-{id_set}")
        assert protocol.levels == {
            "near": (other, "tinyimagenet"), "mid": (), "far": ("mnist", "svhn", "textures", "places365"),
        }  # fmt: skip
        assert protocol.neighbours == 50
        assert protocol.with_ood("mid", "x").key == protocol.key
    assert list(PROTOCOLS) == ["cifar10", "cifar100", "openood-cifar10", "openood-cifar100"]


def test_levels():
    protocol = Protocol("a", near=("b",), mid=(), far=("c", "d"))
    assert protocol.levels == {"near": ("b",), "mid": (), "far": ("c", "d")}
    assert protocol.ood == ("b", "c", "d")
    assert protocol.level_of("d") == "far"
    with pytest.raises(of.UnknownNameError, match="'a' is no OOD set of a; it has b, c, d"):
        protocol.level_of("a")


def test_one_more_ood_set():
    protocol = PROTOCOLS["cifar100"]
    more = protocol.with_ood("mid", "mine")
    assert more.mid == ("lsun", "places365", "mine")
    assert more.neighbours == 200
    assert "mine" not in protocol.ood
    with pytest.raises(of.InputError, match="names svhn more than once"):
        protocol.with_ood("mid", "svhn")
    with pytest.raises(of.UnknownNameError, match="no level 'wide'; there are near, mid, far"):
        protocol.with_ood("wide", "mine")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"near": (), "mid": (), "far": ()}, "no OOD set"),
    ({"near": ("b",), "mid": ("b",), "far": ()}, "names b more than once"),
    ({"near": ("a",), "mid": (), "far": ()}, "names a more than once"),
    ({"near": "bc", "mid": (), "far": ()}, "near is 'bc'"),
    ({"near": ("b",), "mid": (), "far": (), "neighbours": 0}, "neighbours is 0"),
    ({"near": ("test",), "mid": (), "far": ()}, "is called test, as a part of the ID set is"),
    ({"near": ("b",), "mid": ("train",), "far": ()}, "is called train"),
])  # fmt: skip
def test_what_is_no_protocol(arguments, message):
    with pytest.raises(of.InputError, match=message):
        Protocol("a", **arguments)


def test_a_protocol_read_from_json_equals_the_one_written():
    assert Protocol("a", near=["b"], mid=[], far=["c"]) == Protocol("a", ("b",), (), ("c",))
