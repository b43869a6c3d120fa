"""Benchmarks of attnshape, as ratios against named baselines: `python -m benchmarks`."""
