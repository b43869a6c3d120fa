"""Small runs of a target in which inputs, parameters and results can be replaced, and every result is kept."""
