"""The method: an energy network that corrects a mixture of Gaussians, trained with Markov chains."""

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
