"""Checks for mistakes in attention code that no shape reveals."""
