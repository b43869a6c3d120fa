"""What the variables of the traced functions hold: their arguments, what each assignment binds, and their results."""
