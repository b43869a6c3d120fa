"""Runs source that isn't written yet, checked by jaxtyping and beartype, in a process of its own."""
