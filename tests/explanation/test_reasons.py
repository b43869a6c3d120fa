"""Reasons are given where they apply, and nowhere else: five kinds of code, and variants that lack one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnshape.model.explanation import Explanation, Grid, Paragraph
from attnshape.options.spec import RunOptions, TargetSpec
from tests.explanation.explained import (
    SOURCES,
    SPECS,
    assert_numbers_are_measured,
    explained,
    explanation_of,
    section_of,
    text_of,
)

TOPICS = {
    "function": ["scores", "scale", "softmax", "context"],
    "causal_module": [
        *("projections", "heads", "scores", "scale", "mask", "softmax", "dropout", "context", "merge", "output"),
    ],
    "comprehension": [
        *("projections", "heads", "scores", "scale", "mask", "softmax", "dropout", "context", "merge", "output"),
    ],
    "list_of_heads": [
        *("projections", "heads", "scores", "scale", "mask", "softmax", "context", "merge", "output"),
    ],
    "parallel_heads": ["projections", "heads", "scores", "softmax", "context", "merge", "output"],
}
HEADS = "query: B H Lq Dk"
FUNCTION = "function.py:attention"
CAUSAL = "causal_module.py:CausalSelfAttention"


def topics(explanation: Explanation) -> list[str]:
    return [section.topic for section in explanation.parts[0].sections]


@pytest.mark.parametrize("name", SPECS)
def test_only_modules_have_a_mode(name: str) -> None:
    text = explained(name).introduction.paragraphs[0].text
    mode = {"function": None, "comprehension": "training"}.get(name, "evaluation")
    assert [one for one in ("training", "evaluation") if f"in {one} mode" in text] == [mode] * (mode is not None)


@pytest.mark.parametrize("name", SPECS)
def test_sections_follow_the_data(name: str) -> None:
    explanation = explained(name)
    assert topics(explanation) == TOPICS[name]
    assert [section.topic for section in explanation.introduction.sections] == ["inputs"]
    assert explanation.summary.sections[-1].topic == "symbols"


@pytest.mark.parametrize("name", SPECS)
def test_each_section_says_what_and_why(name: str) -> None:
    for section in explained(name).parts[0].sections:
        purposes = {block.purpose for block in section.blocks if isinstance(block, Paragraph)}
        assert {"what", "why"} <= purposes, section.topic
        assert section.steps or section.topic == "heads", section.topic
    unexplained = {
        section.topic
        for section in explained(name).parts[0].sections
        if not any(isinstance(block, Paragraph) and block.purpose == "without" for block in section.blocks)
    }
    # modules that are heads, and what only places results side by side
    assert unexplained <= {"heads", "merge", "output"}


@pytest.mark.parametrize("name", SPECS)
def test_each_step_is_in_one_section(name: str) -> None:
    explanation = explained(name)
    listed = [index for part in explanation.parts for section in part.sections for index in section.steps]
    assert sorted(listed) == [step.index for step in explanation.trace.steps]


def variant(folder: Path, name: str, *changes: tuple[str, str], **options: object) -> Explanation:
    """Return the explanation of one of the sources with some text replaced."""
    file, _, target = name.partition(":")
    source = (SOURCES / file).read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path = folder / f"variant_{len(list(folder.iterdir()))}_{file}"
    path.write_text(source)
    given = {"init": "D, H", "inputs": {"x": "B L D"}} if name == CAUSAL else {"inputs": _FUNCTION_INPUTS}
    return explanation_of(TargetSpec(f"{path}:{target}", **given), RunOptions(**options))


_SINGLE_HEAD = """
from torch import nn


