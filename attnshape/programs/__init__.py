"""Watches a program as it runs: which attention it constructs and calls, and with what."""
