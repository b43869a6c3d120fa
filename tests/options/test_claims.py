"""Claims on the command line and in cases, and the errors for invalid ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.errors import AttnshapeError
from attnshape.options.claims import Claims, claim_texts, parse_claims
from tests.checks.subjects import run_options, target_and_sizes


def test_nothing_is_claimed_by_default():
    assert parse_claims([]) == Claims()
    assert not Claims().positional


@pytest.mark.parametrize(
    ("text", "field"),
    [("causal", "causal"), ("alibi", "alibi"), ("zero-masked-rows", "zero_masked_rows"), ("seq-first", "seq_first")],
)
def test_switch(text, field):
    claims = parse_claims([f"  {text} "])
    assert getattr(claims, field) is True
    assert claims.texts == (text,)
    others = {"causal", "alibi", "zero_masked_rows", "seq_first"} - {field}
    assert not any(getattr(claims, other) for other in others)


@pytest.mark.parametrize("meaning", ["keep", "drop", "add", "dropout", "bias", "relative-bias"])
def test_meaning_of_an_argument(meaning):
    claims = parse_claims([f"attn_mask = {meaning}"])
    assert claims.arguments == {"attn_mask": meaning}
    assert claims.positional is (meaning in ("bias", "relative-bias"))


def test_argument_name_may_be_a_path():
    assert parse_claims(["batch.mask=keep", "masks[0]=drop"]).arguments == {"batch.mask": "keep", "masks[0]": "drop"}


@pytest.mark.parametrize(
    ("text", "size"), [("window=W", 3), ("window=2*W+1", 7), ("window = 4", 4), ("window=-(-L//2)", 5)]
)
def test_window_is_an_expression(text, size):
    assert parse_claims([text]).window.evaluate({"W": 3, "L": 10}) == size


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_has_two_layouts(layout):
    assert parse_claims([f"rope={layout}"]).rope == layout
    with pytest.raises(AttnshapeError, match="two layouts") as raised:
        parse_claims(["rope=neox"])
    assert raised.value.hint == "rope=half or rope=interleaved"


def test_scale_is_kept_as_text():
    assert parse_claims(["scale=1/sqrt(Dk)"]).scale.text == "1/sqrt(Dk)"
    with pytest.raises(AttnshapeError, match="no number"):
        parse_claims(["scale="])


def test_several_claims():
    texts = ["causal", "window=W", "mask=keep", "bias=bias", "rope=half", "scale=1.0", "zero-masked-rows"]
    claims = parse_claims(texts)
    assert claims.texts == tuple(texts)
    assert claims.causal
    assert claims.zero_masked_rows
    assert claims.arguments == {"mask": "keep", "bias": "bias"}
    assert (claims.rope, claims.scale.text, claims.window.text) == ("half", "1.0", "W")
    assert claims.positional


def test_repeated_claim_counts_once_and_the_last_one_wins():
    assert parse_claims(["causal", " causal"]).texts == ("causal",)
    assert parse_claims(["mask=keep", "mask=drop"]).arguments == {"mask": "drop"}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("casual", "did you mean causal?"),
        ("zero-masked-row", "did you mean zero-masked-rows?"),
        ("seqfirst", "did you mean seq-first?"),
        ("window", "did you mean window=W?"),
        ("nothing like it", "the claims are causal, window=W"),
        ("mask=kep", "did you mean keep?"),
        ("mask=", "it can be"),
        ("mask=True", "it can be"),
        ("causal=True", "it can be"),
        ("", "the claims are"),
    ],
)
def test_invalid_claim_has_a_hint(text, hint):
    with pytest.raises(AttnshapeError) as raised:
        parse_claims([text])
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    "text", ["window=", "window=W W", "window=__import__('os')", "window=W.real", "window=(", "window=" + "(" * 500]
)
def test_invalid_window_is_refused(text):
    with pytest.raises(AttnshapeError, match="isn't a size"):
        parse_claims([text])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=30) | st.text("=causlwindo,[]()*/+-W ", max_size=20), max_size=4))
def test_any_text_is_a_claim_or_refused(texts):
    try:
        claims = parse_claims(texts)
    except AttnshapeError as error:
        assert error.hint
        assert len(str(error)) < 500
    else:
        assert set(claims.texts) <= {text.strip() for text in texts}


@pytest.mark.parametrize(
    "text", ["x" * 10**6, "x=" + "y" * 10**6, "window=" + "W+" * 10**5 + "1", "rope=" + "h" * 10**6]
)
def test_long_invalid_text_is_shortened(text):
    with pytest.raises(AttnshapeError) as raised:
        parse_claims([text])
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    "value",
    [
        ["causal", "mask=keep"],
        ("causal", "mask=keep"),
        "causal, mask=keep",
        " causal ,, mask=keep,",
        {"causal": True, "mask": "keep", "alibi": False},
    ],
)
def test_forms_of_claims_in_a_case(value):
    claims = parse_claims(claim_texts(value, "case"))
    assert claims.causal
    assert claims.arguments == {"mask": "keep"}
    assert not claims.alibi


def test_sets_and_numbers_in_a_case():
    assert set(claim_texts({"causal", "alibi"}, "case")) == {"causal", "alibi"}
    assert claim_texts({"window": 3, "scale": 0.5}, "case") == ("window=3", "scale=0.5")
    assert claim_texts(None, "case") == ()
    assert claim_texts([], "case") == ()
    assert claim_texts("", "case") == ()


@pytest.mark.parametrize("value", [1, True, [1, 2], ["causal", None], object(), b"causal", [["causal"]]])
def test_invalid_claims_of_a_case_are_refused(value):
    with pytest.raises(AttnshapeError, match="as its fourth value") as raised:
        claim_texts(value, "my_case")
    assert "my_case" in str(raised.value)
    assert "causal" in raised.value.hint


@pytest.mark.parametrize("said", [["causal", "mask=keep"], "causal, mask=keep", {"causal": True, "mask": "keep"}])
def test_fourth_value_of_a_case_has_its_claims(said):
    def case(B, L):
        x = torch.zeros(B, L, 3)
        return (lambda x, mask: x), (x,), {"mask": torch.ones(B, L, dtype=torch.bool)}, said

    target, sizes = target_and_sizes(case, {})
    runnable = target.build(sizes.numbers, run_options())
    assert set(runnable.claims) == {"causal", "mask=keep"}
    assert runnable.named_inputs()[0][1].dtype == torch.float64