class Single(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        weights = (self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5).softmax(-1)
        return self.o((weights @ self.v(x)).contiguous().view(x.shape))
"""
_FUNCTION_INPUTS = {"query": "B H Lq Dk", "key": "B H Lk Dk", "value": "B H Lk Dv"}
_SCALE = "* (1.0 / math.sqrt(k.size(-1)))"
_MASK = '        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n'
_DROPOUT = "        att = self.attn_dropout(att)\n"


@pytest.mark.parametrize(
    ("old", "topic", "words"),
    [
        (_SCALE, "scale", ("variance", "1/sqrt", "spread")),
        (_MASK, "mask", ("hidden", "causal", "fill")),
        (_DROPOUT, "dropout", ("dropout", "training", "drop")),
    ],
)
def test_what_the_code_lacks_is_not_said(tmp_path: Path, old: str, topic: str, words: tuple[str, ...]) -> None:
    whole = variant(tmp_path, CAUSAL)
    without = variant(tmp_path, CAUSAL, (old, ""))
    assert topic in topics(whole)
    assert topics(without) == [other for other in topics(whole) if other != topic]
    own = text_of(section_of(whole, topic))
    others = "\n".join(text_of(section) for section in without.parts[0].sections).lower()
    for word in words:
        assert word in own
        assert word not in others, word


def test_copy_is_explained_only_where_there_is_one(tmp_path: Path) -> None:
    merge = text_of(section_of(variant(tmp_path, CAUSAL), "merge"))
    assert "copies 10,240 numbers" in merge
    assert "A view can join H=8 and Dk=64 only if one step along `H` skips as many numbers as all of `Dk`: 64." in merge
    assert "Here it skips 640 = `L*Dk`" in merge
    assert "Without the copy torch refuses this `view`" in merge
    reshaped = text_of(
        section_of(variant(tmp_path, CAUSAL, (".contiguous().view(B, T, C)", ".reshape(B, T, C)")), "merge")
    )
    assert "copies 10,240 numbers" in reshaped
    assert "refuses" not in reshaped
    (tmp_path / "single.py").write_text(_SINGLE_HEAD)
    in_order = explanation_of(TargetSpec(f"{tmp_path}/single.py:Single", init="D", inputs={"x": "B L D"}))
    assert "contiguous" in {step.operation.rpartition(".")[2] for step in in_order.trace.steps}
    every = "\n".join(map(text_of, in_order.parts[0].sections))
    assert "copies" not in every
    assert "view can join" not in every


_SIDE_BY_SIDE = """
import torch
from torch import nn


class Fused(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.qkv = H, nn.Linear(D, 3 * D)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).reshape(B, L, 3, self.H, D // self.H).permute(2, 0, 3, 1, 4).unbind(0)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("old", "new", "is_turned"),
    [
        ("", "", True),
        (".permute(2, 0, 3, 1, 4).unbind(0)", ".permute(2, 0, 1, 3, 4).transpose(2, 3).unbind(0)", True),
        ("(q @ k.mT *", '(torch.einsum("bhid,bhjd->bhij", q, k) *', True),
        (
            "(q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v",
            'torch.einsum("bhij,bhjd->bihd", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)',
            False,
        ),
    ],
)
def test_heads_of_queries_keys_and_values_side_by_side(tmp_path: Path, old: str, new: str, is_turned: bool) -> None:
    (tmp_path / "fused.py").write_text(_SIDE_BY_SIDE.replace(old, new) if old else _SIDE_BY_SIDE)
    explanation = explanation_of(TargetSpec(f"{tmp_path}/fused.py:Fused", init="D, H", inputs={"x": "B L D"}))
    assert_numbers_are_measured(explanation)
    said = text_of(section_of(explanation, "heads"))
    assert (
        "puts the heads before the tokens: for each of B=2 sequences and H=8 heads the last two" in said
    ) == is_turned
    assert ("as a loop would" in said) == is_turned
    order = ["reads the 3*D=1536 features of a token as 3 × H=8 × Dk=64", "cuts one result into 3 parts"]
    assert said.find(order[0]) < said.find(order[1]) != -1
    assert ": Reorders" not in said


def test_factor_is_named_once(tmp_path: Path) -> None:
    multiplied = variant(tmp_path, FUNCTION, ("/ math.sqrt(query.size(-1))", "* query.size(-1) ** -0.5"))
    assert "multiplies the scores by 1/sqrt(Dk) = 0.125." in text_of(section_of(multiplied, "scale"))
    assert "by sqrt(Dk) = 8: the softmax reads 0.125" in text_of(section_of(explained("function"), "scale"))


def test_another_scale_is_not_given_the_usual_reason(tmp_path: Path) -> None:
    wrong = text_of(section_of(variant(tmp_path, CAUSAL, ("k.size(-1)", "x.size(-1)")), "scale"))
    assert "by 1/sqrt(D) ≈ 0.0442" in wrong
    assert "The usual factor is 1/sqrt(Dk) = 0.125" in wrong
    assert "takes exactly that out" not in wrong


def test_scale_of_the_queries_counts_as_one(tmp_path: Path) -> None:
    queries = variant(tmp_path, FUNCTION, ("query @ key", "(query / math.sqrt(query.size(-1))) @ key"))
    twice = text_of(section_of(queries, "scale"))
    assert "reads 0.0156 times" in twice
    once = variant(
        tmp_path,
        FUNCTION,
        ("query @ key", "(query / math.sqrt(query.size(-1))) @ key"),
        (" / math.sqrt(query.size(-1))\n", "\n"),
    )
    assert "reads 0.125 = 1/sqrt(Dk) times" in text_of(section_of(once, "scale"))


def test_wrong_axis_of_the_softmax_is_said(tmp_path: Path) -> None:
    text = text_of(section_of(variant(tmp_path, FUNCTION, ("softmax(dim=-1)", "softmax(dim=-2)")), "softmax"))
    assert "sum to 1 along the second-to-last axis" in text
    assert "along the keys the weights of a query don't sum to 1" in text
    assert "a query's attention" not in text


def test_heads_that_are_cut_out_of_tokens_are_not_described_as_right(tmp_path: Path) -> None:
    shape = "view(B, T, self.n_head, C // self.n_head).transpose(1, 2)"
    text = text_of(
        section_of(variant(tmp_path, CAUSAL, (shape, "reshape(B, self.n_head, T, C // self.n_head)")), "heads")
    )
    assert "arranges the same elements in other axes: B L D becomes B H L Dk; new storage" in text
    assert "heads of Dk=64 features each" not in text
    assert "set of weights" not in text


def test_padding_and_causal_masks() -> None:
    causal = text_of(section_of(explained("causal_module"), "mask"))
    assert "hides 45% of all pairs" in causal
    assert "Query i sees the keys 0 to i" in causal
    assert "its axes for B and H have size 1, so that torch uses it again for each of B=2 × H=8" in causal
    assert "score is -inf" in causal
    padding = text_of(section_of(explained("comprehension"), "mask"))
    assert "the same keys from every query" in padding
    assert "its axes for H and L have size 1" in padding
    assert "score is -1e+09" in padding
    assert "In float32, exp(x) is 0 for x below -104" in padding
    assert "it has no axis for B" in text_of(section_of(explained("list_of_heads"), "mask"))


def test_dropout_says_whether_it_was_on() -> None:
    off, on = (text_of(section_of(explained(name), "dropout")) for name in ("causal_module", "comprehension"))
    assert "dropout is off outside training" in off
    assert "In training mode it sets each weight to 0" in off
    assert "off" not in on
    for text in (off, on):
        assert "multiplies the others by 1.11 ≈ 1/(1-p) with p = 0.1" in text


def test_transposes_are_explained_where_a_matrix_product_needs_them() -> None:
    needed = text_of(section_of(explained("causal_module"), "heads"))
    assert "put the heads before the tokens: for each of B=2 sequences and H=8 heads" in needed
    assert "its result would have the shape 2 10 8 8, `B L H H`" in needed
    einsum = text_of(section_of(explained("parallel_heads"), "heads"))
    assert "before the tokens" not in einsum
    assert "turns the keys" not in text_of(section_of(explained("parallel_heads"), "scores"))


def test_modules_that_are_heads() -> None:
    explanation = explained("list_of_heads")
    assert explanation.parts[0].modules == ("heads.0 … heads.7",)
    text = text_of(section_of(explanation, "heads"))
    assert "run H=8 times, in `heads.0` … `heads.7`: one module for each head" in text
    assert "places 8 results of `B L Dk` side by side" in text_of(section_of(explanation, "merge"))


def test_code_without_attention_is_described_step_by_step(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def scaled(x):\n    y = x * 2.0\n    return y.exp()\n")
    explanation = explanation_of(TargetSpec(f"{tmp_path}/plain.py:scaled", inputs={"x": "B L D"}))
    assert [part.title for part in explanation.parts] == ["What the code does"]
    assert "No attention was recognised" in explanation.parts[0].paragraphs[0].text
    assert "Multiplies each of 10,240 elements by 2" in text_of(explanation.parts[0].sections[0])
    costs = text_of(section_of(explanation, "operations"))
    assert "1 `x * 2.0` 10.2 k = `B*L*D`" in costs
    assert "2 `y.exp()` 10.2 k = `B*L*D`" in costs
    assert not explanation.observed_at


def test_equal_attentions_are_explained_once(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(
        (SOURCES / "causal_module.py").read_text() + "\n\nclass Pair(nn.Module):\n"
        "    def __init__(self, D, H):\n"
        "        super().__init__()\n"
        "        self.first, self.second = CausalSelfAttention(D, H), CausalSelfAttention(D, H)\n\n"
        "    def forward(self, x):\n"
        "        return self.second(self.first(x).relu())\n"
    )
    spec = TargetSpec(f"{tmp_path}/layers.py:Pair", init="D, H", inputs={"x": "B L D"})
    attention, others = explanation_of(spec).parts
    assert attention.modules == ("first", "second")
    assert "These lines run in `first` and `second`." in attention.paragraphs[0].text
    assert others.title == "The other steps"


def test_numbers_at_large_sizes_are_observed_at_smaller_ones() -> None:
    spec = TargetSpec(f"{SOURCES}/{FUNCTION}", inputs=_FUNCTION_INPUTS, sizes={"Lq": 200_000, "Lk": 300_000})
    explanation = explanation_of(spec, RunOptions(device="meta"))
    assert explanation.trace.sizes["Lk"].size == 300_000
    assert 0 < explanation.observed_at["Lk"] < 1000
    assert "observed in a smaller run, at " in explanation.introduction.paragraphs[0].text
    assert f"Lk={explanation.observed_at['Lk']}" in explanation.introduction.paragraphs[0].text
    assert "960,000,000,000 scores in all" in text_of(section_of(explanation, "scores"))


def test_missing_transpose_between_two_sequences_is_an_error() -> None:
    spec = TargetSpec("multi-head", sizes={"Lq": 6, "Lk": 9})
    text = text_of(section_of(explanation_of(spec), "heads"))
    assert "With Lq=6 queries and Lk=9 keys that is an error" in text
    assert "would have the shape" not in text


def test_keys_that_are_turned_at_once_are_not_said_to_be_rows_of_features(tmp_path: Path) -> None:
    keys = "k = k.view(B, T, self.n_head, C // self.n_head)"
    turned = variant(
        tmp_path,
        CAUSAL,
        (f"{keys}.transpose(1, 2)", f"{keys}.permute(0, 2, 3, 1)"),
        ("q @ k.transpose(-2, -1)", "q @ k"),
        ("k.size(-1)", "k.size(-2)"),
    )
    text = text_of(section_of(turned, "heads"))
    assert "`k.view(B, T, n_head, C // n_head).permute(0, 2, 3, 1)` reorders the axes" in text
    rows = next(line for line in text.splitlines() if "put the heads before the tokens" in line)
    assert "permute" not in rows
    assert "1/sqrt(Dk)" in text_of(section_of(turned, "scale"))


def test_dropout_whose_probability_is_known_in_training_only(tmp_path: Path) -> None:
    call = "att = nn.functional.dropout(att, self.attn_dropout.p if self.training else 0.0, self.training)"
    dynamic = text_of(section_of(variant(tmp_path, CAUSAL, (_DROPOUT.strip(), call)), "dropout"))
    assert "multiplies the others by 1.11 ≈ 1/(1-p) with p = 0.1" in dynamic
    none = text_of(section_of(variant(tmp_path, CAUSAL, ("dropout=0.1", "dropout=0.0")), "dropout"))
    assert "in training mode too, since its probability is 0" in none
    assert "multiplies" not in none


def test_steps_of_a_rotation_are_apart_from_others(tmp_path: Path) -> None:
    source = Path("examples/rotary.py").read_text()
    (tmp_path / "cached.py").write_text(source.replace(_ROTATED, f"{_ROTATED}.clone()"))
    spec = TargetSpec(f"{tmp_path}/cached.py:RotaryAttention", init="D, H", inputs={"x": "B L D"})
    explanation = explanation_of(spec)
    clone = next(step.index for step in explanation.trace.steps if step.operation.endswith("clone"))
    positions, operands = section_of(explanation, "positions"), section_of(explanation, "operands")
    assert positions is not None
    assert operands is not None
    assert clone in operands.steps
    assert not set(positions.steps) & set(operands.steps)


_ROTATED = "rotated_key = rotate(key, cos, sin)"


def test_picture_shows_which_keys_each_query_sees() -> None:
    section = section_of(explained("causal_module"), "mask")
    assert section is not None
    (grid,) = (block for block in section.blocks if isinstance(block, Grid))
    size = explained("causal_module").trace.sizes["L"].size
    assert grid.rows == tuple("".join("#" if k <= q else "." for k in range(size)) for q in range(size))


def test_no_picture_where_sequences_see_different_keys() -> None:
    section = section_of(explained("comprehension"), "mask")
    assert section is not None
    assert not any(isinstance(block, Grid) for block in section.blocks)
