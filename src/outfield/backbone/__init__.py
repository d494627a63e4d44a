"""A network as a function from images to a FeatureSet."""
