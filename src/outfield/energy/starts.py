"""Where the chains of a training step begin.

A start is called with the real batch (N, D) and a generator and gives N points. ``"prior"`` draws from the prior (the
paper's correction), ``"normal"`` from N(0, I) (the paper's EBM), ``"uniform"`` from the unit cube, ``"data"`` is contrastive
divergence, ``"mixed"`` begins between real rows, ``"replay"`` goes on from where earlier chains ended (persistent contrastive
divergence).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from outfield.energy.priors.prior import Prior
from outfield.errors import InputError, UnknownNameError


class Start(Protocol):
    """Starting points of chains, and what it keeps between steps."""

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        """Starting points (N, D) for a batch of real rows (N, D)."""
        ...

    def end(self, ends: Tensor) -> None:
        """Told where the chains that it began ended."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What must survive a restart."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None: ...


class Memoryless:
    """Base of the starts that keep nothing."""

    def end(self, ends: Tensor) -> None:
        pass

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


class FromPrior(Memoryless):
    """z₀ ~ q."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        return self.prior.sample(len(real), generator).to(real.dtype)


class FromNormal(Memoryless):
    """z₀ ~ N(0, I)."""

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(real.shape, generator=generator, device=real.device, dtype=real.dtype)


class FromUniform(Memoryless):
    """z₀ uniform in the unit cube, which chains that live on the sphere see as its non-negative part."""

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        return torch.rand(real.shape, generator=generator, device=real.device, dtype=real.dtype)


class FromData(Memoryless):
    """z₀ = the real batch (Hinton 2002)."""

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        return real


class FromMixed(Memoryless):
    """z₀ = the mean of a real row and the next one of its batch, which is shuffled: between two classes, mostly.

    Samples of a prior betray themselves by more than being far from the data (``docs/correction.md``); these have the zeros
    and the coordinates of real rows.
    """

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        return (real + real.roll(1, 0)) / 2


class FromReplay:
    """Ends of earlier chains, a share of them replaced by fresh starts (Tieleman 2008).

    Args:
        fresh: Where new chains begin.
        size: How many chain ends are kept, at least one batch.
        fresh_share: Probability that a chain begins anew.
    """

    def __init__(self, fresh: Start, size: int, fresh_share: float) -> None:
        self.fresh = fresh
        self.size = size
        self.fresh_share = fresh_share
        self._buffer: Tensor | None = None
        self._chosen: Tensor | None = None

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        n, device = len(real), real.device
        new = self.fresh.begin(real, generator)
        if self._buffer is None:
            self._buffer = new[torch.arange(max(self.size, n), device=device) % n]
        self._chosen = torch.randperm(len(self._buffer), generator=generator, device=device)[:n]
        renew = torch.rand(n, generator=generator, device=device, dtype=torch.float32) < self.fresh_share
        return torch.where(renew[:, None], new, self._buffer[self._chosen])

    def end(self, ends: Tensor) -> None:
        if self._buffer is not None and self._chosen is not None:
            self._buffer[self._chosen] = ends

    def state(self) -> dict[str, Tensor]:
        return {} if self._buffer is None else {"buffer": self._buffer}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._buffer = state.get("buffer")


STARTS = ("auto", "prior", "normal", "uniform", "data", "mixed", "replay")


def make_start(name: str, prior: Prior | None, replay_size: int, replay_fresh: float) -> Start:
    """The start of that name; "auto", and new chains of "replay", are the prior where there is one, else N(0, I)."""
    if name == "auto":
        name = "normal" if prior is None else "prior"
    if name == "replay":
        return FromReplay(make_start("auto", prior, 0, 0.0), replay_size, replay_fresh)
    if name == "prior" and prior is not None:
        return FromPrior(prior)
    if name == "normal":
        return FromNormal()
    if name == "uniform":
        return FromUniform()
    if name == "data":
        return FromData()
    if name == "mixed":
        return FromMixed()
    if name == "prior":
        raise InputError(
            "start is 'prior' but there is no prior here; it must be auto, normal, uniform, data, mixed or replay"
        )
    raise UnknownNameError(f"start is {name!r}; it must be one of {', '.join(STARTS)}")
