"""Targets in pyproject.toml: the options of their keys, and errors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.errors import AttnshapeError
from attnshape.options.pyproject import KEYS, ProjectTarget, declared_target, decode_target
from attnshape.options.spec import TargetSpec

TARGET = 'target = "m.py:A"\n'


def decode(toml: str) -> ProjectTarget:
    return decode_target("ours", tomllib.loads(TARGET + toml))


@pytest.mark.parametrize(
    ("toml", "fields"),
    [
        ('init = "D, H"', {"init": "D, H"}),
        ('inputs = ["q: B L D", "k: B L D"]', {"inputs": {"q": "B L D", "k": "B L D"}}),
        ('input = "q: B L D"', {"inputs": {"q": "B L D"}}),
        ('inputs = { q = "B L D", ids = "int[2*H] B L" }', {"inputs": {"q": "B L D", "ids": "int[2*H] B L"}}),
        ('with = { scale = "H**-0.5", n = 2, flag = false }', {
            "arguments": {"scale": "H**-0.5", "n": "2", "flag": "False"}
        }),
        ('with = ["scale=H**-0.5"]', {"arguments": {"scale": "H**-0.5"}}),
        ('claims = { causal = true, alibi = false, mask = "keep", window = 4 }', {
            "claims": ("causal", "mask=keep", "window=4")
        }),
        ('claims = ["causal", "scale=0.5"]', {"claims": ("causal", "scale=0.5")}),
        ('claim = "causal"', {"claims": ("causal",)}),
        ('expect = { scores = "B H L L" }', {"expect": (("scores", "B H L L"),)}),
        ('mask-value = -inf\nheads = 4\nd-head = "8"', {
            "options": {"mask_value": float("-inf")}, "sizes": {"H": 4, "Dk": 8}
        }),
        ("causal = true\npadding = false\nno-bias = true", {"options": {"causal": True, "bias": False}}),
        ('dim = { T = 4, C = "2*T" }', {"sizes": {"T": 4, "C": "2*T"}}),
        ('dim = ["T=4", "C=2*T"]', {"sizes": {"T": 4, "C": "2*T"}}),
    ],
)  # fmt: skip
def test_keys_are_options(toml: str, fields: dict[str, Any]) -> None:
    assert decode(toml).spec() == TargetSpec("m.py:A", **fields)


def test_run_options_have_only_given_keys() -> None:
    assert decode("").run() == {}
    toml = 'seed = 7\ndevice = "meta"\ndtype = "float64"\ntrain = true\ngrad = false'
    assert decode(toml).run() == {"seed": 7, "device": "meta", "dtype": "float64", "train": True}


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
    found = decode(toml).sets()
    assert found == sets
    # always in canonical order
    assert [list(one) for one in found] == [list(sizes) for sizes in sets]


@pytest.mark.parametrize(
    ("toml", "key", "message", "hint"),
    [
        ("inits = 3", "inits", "isn't one that a target has", "did you mean init?"),
        ("kv_heads = 3", "kv_heads", "isn't one that a target has", "did you mean kv-heads?"),
        ('input = "x: B"\ninputs = ["x: B"]', "input", "is given twice, as input and as inputs", "keep one"),
        ('claims = ["causal"]\nclaim = []', "claim", "is given twice, as claim and as claims", "keep one"),
        ("inputs = []", "inputs", "is an empty list", '["x: B L D"]'),
        ("inputs = [3]", "inputs", "has an integer, expected strings", '["x: B L D"]'),
        ("inputs = 1979-05-27", "inputs", "is a date, expected strings", '["x: B L D"]'),
        ("inputs = { x = [1] }", "inputs", "has an array, expected strings", '["x: B L D"]'),
        ("expect = { scores = true }", "expect", "has true or false, expected strings", "scores: B H L L"),
        ("with = { x = 1979-05-27 }", "with", "has a date", "Dk**-0.5"),
        ("claims = 3", "claims", "is an integer", '["causal"]'),
        ('causal = "yes"', "causal", "is a string, expected true or false", "causal = true"),
        ("init = []", "init", "is an array, expected a string", '"D, H"'),
        ("length = true", "length", "is true or false, expected a whole number", "length = 4"),
        ("heads = { a = 3 }", "heads", "is a table, expected a whole number", "heads = 4"),
        (f"heads = 0x{'f' * 6000}", "heads", "is far too large, expected a whole number", "heads = 4"),
        (
            "sizes = 3",
            "sizes",
            "is an integer, expected a table of sizes, or a list of such tables",
            "sizes = [{ B = 2, L = 10 }",
        ),
        (
            "sizes = [3]",
            "sizes",
            "has an integer, expected a table of sizes, or a list of such tables",
            "sizes = [{ B = 2, L = 10 }",
        ),
        ("sizes = []", "sizes", "is an empty list", "leave it out"),
        ("sizes = {}", "sizes", "no sizes", "list some"),
        ("sizes = [{ B = 2 }, {}]", "sizes", "set 2: no sizes", "list some"),
        ("sizes = [{ B = 2 }, { B = 2 }]", "sizes", "has the set B=2 twice", "once"),
        ('sizes = [{ B = 2 }, { B = "1+1" }]', "sizes", "has the set B=2 twice", "once"),
        ("sizes = { b = 2 }", "sizes", "'b', which isn't a size symbol", "did you mean B?"),
        ("sizes = { Q = 2 }\ndim = { T = 2 }", "sizes", "'Q', which isn't a size symbol", "dim = { T = 4 }"),
        ("sizes = { batch = 2 }", "sizes", "'batch', which isn't a size symbol", "write B"),
        ("sizes = { B = 2 }\nbatch = 3", "sizes", "B, which the key batch of the same target gives too", "keep one"),
        ("sizes = { B = 0 }", "sizes", "B is 0, expected at least 1", "B = 4"),
        ("sizes = { B = -3 }", "sizes", "B is -3, expected", "B = 4"),
        ("sizes = { B = 1.5 }", "sizes", "has a float, expected", "B = 2"),
        ("sizes = { B = true }", "sizes", "has true or false, expected", "B = 2"),
        ("sizes = { B = [1] }", "sizes", "has an array, expected", "B = 2"),
        ("sizes = { B = nan }", "sizes", "has a float, expected", "B = 2"),
        (f"sizes = {{ B = {'9' * 4000} }}", "sizes", "B is a far too large number, more than", "smaller"),
        (f"sizes = {{ B = 0x{'f' * 6000} }}", "sizes", "B is a far too large number, more than", "smaller"),
        ('sizes = { B = "two" }', "sizes", 'B = "two", and two has no number there', "two = 4"),
        ('sizes = { B = "" }', "sizes", "'' isn't a size", "H*Dk"),
        ('sizes = { B = "L+" }', "sizes", "'L+' isn't a size", "H*Dk"),
        ('sizes = { B = "L//0", L = 2 }', "sizes", "L//0 divides by zero", "other sizes"),
        ('sizes = { B = "L-2", L = 2 }', "sizes", "B is 0, expected", "B = 4"),
        ('sizes = { B = "L" }', "sizes", 'B = "L", and L has no number there', "L = 4"),
        ('sizes = { B = "L", L = "B" }', "sizes", 'B = "L", and L has no number there', "L = 4"),
        ('sizes = [{ B = 1 }, { B = "__import__(1)" }]', "sizes", "set 2: B: '__import__(1)'", "H*Dk"),
    ],
)
def test_errors_name_the_file_the_target_and_the_key(toml: str, key: str, message: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as raised:
        decode(toml)
    assert raised.value.message.startswith(f"pyproject.toml: target 'ours': the key {key}")
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
    assert len(raised.value.message) < 300


@pytest.mark.parametrize(
    ("toml", "option"),
    [
        ('inputs = ["ids: int B Dx"]', 'inputs = { ids = "int B Dx" }'),
        ('expect = { output = "B 2*Dx" }', 'expect = { output = "B 2*Dx" }'),
        ('claims = ["scale=1/sqrt(Dx)"]', 'claims = ["scale=1/sqrt(Dx)"]'),
        ("claims = { window = 'Dx' }", 'claims = ["window=Dx"]'),
        ('dim = { C = "B*Dx" }', 'dim = { C = "B*Dx" }'),
    ],
)
def test_unknown_symbol_is_refused_unless_its_size_is_typed(toml: str, option: str) -> None:
    with pytest.raises(AttnshapeError) as raised:
        decode(toml)
    assert raised.value.message == f"pyproject.toml: target 'ours': {option}: Dx isn't a size symbol"
    assert raised.value.hint == "did you mean Dk or Dv? (or define your own: dim = { Dx = 4 })"
    assert decode_target("ours", tomllib.loads(TARGET + toml), ["Dx"])


@pytest.mark.parametrize("value", ["", " ", 3, 0.5, True, [], {}, ["m.py:A"]])
def test_target_must_be_a_string(value: object) -> None:
    with pytest.raises(AttnshapeError, match=r"the key target is (empty|missing|an? |true)"):
        decode_target("ours", {"target": value})
    with pytest.raises(AttnshapeError, match="the key target is missing"):
        decode_target("ours", {})


@pytest.mark.parametrize(("name", "what"), [("", "is empty"), ("  ", "is empty"), ("a:b", "has a colon")])
def test_invalid_target_names(name: str, what: str) -> None:
    with pytest.raises(AttnshapeError, match=what):
        decode_target(name, {"target": "average"})


@pytest.mark.parametrize("value", [3, "average", ["average"], True, None])
def test_entry_must_be_a_table(value: object) -> None:
    with pytest.raises(AttnshapeError, match="expected a table"):
        decode_target("ours", value)


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
def test_any_entry_is_decoded_or_refused_with_a_hint(name: str, value: dict[str, Any], whole: bool) -> None:
    try:
        found = decode_target(name, {"target": "average", **value} if whole else value)
    except AttnshapeError as error:
        assert error.message.startswith("pyproject.toml: ")
        assert repr(name) in error.message
        assert error.hint
        return
    spec = found.spec()
    assert spec.target.strip()
    assert all(type(text) is str for texts in (spec.inputs, spec.arguments) for text in texts.values())
    assert all(type(text) is str for pair in spec.expect for text in pair)
    assert all(type(size) is int and size >= 1 for sizes in found.sets() for size in sizes.values())


@pytest.mark.parametrize(
    ("defaults", "own", "sets", "run"),
    [
        ('batch = 3\nseed = 7\ndtype = "float64"', "", [{"B": 3}], {"seed": 7, "dtype": "float64"}),
        ("batch = 3\nseed = 7", "batch = 4\nseed = 8", [{"B": 4}], {"seed": 8}),
        ("train = true", "train = false", [{}], {}),
        ("length = 9\nbatch = 3", "sizes = [{ L = 2 }, { L = 1 }]", [{"B": 3, "L": 2}, {"B": 3, "L": 1}], {}),
        ("sizes = [{ L = 2, B = 5 }, { L = 1, B = 5 }]", "length = 9", [{"B": 5, "L": 9}], {}),
        ("sizes = [{ L = 2 }, { L = 1 }]", "length = 9", [{"L": 9}], {}),
        ("sizes = { L = 2 }", "batch = 3", [{"B": 3, "L": 2}], {}),
        ('dim = { T = 4 }', "", [{"T": 4}], {}),
    ],
)  # fmt: skip
def test_defaults_are_for_what_a_target_lacks(
    defaults: str, own: str, sets: list[dict[str, int]], run: dict[str, Any]
) -> None:
    target = decode_target("ours", tomllib.loads(TARGET + own), (), tomllib.loads(defaults))
    assert [dict(spec.sizes) for _, spec in target.over(TargetSpec())] == sets
    assert target.run() == run


def test_claims_are_shared() -> None:
    defaults = tomllib.loads('claims = ["causal"]')
    assert decode_target("ours", tomllib.loads(TARGET), (), defaults).spec().claims == ("causal",)
    assert decode_target("ours", tomllib.loads(TARGET + "claim = 'window=2'"), (), defaults).spec().claims == (
        "window=2",
    )


def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, target: str) -> ProjectTarget | None:
    (tmp_path / "pyproject.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    return declared_target(TargetSpec(target))


def test_defaults_hold_for_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = "[tool.attnshape.defaults]\nseed = 3\n"
    for own in ("model.py:A", "package.model:A", "./model:A"):
        target = declared(tmp_path, monkeypatch, toml, own)
        assert target is not None
        assert (target.target, target.run()) == (own, {"seed": 3})
    for other in ("", "multi-head", "average:self_attention"):
        assert declared(tmp_path, monkeypatch, toml, other) is None
    assert declared(tmp_path, monkeypatch, "", "model.py:A") is None


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("nosuch = 1", "the defaults: the key nosuch isn't one"),
        ('init = "D"', "the defaults: the key init is of one target"),
        ("causal = true", "the defaults: the key causal is of one target"),
        ("batch = 0", "the defaults: the key batch is 0"),
        ('claims = ["nosuch"]', "the defaults: the key claims 'nosuch' isn't a claim"),
        ("claim = 'causal'\nclaims = 'causal'", "the key claim is given twice"),
    ],
)
def test_mistakes_in_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, message: str) -> None:
    with pytest.raises(AttnshapeError, match=message) as caught:
        declared(tmp_path, monkeypatch, f"[tool.attnshape.defaults]\n{toml}", "model.py:A")
    assert caught.value.hint
