"""The OpenOOD postprocessor, in that library's interface rebuilt here: loaders in dictionaries, nets that return features."""

import importlib
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import outfield as of
from outfield.adapters import openood


class Net(torch.nn.Module):
    """A network as OpenOOD calls one."""

    def __init__(self, with_layer=True):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = torch.nn.Linear(12, 6), torch.nn.Linear(6, 4)
        if with_layer:
            self.get_fc = lambda: (self.fc.weight.detach().numpy(), self.fc.bias.detach().numpy())

    def forward(self, x, return_feature=False):
        feature = torch.relu(self.body(x.flatten(1)))
        logits = self.fc(feature)
        return (logits, feature) if return_feature else logits


class Images(Dataset):
    def __init__(self, count, seed, scale=1.0):
        self.data = torch.randn(count, 3, 2, 2, generator=torch.Generator().manual_seed(seed)) * scale

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"data": self.data[index], "label": index % 4, "index": index}


def sets(net):
    found = []
    for data in (Images(80, 0), Images(20, 1)):
        logits, features = net(data.data, return_feature=True)
        weight, bias = net.fc.weight.detach(), net.fc.bias.detach()
        labels = torch.arange(len(data)) % 4
        found.append(
            of.FeatureSet(features.detach(), logits=logits.detach(), labels=labels, head_weight=weight, head_bias=bias)
        )
    return found


@pytest.mark.parametrize("name", ["SSD", "KDE", "MSP", "ViM", "fDBD", "NNGuide"])
def test_confidence_is_minus_our_score(name):
    net = Net().train()
    train, test = sets(net)
    model = openood.OutfieldPostprocessor(name)
    model.setup(net, {"train": DataLoader(Images(80, 0), batch_size=32)}, {"near": None})
    assert net.training
    pred, conf = model.postprocess(net, Images(20, 1).data)
    expected = of.DETECTORS[name]().fit(train).score(test)
    assert torch.equal(pred, test.logits.argmax(1))
    assert torch.allclose(conf, -expected, rtol=1e-4, atol=1e-5)


def test_a_network_without_get_fc():
    net, model = Net(with_layer=False), openood.OutfieldPostprocessor(of.ViM())
    model.setup(net, {"train": DataLoader(Images(80, 0), batch_size=32)})
    expected = of.ViM().fit(sets(net)[0]).score(sets(net)[1])
    assert torch.allclose(model.postprocess(net, Images(20, 1).data)[1], -expected, rtol=1e-2, atol=1e-2)


def test_inference_over_a_loader():
    net, model = Net(), openood.OutfieldPostprocessor()
    model.setup(net, {"train": DataLoader(Images(80, 0), batch_size=32)}, {})
    pred, conf, label = model.inference(net, DataLoader(Images(20, 1), batch_size=7), progress=False)
    assert np.array_equal(label, np.arange(20) % 4)
    assert np.array_equal(pred, net(Images(20, 1).data).argmax(1).numpy())
    assert np.allclose(conf, model.postprocess(net, Images(20, 1).data)[1].numpy(), rtol=1e-5)
    far = model.inference(net, DataLoader(Images(20, 2, scale=20.0), batch_size=20))[1]
    assert np.median(far) < np.median(conf)
    fitted = model.detector.fingerprint()
    model.setup(net, {"train": DataLoader(Images(10, 5), batch_size=10)}, {})
    assert model.detector.fingerprint() == fitted  # set up once, as OpenOOD's own


def test_nothing_is_searched_for_on_ood_data():
    model = openood.OutfieldPostprocessor(config="kept")
    assert not model.APS_mode
    assert model.hyperparam_search_done
    assert model.config == "kept"


def test_a_loader_of_training_data_is_needed():
    with pytest.raises(of.InputError, match="id_loader_dict has test; a loader named train"):
        openood.OutfieldPostprocessor().setup(Net(), {"test": []}, {})


def test_it_is_a_base_postprocessor_where_openood_is_installed(monkeypatch):
    """OpenOOD's Evaluator refuses anything else."""

    class BasePostprocessor:
        def __init__(self, config):
            self.config = config

        def setup(self, net, id_loader_dict, ood_loader_dict):
            pass

    for name in ("openood", "openood.postprocessors", "openood.postprocessors.base_postprocessor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["openood.postprocessors.base_postprocessor"].BasePostprocessor = BasePostprocessor
    monkeypatch.delitem(sys.modules, "outfield.adapters.openood")
    again = importlib.import_module("outfield.adapters.openood")
    assert issubclass(again.OutfieldPostprocessor, BasePostprocessor)
    assert isinstance(again.OutfieldPostprocessor("KNN").detector, of.KNN)
    monkeypatch.undo()
