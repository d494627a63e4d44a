"""Densities that can be sampled: what a network corrects."""
