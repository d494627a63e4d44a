"""Studies that ship with the package: the demo and the paper's toy data."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(__name__, {"demo": ("run_demo",), "toy": ("ToyModel", "ToyRun", "run_toys")})
