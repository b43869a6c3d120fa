"""Every notation for shapes is parsed, and prose is not mistaken for a shape."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.comments.grammar import parse_comment
from attnshape.comments.notation import ShapeText, find_bare_shapes, find_shapes, parse_axis, parse_bare_shape

NAMES = ("B", "T", "nh", "hs", "d_model", "seq_len", "n_heads", "batch", "bsz", "C", "L", "n", "h", "e", "n_Q", "H'")


def texts(documented: ShapeText | None) -> list[str]:
    assert documented is not None
    return [axis.text for axis in documented.axes]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("(B, nh, T, hs)", ["B", "nh", "T", "hs"]),
        ("(B,nh,T,hs)", ["B", "nh", "T", "hs"]),
        ("[n_batch, n_Q]", ["n_batch", "n_Q"]),
        ("[B; T; C]", ["B", "T", "C"]),
        ("[B | T]", ["B", "T"]),
        ("(B x T x C)", ["B", "T", "C"]),
        ("(B × T × C)", ["B", "T", "C"]),
        ("[batch size, src len, hid dim]", ["batch_size", "src_len", "hid_dim"]),
        ("torch.Size([B, T])", ["B", "T"]),
        ("($B$, $T$)", ["B", "T"]),
        ("(`B`, `T`)", ["B", "T"]),
        ("(B,)", ["B"]),
        ("(B, T*C/nh)", ["B", "T*C//nh"]),
        ("(B, T, 3C)", ["B", "T", "3*C"]),
        ("(N, H // 2)", ["N", "H//2"]),
        ("(..., T, T)", ["...", "T", "T"]),
        ("(*, L, E)", ["*", "L", "E"]),
        ("(B, ?, _, -1, :)", ["B", "?", "_", "-1", ":"]),
        ("[B, 012, T]", ["B", "12", "T"]),
        ("[b n (h d)]", ["b", "n", "h*d"]),
        ("(BxTxC)", ["B", "T", "C"]),
    ],
)
def test_shapes_in_brackets(text: str, axes: list[str]) -> None:
    (documented,) = find_shapes(f"so: {text} here")
    assert texts(documented) == axes
    assert documented.bracketed


@pytest.mark.parametrize("text", ["T/S", "P_q/P_v", "src_len/tgt_len", "Lq/Lk", "L_q / L_k", "q_len/kv_len"])
def test_two_lengths_of_which_one_is_meant(text: str) -> None:
    axis = parse_axis(text)
    assert axis is not None
    assert axis.kind == "any"


@pytest.mark.parametrize("text", ["C/nh", "L/W", "T/2", "S/H", "n_heads/n_kv_heads", "H_q/H_kv", "Lq/L", "q/q"])
def test_quotients(text: str) -> None:
    axis = parse_axis(text)
    assert axis is not None
    assert axis.kind == "expression"


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("B x H x L", ["B", "H", "L"]),
        ("B X H X L", ["B", "H", "L"]),
        ("BxHxLqxDk", ["B", "H", "Lq", "Dk"]),
        ("Shape batch_size x n_head x seq_len", ["batch_size", "n_head", "seq_len"]),
        ("B×H×L", ["B", "H", "L"]),
        ("bsz x seqlen x dim", ["bsz", "seqlen", "dim"]),
        ("B,T,C", ["B", "T", "C"]),
        ("batch, seq, d_model.", ["batch", "seq", "d_model"]),
        ("B_, nH, W, C/nH", ["B_", "nH", "W", "C//nH"]),
        ("b h n d", ["b", "h", "n", "d"]),
        ("b n (h d)", ["b", "n", "h*d"]),
        ("(b h) n d", ["b*h", "n", "d"]),
        ("w 2*w", ["w", "2*w"]),
    ],
)
def test_shapes_without_brackets(text: str, axes: list[str]) -> None:
    assert texts(parse_bare_shape(text)) == axes


@pytest.mark.parametrize(
    "text", ["", " ", "a", "the heads", "see, above", "2, 3", "1 x 1", "x = y, z", "faster than before", "of T", "k=1"]
)
def test_other_words_are_not_a_shape(text: str) -> None:
    assert parse_bare_shape(text) is None


@pytest.mark.parametrize(
    "text", ["view(B, T)", "x[B, T]", "f(x)(B, T)", "(B, T", "B, T)", "()", "(see above)", "[0, T)"]
)
def test_calls_and_unclosed_brackets_are_not_shapes(text: str) -> None:
    assert list(find_shapes(text)) == []


@pytest.mark.parametrize(
    "text",
    ["[L, L-1, ..., -R]", "(1, 2, ..., n)", "[x1, x2, ..., xn]", "(0, T, -T)", "[N, N - 1, ..., 1]", "[n * k]"],
)
def test_lists_of_values_are_not_shapes(text: str) -> None:
    assert list(find_shapes(text)) == []


@pytest.mark.parametrize("text", ["(B, ..., D)", "(2, ..., D)", "[B1, ..., D]", "(..., T, D)", "[b * n, d]"])
def test_dots_and_stars_of_a_shape(text: str) -> None:
    assert [documented.text for documented in find_shapes(text)] == [text]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("(b, h, d1, ..., dn, c)", ["b", "h", "...", "c"]),
        ("[B, n_1, n_2, …, n_k]", ["B", "…"]),
        ("(b, h, d1', ..., dn', c)", ["b", "h", "...", "c"]),
        ("(b, h, d1, ..., q_dn, k_dn)", ["b", "h", "...", "k_dn"]),
        ("(b, d1, ..., c)", ["b", "d1", "...", "c"]),
        ("(b, h1, ..., dn, c)", ["b", "h1", "...", "dn", "c"]),
    ],
)
def test_run_of_axes(text: str, axes: list[str]) -> None:
    (documented,) = find_shapes(text)
    assert texts(documented) == axes


def test_shape_in_a_sentence() -> None:
    assert [documented.text for documented in find_bare_shapes("the mask, bsz x qlen x klen, where 1 x 1")] == [
        "bsz x qlen x klen"
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("C", "name"),
        ("12", "number"),
        ("h*d", "expression"),
        ("?", "any"),
        ("...", "variadic"),
        ("*batch", "variadic"),
    ],
)
def test_kinds_of_axes(text: str, kind: str) -> None:
    axis = parse_axis(text)
    assert axis is not None
    assert axis.kind == kind


@pytest.mark.parametrize(
    "text", ["", "0", "Tensor", "optional", "x.y", "f(x)", "a[0]", "a if b else c", "1.5", "9" * 5000]
)
def test_not_an_axis(text: str) -> None:
    assert parse_axis(text) is None


@pytest.mark.parametrize(("text", "letters"), [("(h d)", ("h", "d")), ("T*C/nh", ("T", "C", "nh")), ("2*H'", ("H'",))])
def test_names_of_an_axis(text: str, letters: tuple[str, ...]) -> None:
    axis = parse_axis(text)
    assert axis is not None
    assert axis.names == letters


FORMATTERS = {
    "round": lambda axes: f"({', '.join(axes)})",
    "tight": lambda axes: f"({','.join(axes)})",
    "square": lambda axes: f"[{', '.join(axes)}]",
    "size": lambda axes: f"torch.Size([{', '.join(axes)}])",
    "times": lambda axes: f"({' x '.join(axes)})",
    "semicolons": lambda axes: f"[{'; '.join(axes)}]",
    "bare times": lambda axes: " x ".join(axes),
    "bare commas": lambda axes: ", ".join(axes),
    "spaced": lambda axes: " ".join(axes),
    "arrow": lambda axes: f"-> ({', '.join(axes)})",
    "labelled": lambda axes: f"shape: ({', '.join(axes)})",
    "ticks": lambda axes: f"`({', '.join(axes)})`",
    "said": lambda axes: f"of shape ({', '.join(axes)})",
}


@given(st.sampled_from(sorted(FORMATTERS)), st.lists(st.sampled_from(NAMES), min_size=2, max_size=6))
def test_shape_round_trip_in_any_notation(notation: str, axes: list[str]) -> None:
    (claim,) = parse_comment(FORMATTERS[notation](axes))
    assert texts(claim.shapes[0]) == axes
    assert (claim.role, claim.strict) == ("result", True)


ARITHMETIC = st.recursive(
    st.sampled_from(["B", "T", "nh", "d_model"]),
    lambda inner: st.builds("{}{}{}".format, inner, st.sampled_from("*+"), inner),
    max_leaves=4,
)


@given(st.lists(ARITHMETIC, min_size=2, max_size=4))
def test_formula_round_trip(axes: list[str]) -> None:
    (documented,) = find_shapes(f"({', '.join(axes)})")
    assert texts(documented) == axes


SHAPELIKE = st.text(st.sampled_from("BTCxX×()[],;|:->→@*+/0123 _'`$\\.…?=#\n\t\x00é①²"), max_size=80)


@settings(max_examples=400)
@given(st.one_of(st.text(max_size=80), SHAPELIKE))
def test_any_text_can_be_parsed(text: str) -> None:
    for claim in parse_comment(text):
        for documented in claim.shapes:
            assert documented.axes
            assert all(isinstance(name, str) and name for name in documented.names)
    for documented in (*find_shapes(text), *find_bare_shapes(text)):
        assert text[documented.start : documented.end] == documented.text or not documented.bracketed
    parse_bare_shape(text)


PROSE = [
    "-log(sigmoid(1.5))",
    "Initialize [Noam optimizer](../../optimizers/noam.html)",
    "q[1] global (k[-1])",
    "type: list[DecoderLayer]",
    "If the user passed a tuple for encoder_outputs, we wrap it in a BaseModelOutput",
    "hash[0] = 1*31^0 + 2*31^1 + 3*31^2",
    "Embedding layer for target (for decoder)",
    "Embed the tokens (`src`) and run it through the the transformer",
    "If a device map has been used, we can speedup the load time by warming up the device caching allocator.",
    "Copyright 2021 The Facebook, Inc. and The HuggingFace Inc. team. All rights reserved.",
    "we have a mask of 0, 1, 2 (see bug below)",
    "Compute scaling for expanded head_dim (q and k have doubled dimensions after concatenation)",
    "final squeeze(-1). SeqAllToAllDim requires a 4-D input, so we add",
    "Keep track of the stack (for debugging)",
    "Apply the attention mask is (precomputed for all layers in RoFormerModel forward() function)",
    "Third, compute entity embeddings and concatenate with word embeddings",
    "pool with window of size=3, stride=2",
    "Get pools based on the valid key entries (based on padding / causality)",
    "Pixel decoder (FPN)",
    "Do not increase -50000/50000, data type half has quite limited range",
    "bit of a hack for time alignment (sounds better) - from Bark original implementation",
    'xdoctest: +IGNORE_WANT("not sure why xdoctest is choking on this")',
    "Attention with Linear Biases (ALiBi)",
    "log of distance is sign(rel_pos) * log(abs(rel_pos) + 1)",
    "four values, three of which have been passed through a bottleneck: the query and key, passed through the same",
    "Retrieval-Enhanced Transformer (Retro)",
    "Finally, concatenate along the time dimension",
    "`distance` is the distance given by FAISS and `idx`, $i$ is the index of it in `keys_store`.",
    "Initial token classification for Entity Extraction (NER)",
    "if attention_mask is passed, make sure that padded feature vectors cannot be sampled",
    "ATM, we have mixed things encoder, decoder, and encoder-decoder attn",
    "need to pad if too short (since non-causal model)",
    "To train a model on `num_labels` classes, you can pass `num_labels=num_labels` to `.from_pretrained(...)`",
    "MoE models don't work with torch.compile (dynamic slicing)",
    "this operation is a bit awkward, but it's required to",
    "Number of tokens in the source vocabulary (for token embeddings)",
    "`[PAD]` token",
    "first pass readout (per paper), then recirculate",
    "(fairseq BLEU: 36.4 http://matrix.statmt.org/matrix/output/1914?score_id=37605)",
    "Account for 4x downsampling in audio encoder (conv2 and avg pooling)",
    "(1) period-based dependencies discovery",
    "swap (1, 2)",
    "dims (0, 2, 1, 3)",
    "see (Vaswani et al., 2017)",
    "normalise (each row: 1, then 1/2, 1/2 ...)",
    "TODO (me): dropout",
    "no 1 x 1 conv here; merge the heads (contiguous!)",
    "fast path left out: see F.multi_head_attention_forward(query, key, value)",
    "scale (1 / sqrt(D))",
    "happens in place (saves memory)",
    "k=1, i.e. j > i",
    "(not d_model)",
    "type: ignore[assignment]",
    "noqa: F401",
    "fmt: off",
    "pylint: disable=too-many-locals",
    "x if x > 0 else exp(x) - 1",
    "O(T^2)",
    "[1]",
    "(a)",
]


def test_prose_has_no_shapes() -> None:
    assert len(PROSE) >= 60
    assert [
        (text, [claim.shapes[0].text for claim in parse_comment(text)]) for text in PROSE if parse_comment(text)
    ] == []


@pytest.mark.parametrize("part", ["(", "a, ", "-> (B, T) ", "x ", "((B, T)", ":math:`", "q and ", "B x ", "[", "(B "])
def test_long_comment_is_parsed_quickly(part: str) -> None:
    started = time.process_time()
    for length in (900, 100_000):
        text = (part * length)[:length]
        parse_comment(text)
        list(find_shapes(text))
        find_bare_shapes(text)
    assert time.process_time() - started < 1.0
