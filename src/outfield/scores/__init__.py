"""Vectors of numbers: scores, the threshold that makes them decisions, and metrics that compare them."""
