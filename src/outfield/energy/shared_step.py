"""A training step of which each of several processes takes its rows; see :mod:`outfield.energy.shares`."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.energy.chains import Sampler, follow
from outfield.energy.eager import EagerStep
from outfield.energy.network import CorrectedEnergy
from outfield.energy.projection import Projection
from outfield.energy.settings import Training
from outfield.energy.shares import Share, SharedRandom
from outfield.energy.starts import Memoryless, Start


class SharedStep(EagerStep):
    """:class:`EagerStep` of which this process follows the chains, and takes the gradient, of its own rows.

    With sums over its rows i and B rows in all, L = Σ_i [E(z_i) − E(z'_i) + α (E(z_i)² + E(z'_i)²)] / B, and the gradients of all
    processes add up to that of the whole batch.
    """

    def __init__(
        self,
        model: CorrectedEnergy,
        training: Training,
        sampler: Sampler,
        project: Projection,
        start: Start,
        generator: torch.Generator,
        share: Share,
    ) -> None:
        super().__init__(model, training, sampler, project, start, generator)
        self.share = share

    def _run(self, real: Tensor) -> Tensor:
        rows, mine = len(real), self.share.rows(len(real))
        begin = self.start.begin(real, self.generator)
        random = SharedRandom(self.generator, self.sampler.steps, rows, mine)
        negatives = follow(self.model, begin[mine], self.sampler, self.project, self.generator, random).ends
        if not isinstance(self.start, Memoryless):
            self.start.end(self.share.joined(negatives, rows))
        noise = torch.randn(2, *real.shape, generator=self.generator, device=real.device, dtype=real.dtype)[:, mine]
        noisy = torch.stack([real[mine], negatives]) + self.training.input_noise * noise
        energies = self.model.residual(noisy.flatten(0, 1)).view(2, -1)
        loss = (energies[0].sum() - energies[1].sum()) / rows
        if self.training.l2:
            loss = loss + self.training.l2 * energies.square().sum() / rows
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._add_up_gradients()
        self.optimiser.step()
        found = energies.detach()
        sums = torch.cat([loss.detach()[None], found.sum(1) / rows, found.abs().sum(1) / rows])
        self.share.add_up(sums)
        return sums[None]

    def _add_up_gradients(self) -> None:
        """All of them in one message."""
        parameters = [p for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in parameters])
        self.share.add_up(flat)
        for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad.copy_(grad.view_as(p))
