"""The grammars of what users type: values against Python's operators, errors, hints that parse, and bounds."""

from __future__ import annotations

import itertools
import math
import operator
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnshape.dims.arithmetic import AXIS, CONDITION, REAL, SIZE, Grammar, evaluate, holds, parse, symbols
from attnshape.errors import AttnshapeError

SIZES = {"B": 2, "H": 8, "L": 10, "Lp": 6, "D": 512, "Dk": 64, "nh": 4, "größe": 3, "sqrt": 9}
NUMERIC = {"axis": AXIS, "size": SIZE, "real": REAL}
GRAMMARS = {**NUMERIC, "condition": CONDITION}


def value(text: str, grammar: Grammar) -> int | float:
    return evaluate(parse(text, grammar), SIZES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("H*Dk", 512),
        (" 3 * D ", 1536),
        ("2**15", 32768),
        ("2**3**2", 512),
        ("-2**2", -4),
        ("(-2)**2", 4),
        ("L-Lp-1", 3),
        ("L-(Lp-1)", 5),
        ("D//H//2", 32),
        ("D//(H*2)", 32),
        ("-(-L//4)*4", 12),
        ("--L", 10),
        ("-L//4", -3),
        ("2*-L", -20),
        ("1_000", 1000),
        ("0", 0),
        ("nh**0", 1),
        ("größe*2", 6),
        ("sqrt", 9),
    ],
)
def test_integers(text: str, expected: int) -> None:
    for grammar in (SIZE, REAL):
        assert value(text, grammar) == expected
        assert type(value(text, grammar)) is int


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1/sqrt(Dk)", 0.125),
        ("Dk**-0.5", 0.125),
        ("Dk ** -.5", 0.125),
        ("1/8", 0.125),
        ("2**-1*3", 1.5),
        ("2**-1**2", 0.5),
        ("1e-3", 0.001),
        ("1.", 1.0),
        ("sqrt(sqrt(16))", 2.0),
        ("log(exp(2))", 2.0),
        ("log2(D)", 9.0),
        ("sqrt(sqrt)", 3.0),
        ("-(1/-nh)", 0.25),
        ("7.5//2", 3.0),
        ("L/2/5", 1.0),
    ],
)
def test_real_numbers(text: str, expected: float) -> None:
    assert value(text, REAL) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "k <= q or k < W",
        "0 <= q - k < W",
        "not q < k and (q-k)%2==0",
        "not (q < k or k == 2) and not k > q",
        "q // W == k // W",
        "abs(q-k) <= W//2 != q",
        "not not k<q",
        "-q % W < k ** 2",
        "k == q or k > q and q < W or W == 1",
        "q - k - W == q - (k + W)",
        "(k < q)",
        "k != 0 and q // k > 1",
    ],
)
def test_conditions_hold_where_they_do_in_python(text: str) -> None:
    tree = parse(text, CONDITION)
    for q, k in itertools.product(range(5), repeat=2):
        assert holds(tree, {"q": q, "k": k, "W": 3}) == eval(text, {"q": q, "k": k, "W": 3, "abs": abs})


