"""Axis expressions evaluate as in Python, and all other text is refused."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.dims.expressions import parse_expression
from attnshape.errors import AttnshapeError

SIZES = {"B": 2, "H": 8, "L": 10, "Lp": 6, "D": 512, "Dk": 64, "nh": 4}

expressions = st.recursive(
    st.one_of(st.sampled_from(list(SIZES)), st.integers(0, 99).map(str)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(("+", "-", "*", "//", " + ", " // ")), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=12,
).filter(lambda text: len(text) <= 200)


@settings(max_examples=300, deadline=None)
@given(text=expressions, sizes=st.fixed_dictionaries({name: st.integers(1, 1000) for name in SIZES}))
def test_expression_evaluates_as_in_python(text, sizes):
    try:
        expected = eval(text, {"__builtins__": {}}, dict(sizes))
    except ZeroDivisionError:
        with pytest.raises(AttnshapeError, match="divides by zero"):
            parse_expression(text).evaluate(sizes)
    else:
        assert parse_expression(text).evaluate(sizes) == expected


@settings(max_examples=200, deadline=None)
@given(text=expressions)
def test_symbols_are_unique(text):
    names = [node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]
    symbols = parse_expression(text).symbols
    assert set(symbols) == set(names)
    assert len(set(symbols)) == len(symbols)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_parses_or_is_refused(text):
    try:
        expression = parse_expression(text)
    except AttnshapeError as error:
        assert error.hint
    else:
        try:
            value = expression.evaluate(dict.fromkeys(expression.symbols, 3))
        except AttnshapeError:
            return
        assert type(value) is int


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B", 2),
        ("7", 7),
        ("H*Dk", 512),
        ("Dk//2", 32),
        ("Lp+L", 16),
        ("3*D", 1536),
        ("-(-L//4)*4", 12),
        ("L-1", 9),
        ("L - 1", 9),
        ("2*L-Lp", 14),
        ("D//H//2", 32),
        ("D//(H*2)", 32),
        (" L ", 10),
    ],
)
def test_expression_values(text, expected):
    assert parse_expression(text).evaluate(SIZES) == expected
    assert parse_expression(text).text == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "L/2", "L**2", "L%2", "L.x", "f(L)", "L[0]", "1.5", "True", "'L'", "L if B else H", "not L", "+L"),
        *("L L", "L==2", "(L, B)", "L:=2", "lambda: 1", "~L", "L<<1", "*L", "...", "L+", "L)", "L\x00", "await L"),
        *("L" * 201, "(" * 150 + "L" + ")" * 150, "__import__('os')", "1j", "1e3", "L@B", "L|B", "L\nB", "{L}"),
    ],
)
def test_invalid_expression_is_refused(text):
    with pytest.raises(AttnshapeError) as caught:
        parse_expression(text)
    assert "isn't an axis expression" in caught.value.message
    prefix = "did you mean "
    if (hint := caught.value.hint).startswith(prefix):
        assert parse_expression(hint.removeprefix(prefix).removesuffix("?"))
    else:
        assert "H*Dk" in hint
    assert len(caught.value.message) < 200


def test_symbol_without_a_size():
    with pytest.raises(KeyError):
        parse_expression("L*T").evaluate(SIZES)
