"""From what the user typed to something that can be built at any sizes and run."""
