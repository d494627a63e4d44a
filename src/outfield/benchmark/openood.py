"""What OpenOOD publishes for its CIFAR protocols: AUROC on near and far OOD, as data.

The figures are those of OpenOOD 1.5's leaderboard for methods that need no training of their own, in percent, to one digit.
They come from another network than ours (a ResNet-18 that OpenOOD trained) and from OpenOOD's own selection of images of
every set, and the settings of many methods were chosen on OOD validation data. No FPR95 is taken over, because OpenOOD's is
the share of ID samples that is rejected. Rows go by the names of our detectors: its EBO is our ``EnergyLogits``, its MLS our
``MaxLogit``.
"""

from __future__ import annotations

from outfield.benchmark.paper import Printed, PrintedTable

REFERENCE = "OpenOOD 1.5's leaderboard, ResNet-18"
NOTE = (
    "OpenOOD's figures are of another network, a ResNet-18, and of its own selection of images of each set; the settings of "
    "many of its methods were chosen on OOD validation data. It prints AUROC; its FPR95 is another quantity."
)


def _table(text: str) -> PrintedTable:
    """Lines of ``detector | near | far``."""
    rows = [line.split("|") for line in text.strip().splitlines()]
    return {
        name.strip(): {"near": Printed(None, float(near)), "far": Printed(None, float(far))} for name, near, far in rows
    }


ROWS: dict[str, PrintedTable] = {
    "openood-cifar10": _table(
        """
        MSP          | 88.0 | 90.7
        TempScale    | 88.1 | 91.0
        OpenMax      | 87.6 | 89.6
        EnergyLogits | 87.6 | 91.2
        MaxLogit     | 87.5 | 91.1
        GEN          | 88.2 | 91.4
        KLMatching   | 79.2 | 82.7
        KNN          | 90.6 | 93.0
        RMDS         | 89.8 | 92.2
        ViM          | 88.7 | 93.5
        fDBD         | 90.4 | 93.2
        NCI          | 88.9 | 91.3
        Relation     | 89.8 | 92.2
        SHE          | 81.5 | 85.3
        ReAct        | 87.1 | 90.4
        SCALE        | 82.6 | 86.4
        DICE         | 78.3 | 84.2
        GradNorm     | 54.9 | 57.6
        """
    ),
    "openood-cifar100": _table(
        """
        TempScale    | 80.9 | 78.7
        OpenMax      | 76.4 | 79.5
        MaxLogit     | 81.1 | 79.7
        GEN          | 81.3 | 79.7
        KLMatching   | 76.6 | 76.2
        KNN          | 80.2 | 82.4
        RMDS         | 80.2 | 82.9
        ViM          | 75.0 | 81.7
        fDBD         | 81.3 | 79.9
        NCI          | 81.0 | 81.3
        Relation     | 80.7 | 80.8
        SHE          | 79.0 | 76.9
        ReAct        | 80.8 | 80.4
        SCALE        | 81.0 | 81.4
        DICE         | 79.4 | 80.0
        """
    ),
}
"""By protocol: AUROC on near and on far OOD."""
