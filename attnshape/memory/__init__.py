"""How much memory a run holds at its peak: foretold from small runs, and compared with what is free."""
