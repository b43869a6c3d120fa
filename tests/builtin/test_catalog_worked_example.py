"""A published worked example, number by number."""

import json
import sys
from pathlib import Path

import pytest
import torch

from attnshape.targets.builtin.registry import load

EXAMPLE = json.loads((Path(__file__).parent / "worked_example.json").read_text())
ROUNDED = 5.1e-5
ROUNDED_TWICE = 1.01e-4


def tensor(rows):
    return torch.tensor([[float("-inf") if x is None else x for x in row] for row in rows], dtype=torch.float64)


def run_and_keep_locals(target, function, *args):
    """Return the target's result and the local variables of the named function at its return."""
    local_variables = {}

    def profile(frame, event, _):
        if event == "return" and frame.f_code.co_name == function and "mechanisms" in frame.f_code.co_filename:
            local_variables.update(frame.f_locals)

    sys.setprofile(profile)
    try:
        result = target(*args)
    finally:
        sys.setprofile(None)
    return result, local_variables


def assert_figures(actual, rows, tolerance=ROUNDED):
    expected = tensor(rows)
    assert torch.equal(actual.isinf(), expected.isinf())
    finite = ~expected.isinf()
    assert (actual[finite] - expected[finite]).abs().max() <= tolerance


@pytest.mark.parametrize("case", ["unbatched", "batched"])
def test_dot_product_matches_the_example(case):
    X = tensor(EXAMPLE["X"])
    figures = EXAMPLE["dot-product"]
    sizes = (3, 5) if case == "unbatched" else (1, 3, 5)
    target, _, kwargs = load("dot-product")[case](*sizes)
    output, local_variables = run_and_keep_locals(lambda x: target(x, **kwargs), "dot_product", X.reshape(sizes))
    computed = {
        "S = X X^T": local_variables["scores"],
        "W = softmax(S, keys)": local_variables["weights"],
        "Y = W X": output,
    }
    assert computed.keys() == figures.keys()
    for name, rows in figures.items():
        assert_figures(computed[name].reshape(3, -1), rows)


@pytest.mark.parametrize("case", ["unbatched", "batched"])
def test_causal_single_head_matches_the_example(case):
    X = tensor(EXAMPLE["X"])
    figures = EXAMPLE["single-head, causal"]
    V = tensor(figures["V (given)"])
    sizes = (3, 5) if case == "unbatched" else (1, 3, 5)
    head, _ = load("single-head")[case](*sizes, 4, causal=True, bias=False)
    head.double()
    with torch.no_grad():
        head.W_K.weight.copy_(tensor(EXAMPLE["W_K"]).T)
        head.W_Q.weight.copy_(tensor(EXAMPLE["W_Q"]).T)
        # The example gives its values, not their matrix: three rows of X are independent, so one reproduces them.
        head.W_V.weight.copy_((torch.linalg.pinv(X) @ V).T)
    output, local_variables = run_and_keep_locals(head, "forward", X.reshape(sizes))
    computed = {
        "K = X W_K": local_variables["key"],
        "Q = X W_Q": local_variables["query"],
        "S = Q K^T": local_variables["scores"],
        "S / sqrt(4)": local_variables["scaled"],
        "masked, scaled": local_variables["logits"],
        "W = softmax(masked, scaled)": local_variables["weights"],
        "V (given)": local_variables["value"],
        "R = W V": output,
    }
    assert computed.keys() == figures.keys()
    for name, rows in figures.items():
        # R was computed from the unrounded V, which isn't published.
        assert_figures(computed[name].reshape(3, -1), rows, ROUNDED_TWICE if name == "R = W V" else ROUNDED)
