"""Writes what a trace knows into source, by its syntax tree, and keeps every other byte. Imports no torch."""
