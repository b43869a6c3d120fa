"""Compares two traces step by step: outlines, their alignment, their difference, and snapshots."""
