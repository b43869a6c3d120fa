"""The sizes of a run: those derived from the given ones, and contradictions between them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.cli.flags import flag_syntax
from attnshape.dims.sizes import LARGEST, check_size, resolve
from attnshape.dims.symbols import ORDER, SYMBOLS, SYMBOLS_BY_NAME
from attnshape.errors import AttnshapeError
from attnshape.options.spec import parse_dims

LETTERS = [symbol.name for symbol in SYMBOLS]


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
def test_what_follows(used, given_, expected):
    assert numbers(used.split(), **given_) == expected


def test_default_sizes_are_distinct():
    defaults = [symbol.default for symbol in SYMBOLS if symbol.default is not None and symbol.name not in {"L", "Lq"}]
    assert len(set(defaults)) == len(defaults)
    assert SYMBOLS_BY_NAME["L"].default == SYMBOLS_BY_NAME["Lq"].default == 10


@settings(max_examples=300, deadline=None)
@given(
    used=st.sets(st.sampled_from(LETTERS), min_size=1),
    given_=st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 64), max_size=5),
    other=st.lists(st.integers(1, 30), min_size=12, max_size=12),
)
def test_every_relation_holds_or_it_is_refused(used, given_, other):
    try:
        sizes = resolve(used, given_)
    except AttnshapeError as error:
        assert "contradict" in error.message
        assert error.hint
        return
    found = sizes.numbers
    assert used <= found.keys()
    assert all(found[letter] == size for letter, size in given_.items())
    assert all(size >= 1 for size in found.values())
    if {"H", "Hkv", "G"} <= found.keys():
        assert found["H"] == found["Hkv"] * found["G"]
    for letter, record in sizes.records.items():
        assert record.origin == "given" if letter in given_ else record.origin in {"default", "derived"}
    if "D" in sizes.follows:
        assert found["D"] == found["H"] * found["Dk"]
    assert list(found) == sorted(found, key=ORDER.__getitem__)
    # what can be chosen freely, and what follows, are all there is
    assert {*sizes.independent, *sizes.follows, *sizes.labels} == set(found)
    assert sizes.at({letter: found[letter] for letter in sizes.independent}) == found
    chosen = dict(zip(sizes.independent, other, strict=False))
    elsewhere = sizes.at(chosen)
    assert all(elsewhere[letter] == size for letter, size in chosen.items())
    for letter, expression in sizes.follows.items():
        assert elsewhere[letter] == eval(expression.text, {}, dict(elsewhere))


@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 400), heads=st.integers(1, 40))
def test_heads_divide_the_width_or_it_is_refused(width, heads):
    if width % heads:
        with pytest.raises(AttnshapeError, match="contradict"):
            numbers({"H", "D", "Dk"}, D=width, H=heads)
    else:
        assert numbers({"H", "D", "Dk"}, D=width, H=heads)["Dk"] * heads == width


@pytest.mark.parametrize(
    ("used", "given_", "words"),
    [
        ({"H", "Hkv"}, {"H": 8, "Hkv": 3}, "H/Hkv = 8/3 leaves 2"),
        ({"H", "G"}, {"H": 8, "G": 3}, "H/G = 8/3 leaves 2"),
        ({"H", "Hkv", "G"}, {"H": 8, "Hkv": 2, "G": 2}, "H = G*Hkv = 2*2 = 4, but H is 8"),
        ({"H", "D", "Dk"}, {"H": 7, "D": 200}, "D/H = 200/7 leaves 4"),
    ],
)
def test_contradictions_show_the_arithmetic(used, given_, words):
    with pytest.raises(AttnshapeError) as caught:
        resolve(used, given_)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_size_that_nothing_depends_on_is_a_label():
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
def test_the_authors_own_letters(own, expected):
    found = numbers([], own)
    assert found == expected
    sizes = resolve([], parse_dims(own))
    assert set(sizes.follows) == {
        text.partition("=")[0] for text in own if any(c.isalpha() for c in text.partition("=")[2])
    }


@pytest.mark.parametrize("text", ["T", "T=", "=3", "2T=3", "T-1=3", "a b=3"])
def test_letters_that_are_none(text):
    with pytest.raises(AttnshapeError, match="isn't NAME=EXPR"):
        parse_dims([text])


@pytest.mark.parametrize("letter", LETTERS)
def test_a_letter_of_the_vocabulary_has_its_flag(letter):
    with pytest.raises(AttnshapeError) as caught:
        parse_dims([f"{letter}=3"])
    assert caught.value.hint == f"give it as {letter}=3"
    assert caught.value.written_in(flag_syntax).hint == f"give it as {SYMBOLS_BY_NAME[letter].flag} 3"


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
def test_letters_that_come_to_nothing(own, words):
    with pytest.raises(AttnshapeError) as caught:
        resolve([], parse_dims(own))
    assert words in caught.value.message
    assert caught.value.hint


def test_an_unknown_symbol():
    with pytest.raises(AttnshapeError, match="T isn't a size symbol") as caught:
        resolve({"T"}, {})
    assert "T=4" in caught.value.hint


@pytest.mark.parametrize("size", ["", "4", "x", 1.5, 2e3, None, True, [4]])
def test_sizes_that_are_no_integers(size):
    with pytest.raises(AttnshapeError, match="expected a whole number") as caught:
        check_size("B", size)
    assert caught.value.hint == "for example B=4"


@pytest.mark.parametrize("size", [0, -1, -(10**30), -(16**4000)], ids=("0", "-1", "large", "huge"))
def test_sizes_below_one(size):
    with pytest.raises(AttnshapeError, match="expected at least 1"):
        check_size("B", size)


@pytest.mark.parametrize("size", [LARGEST + 1, 10**30, 16**4000], ids=("next", "large", "huge"))
def test_sizes_beyond_any_tensors(size):
    with pytest.raises(AttnshapeError, match="more than any tensor's axis"):
        check_size("B", size)


def test_sizes_that_a_tensor_can_have():
    assert check_size("B", LARGEST) == LARGEST
    assert check_size("B", np.int64(4)) == 4


def test_a_width_that_follows_is_no_larger_than_can_be():
    with pytest.raises(AttnshapeError, match="more than any tensor's axis"):
        resolve({"H", "Dk"}, {"H": 2**30, "Dk": 2**30})


def test_key_value_heads_alone_follow_from_nothing():
    sizes = resolve({"B", "Hkv", "L", "Dk"}, {"Hkv": 3})
    assert "H" not in sizes.records
    assert "G" not in sizes.records
    assert sizes.numbers["Hkv"] == 3
