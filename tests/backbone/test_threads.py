"""Several threads at once: none sees another's modes, hooks or settings, and the process is left as it was."""

import threading

import torch
from tests.helpers.networks import Plain, backbone, seeded
from tests.helpers.pictures import make_pictures

from outfield.backbone import Odin
from outfield.modes import Switch


def together(*works):
    """Run the functions in threads that begin at the same time; returns what they gave."""
    found, barrier = {}, threading.Barrier(len(works))

    def run(number, work):
        barrier.wait()
        found[number] = work()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(works))]


def test_one_network_in_several_threads_gives_what_it_gives_alone():
    network = seeded(Plain).train()
    pictures = [make_pictures(n=40, seed=seed) for seed in range(4)]
    alone = [backbone(network).extract(images, odin=Odin(), batch_size=4) for images in pictures]
    for _ in range(3):
        works = [lambda x=images: backbone(network).extract(x, odin=Odin(), batch_size=4) for images in pictures]
        for found, expected in zip(together(*works), alone, strict=True):
            assert torch.equal(found.features, expected.features)
            assert torch.equal(found.spread, expected.spread)
            assert torch.equal(found.odin_logits, expected.odin_logits)
    assert network.training


def test_what_the_process_chose_for_itself_changes_no_features():
    network, images = seeded(Plain), make_pictures(n=5)
    expected = backbone(network).extract(images)
    torch.set_default_dtype(torch.float64)
    try:
        found = [backbone(network).extract(images)]
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found.append(backbone(network).extract(images))
    with torch.device("meta"):
        found.append(backbone(network).extract(images))
    for one in found:
        assert one.features.dtype == torch.float32
        assert torch.equal(one.features, expected.features)
        assert torch.equal(one.logits, expected.logits)


def test_a_switch_is_made_by_the_first_and_put_back_by_the_last():
    state = {"on": "the user's", "changes": 0}

    def change():
        before, state["on"] = state["on"], "ours"
        state["changes"] += 1
        return lambda: state.update(on=before)

    switch = Switch(change)
    first, second = switch.held(), switch.held()
    for one in (first, second):
        one.__enter__()
        assert state["on"] == "ours"
    first.__exit__(None, None, None)
    assert state["on"] == "ours"  # the second still needs it
    second.__exit__(None, None, None)
    assert state == {"on": "the user's", "changes": 1}
