"""Explains attention code step by step: from a trace and what was observed in runs of the code to an `Explanation`."""
