"""An OpenOOD postprocessor around any detector of features and logits: higher = ID there, so its confidence is minus our score.

Where OpenOOD is installed, it is one of its ``BasePostprocessor``, as its ``Evaluator`` asks for; else it has the same methods::

    Evaluator(net, id_name="cifar10", postprocessor=OutfieldPostprocessor(of.SSD()))
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outfield.adapters.plain_rows import unfitted
from outfield.detectors import Detector
from outfield.errors import InputError
from outfield.features import FeatureSet


def _base() -> Any:
    try:
        return importlib.import_module("openood.postprocessors.base_postprocessor").BasePostprocessor
    except ImportError:  # not installed; its loops ask for the methods alone
        return object


class OutfieldPostprocessor(_base()):  # type: ignore[misc]
    """Any detector that needs features, logits, labels or the last layer, behind OpenOOD's interface.

    The network is called as OpenOOD's are, ``net(data, return_feature=True)`` → logits (B, K), features (B, D), and its last
    layer is taken from ``net.get_fc()`` where it has that.

    Args:
        detector: Such as ``of.SSD()``, or the name of one.
        config: OpenOOD's configuration, which is only kept.
    """

    APS_mode = False  # no hyper-parameters are chosen on OOD data
    hyperparam_search_done = True

    def __init__(self, detector: Detector | str = "SSD", config: Any = None) -> None:
        self.config = config
        self.detector = unfitted(detector)
        self.setup_flag = False

    def setup(self, net: nn.Module, id_loader_dict: Any, ood_loader_dict: Any = None) -> None:
        """Run the network over ``id_loader_dict["train"]`` once and fit the detector; OOD data is not looked at.

        Raises:
            InputError: There is no loader of training data, or the detector needs what OpenOOD's networks do not give.
        """
        if self.setup_flag:
            return
        if "train" not in id_loader_dict:
            raise InputError(f"id_loader_dict has {', '.join(id_loader_dict)}; a loader named train is needed")
        training = net.training
        net.eval()
        try:
            with torch.no_grad():
                parts = [(*_run(net, batch["data"]), batch["label"]) for batch in id_loader_dict["train"]]
        finally:
            net.train(training)
        logits, features, labels = (torch.cat([part[i].cpu() for part in parts]) for i in range(3))
        weight, bias = net.get_fc() if hasattr(net, "get_fc") else (None, None)  # type: ignore[operator]
        self.detector.fit(FeatureSet(features, logits=logits, labels=labels, head_weight=weight, head_bias=bias))
        self.setup_flag = True

    @torch.no_grad()
    def postprocess(self, net: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
        """The network's class (B,) and the confidence (B,) of each sample of a batch: minus its score."""
        logits, features = _run(net, data)
        scores = self.detector.score(FeatureSet(features.cpu(), logits=logits.cpu()))
        return logits.argmax(1), -scores.to(logits.device)

    def inference(
        self, net: nn.Module, data_loader: Any, progress: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Class, confidence and label (N,) of everything that a loader yields, on the network's own device."""
        found = [(*self.postprocess(net, batch["data"]), batch["label"]) for batch in data_loader]
        pred, conf, label = (torch.cat([part[i].cpu() for part in found]).numpy() for i in range(3))
        return pred.astype(int), conf, label.astype(int)


def _run(net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
    first = next(net.parameters(), None)
    logits, features = net(data if first is None else data.to(first.device), return_feature=True)
    return logits, features.flatten(1)
