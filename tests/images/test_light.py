"""Without the libraries for images: everything imports, arrays and networks of one's own work, the rest names the extra."""

import subprocess
import sys
import textwrap

PROGRAM = """
import importlib
import sys

class Refuse:
    heavy = ("PIL", "torchvision", "timm", "scipy", "lmdb", "huggingface_hub", "sklearn", "matplotlib", "pyarrow")

    def find_spec(self, name, *_):
        if name.partition(".")[0] in self.heavy:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
folder = sys.argv[1]
for room in ("images", "backbone", "classifier"):
    module = importlib.import_module(f"outfield.{room}")
    for name in module.__all__:
        getattr(module, name)

import numpy as np
from torch import nn
import outfield as of

network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
images = of.ImageArray(np.zeros((3, 8, 8, 3), np.uint8))
found = of.Backbone(network, size=8, mean=(0.5,) * 3, std=(0.5,) * 3).extract(images)
print(found.shapes["features"], "torch._dynamo" in sys.modules)
for use in (
    lambda: of.open_images(folder)[0],
    lambda: of.open_images(folder).size,
    lambda: of.Backbone.open("timm:resnet18"),
    lambda: of.Backbone.open("torchvision:resnet18"),
    lambda: of.Classifier("resnet18").build(),
    lambda: of.find("lsun", "test", folder),
):
    try:
        use()
    except of.MissingExtraError as error:
        print(error)
"""


def test_what_works_without_the_libraries_for_images_and_what_names_the_extra(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "test_lmdb").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    features, *said = done.stdout.splitlines()
    assert features == "(3, 4) False"  # nor is PyTorch's compiler imported, which takes seconds
    libraries = ["PIL", "PIL", "timm", "torchvision", "timm", "lmdb"]
    assert said == [
        f"this needs {name}, which is not installed: pip install 'outfield[{'lsun' if name == 'lmdb' else 'images'}]'"
        for name in libraries
    ]
