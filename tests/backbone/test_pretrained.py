"""Weights that timm and torchvision publish: they arrive in the network, and a planted pickle never runs."""

import hashlib
import logging
import pickle
import shutil

import huggingface_hub.constants
import pytest
import safetensors.torch
import timm
import torch
from tests.helpers.networks import close
from tests.helpers.pictures import make_pictures
from tests.helpers.trap import Trap
from torchvision import models

import outfield as of
from outfield.backbone import Backbone, pretrained

SQUEEZENET = models.SqueezeNet1_1_Weights.DEFAULT


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """PyTorch's cache of weights."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def hugging_face(tmp_path, monkeypatch):
    """The cache of the Hugging Face hub with an empty entry of timm's smallest network, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    entry = tmp_path / "models--timm--test_resnet.r160_in1k"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs/main").write_text("0" * 40)
    (entry / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return entry


def publish(monkeypatch, content, weights=SQUEEZENET):
    """Let torchvision's table name a file of this content; returns its name."""
    name = f"weights-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    monkeypatch.setattr(weights.value, "url", f"https://127.0.0.1:1/{name}")
    return name


def saved(value, path):
    torch.save(value, path)
    return path.read_bytes()


def logits(found):
    return found.extract(make_pictures(n=3, classes=3, size=32), labels=False).logits


# torchvision


def test_published_weights_arrive_in_torchvisions_network(hub, monkeypatch, tmp_path):
    torch.manual_seed(3)
    original = models.squeezenet1_1().eval()
    content = saved(original.state_dict(), tmp_path / "made")
    (hub / publish(monkeypatch, content)).write_bytes(content)
    before = torch.get_rng_state()
    found = Backbone.open("torchvision:squeezenet1_1", "cpu", size=64, head="classifier.1")
    assert torch.equal(torch.get_rng_state(), before)
    assert found.name == "torchvision:squeezenet1_1"
    assert all(torch.equal(value, original.state_dict()[name]) for name, value in found.network.state_dict().items())
    assert SQUEEZENET.get_state_dict.__func__ is type(SQUEEZENET).get_state_dict  # torchvision's own table is as it was


def test_the_builder_gets_what_it_knows_of_its_weights(hub, monkeypatch, tmp_path):
    """Inception is built otherwise with weights than without: it then turns its input from ImageNet's scale."""
    weights = models.Inception_V3_Weights.DEFAULT
    network = models.inception_v3(weights=None, init_weights=False)
    content = saved(network.state_dict(), tmp_path / "made")
    (hub / publish(monkeypatch, content, weights)).write_bytes(content)
    found = pretrained.torchvision_pretrained("inception_v3")
    assert found.transform_input
    assert torch.equal(found.fc.weight, network.fc.weight)


@pytest.mark.parametrize("planted", ["pickle", "torch", "torch with the right name"])
def test_a_planted_pickle_is_refused_and_never_runs(hub, monkeypatch, tmp_path, planted):
    marker = tmp_path / "ran"
    trap = {"features.0.weight": Trap(marker)}
    content = pickle.dumps(trap) if planted == "pickle" else saved(trap, tmp_path / "made")
    if planted == "torch with the right name":  # 8 digits are soon found by trying
        publish(monkeypatch, content)
    name = SQUEEZENET.url.rpartition("/")[2]
    (hub / name).write_bytes(content)
    said = "holds more than tensors" if "right" in planted else "is not the file of that name .*remove it"
    with pytest.raises(of.FileFormatError, match=rf"{name}.* {said}"):
        Backbone.open("torchvision:squeezenet1_1", "cpu")
    assert not marker.exists()


@pytest.mark.parametrize("value", [[1, 2], {"a": 3}, torch.ones(3)])
def test_tensors_that_are_no_state_dict(hub, monkeypatch, tmp_path, value):
    content = saved(value, tmp_path / "made")
    (hub / publish(monkeypatch, content)).write_bytes(content)
    with pytest.raises(of.FileFormatError, match="does not hold a state dict"):
        Backbone.open("torchvision:squeezenet1_1", "cpu")


def test_weights_of_another_network(hub, monkeypatch, tmp_path):
    content = saved({"a": torch.ones(3)}, tmp_path / "made")
    (hub / publish(monkeypatch, content)).write_bytes(content)
    with pytest.raises(of.FileFormatError, match="published weights of squeezenet1_1 do not fit it"):
        Backbone.open("torchvision:squeezenet1_1", "cpu")


def test_without_a_network_the_address_is_named(hub, monkeypatch):
    publish(monkeypatch, b"")
    with pytest.raises(of.StorageError, match=r"cannot download https://127\.0\.0\.1:1/weights-\w+\.pth: .*refused"):
        Backbone.open("torchvision:squeezenet1_1", "cpu")
    assert not list(hub.iterdir())


def test_weights_without_a_checksum_are_not_fetched(hub, monkeypatch):
    monkeypatch.setattr(SQUEEZENET.value, "url", "https://127.0.0.1:1/weights.pth")
    with pytest.raises(of.FileFormatError, match=r"a pickle without a checksum, .*NAME@WEIGHTS\.safetensors"):
        Backbone.open("torchvision:squeezenet1_1", "cpu")


@pytest.mark.parametrize("name", ["fcn_resnet50", "fasterrcnn_resnet50_fpn", "raft_large", "r3d_18"])
def test_networks_that_do_not_classify_images_are_never_built(hub, tmp_path, name):
    """Some of them would fetch and unpickle the weights of their backbone even without weights of their own."""
    marker = tmp_path / "ran"
    (hub / models.ResNet50_Weights.IMAGENET1K_V1.url.rpartition("/")[2]).write_bytes(pickle.dumps(Trap(marker)))
    state = {"fc.weight": torch.ones(2, 2)}
    for settings in ({"pretrained": True}, {"weights": state}):
        with pytest.raises(of.UnknownNameError, match=f"torchvision has no model '{name}'"):
            Backbone.named(f"torchvision:{name}", **settings)
    assert not marker.exists()


def test_every_classifier_of_torchvision_names_a_checksum():
    for name in models.list_models(module=models):
        assert pretrained.HASH_IN_NAME.search(models.get_model_weights(name).DEFAULT.url), name


# timm


def test_published_weights_arrive_in_timms_network(hugging_face):
    torch.manual_seed(3)
    original = timm.create_model("test_resnet").eval()
    state = original.state_dict()
    safetensors.torch.save_file(state, hugging_face / "snapshots" / ("0" * 40) / "model.safetensors")
    before = torch.get_rng_state()
    found = Backbone.open("timm:test_resnet", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.input.size, found.input.mean, found.name) == ((160, 160), (0.5, 0.5, 0.5), "test_resnet")
    assert all(torch.equal(value, state[name]) for name, value in found.network.state_dict().items())
    assert "state_dict" not in found.network.pretrained_cfg
    assert close(logits(found), logits(Backbone(original, preprocessing=original)))


def test_without_a_network_timm_is_told_once(hugging_face, monkeypatch):
    heard = []

    def download(*_, **__):
        heard.append(logging.getLogger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING))
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    level = logging.getLogger("huggingface_hub").level
    with pytest.raises(of.StorageError, match=r"no network; or give a file: timm:test_resnet@FILE\.safetensors$"):
        Backbone.open("timm:test_resnet", "cpu")
    assert heard == [False]
    assert logging.getLogger("huggingface_hub").level == level


