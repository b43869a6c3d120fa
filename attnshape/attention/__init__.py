"""Where in a run the attention is: products, softmax, queries, keys, values, weights, and what was measured of them."""
