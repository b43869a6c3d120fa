"""Loops that turn as often as a size says: found in the steps, folded into one turn, with their count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.inference.loops import _counts, _Loop, _matched, _nodes
from tests.tracing.traced_source import names, trace

# a loop of what hasn't been seen before, so that only its turns repeat; a list is a loop's body
shapes = st.recursive(st.just("step"), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=8)
counts = st.lists(st.integers(2, 4), min_size=20, max_size=20)


def unrolled(shape, turns, path=()):
    """Return the keys of the steps that a nest of loops makes."""
    if shape == "step":
        return [(path,)]
    body = [key for place, inner in enumerate(shape) for key in unrolled(inner, turns, (*path, place))]
    return body * turns[len(path) + sum(path)]


def replayed(nodes, found):
    """Return the keys that nodes make with the turns that were found."""
    loops = iter(found)
    made = []
    for node in nodes:
        if isinstance(node, _Loop):
            for inner in next(loops).inner:
                made += replayed(node.body, inner)
        else:
            made.append(node)
    return made


@settings(max_examples=200, deadline=None)
@given(shape=shapes, first=counts, second=counts)
def test_nests_of_loops_are_folded_and_matched_back(shape, first, second):
    one, other = unrolled([shape, "step"], first), unrolled([shape, "step"], second)
    nodes = list(_nodes(one))
    for keys in (one, other):
        found = _matched(nodes, keys)
        assert found is not None
        assert replayed(nodes, found) == keys


@given(turns=st.integers(2, 30), inner=st.integers(2, 30))
def test_turns_are_counted(turns, inner):
    keys = [("a",), *[("b",), *[("c",)] * inner] * turns, ("d",)]
    nodes = tuple(_nodes(keys))
    assert nodes == (("a",), _Loop((("b",), _Loop((("c",),)))), ("d",))
    found = _matched(nodes, keys)
    assert set(_counts(found)) == {((1,), turns), ((1, 1), inner)}
    assert _matched(nodes, keys[:-1]) is None
    assert _matched(nodes, [*keys, ("e",)]) is None


def loops(made):
    return [(loop.first, loop.last, loop.count, loop.expression, loop.known) for loop in made.loops]


def expressions(made):
    return [step.expression for step in made.steps]


def test_a_loop_over_heads(tmp_path):
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
    made = trace(tmp_path, source, "q: B H L Dk", "k: B H L Dk", H=6)
    assert loops(made) == [(1, 5, 6, "H", "verified")]
    assert expressions(made)[-1] == "torch.stack(made, 1)"
    assert names(made)[-3:] == ["scores", "weights", "out"]
    assert made.steps[-1].outputs[0].tensor.signature == "B H L L"
    # every turn's result is the one turn's
    assert {reference.step for reference in made.steps[-1].operands} == {5}


def test_a_comprehension_over_every_fourth_position(tmp_path):
    source = """
    def f(x):
        made = [x[:, start] * 2 for start in range(0, x.shape[1], 4)]
        return torch.stack(made, 1)
    """
    made = trace(tmp_path, source, "x: B L D", L=14)
    assert loops(made) == [(1, 2, 4, "-(-L//4)", "verified")]
    assert made.steps[-1].outputs[0].tensor.signature == "B -(-L//4) D"


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
    made = trace(tmp_path, source, "x: B H L", B=3, H=5)
    assert sorted((loop.last - loop.first, loop.count, loop.expression) for loop in made.loops) == [
        (1, 5, "H"),
        (2, 3, "B"),
    ]
    assert made.outputs[0].of.step == len(made.steps)


def test_a_constant_loop_beside_a_varying_one(tmp_path):
    source = """
    def f(x):
        for _ in range(2):
            x = x + 1
        for position in range(x.shape[1]):
            x = x * position
        return x
    """
    made = trace(tmp_path, source, "x: B L", L=7)
    assert [step.operation for step in made.steps] == ["torch.Tensor.add", "torch.Tensor.add", "torch.Tensor.mul"]
    assert loops(made) == [(3, 3, 7, "L", "verified")]


def test_a_loop_within_a_module_list(tmp_path):
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
    made = trace(tmp_path, source, "x: B L 4", target="M", init="H", H=5)
    assert loops(made) == [(1, 2, 5, "H", "verified")]
    assert made.steps[-1].outputs[0].tensor.signature == "B L 3*H"


CHUNKED = """
def f(q, k, w):
    outs = []
    for part in q.split(w.shape[0], dim=1):
        outs.append(part @ k.mT)
    scores = torch.cat(outs, 1)
    return scores
"""


@pytest.mark.parametrize(("length", "width"), [(12, 3), (10, 5), (10, 4), (7, 6)])
def test_a_split_into_as_many_parts_as_the_sizes_say(length, width, tmp_path):
    made = trace(tmp_path, CHUNKED, "q: B Lq Dk", "k: B Lk Dk", "w: W", Lq=length, W=width)
    turns = -(-length // width)
    assert loops(made) == [(2, 3, turns, "-(-Lq//W)", "verified"), (1, 1, turns, "-(-Lq//W)", "verified")]
    assert [len(step.outputs) for step in made.steps] == [1, 1, 1, 1]
    part = made.steps[0].outputs[0].tensor
    assert (part.signature, part.axes[1].where) == ("B W Dk", "W <= Lq")
    assert made.steps[-1].outputs[0].tensor.signature == "B Lq Lk"
    assert [reference.step for reference in made.steps[-1].operands] == [3] * turns


def test_a_split_alone(tmp_path):
    source = "def f(x):\n    parts = x.unbind(1)\n    joined = torch.cat(parts, -1)\n    return joined, parts"
    made = trace(tmp_path, source, "x: B H L", H=5)
    assert loops(made) == [(1, 1, 5, "H", "verified")]
    assert [step.outputs[0].tensor.signature for step in made.steps] == ["B L", "B H*L"]
    assert {(output.name, output.of.step, output.of.output) for output in made.outputs} == {
        ("output[0]", 2, 0),
        *((f"output[1][{place}]", 1, 0) for place in range(5)),
    }


def test_a_split_into_as_many_parts_as_the_code_says_is_shown_whole(tmp_path):
    made = trace(tmp_path, "def f(x):\n    a, b, c = x.chunk(3, -1)\n    return a * b * c", "x: B D", D=12)
    assert not made.loops
    assert len(made.steps[0].outputs) == 3
