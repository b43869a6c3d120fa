"""Loops whose number of iterations depends on a size are found, folded into one iteration, and counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.inference.loops import _counts, _Loop, _matched, _nodes
from tests.tracing.traced_source import names, trace

# a list is the body of a loop; all steps are distinct, so that only iterations repeat
shapes = st.recursive(st.just("step"), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=8)
counts = st.lists(st.integers(2, 4), min_size=20, max_size=20)


def unrolled(shape, iterations, path=()):
    """Return the keys of the steps of nested loops."""
    if shape == "step":
        return [(path,)]
    body = [key for place, inner in enumerate(shape) for key in unrolled(inner, iterations, (*path, place))]
    return body * iterations[len(path) + sum(path)]


def replayed(nodes, found):
    """Return the keys of the nodes with the matched iterations."""
    loops = iter(found)
    keys = []
    for node in nodes:
        if isinstance(node, _Loop):
            for inner in next(loops).inner:
                keys += replayed(node.body, inner)
        else:
            keys.append(node)
    return keys


@settings(max_examples=200, deadline=None)
@given(shape=shapes, first=counts, second=counts)
def test_nested_loops_are_folded_and_matched_back(shape, first, second):
    first_keys, second_keys = unrolled([shape, "step"], first), unrolled([shape, "step"], second)
    nodes = list(_nodes(first_keys))
    for keys in (first_keys, second_keys):
        found = _matched(nodes, keys)
        assert found is not None
        assert replayed(nodes, found) == keys


@given(iterations=st.integers(2, 30), inner=st.integers(2, 30))
def test_iterations_are_counted(iterations, inner):
    keys = [("a",), *[("b",), *[("c",)] * inner] * iterations, ("d",)]
    nodes = tuple(_nodes(keys))
    assert nodes == (("a",), _Loop((("b",), _Loop((("c",),)))), ("d",))
    found = _matched(nodes, keys)
    assert set(_counts(found)) == {((1,), iterations), ((1, 1), inner)}
    assert _matched(nodes, keys[:-1]) is None
    assert _matched(nodes, [*keys, ("e",)]) is None


def loops(traced):
    return [(loop.first, loop.last, loop.count, loop.expression, loop.known) for loop in traced.loops]


def expressions(traced):
    return [step.expression for step in traced.steps]


def test_loop_over_heads(tmp_path):
    source = """
    def f(q, k):
        made = []
        for h in range(q.shape[1]):
            scores = q[:, h] @ k[:, h].mT
            weights = scores.softmax(-1)
            made.append(weights)
        out = torch.stack(made, 1)
        return out
    """
    traced = trace(tmp_path, source, "q: B H L Dk", "k: B H L Dk", H=6)
    assert loops(traced) == [(1, 5, 6, "H", "verified")]
    assert expressions(traced)[-1] == "torch.stack(made, 1)"
    assert names(traced)[-3:] == ["scores", "weights", "out"]
    assert traced.steps[-1].outputs[0].tensor.signature == "B H L L"
    # the results of all iterations refer to the folded one
    assert {reference.step for reference in traced.steps[-1].operands} == {5}


def test_comprehension_over_every_fourth_position(tmp_path):
    source = """
    def f(x):
        made = [x[:, start] * 2 for start in range(0, x.shape[1], 4)]
        return torch.stack(made, 1)
    """
    traced = trace(tmp_path, source, "x: B L D", L=14)
    assert loops(traced) == [(1, 2, 4, "-(-L//4)", "verified")]
    assert traced.steps[-1].outputs[0].tensor.signature == "B -(-L//4) D"


def test_nested_loops(tmp_path):
    source = """
    def f(x):
        total = x[0, 0] * 0
        for b in range(x.shape[0]):
            for h in range(x.shape[1]):
                total = total + x[b, h]
            total = total * 2
        return total
    """
    traced = trace(tmp_path, source, "x: B H L", B=3, H=5)
    assert sorted((loop.last - loop.first, loop.count, loop.expression) for loop in traced.loops) == [
        (1, 5, "H"),
        (2, 3, "B"),
    ]
    assert traced.outputs[0].of.step == len(traced.steps)


def test_constant_loop_next_to_a_varying_one(tmp_path):
    source = """
    def f(x):
        for _ in range(2):
            x = x + 1
        for position in range(x.shape[1]):
            x = x * position
        return x
    """
    traced = trace(tmp_path, source, "x: B L", L=7)
    assert [step.operation for step in traced.steps] == ["torch.Tensor.add", "torch.Tensor.add", "torch.Tensor.mul"]
    assert loops(traced) == [(3, 3, 7, "L", "verified")]


def test_loop_over_a_module_list(tmp_path):
    source = """
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 3)

        def forward(self, x):
            return self.proj(x).softmax(-1)


    class M(nn.Module):
        def __init__(self, H):
            super().__init__()
            self.heads = nn.ModuleList(Head() for _ in range(H))

        def forward(self, x):
            return torch.cat([head(x) for head in self.heads], -1)
    """
    traced = trace(tmp_path, source, "x: B L 4", target="M", init="H", H=5)
    assert loops(traced) == [(1, 2, 5, "H", "verified")]
    assert traced.steps[-1].outputs[0].tensor.signature == "B L 3*H"


CHUNKED = """
def f(q, k, w):
    outs = []
    for part in q.split(w.shape[0], dim=1):
        outs.append(part @ k.mT)
    scores = torch.cat(outs, 1)
    return scores
"""


@pytest.mark.parametrize(("length", "width"), [(12, 3), (10, 5), (10, 4), (7, 6)])
def test_split_into_a_variable_number_of_parts(length, width, tmp_path):
    traced = trace(tmp_path, CHUNKED, "q: B Lq Dk", "k: B Lk Dk", "w: W", Lq=length, W=width)
    count = -(-length // width)
    assert loops(traced) == [(2, 3, count, "-(-Lq//W)", "verified"), (1, 1, count, "-(-Lq//W)", "verified")]
    assert [len(step.outputs) for step in traced.steps] == [1, 1, 1, 1]
    part = traced.steps[0].outputs[0].tensor
    assert (part.signature, part.axes[1].where) == ("B W Dk", "W <= Lq")
    assert traced.steps[-1].outputs[0].tensor.signature == "B Lq Lk"
    assert [reference.step for reference in traced.steps[-1].operands] == [3] * count


def test_split_without_a_loop(tmp_path):
    source = "def f(x):\n    parts = x.unbind(1)\n    joined = torch.cat(parts, -1)\n    return joined, parts"
    traced = trace(tmp_path, source, "x: B H L", H=5)
    assert loops(traced) == [(1, 1, 5, "H", "verified")]
    assert [step.outputs[0].tensor.signature for step in traced.steps] == ["B L", "B H*L"]
    assert {(output.name, output.of.step, output.of.output) for output in traced.outputs} == {
        ("output[0]", 2, 0),
        *((f"output[1][{place}]", 1, 0) for place in range(5)),
    }


def test_split_into_a_constant_number_of_parts_is_not_folded(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    a, b, c = x.chunk(3, -1)\n    return a * b * c", "x: B D", D=12)
    assert not traced.loops
    assert len(traced.steps[0].outputs) == 3
