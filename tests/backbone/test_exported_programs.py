"""Networks in files of torch.export give the same numbers as the module does."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from tests.helpers.exported import Net, exported, opened
from tests.helpers.networks import Plain, backbone, seeded
from torch import nn

import outfield as of
from outfield.backbone.origin import Origin


@pytest.fixture(scope="module")
def network():
    return seeded(Net)


class TestNumbers:
    def test_all_fields_are_the_modules(self, network, program, five_images):
        found, expected = opened(program).extract(five_images), backbone(network).extract(five_images)
        for name in ("features", "logits", "head_weight", "head_bias", "spread"):
            torch.testing.assert_close(found.tensors()[name], expected.tensors()[name], rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet"])
    def test_networks_of_timm(self, name, tmp_path):
        whole = seeded(timm.create_model, name, num_classes=4)
        size = whole.pretrained_cfg["input_size"][-1]
        found = opened(exported(whole, tmp_path / "net.pt2", size=size)).network
        some = torch.rand(3, 3, size, size)
        with torch.no_grad():
            assert torch.equal(found(some), whole(some))
            other = copy.deepcopy(found).to(memory_format=torch.channels_last)
            torch.testing.assert_close(
                other(some.to(memory_format=torch.channels_last)), whole(some), rtol=1e-4, atol=1e-5
            )

    @pytest.mark.parametrize("rows", [1, 2, 5, 7])
    def test_a_fixed_number_of_images_is_filled_up(self, network, rows, five_images, tmp_path):
        found = opened(exported(network, tmp_path / "net.pt2", rows)).extract(five_images)
        torch.testing.assert_close(
            found.features, backbone(network).extract(five_images).features, rtol=1e-5, atol=1e-6
        )

    def test_what_stands_behind_the_last_layer(self, five_images, tmp_path):
        expected = backbone(seeded(Net)).extract(five_images)
        for number, ends in enumerate((
            lambda net, z: net.fc(z).softmax(1),
            lambda net, z: nn.functional.log_softmax(net.fc(z), 1),
            lambda net, z: torch.mm(z, net.fc.weight.T),
            lambda net, z: torch.addmm(net.fc.bias, z, net.fc.weight.t()),
        )):  # fmt: skip
            found = opened(exported(seeded(Net, ends), tmp_path / f"{number}.pt2")).extract(five_images)
            torch.testing.assert_close(found.features, expected.features, rtol=1e-6, atol=1e-6)
            logits = expected.logits - (seeded(Net).fc.bias.detach() if number == 2 else 0)
            torch.testing.assert_close(found.logits, logits, rtol=1e-5, atol=1e-6)

    def test_features_may_be_named(self, five_images, tmp_path):
        both = seeded(Net, lambda net, z: {"logits": net.fc(z).square(), "features": z * 2})
        found, plain = (
            opened(exported(both, tmp_path / "net.pt2")).extract(five_images),
            backbone(seeded(Net)).extract(five_images),
        )
        torch.testing.assert_close(found.features, 2 * plain.features)
        torch.testing.assert_close(found.logits, plain.logits.square())

    def test_grey_images_and_gradients(self, network, program, five_images, tmp_path):
        odin = opened(program).extract(five_images, odin=of.Odin()).odin_logits
        torch.testing.assert_close(
            odin, backbone(network).extract(five_images, odin=of.Odin()).odin_logits, rtol=1e-5, atol=1e-5
        )
        grey = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
        exported(grey, tmp_path / "grey.pt2", examples=(torch.rand(2, 1, 16, 16),))
        assert opened(tmp_path / "grey.pt2", mean=(0.5,), std=(0.5,)).extract(five_images).logits.shape == (5, 2)
        with pytest.raises(of.InputError, match="with 1 channels"):
            opened(tmp_path / "grey.pt2")

    def test_copies_and_what_is_kept(self, program, five_images):
        whole = opened(program)
        state = whole.origin.state(whole.network)
        some = torch.rand(2, 3, 16, 16)
        for other in (copy.deepcopy(whole.network), Origin.of_json(whole.origin.to_json()).build(state, "a file")):
            assert torch.equal(other(some), whole.network(some))
        assert "head.weight" not in state
        for broken in (
            {},
            {**state, "plan": torch.zeros(3)},
            {**state, "plan": state["plan"][:-9]},
            {"plan": state["plan"]},
        ):
            with pytest.raises(of.FileFormatError, match=r"holds no program of torch\.export"):
                Origin("pt2").build(broken, "a file")

    def test_fewer_bits(self, network, program, five_images):
        expected = backbone(network).extract(five_images, precision="bfloat16").features
        found = opened(program)
        torch.testing.assert_close(
            found.extract(five_images, precision="bfloat16").features, expected, rtol=0.02, atol=0.02
        )
        narrow = copy.deepcopy(found.network).to(torch.bfloat16)
        assert narrow(torch.rand(3, 3, 16, 16).bfloat16()).dtype == torch.bfloat16
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            assert opened(program).network(torch.rand(3, 3, 16, 16, dtype=torch.float32)).dtype == torch.float32
        finally:
            torch.set_default_dtype(default)


def test_len_of_a_network_that_counts_its_rows(tmp_path):
    """The networks of other tests are refused by torch.export itself or traced with one number of images."""
    found = opened(exported(seeded(Plain), tmp_path / "net.pt2", rows=3))
    assert found.network.asked.shape == (3, 3, 16, 16)
