"""Observes what the variables of running functions hold, store by store, and infers what holds in all runs."""
