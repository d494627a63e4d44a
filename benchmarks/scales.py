"""How large the two parts of the corrected energy are, on the features that ship with the demo.

    python benchmarks/scales.py

For each set: mean and standard deviation of the mixture's term E_G / T_G and of the residual E_θ; and, over pairs of test
images, how often the corrected energy orders them otherwise than the mixture alone does.
"""

from __future__ import annotations

import torch

from outfield.detectors import EnergyCorrected
from outfield.features import normalise
from outfield.percent import percent
from outfield.studies.demo import SETS, pack_detector, pack_sets

PAIRS = 1_000_000


def main() -> None:
    detector = pack_detector("EnergyCorrected")
    assert isinstance(detector, EnergyCorrected)
    model, sets = detector.model_, pack_sets()
    print("| set | E_G / T_G | E_θ |\n|---|---|---|")
    for name in SETS[1:]:
        z = normalise(sets[name].features.float())
        with torch.no_grad():
            mixture, residual = detector.prior_.energy(z) / detector.prior_temperature, model.residual(z)
        print(f"| {name} | {mixture.mean():.3f} ± {mixture.std():.3f} | {residual.mean():.4f} ± {residual.std():.4f} |")
        if name == "test":
            changed = otherwise(mixture, mixture + residual)
    print(f"\n{percent(changed)} of pairs of test images change places")


def otherwise(one: torch.Tensor, other: torch.Tensor) -> float:
    """Share of random pairs that two scores (N,) put in opposite orders."""
    first, second = torch.randint(len(one), (2, PAIRS), generator=torch.Generator().manual_seed(0))
    return float(((one[first] - one[second]) * (other[first] - other[second]) < 0).float().mean())


if __name__ == "__main__":
    main()
