"""Checks signatures by jaxtyping: the source's own, the inferred ones, and those that the user expects."""
