"""The method: an energy network that corrects a mixture of Gaussians, trained with Markov chains.

- :mod:`~outfield.energy.network`: the energy and its networks; :mod:`~outfield.energy.priors`: the mixture that it corrects, and
  :mod:`~outfield.energy.moments`: the statistics that the mixture is fitted from.
- :mod:`~outfield.energy.chains`: how chains are run, where they begin and where points may live;
  :mod:`~outfield.energy.samplers`: Langevin, MALA, HMC.
- :mod:`~outfield.energy.step`: settings of training, its loss and one plain step; :mod:`~outfield.energy.engine`: the same step,
  faster; :mod:`~outfield.energy.loop`: epochs and checkpoints; :mod:`~outfield.energy.batches`: rows in memory or on disk.
"""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "batches": ("Rows", "projection_for", "rows_of"),
        "chains": ("Energy", "PROJECTIONS", "Sampler", "identity", "run_chains"),
        "loop": ("Checkpoint", "train", "train_seeds"),
        "moments": ("ClassStatistics", "piece_rows", "workers_for"),
        "network": ("CorrectedEnergy", "MLP", "Network", "SineMLP", "build_network"),
        "priors": ("MixturePrior", "Prior"),
        "samplers": ("HamiltonianMonteCarlo", "Langevin", "MetropolisLangevin"),
        "step": ("History", "Training"),
    },
)
