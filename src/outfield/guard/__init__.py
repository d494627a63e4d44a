"""A network, its preprocessing, a fitted detector and a threshold in one object and one file: image in, verdict out."""
