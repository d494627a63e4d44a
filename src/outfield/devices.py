"""Where to compute."""

from __future__ import annotations

import torch

from outfield.errors import InputError


def resolve_device(device: str | torch.device) -> torch.device:
    """A device by its name; "auto" is a GPU where there is one, else the CPU.

    Raises:
        InputError: it cannot be used here.
    """
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!s} cannot be used here ({str(error).splitlines()[0]})") from error
    return torch.device(device)
