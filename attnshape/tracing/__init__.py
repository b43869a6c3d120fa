"""From something to run to the raw facts of its run: what was called, where, on which tensors, with what result."""
