"""From the raw facts of several runs to expressions: what each axis and stride is, and how that is known."""
