"""The sizes of a run: derived sizes and contradictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.dims.sizes import LARGEST, check_size, resolve
from attnshape.dims.symbols import ORDER, SYMBOLS, SYMBOLS_BY_NAME
from attnshape.errors import AttnshapeError
from attnshape.options.flags import flag_syntax
from attnshape.options.spec import parse_dims

SYMBOL_NAMES = [symbol.name for symbol in SYMBOLS]


def numbers(used, own=(), **given):
    return resolve(used, {**given, **parse_dims(own)}).numbers


@pytest.mark.parametrize(
    ("used", "given_", "expected"),
    [
        ("B L D", {}, {"B": 2, "L": 10, "D": 512}),
        ("B H L D", {}, {"B": 2, "H": 8, "L": 10, "D": 512, "Dk": 64}),
        ("H D", {"D": 40, "H": 5}, {"H": 5, "D": 40, "Dk": 8}),
        ("H Dk", {"Dk": 16, "H": 4}, {"H": 4, "D": 64, "Dk": 16}),
        ("H D Dk", {"Dk": 16, "H": 4}, {"H": 4, "D": 64, "Dk": 16}),
        ("H D Dk", {"D": 48, "H": 4}, {"H": 4, "D": 48, "Dk": 12}),
        ("H D Dk", {"D": 100, "H": 3, "Dk": 7}, {"H": 3, "D": 100, "Dk": 7}),
        ("Lq Lk", {}, {"Lq": 10, "Lk": 16}),
        ("Lp L", {"Lp": 3}, {"Lp": 3, "L": 10}),
        ("H Hkv", {}, {"H": 8, "Hkv": 4, "G": 2}),
        ("H Hkv", {"H": 6, "Hkv": 2}, {"H": 6, "Hkv": 2, "G": 3}),
        ("H G", {"H": 6, "G": 3}, {"H": 6, "Hkv": 2, "G": 3}),
        ("Hkv G", {"Hkv": 5, "G": 3}, {"H": 15, "Hkv": 5, "G": 3}),
        ("H Hkv G", {"H": 6, "Hkv": 2, "G": 3}, {"H": 6, "Hkv": 2, "G": 3}),
        ("Hkv", {"H": 7}, {"H": 7, "Hkv": 1, "G": 7}),
    ],
)
def test_derived_sizes(used, given_, expected):
    assert numbers(used.split(), **given_) == expected


def test_default_sizes_are_distinct():
    defaults = [symbol.default for symbol in SYMBOLS if symbol.default is not None and symbol.name not in {"L", "Lq"}]
    assert len(set(defaults)) == len(defaults)
    assert SYMBOLS_BY_NAME["L"].default == SYMBOLS_BY_NAME["Lq"].default == 10


@settings(max_examples=300, deadline=None)
@given(
    used=st.sets(st.sampled_from(SYMBOL_NAMES), min_size=1),
    given_=st.dictionaries(st.sampled_from(SYMBOL_NAMES), st.integers(1, 64), max_size=5),
    other=st.lists(st.integers(1, 30), min_size=len(SYMBOLS), max_size=len(SYMBOLS)),
)
def test_relations_hold_or_sizes_are_refused(used, given_, other):
    try:
        sizes = resolve(used, given_)
    except AttnshapeError as error:
        assert "contradict" in error.message
        assert error.hint
        return
    found = sizes.numbers
    assert used <= found.keys()
    assert all(found[name] == size for name, size in given_.items())
    assert all(size >= 1 for size in found.values())
    if {"H", "Hkv", "G"} <= found.keys():
        assert found["H"] == found["Hkv"] * found["G"]
    for name, record in sizes.records.items():
        assert record.origin == "given" if name in given_ else record.origin in {"default", "derived"}
    if "D" in sizes.follows:
        assert found["D"] == found["H"] * found["Dk"]
    assert list(found) == sorted(found, key=ORDER.__getitem__)
    # every size is independent, derived or a label
    assert {*sizes.independent, *sizes.follows, *sizes.labels} == set(found)
    assert sizes.at({name: found[name] for name in sizes.independent}) == found
    chosen = dict(zip(sizes.independent, other, strict=False))
    elsewhere = sizes.at(chosen)
    assert all(elsewhere[name] == size for name, size in chosen.items())
    for name, expression in sizes.follows.items():
        assert elsewhere[name] == eval(expression.text, {}, dict(elsewhere))


@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 400), heads=st.integers(1, 40))
def test_heads_divide_the_width_or_sizes_are_refused(width, heads):
    if width % heads:
        with pytest.raises(AttnshapeError, match="contradict"):
            numbers({"H", "D", "Dk"}, D=width, H=heads)
    else:
        assert numbers({"H", "D", "Dk"}, D=width, H=heads)["Dk"] * heads == width


@pytest.mark.parametrize(
    ("used", "given_", "words"),
    [
        ({"H", "Hkv"}, {"H": 8, "Hkv": 3}, "H/Hkv = 8/3 leaves 2"),
        ({"H", "Hkv", "G"}, {"H": 8, "G": 3}, "H/G = 8/3 leaves 2"),
        ({"H", "Hkv", "G"}, {"H": 8, "Hkv": 2, "G": 2}, "H = G*Hkv = 2*2 = 4, but H is 8"),
        ({"H", "D", "Dk"}, {"H": 7, "D": 200}, "D/H = 200/7 leaves 4"),
    ],
)
def test_contradictions_show_the_arithmetic(used, given_, words):
    with pytest.raises(AttnshapeError) as caught:
        resolve(used, given_)
    assert words in caught.value.message
    assert caught.value.hint


def test_unused_size_is_a_label():
    sizes = resolve({"B"}, {"B": 3, "L": 7})
    assert sizes.labels == {"L"}
    assert sizes.independent == ("B",)
    assert sizes.at({"B": 5}) == {"B": 5, "L": 7}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (["T=10", "nh=4", "hs=16", "C=nh*hs"], {"T": 10, "nh": 4, "hs": 16, "C": 64}),
        (["C=nh*hs", "nh=4", "hs=16"], {"nh": 4, "hs": 16, "C": 64}),
        (["T=Lp+L"], {"Lp": 6, "L": 10, "T": 16}),
        (["V=1000", "half=V//2", "quarter=half//2"], {"V": 1000, "half": 500, "quarter": 250}),
        (["T = 10"], {"T": 10}),
    ],
)
def test_custom_size_symbols(own, expected):
    found = numbers([], own)
    assert found == expected
    sizes = resolve([], parse_dims(own))
    assert set(sizes.follows) == {
        text.partition("=")[0] for text in own if any(c.isalpha() for c in text.partition("=")[2])
    }


def test_symbols_of_the_catalog_can_be_defined():
    assert resolve(["Dr", "Nh"], parse_dims(["Dr=4", "Nh=2*n", "n=3"])).numbers == {"Dr": 4, "Nh": 6, "n": 3}
    assert resolve(["Dr"], {"Dr": 5}).numbers == {"Dr": 5}


@pytest.mark.parametrize("text", ["T", "T=", "=3", "2T=3", "T-1=3", "a b=3"])
def test_invalid_dim_definition_is_refused(text):
    with pytest.raises(AttnshapeError, match="isn't NAME=EXPR"):
        parse_dims([text])


@pytest.mark.parametrize("symbol", [symbol.name for symbol in SYMBOLS if symbol.is_general])
def test_general_symbol_is_refused_with_its_flag(symbol):
    with pytest.raises(AttnshapeError) as caught:
        parse_dims([f"{symbol}=3"])
    assert caught.value.hint == f"give it as {symbol}=3"
    assert caught.value.written_in(flag_syntax).hint == f"give it as {SYMBOLS_BY_NAME[symbol].flag} 3"


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (["a=b", "b=a"], "needs"),
        (["a=a+1"], "needs a"),
        (["a=zz"], "zz"),
        (["a=0"], "expected at least 1"),
        (["a=3-5"], "expected at least 1"),
        (["a=3//0"], "divides by zero"),
    ],
)
def test_invalid_custom_symbols(own, words):
    with pytest.raises(AttnshapeError) as caught:
        resolve([], parse_dims(own))
    assert words in caught.value.message
    assert caught.value.hint


def test_unknown_symbol():
    with pytest.raises(AttnshapeError, match="T isn't a size symbol") as caught:
        resolve({"T"}, {})
    assert "T=4" in caught.value.hint


@pytest.mark.parametrize("size", ["", "4", "x", 1.5, 2e3, None, True, [4]])
def test_non_integer_sizes_are_refused(size):
    with pytest.raises(AttnshapeError, match="expected a whole number") as caught:
        check_size("B", size)
    assert caught.value.hint == "for example B=4"


@pytest.mark.parametrize("size", [0, -1, -(10**30), -(16**4000)], ids=("0", "-1", "large", "huge"))
def test_sizes_below_one_are_refused(size):
    with pytest.raises(AttnshapeError, match="expected at least 1"):
        check_size("B", size)


@pytest.mark.parametrize("size", [LARGEST + 1, 10**30, 16**4000], ids=("next", "large", "huge"))
def test_too_large_sizes_are_refused(size):
    with pytest.raises(AttnshapeError, match="more than any tensor's axis"):
        check_size("B", size)


def test_largest_size_is_accepted():
    assert check_size("B", LARGEST) == LARGEST
    assert check_size("B", np.int64(4)) == 4


def test_too_large_derived_width_is_refused():
    with pytest.raises(AttnshapeError, match="more than any tensor's axis"):
        resolve({"H", "Dk"}, {"H": 2**30, "Dk": 2**30})


def test_a_group_that_divides_no_heads_is_another_letter():
    sizes = resolve({"H", "G", "Dk"}, {"H": 3, "G": 4, "Dk": 5})
    assert sizes.numbers == {"H": 3, "G": 4, "Dk": 5, "D": 15}
    assert "H" in sizes.independent and "G" in sizes.independent
    with pytest.raises(AttnshapeError, match="contradict"):
        resolve({"H", "Hkv", "G"}, {"H": 3, "G": 4})


def test_key_value_heads_alone_derive_nothing():
    sizes = resolve({"B", "Hkv", "L", "Dk"}, {"Hkv": 3})
    assert "H" not in sizes.records
    assert "G" not in sizes.records
    assert sizes.numbers["Hkv"] == 3
