"""Networks in files of torch.export give the numbers of the module, and are opened only where they are trusted."""

import copy

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tests.helpers.exported import Net, exported, opened
from tests.helpers.networks import backbone, seeded
from tests.helpers.program import outfield
from tests.helpers.trap import Trap
from torch import nn

import outfield as of


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
            given = some.to(memory_format=torch.channels_last)
            torch.testing.assert_close(other(given), whole(some), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("rows", [1, 2, 5, 7])
    def test_a_fixed_number_of_images_is_filled_up(self, network, rows, five_images, tmp_path):
        found = opened(exported(network, tmp_path / "net.pt2", rows)).extract(five_images).features
        expected = backbone(network).extract(five_images).features
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    def test_what_stands_behind_the_last_layer(self, five_images, tmp_path):
        expected = backbone(seeded(Net)).extract(five_images)
        network = seeded(Net, lambda net, z: nn.functional.log_softmax(net.fc(z), 1).softmax(1))
        found = opened(exported(network, tmp_path / "net.pt2")).extract(five_images)
        torch.testing.assert_close(found.features, expected.features, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-6)

    def test_features_may_be_named(self, five_images, tmp_path):
        both = seeded(Net, lambda net, z: {"logits": net.fc(z).square(), "features": z * 2})
        found = opened(exported(both, tmp_path / "net.pt2")).extract(five_images)
        plain = backbone(seeded(Net)).extract(five_images)
        torch.testing.assert_close(found.features, 2 * plain.features)
        torch.testing.assert_close(found.logits, plain.logits.square())

    def test_grey_images_and_gradients(self, network, program, five_images, tmp_path):
        odin, expected = (one.extract(five_images, odin=of.Odin()) for one in (opened(program), backbone(network)))
        torch.testing.assert_close(odin.odin_logits, expected.odin_logits, rtol=1e-5, atol=1e-5)
        grey = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
        exported(grey, tmp_path / "grey.pt2", examples=(torch.rand(2, 1, 16, 16),))
        assert opened(tmp_path / "grey.pt2", mean=(0.5,), std=(0.5,)).extract(five_images).logits.shape == (5, 2)
        with pytest.raises(of.InputError, match="with 1 channels"):
            opened(tmp_path / "grey.pt2")

    def test_copies_and_fingerprints(self, program, five_images, tmp_path):
        whole, again = opened(program), opened(program)
        some = torch.rand(2, 3, 16, 16)
        assert torch.equal(copy.deepcopy(whole.network)(some), whole.network(some))
        assert whole.fingerprint() == again.fingerprint()
        other = opened(exported(seeded(Net, lambda net, z: net.fc(2 * z)), tmp_path / "other.pt2"))
        assert other.fingerprint() != whole.fingerprint()  # of the same weights, but with other steps
        assert whole.origin is None

    def test_fewer_bits(self, network, program, five_images):
        expected = backbone(network).extract(five_images, precision="bfloat16").features
        narrow = opened(program)
        found = narrow.extract(five_images, precision="bfloat16").features
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
        narrow = copy.deepcopy(narrow.network).to(torch.bfloat16)
        assert narrow(torch.rand(3, 3, 16, 16).bfloat16()).dtype == torch.bfloat16


class TestRefusals:
    def test_nothing_is_opened_that_is_not_trusted(self, tmp_path):
        torch.save({"x": Trap(tmp_path / "ran")}, tmp_path / "net.pt2")
        with pytest.raises(of.InputError, match=r"may run code .* --trust, .* trust=True.* ONNX"):
            of.Backbone.open(str(tmp_path / "net.pt2"), device="cpu", mean=(0.5,) * 3, std=(0.5,) * 3)
        assert not (tmp_path / "ran").exists()

    def test_broken_files(self, program, tmp_path):
        content = program.read_bytes()
        for number, broken in enumerate((b"", b"no program", content[: len(content) // 2])):
            path = tmp_path / f"{number}.pt2"
            path.write_bytes(broken)
            with pytest.raises(of.FileFormatError, match=r"no file of torch\.export"):
                opened(path)
        with pytest.raises(of.StorageError, match="no such file"):
            opened(tmp_path / "missing.pt2")

    @pytest.mark.parametrize(
        ("network", "examples", "words"),
        [
            (Net(lambda net, z: net.fc(z).square()).eval(), None, "does not end with a linear layer"),
            (Net(lambda net, z: (net.fc(z), z)).eval(), None, "gives 2 outputs"),
            (Net().train(), None, "exported in training mode"),
            (nn.Linear(4, 2), (torch.rand(2, 4),), "takes an input of shape"),
            (nn.Bilinear(4, 4, 2), (torch.rand(2, 4), torch.rand(2, 4)), "has 2 inputs"),
        ],
    )
    def test_what_is_no_classifier(self, network, examples, words, tmp_path):
        with pytest.raises(of.InputError, match=words):
            opened(exported(network, tmp_path / "net.pt2", examples=examples))

    def test_on_the_command_line(self, program, tmp_path):
        (tmp_path / "photos").mkdir()
        Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "photos/a.png")
        common = ("extract", program, tmp_path / "photos", "-o", tmp_path / "f.npz")
        common += ("--mean", "0.5,0.5,0.5", "--std", "1,1,1")
        refused, done = outfield(*common), outfield(*common, "--trust", "--device", "cpu")
        assert (refused.returncode, done.returncode) == (2, 0)
        assert "--trust" in refused.said
