"""Small runs of a target in which inputs, parameters and results can be changed, and every result is kept."""
