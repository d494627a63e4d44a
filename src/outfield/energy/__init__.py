"""Densities up to a constant: priors, networks that correct them, chains that follow them, and their training."""
