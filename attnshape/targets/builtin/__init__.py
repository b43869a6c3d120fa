"""The built-in attention mechanisms: one readable file each, in `mechanisms/`."""
