"""outfield doctor."""

from __future__ import annotations

import platform
import re
from collections import defaultdict

from outfield.cli.app import command, print_table, say
from outfield.version import __version__

# Extras that a user installs, and what for
USES = {
    "images": "networks of timm and torchvision, image files, training", "report": "figures and the HTML page",
    "tables": "CSV and Parquet", "serve": "outfield serve", "otel": "spans and metrics of outfield serve for OpenTelemetry",
    "onnx": "networks in ONNX files, outfield export",
    "hf": "networks of transformers", "faiss": "faster KNN on the CPU", "ray": "scoring and fitting on a cluster",
    "lsun": "the data set LSUN", "sklearn": "the adapter for scikit-learn", "pyod": "the adapter for pyod",
    "pytorch-ood": "the adapter for pytorch-ood", "mlflow": "export to MLflow",
}  # fmt: skip


@command("outfield doctor")
def doctor() -> None:
    """Print versions, the GPU, and which extras are installed or missing, and for what."""
    import torch

    from outfield.report import Table

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that PyTorch can use"
    say(f"Outfield {__version__}, Python {platform.python_version()} on {platform.platform()}")
    say(f"PyTorch {torch.__version__} with {torch.get_num_threads()} threads; GPU: {gpu}\n")
    rows = []
    for extra, names in libraries().items():
        missing = [name for name, version in names.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in names.items() if version is not None)
        state = "installed" if not missing else f"missing {', '.join(missing)}: pip install 'outfield[{extra}]'"
        rows.append([extra, USES[extra], state if missing else f"{state}: {found}"])
    print_table(Table("extras", ["extra", "for", "state"], rows, left=3))


def libraries() -> dict[str, dict[str, str | None]]:
    """The libraries of each extra with the version that is installed, or None, as the package's own metadata names them."""
    from importlib import metadata  # not above: every command would wait for it

    from outfield.benchmark import version_of

    found: dict[str, dict[str, str | None]] = defaultdict(dict)
    for line in metadata.requires("outfield") or ():
        name, extra = re.match(r"[\w-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name is not None and extra is not None and extra[1] in USES and name[0] != "outfield":
            found[extra[1]][name[0]] = version_of(name[0])
    return {extra: found[extra] for extra in USES if extra in found}