@pytest.mark.parametrize(
    ("grammar", "text", "problem", "hint"),
    [
        ("axis", "", "it is empty", "H*Dk"),
        ("size", "   ", "it is empty", "H*Dk"),
        ("axis", "L**2", "'**' can't be part of it, the operators are + - * //", "H*Dk"),
        ("axis", "1.5", "1.5 isn't an integer", "H*Dk"),
        ("size", "1e3", "1e3 isn't an integer", "H*Dk"),
        ("size", "L/2", "'/' can't be part of it", "did you mean L//2?"),
        ("size", "L^2", "'^' can't be part of it", "did you mean L**2?"),
        ("axis", "H×Dk", "'×' can't be part of it", "did you mean H*Dk?"),
        ("size", "L²", "L² can't be the name of a size", "did you mean L**2?"),
        ("size", "L−1", "'−' can't be part of it", "did you mean L-1?"),
        ("size", "2L", "L isn't expected after 2", "did you mean 2*L?"),
        ("size", "2(L)", "( isn't expected after 2", "H*Dk"),
        ("size", "L\t*2", r"'\t' can't be part of it", "did you mean L *2?"),
        ("size", "L\xa0*2", r"'\xa0' can't be part of it", "did you mean L *2?"),
        ("size", "(L\n)", r"'\n' can't be part of it", "did you mean (L )?"),
        ("size", "L\x00", r"'\x00' can't be part of it", "H*Dk"),
        ("size", "१०", "'१' can't be part of it", "did you mean 10?"),
        ("size", "３", "'３' can't be part of it", "did you mean 3?"),
        ("size", "010", "010 begins with 0", "write 10"),
        ("size", "00", "00 begins with 0", "write 0"),
        ("size", "0x10", "x10 isn't expected after 0", "H*Dk"),
        ("size", "f(L)", "f can't be called, there are no functions in it", "H*Dk"),
        ("real", "1/srt(Dk)", "there is no function srt", "did you mean sqrt?"),
        ("real", "tanh(Dk)", "there is no function tanh", "the functions are: sqrt, exp, log, log2"),
        ("real", "1/math.sqrt(Dk)", "'.' can't be part of it", "did you mean 1/sqrt(Dk)?"),
        ("real", "torch.log(2Dk)÷2", "'.' can't be part of it", "did you mean log(2*Dk)/2?"),
        ("real", "1/sqrt Dk", "Dk isn't expected after sqrt", "1/sqrt(Dk)"),
        ("real", "1e999", "1e999 is too large", "1/sqrt(Dk)"),
        ("real", "lambda", "lambda can't be the name of a size", "1/sqrt(Dk)"),
        ("size", "L L", "L isn't expected after L", "H*Dk"),
        ("size", "*L", "* isn't expected at the beginning", "H*Dk"),
        ("size", "L+", "something is missing after +", "H*Dk"),
        ("size", "(L", "a bracket isn't closed", "H*Dk"),
        ("size", "L)", ") isn't expected after L", "H*Dk"),
        ("size", "()", ") isn't expected after (", "H*Dk"),
        ("real", "sqrt()", ") isn't expected after (", "1/sqrt(Dk)"),
        ("real", "sqrt(1, 2)", "',' can't be part of it", "1/sqrt(Dk)"),
        ("condition", "q", "a number is where a comparison is expected", "k <= q or k < 4"),
        ("condition", "q < k < 3 and W", "a number is where a comparison is expected", "k <= q or k < 4"),
        ("condition", "(q < k) + 1 < 2", "a comparison is where a number is expected", "k <= q or k < 4"),
        ("condition", "-(q < k)", "a comparison is where a number is expected", "k <= q or k < 4"),
        ("condition", "abs(q < k) < 2", "a comparison is where a number is expected", "k <= q or k < 4"),
        ("condition", "1 < not k < q", "not isn't expected after <", "k <= q or k < 4"),
        ("condition", "k < q and", "something is missing after and", "k <= q or k < 4"),
        ("condition", "and k < q", "and isn't expected at the beginning", "k <= q or k < 4"),
        ("condition", "k = q", "'=' can't be part of it", "did you mean k == q?"),
        ("condition", "(k <= q) | (k < W)", "'|' can't be part of it", "did you mean (k <= q) or (k < W)?"),
        ("condition", "~(k < q) & (k ≠ 3)", "'~' can't be part of it", "did you mean not (k < q) and (k != 3)?"),
        ("condition", "k ≤ q", "'≤' can't be part of it", "did you mean k <= q?"),
        ("condition", "min(q, k) < 3", "there is no function min", "the functions are: abs"),
        ("condition", "abs(q, k) < 3", "',' can't be part of it", "k <= q or k < 4"),
        ("condition", "True", "True can't be the name of a size", "k <= q or k < 4"),
        ("condition", "k < q if q else k < 3", "if isn't expected after q", "k <= q or k < 4"),
        ("size", "L and 3", "and isn't expected after L", "H*Dk"),
        ("size", "L%2", "'%' can't be part of it", "H*Dk"),
        ("axis", "L<3", "'<' can't be part of it", "H*Dk"),
        ("axis", "L" * 201, "it has 201 characters, and at most 200 are read", "H*Dk"),
        ("size", "(" * 50 + "L" + ")" * 50, "it is nested more than 40 deep", "H*Dk"),
        ("size", "-" * 50 + "L", "it is nested more than 40 deep", "H*Dk"),
        ("size", "2**" * 50 + "1", "it is nested more than 40 deep", "H*Dk"),
    ],
)
def test_what_is_wrong_and_the_way_out(grammar: str, text: str, problem: str, hint: str) -> None:
    with pytest.raises(AttnshapeError) as caught:
        parse(text, GRAMMARS[grammar])
    assert problem in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    if (meant := caught.value.hint).startswith("did you mean ") and "no function" not in problem:
        assert parse(meant.removeprefix("did you mean ").removesuffix("?"), GRAMMARS[grammar])


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_examples_of_the_hint_parse(grammar: Grammar) -> None:
    for example in grammar.hint.rpartition(": ")[2].split(", "):
        assert parse(example, grammar)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("9**9**9", "has the exponent 3.8742e+08, and 64 is the largest"),
        ("2**65", "has the exponent 65"),
        ("2.0**-65", "has the exponent -65"),
        ("10**60**1*10**60*10**60*10**60*10**60*10**60", "is too large"),
        ("1e300*1e300", "is too large"),
        ("1e300**60", "is too large"),
        ("exp(1000)", "is too large"),
        ("L//0", "divides by zero"),
        ("L//(B-2)", "divides by zero"),
        ("1/0.0", "divides by zero"),
        ("0**-1", "divides by zero"),
        ("(-8)**.5", "has no real value"),
        ("sqrt(-1)", "has no real value"),
        ("log(0)", "has no real value"),
    ],
)
def test_numbers_without_a_value(text: str, problem: str) -> None:
    started = time.perf_counter()
    with pytest.raises(AttnshapeError, match=problem.replace("+", r"\+")) as caught:
        value(text, REAL)
    assert time.perf_counter() - started < 1
    assert caught.value.hint


