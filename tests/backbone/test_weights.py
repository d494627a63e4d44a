"""Where a backbone's network and weights come from."""

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.helpers.networks import MEAN, NORMALISED, STD, backbone, close
from tests.helpers.pictures import make_pictures

import outfield as of
from outfield.backbone import Backbone, Classifier, save_classifier


@pytest.fixture
def trained(tmp_path):
    """A file of ours, and its network."""
    made = Classifier("test_resnet", 3, small_images=False, size=(32, 32), mean=MEAN, std=STD, names=("a", "b", "c"))
    network = made.build(seed=3).eval()
    save_classifier(tmp_path / "ours.safetensors", made, network.state_dict())
    return tmp_path / "ours.safetensors", network


def logits(network, size=32):
    return network.extract(make_pictures(n=4, classes=3, size=size)).logits


class TestSources:
    def test_a_file_of_ours(self, trained):
        path, network = trained
        expected = logits(backbone(network, 32))
        for found in (
            Backbone.load(path, "cpu"),
            Backbone.open(str(path), "cpu"),
            Backbone.open(f"timm:test_resnet@{path}", "cpu"),
        ):
            assert (found.name, found.classes, found.names) == ("ours", 3, ("a", "b", "c"))
            assert (found.input.size, found.input.mean, found.input.std) == ((32, 32), MEAN, STD)
            assert close(logits(found), expected)
        with pytest.raises(of.FileFormatError, match="architecture = 'test_resnet', not 'timm:test_vit'"):
            Backbone.open(f"timm:test_vit@{path}")

    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_a_plain_state_dict_says_how_many_classes(self, tmp_path, trained, prefix):
        path, state = tmp_path / "plain.safetensors", {prefix + k: v for k, v in trained[1].state_dict().items()}
        safetensors.torch.save_file(state, path)
        before = torch.get_rng_state()
        found = Backbone.open(f"timm:test_resnet@{path}", device="cpu", size=32)
        assert torch.equal(before, torch.get_rng_state())
        expected = Backbone(trained[1], size=32, mean=(0.5,) * 3, std=(0.5,) * 3)  # as timm says
        assert found.name == "plain"
        assert close(logits(found), logits(expected))
        for weights in (state, path):
            again = Backbone.named("test_resnet", weights=weights, size=32, mean=MEAN, std=STD, device="cpu")
            assert close(logits(again), logits(backbone(trained[1], 32)))

    def test_weights_that_do_not_fit_are_named(self, trained):
        state = trained[1].state_dict()
        norm = next(name for name, value in state.items() if name.endswith("running_mean"))
        state[norm] = torch.ones(1)
        state["more"] = state.pop("fc.bias")
        with pytest.raises(
            of.FileFormatError,
            match=rf"^weights does not fit: 2 of {len(state)} tensors .*, 1 more are unknown: {norm}, fc\.bias, more; is",
        ):
            Backbone.named("test_resnet", weights=state)

    def test_torchvision_and_a_stem_for_small_images(self, tmp_path):
        made = Classifier("torchvision:resnet18", 3)
        state = made.build().state_dict()
        found = Backbone.named("torchvision:resnet18", weights=state, device="cpu")
        assert found.input.size == (32, 32)
        assert found.input.mean == (0.485, 0.456, 0.406)
        assert found.name == "torchvision:resnet18"
        assert tuple(found.network.conv1.weight.shape) == (64, 3, 3, 3)
        assert logits(found).shape == (4, 3)
        with pytest.raises(of.FileFormatError, match="does not fit"):
            Backbone.named("torchvision:resnet18", weights=state, small_images=False)

    @pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt"])
    def test_pickles_are_refused_with_the_way_out(self, tmp_path, trained, ending, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = tmp_path / f"weights{ending}"
        torch.save(trained[1].state_dict(), path)
        said = []
        for spec in (str(path), f"timm:test_resnet@{path}"):
            with pytest.raises(of.FileFormatError, match="unpickled") as caught:
                Backbone.open(spec)
            said.append(str(caught.value))
        assert said[0] == said[1]
        exec(said[0].partition("it: ")[2], {"safetensors": safetensors, "torch": torch})
        found = Backbone.open(f"timm:test_resnet@{path.with_suffix('.safetensors')}", "cpu", size=32, **NORMALISED)
        assert close(logits(found), logits(backbone(trained[1], 32)))

    def test_what_is_no_backbone(self, tmp_path, trained):
        safetensors.torch.save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "plain.safetensors")
        (tmp_path / "text.safetensors").write_text("text")
        of.FeatureSet(np.ones((2, 2))).save(tmp_path / "features.safetensors")
        for spec, error, said in (
            ("resnet34", of.UnknownNameError, "is not a network that Outfield can open; give FILE.safetensors"),
            ("timm:resnet3", of.UnknownNameError, "timm has no model 'resnet3'"),
            ("timm:test_resnet@", of.InputError, "names no file"),
            (tmp_path / "none.safetensors", of.StorageError, "no such file"),
            (f"timm:test_resnet@{tmp_path}/none.safetensors", of.StorageError, "no such file"),
            (tmp_path / "plain.safetensors", of.FileFormatError, "timm:resnet34@"),
            (tmp_path / "text.safetensors", of.FileFormatError, "not a safetensors file"),
            (tmp_path / "features.safetensors", of.FileFormatError, "holds a FeatureSet, not a classifier"),
            (f"timm:test_resnet@{tmp_path}/plain.safetensors", of.FileFormatError, r"does not fit: \d+ of \d+ tensors"),
        ):
            with pytest.raises(error, match=said):
                Backbone.open(str(spec))
        with pytest.raises(of.InputError, match="carries its settings"):
            Backbone.open(str(trained[0]), size=3)

    def test_arguments_that_contradict_each_other(self):
        state = {"fc.weight": torch.ones(2, 2)}
        for settings, said in (
            ({}, "either weights or pretrained"),
            ({"weights": state, "pretrained": True}, "either weights or pretrained"),
            ({"pretrained": True, "classes": 3}, "their own classes"),
            ({"weights": {"state_dict": state}}, "no tensor under 'state_dict'"),
            ({"weights": {}}, "weights is dict"),
            ({"weights": 3}, "weights is int"),
            ({"weights": state, "device": "nowhere"}, "device 'nowhere' cannot be used"),
        ):
            with pytest.raises(of.InputError, match=said):
                Backbone.named("test_resnet", **settings)
