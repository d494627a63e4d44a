"""How far the engine and the eager step drift apart over an epoch, beside two eager runs whose weights differ by rounding.

    python benchmarks/agreement.py

10,000 × 512 rows, the paper's network and settings (the EBM with 20 steps). Printed is the largest difference of an energy from
the eager float32 run's, relative to that energy, after some batches. "nudged" is an eager run whose first weights were multiplied
by 1 + 2e-7 ξ: what rounding alone does.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import outfield as of
from measure import D, features
from outfield.energy import CorrectedEnergy, Langevin, MixturePrior, train
from outfield.energy.chains import relu_sphere

ROWS, LOOKS = 10_000, (1, 6, 21, 39)


def energies(
    detector: of.EBM | of.EnergyCorrected, engine: str, precision: str, nudge: float
) -> dict[int, torch.Tensor]:
    """Energies of the first 2,000 rows after some of the batches."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    z, labels = features(ROWS, 10, device=device)
    prior = MixturePrior().fit(z, labels) if isinstance(detector, of.EnergyCorrected) else None
    model = CorrectedEnergy(of.MLP().build(D, 0), detector.temperature, prior, 500.0).to(device)
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1 + nudge * torch.randn(parameter.shape, generator=generator, device=device))
    found: dict[int, torch.Tensor] = {}

    def look(done: int, *_: object) -> None:
        if done in LOOKS:
            with torch.no_grad():
                found[done] = model(z[:2000])

    training = replace(detector.training, epochs=1, engine=engine, precision=precision)
    sampler = replace(detector.sampler, steps=20) if isinstance(detector.sampler, Langevin) else detector.sampler
    train(model, z, training, sampler, relu_sphere, 0, progress=look)
    return found


def main() -> None:
    for detector in (of.EnergyCorrected(), of.EBM()):
        exact = energies(detector, "eager", "float32", 0.0)
        for name, engine, precision, nudge in (
            ("eager, nudged", "eager", "float32", 2e-7),
            ("engine, float32", "fused", "float32", 0.0),
            ("engine, tf32", "fused", "tf32", 0.0),
            ("engine, bfloat16", "fused", "bfloat16", 0.0),
        ):
            other = energies(detector, engine, precision, nudge)
            apart = {n: float(((other[n] - exact[n]).abs() / exact[n].abs()).max()) for n in LOOKS}
            shown = "  ".join(f"{value:.0e} after {n}" for n, value in apart.items())
            print(f"{type(detector).__name__:<16} {name:<17} {shown}", flush=True)


if __name__ == "__main__":
    main()
