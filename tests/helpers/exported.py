"""Files of torch.export as tests need them: of small networks, and with members or steps that nobody should write."""

from __future__ import annotations

import json
import zipfile

import torch
from tests.helpers.networks import NORMALISED
from torch import nn

from outfield.backbone.backbone import Backbone

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Net(nn.Module):
    """A classifier that can be traced for any number of images; ``ends`` is what it gives."""

    def __init__(self, ends=lambda net, z: net.fc(z)):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.relu, self.shift, self.ends = nn.ReLU(inplace=True), torch.linspace(0, 1, 8)[:, None, None], ends

    def forward(self, images):
        return self.ends(self, self.relu(self.norm(self.conv(images)) + self.shift).mean((2, 3)))


def exported(network, path, rows=None, size=16, examples=None):
    examples = examples or (torch.rand(rows or 2, 3, size, size),)
    free = None if rows else tuple({0: torch.export.Dim("N", min=1, max=2**30)} for _ in examples)
    torch.export.save(torch.export.export(network, examples, dynamic_shapes=free), path)
    return path


def opened(path, **more):
    return Backbone.open(str(path), device="cpu", **{**NORMALISED, **more})


def changed(path, to, members=(), leave_out=(), compression=zipfile.ZIP_STORED, rename=None):
    """A copy of an archive with other members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", compression) as new:
        root = next(name for name in old.namelist() if name.endswith("archive_format")).partition("/")[0]
        for name in old.namelist():
            inner = name.partition("/")[2]
            if inner not in leave_out:
                new.writestr(name, dict(members).get(inner, old.read(name)))
        for inner in dict(members).keys() - {name.partition("/")[2] for name in old.namelist()}:
            new.writestr(f"{root}/{inner}", dict(members)[inner])
    return to


def program_of(path):
    with zipfile.ZipFile(path) as members:
        return json.loads(members.read(next(name for name in members.namelist() if name.endswith(MODEL))))


def config_of(path):
    with zipfile.ZipFile(path) as members:
        return json.loads(members.read(next(name for name in members.namelist() if name.endswith(WEIGHTS))))


def with_program(path, to, change):
    program = program_of(path)
    change(program["graph_module"])
    return changed(path, to, {MODEL: json.dumps(program)})


def value(kind, name, content):
    return {"name": name, "arg": {kind: content}, "kind": 1}


def made(name):
    return [{"as_tensor": {"name": name}}]


def taken(name, content):
    return value("as_tensor", name, {"name": content})


def step(target, inputs, outputs):
    return {
        "target": target if target.startswith("_operator.") else f"torch.ops.aten.{target}",
        "inputs": inputs,
        "outputs": outputs,
    }


def number(name):
    return [{"as_sym_int": {"as_name": name}}]
