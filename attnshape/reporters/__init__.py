"""Output formats for traces, reports and comparisons: one file a format, listed in the registry. Needs no torch."""
