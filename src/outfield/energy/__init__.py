"""The method: an energy network that corrects a mixture of Gaussians, trained with Markov chains.

Where to look:

- a Langevin step, MALA, HMC: :mod:`~outfield.energy.samplers`; how chains are run and where they begin:
  :mod:`~outfield.energy.chains`; where points may live: :mod:`~outfield.energy.projection`.
- the energy and its networks: :mod:`~outfield.energy.network`.
- the mixture's density, its fit and its samples: :mod:`~outfield.energy.priors.mixture`; the statistics it is fitted from, in one
  pass over any number of rows: :mod:`~outfield.energy.priors.moments`.
- the loss and its L2 term: :mod:`~outfield.energy.training.step`; settings: :mod:`~outfield.energy.training`; epochs, divergence,
  averaged weights: :mod:`~outfield.energy.training.loop`; rows on disk: :mod:`~outfield.energy.training.batches`; checkpoints:
  :mod:`~outfield.energy.training.checkpoints`.
- the same step much faster, also as GPU kernels: :mod:`~outfield.energy.engine`.
- threads that keep to one core: :mod:`~outfield.energy.threads`.
"""

from outfield.doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "chains": ("Energy", "Sampler", "run_chains"),
        "network": ("CorrectedEnergy", "MLP", "Network", "SineMLP", "build_network"),
        "priors": ("Prior",),
        "priors.mixture": ("MixturePrior",),
        "priors.moments": ("ClassStatistics", "piece_rows", "workers_for"),
        "projection": ("PROJECTIONS", "identity", "normalise"),
        "samplers": ("HamiltonianMonteCarlo", "Langevin", "MetropolisLangevin"),
        "threads": ("limited_worker", "on_one_core", "one_core"),
        "training": ("History", "Training"),
        "training.batches": ("Rows", "projection_for", "rows_of"),
        "training.checkpoints": ("Checkpoint",),
        "training.loop": ("train", "train_seeds"),
        "training.step": ("part",),
    },
)