def test_unknown_symbol_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        value("L*T", SIZE)


def test_time_does_not_grow_with_the_length() -> None:
    started = time.perf_counter()
    for text in ("(" * 10**6, "L+" * 10**6, "9" * 10**6, "L" * 10**6, "-" * 10**6, " " * 10**6, "9_" * 10**6):
        with pytest.raises(AttnshapeError) as caught:
            parse(text, REAL)
        assert len(caught.value.message) < 100
    assert time.perf_counter() - started < 1


NUMBERS = st.integers(0, 99).map(lambda number: (str(number), number))
SYMBOLS = st.sampled_from(sorted(SIZES.items()))
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "**": operator.pow,
}
FUNCTIONS = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log, "log2": math.log2}


def combined(first: tuple[str, object], sign: str, second: tuple[str, object]) -> tuple[str, object]:
    """Return the text and the value of an operation; the value is None if there is none."""
    text = f"({first[0]}){sign}({second[0]})"
    if first[1] is None or second[1] is None or (sign == "**" and abs(second[1]) > 64):  # type: ignore[arg-type]
        return text, None
    try:
        result = OPERATORS[sign](first[1], second[1])
    except (ZeroDivisionError, OverflowError):
        return text, None
    return text, None if isinstance(result, complex) or not abs(result) < 2**1023 else result


def called(function: str, argument: tuple[str, object]) -> tuple[str, object]:
    text = f"{function}({argument[0]})"
    try:
        result = None if argument[1] is None else FUNCTIONS[function](argument[1])  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return text, None
    return text, result if result is not None and result < 2**1023 else None


def negated(operand: tuple[str, object]) -> tuple[str, object]:
    return f"-({operand[0]})", None if operand[1] is None else -operand[1]  # type: ignore[operator]


def pairs(signs: list[str], functions: list[str]) -> st.SearchStrategy[tuple[str, object]]:
    """Generate expressions together with their values, which no parser computes."""
    return st.recursive(
        NUMBERS | SYMBOLS,
        lambda inner: st.one_of(
            st.builds(combined, inner, st.sampled_from(signs), inner),
            inner.map(negated),
            *([st.builds(called, st.sampled_from(functions), inner)] if functions else []),
        ),
        max_leaves=12,
    )


