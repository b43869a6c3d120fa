"""Typed options: what to run and how, from the command line, from Python and from pyproject.toml."""
