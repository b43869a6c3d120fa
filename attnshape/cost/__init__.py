"""The peak memory of a run: estimated from small runs, and compared with what is free."""
