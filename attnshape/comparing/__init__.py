"""Compares two traces step by step: what is compared of each, which steps belong together, and what differs."""