def test_of_timm_a_pickle_in_the_cache_is_never_read(hugging_face, tmp_path):
    marker = tmp_path / "ran"
    folder = hugging_face / "snapshots" / ("0" * 40)
    torch.save({"fc.weight": Trap(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(of.StorageError, match=r"timm/test_resnet\.r160_in1k/model\.safetensors cannot be downloaded"):
        Backbone.open("timm:test_resnet", "cpu")
    absent = hugging_face / ".no_exist" / ("0" * 40) / "model.safetensors"  # as the hub's library notes it
    absent.parent.mkdir(parents=True)
    absent.touch()
    with pytest.raises(of.FileFormatError, match=r"only as a pickle.*timm:NAME@WEIGHTS\.safetensors"):
        Backbone.open("timm:test_resnet", "cpu")
    shutil.copy(folder / "pytorch_model.bin", folder / "model.safetensors")
    with pytest.raises(of.FileFormatError, match="safetensors"):
        Backbone.open("timm:test_resnet", "cpu")
    assert not marker.exists()


def test_weights_of_timm_that_exist_as_a_pickle_alone_need_their_checksum(hub, monkeypatch, tmp_path):
    marker = tmp_path / "ran"
    torch.manual_seed(3)
    original = timm.create_model("test_resnet").eval()
    config = timm.get_pretrained_cfg("test_resnet")
    for state, said in ((original.state_dict(), None), ({"fc.weight": Trap(marker)}, "holds more than tensors")):
        content = saved(state, tmp_path / "made")
        url = f"https://127.0.0.1:1/weights-{hashlib.sha256(content).hexdigest()[:8]}.pth"
        only_there = type(config)(**{**config.to_dict(), "hf_hub_id": None, "url": url})
        monkeypatch.setattr(timm, "get_pretrained_cfg", lambda *_, found=only_there, **__: found)
        (hub / url.rpartition("/")[2]).write_bytes(content)
        if said is None:
            found = pretrained.timm_pretrained("test_resnet")
            assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())
        else:
            with pytest.raises(of.FileFormatError, match=said):
                pretrained.timm_pretrained("test_resnet")
    assert not marker.exists()


def test_a_network_of_which_timm_publishes_nothing():
    with pytest.raises(of.InputError, match=r"timm publishes no weights of botnet50ts_256; .*@WEIGHTS\.safetensors"):
        Backbone.open("timm:botnet50ts_256", "cpu")
