"""Size symbols, axis expressions, tensor specs, and how sizes follow from one another. Imports no torch."""
