"""Where to compute."""

from __future__ import annotations

import torch

from outfield.errors import InputError


def resolve_device(device: str | torch.device) -> torch.device:
    """A device by its name; "auto" is a GPU where there is one, else the CPU.

    Raises:
        InputError: There is no such device here, or it cannot do what detectors need: keep numbers, and compute in float64.
    """
    if not isinstance(device, str | torch.device):
        raise InputError(f'device is {device!r}; it must be a name, such as "cpu", "cuda" or "auto", or a torch.device')
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        if found.type == "cpu":
            return torch.device("cpu")  # an index has no meaning there
        if torch.ones(1, dtype=torch.float64, device=found).add(1).item() == 2:
            return found
        reason = "it does not keep numbers"
    except Exception as error:  # every kind of device has kinds of errors of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise InputError(
        f"device {str(device)!r} cannot be used here ({reason[:200]}); use cpu, auto, or cuda where there is a GPU"
    )