@settings(deadline=None, max_examples=400)
@given(st.data(), st.sampled_from(sorted(NUMERIC)))
def test_value_is_that_of_the_operations(data: st.DataObject, name: str) -> None:
    grammar = GRAMMARS[name]
    text, expected = data.draw(pairs(list(grammar.operators), list(grammar.functions)))
    assume(len(text) <= 200 and text.count("(") < 30)
    if expected is None:
        with pytest.raises(AttnshapeError):
            value(text, grammar)
    else:
        assert value(text, grammar) == expected


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from(["+", "-", "*", "//", "/", "**"]), st.integers(1, 4) | st.sampled_from(["B", "-B"])),
        min_size=1,
        max_size=5,
    )
)
def test_precedence_is_that_of_python(parts: list[tuple[str, object]]) -> None:
    text = "3" + "".join(f"{sign}{operand}" for sign, operand in parts)
    assume(text.count("**") <= 2)  # Python would compute 3**4**4**4 for hours
    try:
        expected = eval(text, {}, dict(SIZES))
    except (ZeroDivisionError, OverflowError):
        return
    try:
        assert value(text, REAL) == expected
    except AttnshapeError as error:
        assert "exponent" in error.message or "large" in error.message or isinstance(expected, complex)


@settings(deadline=None, max_examples=500)
@given(
    st.text(max_size=60)
    | st.text("0123456789.eE_+-*/() BLDksqrtlogxp", max_size=60)
    | st.lists(st.sampled_from(["9", "**", "L", "(", ")", "-", "//", "sqrt(", "1e9", ".", " "]), max_size=30).map(
        "".join
    )
    | st.lists(st.sampled_from(["9", "k", "(", ")", "-", "%", "<", "==", "and", "or", "not"]), max_size=20).map(
        " ".join
    ),
    st.sampled_from(sorted(GRAMMARS)),
)
def test_any_text_has_a_value_or_an_error(text: str, name: str) -> None:
    started = time.perf_counter()
    try:
        tree = parse(text, GRAMMARS[name])
        compute = holds if GRAMMARS[name].condition else evaluate
        number = compute(tree, dict.fromkeys(symbols(tree), 7))
    except AttnshapeError as error:
        assert error.hint
        assert len(error.message) < 200
        assert error.message.isprintable()
    else:
        assert abs(number) < 2**1023
    assert time.perf_counter() - started < 1


PYTHON = [
    *("__import__('os')", "().__class__", "L.real", "L[0]", "[L]", "{L}", "(L,)", "L, B", "lambda: 1", "lambda x: x"),
    *("[x for x in L]", "(x for x in L)", "f'{L}'", "'L'", '"L"', "b'L'", "(L:=2)", "L:=2", "L if B else H", "not L"),
    *("L and B", "L or B", "L in B", "L is B", "L == B", "L < B", "L << 1", "L | B", "L & B", "L @ B", "~L", "+L"),
    *(
        "await L",
        "yield L",
        "*L",
        "**L",
        "...",
        "None",
        "True",
        "1j",
        "0b1",
        "0x1",
        "L;B",
        "L=1",
        "L\nB",
        "L #x",
        "L\\",
    ),
    *("open(L)", "eval(L)", "exec(L)", "print(L)", "getattr(L)", "sqrt(L)(B)", "sqrt(*L)", "sqrt(x=L)", "math.pi"),
    *(
        "sqrt.__call__(4)",
        "L%2",
        "`L`",
        "$L",
        "@L",
        "!L",
        "L?",
        "import os",
        "del L",
        "pass",
        "print",
        "__builtins__()",
    ),
]


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
@pytest.mark.parametrize("text", PYTHON)
def test_no_other_python_is_parsed(text: str, grammar: Grammar) -> None:
    try:
        tree = parse(text, grammar)
    except AttnshapeError:
        return
    if grammar.condition:
        assert text in ("L == B", "L < B")
        return
    # a name is only a name, and has no value unless it is a size
    assert text == "print"
    with pytest.raises(KeyError):
        evaluate(tree, SIZES)
