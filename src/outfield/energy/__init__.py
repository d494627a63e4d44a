"""The method: an energy network that corrects a mixture of Gaussians, trained with Markov chains.

- :mod:`~outfield.energy.network`: the energy and its networks; :mod:`~outfield.energy.priors`: the mixture that it corrects, and
  the statistics that the mixture is fitted from.
- :mod:`~outfield.energy.chains`: how chains are run and move, where they begin and where points may live.
- :mod:`~outfield.energy.training_step`: settings of training, its loss and one plain step;
  :mod:`~outfield.energy.engine`: the same step, faster; :mod:`~outfield.energy.loop`: epochs and checkpoints;
  :mod:`~outfield.energy.batches`: rows in memory or on disk.
"""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "batches": ("Rows", "projection_for", "rows_of"),
        "chains": (
            "Energy", "HamiltonianMonteCarlo", "Langevin", "MetropolisLangevin", "PROJECTIONS", "Sampler", "identity",
            "run_chains",
        ),
        "loop": ("Checkpoint", "train", "train_seeds"),
        "network": ("CorrectedEnergy", "MLP", "Network", "SineMLP", "build_network"),
        "priors": ("ClassStatistics", "MixturePrior", "Prior", "piece_rows", "workers_for"),
        "training_step": ("History", "Training"),
    },
)  # fmt: skip
