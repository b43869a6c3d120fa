"""What the user wrote for an axis of an input is what the trace shows for it: a number, a symbol or an expression."""

import pytest

from tests.tracing.traced_source import trace

FIXED = """
class Model(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        b, n, d = x.shape
        assert b == 2 and d == 16 and self.heads == 2
        split = x.view(b, n, self.heads, -1)
        return split.transpose(1, 2)
"""


def signatures(traced):
    return [named.tensor.signature for step in traced.steps for named in step.outputs]


@pytest.mark.parametrize(
    ("written", "split"),
    [
        ("2 n d", "2 n 2 8"),
        ("2 n 16", "2 n 2 8"),
        ("batch n d", "2 n 2 8"),
        ("heads n d", "heads n heads 8"),
        ("batch n heads*8", "2 n 2 8"),
    ],
)
def test_sizes_that_are_not_varied(written, split, tmp_path):
    dims = ("batch=2", "n=6", "d=16", "heads=2")
    traced = trace(tmp_path, FIXED, f"x: {written}", target="Model", init="heads", dims=dims)
    (x,) = traced.inputs
    assert x.tensor.signature == written
    assert [axis.known for axis in x.tensor.axes] == [
        "verified" if word == "n" else "matched" if word[0].isalpha() else "literal" for word in written.split()
    ]
    assert signatures(traced)[0] == split


def test_fixed_size_of_its_own_is_still_matched(tmp_path):
    dims = ("n=6", "d=16", "heads=2")
    source = FIXED.replace("b == 2 and ", "")
    traced = trace(tmp_path, source, "x: B n d", target="Model", init="heads", dims=dims)
    assert signatures(traced)[0] == "B n heads 8"


@pytest.mark.parametrize("written", ["B L H*Dk", "B L D", "B L 2*D//2", "B 2*Lp D", "L B D"])
def test_expressions_of_sizes_that_vary(written, tmp_path):
    traced = trace(tmp_path, "def f(x, y):\n    return x * 2", f"x: {written}", "y: H Dk", H=4, Dk=16)
    assert [named.tensor.signature for named in traced.inputs] == [written, "H Dk"]
    assert {axis.known for axis in traced.inputs[0].tensor.axes} == {"verified"}
    assert traced.held_out.sizes
    assert traced.inputs[0].tensor.held_out


@pytest.mark.parametrize("written", ["first", "second"])
def test_of_two_equal_sizes_the_written_one_is_shown(written, tmp_path):
    source = """
    class Model(nn.Module):
        def __init__(self, first, second):
            super().__init__()
            assert first == second
            self.project = nn.Linear(first, second)

        def forward(self, x):
            y = self.project(x)
            return x + y
    """
    dims = ("first=24", "second=24")
    traced = trace(tmp_path, source, f"x: B {written}", target="Model", init="first, second", dims=dims)
    assert {traced.inputs[0].tensor.signature, *signatures(traced)} == {f"B {written}"}
    assert traced.inputs[0].tensor.axes[1].known == "verified"
