"""Runs a target and records its calls: what was called, where, on which tensors, and with what result."""
