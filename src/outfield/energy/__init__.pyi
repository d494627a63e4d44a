"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.energy.batches import Rows as Rows
from outfield.energy.batches import projection_for as projection_for
from outfield.energy.batches import rows_of as rows_of
from outfield.energy.chains import Energy as Energy
from outfield.energy.chains import HamiltonianMonteCarlo as HamiltonianMonteCarlo
from outfield.energy.chains import Langevin as Langevin
from outfield.energy.chains import MetropolisLangevin as MetropolisLangevin
from outfield.energy.chains import PROJECTIONS as PROJECTIONS
from outfield.energy.chains import Sampler as Sampler
from outfield.energy.chains import identity as identity
from outfield.energy.chains import run_chains as run_chains
from outfield.energy.loop import Checkpoint as Checkpoint
from outfield.energy.loop import train as train
from outfield.energy.loop import train_seeds as train_seeds
from outfield.energy.network import CorrectedEnergy as CorrectedEnergy
from outfield.energy.network import MLP as MLP
from outfield.energy.network import Network as Network
from outfield.energy.network import SineMLP as SineMLP
from outfield.energy.network import build_network as build_network
from outfield.energy.priors import ClassStatistics as ClassStatistics
from outfield.energy.priors import MixturePrior as MixturePrior
from outfield.energy.priors import Prior as Prior
from outfield.energy.priors import piece_rows as piece_rows
from outfield.energy.priors import workers_for as workers_for
from outfield.energy.training_step import History as History
from outfield.energy.training_step import Training as Training

__all__ = [
    "Checkpoint",
    "ClassStatistics",
    "CorrectedEnergy",
    "Energy",
    "HamiltonianMonteCarlo",
    "History",
    "Langevin",
    "MLP",
    "MetropolisLangevin",
    "MixturePrior",
    "Network",
    "PROJECTIONS",
    "Prior",
    "Rows",
    "Sampler",
    "SineMLP",
    "Training",
    "build_network",
    "identity",
    "piece_rows",
    "projection_for",
    "rows_of",
    "run_chains",
    "train",
    "train_seeds",
    "workers_for",
]
