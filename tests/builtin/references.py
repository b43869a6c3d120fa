"""What the comparisons of mechanisms with references share: cases in float64, and attention by plain loops."""

import math

import torch
from torch import nn

from attnshape.targets.builtin.registry import load

TOLERANCE = 1e-12


def in_float64(name, case, *sizes, **chosen):
    """Return the callable, its arguments and its keyword arguments, with all floating-point tensors in float64."""
    torch.manual_seed(0)
    target, args, *rest = load(name)[case](*sizes, **chosen)
    if isinstance(target, nn.Module):
        target.double().eval()
    double = {id(arg): arg.double() for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point()}
    return target, tuple(double.get(id(arg), arg) for arg in args), rest[0] if rest else {}


def is_visible(b, i, j, n_queries, n_keys, causal=False, padding=False):
    """Return whether query i of sequence b may attend to key j, by the masks' definitions."""
    return not (causal and j > i + n_keys - n_queries) and not (padding and j >= n_keys - (b + 1) % n_keys)


def weighted_mean(scores, values):
    """Return the mean of the values weighted by the softmax of one query's scores, by plain loops."""
    top = max(scores)
    terms = [math.exp(score - top) for score in scores]
    total = sum(terms)
    return [sum(t / total * row[e] for t, row in zip(terms, values, strict=True)) for e in range(len(values[0]))]


def by_loops(score, queries, keys, values, *, causal=False, padding=False, mask_value=-math.inf):
    """Attend for each sequence and query; the arguments are nested lists, each of batch × length × width."""
    contexts = []
    for b, (rows, columns, mixed) in enumerate(zip(queries, keys, values, strict=True)):
        visible = [
            [is_visible(b, i, j, len(rows), len(columns), causal, padding) for j in range(len(columns))]
            for i in range(len(rows))
        ]
        scores = [
            [score(q, k) if visible[i][j] else mask_value for j, k in enumerate(columns)] for i, q in enumerate(rows)
        ]
        contexts.append([weighted_mean(row, mixed) for row in scores])
    return torch.tensor(contexts, dtype=torch.float64)


def dot(q, k):
    return sum(x * y for x, y in zip(q, k, strict=True))


def assert_equal(actual, expected):
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= TOLERANCE
