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


def full_products() -> bool:
    """Whether float32 matrix products are taken in full; not where someone allowed TF32 or bfloat16 for them.

    Allowing that is a switch of the whole process. A result that must not depend on it is computed in float64 instead, to
    which no switch applies.
    """
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set by torch.backends' newer fp32_precision, which forbids the older question
        return False
