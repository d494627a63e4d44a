"""Libraries that only a part of Outfield needs, imported when that part is used.

The core needs PyTorch, numpy and safetensors alone. Everything else comes with an extra of the package, and the one error
where it is missing says which::

    pip install 'outfield[images]'
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from outfield.errors import MissingExtraError


def library(name: str, extra: str) -> ModuleType:
    """A module of a library that is installed with an extra of Outfield.

    Args:
        name: The full name of the module, such as "PIL.Image".
        extra: The extra that installs it, such as "images".

    Raises:
        MissingExtraError: The library is not installed, or its installation is broken.

    >>> library("json", extra="none").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root
        raise _missing(root, extra, "is not installed" if missing else f"cannot be imported ({error})") from error


def check_installed(extra: str, *names: str) -> None:
    """Find out before long work, without importing them, whether the libraries of an extra are there.

    Raises:
        MissingExtraError: One of them is not installed.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise _missing(name, extra, "is not installed")


def _missing(name: str, extra: str, reason: str) -> MissingExtraError:
    return MissingExtraError(f"this needs {name}, which {reason}: pip install 'outfield[{extra}]'")
