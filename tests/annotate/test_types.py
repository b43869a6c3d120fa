"""The axes of an annotation: jaxtyping accepts all of them, and checks those whose symbols are bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import AnnotationError, Float, jaxtyped
from torch import Tensor

from attnshape.annotate.types import format_dims, kind_of_dtypes
from attnshape.dims.expressions import parse_expression
from attnshape.observation.forms import AxisForm

SIZES = {"B": 2, "L": 3, "D": 8, "Dk": 4, "H": 2, "nh": 5}
SYMBOL_NAMES = st.sampled_from(sorted(SIZES))
TEXTS = st.one_of(
    SYMBOL_NAMES,
    st.integers(1, 9).map(str),
    st.tuples(SYMBOL_NAMES, st.sampled_from("*+"), SYMBOL_NAMES).map("".join),
    SYMBOL_NAMES.map(lambda one: f"3*{one}"),
    SYMBOL_NAMES.map(lambda one: f"({one} + 1) // 2"),
    SYMBOL_NAMES.map(lambda one: f"-(-{one} // 4)"),
)
AXES = st.lists(st.tuples(TEXTS, st.sampled_from(["verified", "matched", "literal"])), max_size=4)


@given(AXES, st.sets(SYMBOL_NAMES), st.booleans())
def test_formatted_dims_match_the_shape_they_describe(
    axes: list[tuple[str, str]], bound: set[str], matched: bool
) -> None:
    forms = [AxisForm(text, how) for text, how in axes]  # type: ignore[arg-type]
    dims = format_dims(forms, bound, matched)
    shape = tuple(parse_expression(text).evaluate(SIZES) for text, _ in axes)
    with jaxtyped("context"):
        for symbol in bound:
            assert isinstance(torch.empty(SIZES[symbol]), Float[Tensor, symbol])
        assert isinstance(torch.empty(shape), Float[Tensor, dims.text])
        assert all(isinstance(torch.empty(SIZES[symbol]), Float[Tensor, symbol]) for symbol in dims.binds)
        for symbol in dims.binds - bound:
            assert not isinstance(torch.empty(SIZES[symbol] + 1), Float[Tensor, symbol])
    assert len(dims.words) == len(axes)
    if matched:
        for (text, _), word in zip(axes, dims.words, strict=True):
            known = set(parse_expression(text).symbols) <= bound
            assert not (known and word.startswith("_"))


def test_jaxtyping_rejects_unbound_expressions() -> None:
    with pytest.raises(AnnotationError), jaxtyped("context"):
        isinstance(torch.empty(8), Float[Tensor, "3*D"])
    assert isinstance(torch.empty(8), Float[Tensor, "_HDk"])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("B", "B"),
        ("H*Dk", "_HDk"),
        ("H*Dk*L", "_HDkL"),
        ("3*D", "_"),
        ("Lp + L", "_"),
        ("1", "1"),
        ("_own", "_own"),
        ("2*_own", "_"),
        ("in", "_"),
        ("2*lambda", "_"),
        ("größe", "größe"),
    ],
)
def test_axis_without_bound_symbols(text: str, word: str) -> None:
    dims = format_dims([AxisForm(text, "verified")], set(), False)
    assert dims.words == (word,)
    assert dims.binds == ({word} if word.isidentifier() and word[0] != "_" else set())


def test_symbol_that_jaxtyping_never_checks_is_never_bound() -> None:
    dims = format_dims([AxisForm("_own", "verified"), AxisForm("B", "verified")], set(), False)
    assert dims.binds == {"B"}


def test_function_names_are_not_symbols() -> None:
    assert format_dims([AxisForm("min(L, W)", "verified")], {"L", "W"}, False).text == "min(L,W)"
    assert format_dims([AxisForm("min(L, W)", "verified")], {"L"}, False).text == "_"
    with jaxtyped("context"):
        assert isinstance(torch.empty(2, 3), Float[Tensor, "L W"])
        assert isinstance(torch.empty(2), Float[Tensor, "min(L,W)"])


@pytest.mark.parametrize(
    ("dtypes", "name"),
    [
        (["float32", "float64", "bfloat16", "float16"], "Float"),
        (["int64", "int8"], "Int"),
        (["uint8"], "UInt"),
        (["bool"], "Bool"),
        (["complex64"], "Complex"),
        (["float32", "int64"], "Shaped"),
        (["qint8"], "Shaped"),
    ],
)
def test_kind_of_dtypes(dtypes: list[str], name: str) -> None:
    assert kind_of_dtypes(dtypes) == name
