"""Finds attention in source code, without importing it."""
