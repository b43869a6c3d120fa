"""Finds the attention in a run: products, softmax, queries, keys, values and weights, and measures them."""
