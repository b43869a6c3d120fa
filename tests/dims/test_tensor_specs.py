"""Parsing of the tensor descriptions of `--input` and `--expect`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnshape.dims.expressions import TensorSpec, parse_tensor
from attnshape.errors import AttnshapeError
from attnshape.options.spec import parse_expect, parse_inputs


def parse(text: str) -> TensorSpec:
    ((name, described),) = parse_inputs([text]).items()
    return parse_tensor(name, described)


@pytest.mark.parametrize(
    ("text", "name", "kind", "below", "signature", "symbols"),
    [
        ("query: B Lq D", "query", "float", None, "B Lq D", ("B", "Lq", "D")),
        ("query:B Lq D", "query", "float", None, "B Lq D", ("B", "Lq", "D")),
        ("  x :  B   L ", "x", "float", None, "B L", ("B", "L")),
        ("mask: bool B 1 1 Lk", "mask", "bool", None, "B 1 1 Lk", ("B", "Lk")),
        ("t: float L L", "t", "float", None, "L L", ("L",)),
        ("positions: int L", "positions", "int", None, "L", ("L",)),
        ("ids: int[V] B L", "ids", "int", "V", "B L", ("B", "L", "V")),
        ("ids: int[2*V+1] B", "ids", "int", "2*V+1", "B", ("B", "V")),
        ("ids: int[7]", "ids", "int", "7", "", ()),
        ("scale:", "scale", "float", None, "", ()),
        ("past: B H Lp+L Dk//2", "past", "float", None, "B H Lp+L Dk//2", ("B", "H", "Lp", "L", "Dk")),
        ("x: floats B", "x", "float", None, "floats B", ("floats", "B")),
    ],
)
def test_input_descriptions(text, name, kind, below, signature, symbols):
    spec = parse(text)
    assert (spec.name, spec.kind, spec.signature, spec.symbols) == (name, kind, signature, symbols)
    assert (spec.below.text if spec.below else None) == below


@pytest.mark.parametrize("text", ["", "query", ": B L", "B L D", "a b: L", " : L"])
def test_missing_name_is_refused(text):
    with pytest.raises(AttnshapeError, match="isn't 'name: axes'") as caught:
        parse(text)
    assert caught.value.message.startswith("inputs")
    assert '"query": "B Lq D"' in caught.value.hint


@pytest.mark.parametrize("text", ["ids: int[ B L", "ids: int[] B", "ids: int[V B] L"])
def test_invalid_type_is_refused(text):
    with pytest.raises(AttnshapeError, match="isn't a type") as caught:
        parse(text)
    assert "int[V]" in caught.value.hint


@pytest.mark.parametrize("text", ["x: B L,D", "x: B f(L)", "x: B L.T", "x: int[V()] B", "x: B ...", "x: *B L"])
def test_invalid_axes_are_refused(text):
    with pytest.raises(AttnshapeError, match="isn't an axis expression"):
        parse(text)


def test_name_may_be_a_path():
    assert parse_expect(["output[0].context: B L"]) == (("output[0].context", "B L"),)


@given(text=st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        spec = parse(text)
    except AttnshapeError as error:
        assert error.hint
    else:
        again = f"{spec.name}: {spec.kind}{f'[{spec.below.text}]' if spec.below else ''} {spec.signature}"
        if not (spec.below and " " in spec.below.text):
            assert parse(again).signature == spec.signature
