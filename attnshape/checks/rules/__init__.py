"""The rules: one folder for each kind of mistake, with the check and a page for each of its codes."""
