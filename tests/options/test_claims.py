"""Claims on the command line and in cases, and the errors for invalid ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnshape
from attnshape.cli.app import run
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


@pytest.mark.parametrize("meaning", ["keep", "drop", "add", "dropout", "bias", "relative-bias", "length", "last-token"])
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


def test_visible_is_a_condition_on_two_positions():
    claims = parse_claims(["visible=k <= q or k < W"])
    assert claims.visible.symbols == ("W",)
    assert [claims.visible_at({"W": 2}, 0, key) for key in range(4)] == [True, True, False, False]
    assert parse_claims(["causal"]).visible_at({}) is None
    assert parse_claims(["visible=keep"]).arguments == {"visible": "keep"}
    joined = parse_claims(["visible=k <= q", "causal", "visible=q - k < W or k < 1", "visible=k <= q"])
    assert joined.texts == ("visible=(k <= q) and (q - k < W or k < 1)", "causal")
    assert [joined.visible_at({"W": 2}, 4, key) for key in range(6)] == [True, False, False, True, True, False]
    for text in ("visible=", "visible=q", "visible=k < 3 < j(q)"):
        with pytest.raises(AttnshapeError):
            parse_claims([text])
    with pytest.raises(AttnshapeError, match="depends on no position") as raised:
        parse_claims(["visible=L > 3"])
    assert "q for the query's position" in raised.value.hint
    with pytest.raises(AttnshapeError, match="divides by zero"):
        parse_claims(["visible=q // 0 < k"])


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


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("scale=1/srt(Dk)", "'1/srt(Dk)' isn't a scale: there is no function srt", "did you mean sqrt?"),
        ("scale=1/math.sqrt(Dk)", "isn't a scale: '.' can't be part of it", "did you mean 1/sqrt(Dk)?"),
        ("scale=().__class__", "isn't a scale", "1/sqrt(Dk)"),
        ("scale=__import__('os').getpid()", "isn't a scale: there is no function __import__", "the functions are"),
        ("scale=a==b", "isn't a scale: '==' can't be part of it", "1/sqrt(Dk)"),
        ("scale=1e999", "isn't a scale: 1e999 is too large", "1/sqrt(Dk)"),
        ("scale=9**9**9", 'claims=["scale=9**9**9"]: 9**9**9 has the exponent', "smaller"),
        ("scale=1/0", 'claims=["scale=1/0"]: 1/0 divides by zero', "another divisor"),
        ("scale=0", 'claims=["scale=0"]: the claimed value 0 isn\'t above 0', "another value"),
        ("scale=-0.125", "the claimed value -0.125 isn't above 0", "another value"),
        ("scale=sqrt(-2)", "sqrt(-2) has no real value", "positive"),
        ("window=0", 'claims=["window=0"]: the claimed value 0 isn\'t above 0', "another value"),
        ("window=3-5", "the claimed value -2 isn't above 0", "another value"),
        ("window=2**-1", "2**-1 is no integer", "other sizes"),
        ("window=3//0", "3//0 divides by zero", "another divisor"),
        ("window=L/2", "'L/2' isn't a size: '/' can't be part of it", "did you mean L//2?"),
    ],
)
def test_claim_without_a_value_is_refused_before_anything_runs(text, message, hint):
    with pytest.raises(AttnshapeError) as raised:
        parse_claims([text])
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize("name", ["scale", "window"])
def test_symbols_of_claims(name):
    claims = parse_claims([f"{name}=nh*Dq"])
    with pytest.raises(AttnshapeError) as raised:
        claims.require_known(["B", "Dk", "Dv", "nh"])
    assert raised.value.message == f'claims=["{name}=nh*Dq"]: Dq isn\'t a size symbol'
    assert raised.value.hint == "did you mean Dk or Dv? (or define your own: Dq=4)"
    with pytest.raises(AttnshapeError, match="the target has no size nh") as raised:
        claims.require_values({"B": 2, "H": 4})
    assert raised.value.hint.startswith("did you mean H? (or claim a number: claims=[")
    parse_claims([f"{name}=nh*Dk"]).require_known(["B", "Dk", "Dv", "nh"])


def test_scale_may_use_the_width_of_a_head_that_is_no_size_of_the_target():
    parse_claims(["scale=1/sqrt(Dk)"]).require_values({"B": 2})
    with pytest.raises(AttnshapeError, match="the target has no size Dk"):
        parse_claims(["window=Dk"]).require_values({"B": 2})


@pytest.mark.parametrize("text", ["scale=1/(L-10)", "scale=L-12", "window=L-10", "window=L//(B-2)"])
def test_claim_without_a_value_at_the_sizes_is_refused(text):
    with pytest.raises(AttnshapeError, match=r"divides by zero|isn't above 0") as raised:
        parse_claims([text]).require_values({"B": 2, "L": 10})
    assert raised.value.message.startswith(f'claims=["{text}"]: ')
    parse_claims([text]).require_values({"B": 3, "L": 13})


@pytest.mark.parametrize("surface", ["flags", "pyproject", "python"])
def test_unknown_symbol_runs_nothing_on_any_surface(surface, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "from pathlib import Path\nPath('ran').touch()\ndef f(x):\n    return x\n"
    (tmp_path / "model_of_claims.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.attnshape.targets.ours]\ntarget = "model_of_claims.py:f"\ninputs = ["x: B L D"]\n'
        'claims = ["scale=1/sqrt(Dq)"]\n'
    )
    words = ["model_of_claims.py:f", "--input", "x: B L D", "--claim", "scale=1/sqrt(Dq)"]
    if surface == "python":
        with pytest.raises(AttnshapeError) as raised:
            attnshape.check("model_of_claims.py:f", inputs={"x": "B L D"}, claims=["scale=1/sqrt(Dq)"])
        printed = str(raised.value)
    else:
        assert run(["check", *(words if surface == "flags" else ["ours"])]) == 2
        printed = capsys.readouterr().err
    named = {
        "flags": '--claim "scale=1/sqrt(Dq)": ',
        "pyproject": "pyproject.toml: target 'ours': claims = [\"scale=1/sqrt(Dq)\"]: ",
        "python": 'claims=["scale=1/sqrt(Dq)"]: ',
    }[surface]
    assert f"{named}Dq isn't a size symbol" in printed
    defined = {"flags": "--dim Dq=4", "pyproject": "dim = { Dq = 4 }", "python": "Dq=4"}[surface]
    hint = raised.value.hint if surface == "python" else printed
    assert f"did you mean Dk or Dv? (or define your own: {defined})" in hint
    assert not (tmp_path / "ran").exists()


def test_target_without_the_size_is_not_built(attention_file, capsys):
    assert (
        run(["check", f"{attention_file}:Attention", "--init", "D", "--input", "x: B L D", "--claim", "window=W"]) == 2
    )
    assert "--claim window=W: the target has no size W" in capsys.readouterr().err
    assert not (attention_file.parent / "built").exists()


@pytest.fixture
def attention_file(tmp_path):
    path = tmp_path / "claimed_attention.py"
    path.write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "class Attention(nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        Path(__file__).with_name('built').touch()\n"
        "    def forward(self, x):\n"
        "        return x\n"
        "def case(B, L):\n"
        "    return (lambda x: x), (__import__('torch').zeros(B, L, 3),), {}, ['scale=1/sqrt(Dq)']\n"
    )
    return path


def test_invalid_claim_of_a_case_names_the_case(attention_file, capsys):
    assert run(["check", f"{attention_file}:case"]) == 2
    error = capsys.readouterr().err
    assert "claimed_attention.py:case returns: scale=1/sqrt(Dq): the target has no size Dq" in error
    assert "(or claim a number: scale=0.125)" in error


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
