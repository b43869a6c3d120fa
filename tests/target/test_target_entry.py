"""An entry of pyproject.toml: which flags its keys stand for, and what is said of one that can't be."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.errors import AttnshapeError
from attnshape.target.entry import KEYS, Entry, entry_of

TARGET = 'target = "m.py:A"\n'


def entry(toml: str) -> Entry:
    return entry_of("ours", tomllib.loads(TARGET + toml))


@pytest.mark.parametrize(
    ("toml", "flags"),
    [
        ('init = "D, H"', {"init": ["D, H"]}),
        ('inputs = ["q: B L D", "k: B L D"]', {"input": ["q: B L D", "k: B L D"]}),
        ('input = "q: B L D"', {"input": ["q: B L D"]}),
        ('inputs = { q = "B L D", ids = "int[V] B L" }', {"input": ["q: B L D", "ids: int[V] B L"]}),
        ('with = { scale = "H**-0.5", n = 2, flag = false }', {"with": ["scale=H**-0.5", "n=2", "flag=False"]}),
        ('claims = { causal = true, alibi = false, mask = "keep", window = 4 }', {
            "claim": ["causal", "mask=keep", "window=4"]
        }),
        ('claims = ["causal", "scale=0.5"]', {"claim": ["causal", "scale=0.5"]}),
        ('claim = "causal"', {"claim": ["causal"]}),
        ('expect = { scores = "B H L L" }', {"expect": ["scores: B H L L"]}),
        ("mask-value = -inf\nseed = 7\nheads = 4", {"mask-value": ["-inf"], "seed": ["7"], "heads": ["4"]}),
        ("causal = true\npadding = false", {"causal": ["true"], "padding": []}),
        ('dim = { T = 4, C = "2*T" }', {"dim": ["T=4", "C=2*T"]}),
    ],
)  # fmt: skip
def test_keys_are_flags(toml: str, flags: dict[str, list[str]]) -> None:
    assert entry(toml).flags == {"target": ["m.py:A"], **flags}


@pytest.mark.parametrize(
    ("toml", "sets"),
    [
        ("", ()),
        ("sizes = { B = 2 }", ({"B": 2},)),
        ("sizes = [{ B = 2, L = 10 }, { B = 1, L = 1 }]", ({"B": 2, "L": 10}, {"B": 1, "L": 1})),
        ('sizes = [{ L = "2*W+1", W = "3" }]', ({"L": 7, "W": 3},)),
        ('sizes = [{ L = "2*H" }]\nheads = 4', ({"L": 8},)),
        ('sizes = [{ T = 8, B = "T//2" }]\ndim = { T = 4 }', ({"B": 4, "T": 8},)),
        ('sizes = [{ B = "3*T" }]\ndim = ["T=5"]', ({"B": 15},)),
        ("[[sizes]]\nL = 1\nB = 3\n[[sizes]]\nL = 2", ({"B": 3, "L": 1}, {"L": 2})),
    ],
)
def test_sets_of_sizes(toml: str, sets: tuple[dict[str, int], ...]) -> None:
    found = entry(toml).sizes
    assert found == sets
    # in canonical order, whatever order they are written in
    assert [list(one) for one in found] == [list(one) for one in sets]


@pytest.mark.parametrize(
    ("toml", "key", "message", "hint"),
    [
        ("inits = 3", "inits", "isn't one that a target has", "did you mean init?"),
        ("kv_heads = 3", "kv_heads", "isn't one that a target has", "did you mean kv-heads?"),
        ('input = "x: B"\ninputs = ["x: B"]', "inputs", "is given twice, as input and as inputs", "keep one"),
        ('claims = ["causal"]\nclaim = []', "claim", "is given twice, as claim and as claims", "keep one"),
        ("inputs = []", "inputs", "is an empty list", '["x: B L D"]'),
        ("inputs = [3]", "inputs", "has a number, expected a text", '["x: B L D"]'),
        ("inputs = 1979-05-27", "inputs", "has a date, expected a text", '["x: B L D"]'),
        ("inputs = { x = [1] }", "inputs.x", "is a list, expected a text", '["x: B L D"]'),
        ("expect = { scores = true }", "expect.scores", "is true or false, expected a text", "scores: B H L L"),
        ("with = { x = 1979-05-27 }", "with.x", "is a date", "Dk**-0.5"),
        ("claims = 3", "claims", "has a number", '["causal"]'),
        ('causal = "yes"', "causal", "is a text, expected true or false", "causal = true"),
        ("init = []", "init", "is a list, expected a text or a number", '"D, H"'),
        ("length = true", "length", "is true or false, expected a text or a number", "length = 4"),
        ("heads = { a = 3 }", "heads", "is a table, expected a text or a number", "heads = 4"),
        (f"heads = 0x{'f' * 6000}", "heads", "is far too large", "smaller"),
        ("sizes = 3", "sizes", "isn't a table of sizes, or a list of such tables", "sizes = [{ B = 2, L = 10 }"),
        ("sizes = [3]", "sizes", "isn't a table of sizes, or a list of such tables", "sizes = [{ B = 2, L = 10 }"),
        ("sizes = []", "sizes", "is an empty list", "leave it out"),
        ("sizes = {}", "sizes", "has no sizes", "list some"),
        ("sizes = [{ B = 2 }, {}]", "sizes", "has in its set 2 no sizes", "list some"),
        ("sizes = [{ B = 2 }, { B = 2 }]", "sizes", "has the set B=2 twice", "once"),
        ('sizes = [{ B = 2 }, { B = "1+1" }]', "sizes", "has the set B=2 twice", "once"),
        ("sizes = { b = 2 }", "sizes", "'b', which isn't a size symbol", "did you mean B?"),
        ("sizes = { Q = 2 }\ndim = { T = 2 }", "sizes", "'Q', which isn't a size symbol", "dim = { T = 4 }"),
        ("sizes = { batch = 2 }", "sizes", "'batch', which isn't a letter", "write B"),
        ("sizes = { B = 2 }\nbatch = 3", "sizes", "B, which the key batch of the same target gives too", "keep one"),
        ("sizes = { B = 0 }", "sizes", "B = 0, expected a whole number from 1 up", "B = 4"),
        ("sizes = { B = -3 }", "sizes", "B = -3, expected", "B = 4"),
        ("sizes = { B = 1.5 }", "sizes", "B = 1.5, expected a whole number or an expression", "B = 4"),
        ("sizes = { B = true }", "sizes", "B = True, expected a whole number or an expression", "B = 4"),
        ("sizes = { B = [1] }", "sizes", "B = [1], expected a whole number or an expression", "B = 4"),
        ("sizes = { B = nan }", "sizes", "B = nan, expected", "B = 4"),
        (f"sizes = {{ B = {'9' * 4000} }}", "sizes", "B = a far larger number, expected", "B = 4"),
        (f"sizes = {{ B = 0x{'f' * 6000} }}", "sizes", "B = a far larger number, expected", "B = 4"),
        ('sizes = { B = "two" }', "sizes", "B = 'two', and two has no number there", "two = 4"),
        ('sizes = { B = "" }', "sizes", "B = '': '' isn't an axis expression", "H*Dk"),
        ('sizes = { B = "L+" }', "sizes", "B = 'L+': 'L+' isn't an axis expression", "H*Dk"),
        ('sizes = { B = "L//0", L = 2 }', "sizes", "L//0 divides by zero", "other sizes"),
        ('sizes = { B = "L-2", L = 2 }', "sizes", "B = 0, expected", "B = 4"),
        ('sizes = { B = "L" }', "sizes", "B = 'L', and L has no number there", "L = 4"),
        ('sizes = { B = "L", L = "B" }', "sizes", "B = 'L', and L has no number there", "L = 4"),
        ('sizes = [{ B = 1 }, { B = "__import__(1)" }]', "sizes", "has in its set 2 B = '__import__(1)'", "H*Dk"),
    ],
)
def test_what_is_wrong_names_the_file_the_target_and_the_key(toml: str, key: str, message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as raised:
        entry(toml)
    assert raised.value.message.startswith(f"pyproject.toml: target 'ours': the key {key} ")
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
    assert len(raised.value.message) < 300


@pytest.mark.parametrize("value", ["", " ", 3, 0.5, True, [], {}, ["m.py:A"]])
def test_the_target_itself_is_a_text(value: object) -> None:
    with pytest.raises(AttnshapeError, match=r"the key target is (empty|missing|a |true)"):
        entry_of("ours", {"target": value})
    with pytest.raises(AttnshapeError, match="the key target is missing"):
        entry_of("ours", {})


@pytest.mark.parametrize(("name", "what"), [("", "is empty"), ("  ", "is empty"), ("a:b", "has a colon")])
def test_names_that_no_command_line_could_have(name: str, what: str) -> None:
    with pytest.raises(AttnshapeError, match=what):
        entry_of(name, {"target": "average"})


@pytest.mark.parametrize("value", [3, "average", ["average"], True, None])
def test_an_entry_is_a_table(value: object) -> None:
    with pytest.raises(AttnshapeError, match="expected a table"):
        entry_of("ours", value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.times()
VALUES = st.recursive(
    SCALARS | st.sampled_from(["2*L", "B", "x: B L", "T=3", "causal"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["B", "L", "T", "x", "b c", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(
    st.text(max_size=6),
    st.dictionaries(st.sampled_from([*KEYS, "input", "claim", "nosuch", ""]), VALUES, max_size=4),
    st.booleans(),
)
def test_anything_is_an_entry_of_texts_or_an_error_with_a_way_out(
    name: str, value: dict[str, Any], whole: bool
) -> None:
    try:
        found = entry_of(name, {"target": "average", **value} if whole else value)
    except AttnshapeError as error:
        assert error.message.startswith("pyproject.toml: ")
        assert repr(name) in error.message
        assert error.hint
        return
    assert found.target.strip()
    assert all(type(text) is str for texts in found.flags.values() for text in texts)
    assert all(type(size) is int and size >= 1 for one in found.sizes for size in one.values())
