"""Each change of the code is the only one reported, for modules of the tests, examples and libraries.

`pytest --update-goldens tests/comparison` rewrites the goldens: read each before you commit it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import attnshape
from attnshape import Difference, Trace
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from tests.comparison.traced import change_rows, example, swapped_rows, version
from tests.goldens import assert_golden

GOLDENS = Path(__file__).parent / "goldens"
ROOT = Path(__file__).parents[2]


def compared(old: Trace, new: Trace) -> Difference:
    """Return the difference, and assert that the reverse difference mirrors it."""
    difference, back = attnshape.diff(old, new), attnshape.diff(new, old)
    assert difference.kinds == back.kinds
    assert sorted(row for row in change_rows(back) if row[0] != "changed") == swapped_rows(change_rows(difference))
    assert [(size.new, size.old) for size in back.sizes] == [(size.old, size.new) for size in difference.sizes]
    return difference


# renamed variables


def test_renamed_variables_are_listed_and_are_no_difference() -> None:
    difference = compared(version("Separate"), version("Renamed"))
    assert difference.kinds == ()
    assert not difference
    assert change_rows(difference) == []
    renames = {(rename.old, rename.new) for rename in difference.renamed}
    assert {("x", "hidden"), ("q", "query"), ("scores", "att"), ("Wq", "q_proj"), ("heads", "n_head")} <= renames
    assert all(rename.old != rename.new for rename in difference.renamed)


def test_renamed_variables_of_an_example(tmp_path: Path) -> None:
    names = [("query", "q"), ("masked", "logits"), ("Wq", "to_q"), ("merged", "joined")]
    old = example(tmp_path / "old", "self_attention.py", "CausalSelfAttention")
    new = example(tmp_path / "new", "self_attention.py", "CausalSelfAttention", *names)
    difference = compared(old, new)
    assert (difference.kinds, change_rows(difference)) == ((), [])
    renames = [(rename.old, rename.new) for rename in difference.renamed]
    assert renames == [("query", "q"), ("masked", "logits"), ("merged", "joined"), ("Wq", "to_q")]


# an added step


def test_added_steps_are_only_additions() -> None:
    difference = compared(version("Separate"), version("Masked"))
    assert difference.kinds == ("steps",)
    assert change_rows(difference) == [
        ("added", "torch.ones(L, L)", ()),
        ("added", "torch.ones(L, L).triu(1)", ()),
        ("added", "torch.ones(L, L).triu(1).bool()", ()),
        ("added", "scores.masked_fill(later, -1e9)", ()),
    ]
    assert difference.renamed == ()
    assert difference.new.totals.steps == difference.old.totals.steps + 4


@pytest.mark.parametrize(
    ("text", "addition", "added"),
    [
        ("        weights = scores.softmax(dim=-1)\n", "        weights = weights * 2\n", "weights * 2"),
        ("        qkv = self.Wqkv(x)\n", "        qkv = qkv * 2\n", "qkv * 2"),
        ("        B, L, _ = x.shape\n", "        x = x.clone()\n", "x.clone()"),
        ("        context = weights @ value\n", "        context = context.contiguous()\n", "context.contiguous()"),
        ("        q, k, v = qkv.chunk(3, dim=-1)\n", "        k = k.contiguous()\n", "k.contiguous()"),
    ],
)
def test_step_added_to_an_example(tmp_path: Path, text: str, addition: str, added: str) -> None:
    old = example(tmp_path / "old", "fused_qkv.py", "FusedSelfAttention")
    new = example(tmp_path / "new", "fused_qkv.py", "FusedSelfAttention", (text, text + addition))
    rows = change_rows(compared(old, new))
    assert [row for row in rows if row[0] != "changed"] == [("added", added, ())]
    # views of a contiguous copy have other strides
    strided = [row for row in rows if row[0] == "changed"]
    assert bool(strided) == (added == "k.contiguous()")
    assert all(facts == ("stride",) for _, _, facts in strided)


# a changed size only


@pytest.mark.parametrize("name", ["Separate", "Fused", "Masked"])
def test_changed_size_changes_no_signature_or_stride(name: str) -> None:
    difference = compared(version(name), version(name, L=20, B=3))
    assert difference.kinds == ("size",)
    assert [(size.symbol, size.old, size.new) for size in difference.sizes] == [("B", 2, 3), ("L", 10, 20)]
    assert {fact for _, _, facts in change_rows(difference) for fact in facts} == {"shape", "bytes"}
    assert {how for how, _, _ in change_rows(difference)} == {"changed"}


library = [pytest.mark.slow, pytest.mark.libraries]


@pytest.mark.parametrize(
    ("target", "how"),
    [
        ("examples/torch_multihead.py:Block", {"init": "D, H", "inputs": {"x": "B L D"}}),
        ("examples/rotary.py:RotaryAttention", {"init": "D, H", "inputs": {"x": "B L D"}}),
        ("examples/gqa.py:GroupedQueryAttention", {"init": "D, H, Hkv", "inputs": {"x": "B L D"}}),
        pytest.param("tests/libraries/cases/transformers_text_cases.py:bert", {}, marks=library),
        pytest.param(
            "tests/libraries/cases/transformers_text_cases.py:llama_fused",
            {},
            marks=library,
        ),
        pytest.param("tests/libraries/cases/torch_cases.py:encoder_layer", {}, marks=pytest.mark.slow),
    ],
)
def test_changed_size_in_a_library(target: str, how: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    old, new = (attnshape.trace(target, L=length, **how) for length in (10, 24))  # type: ignore[arg-type]
    difference = compared(old, new)
    assert difference.kinds == ("size",)
    assert [(size.symbol, size.old, size.new) for size in difference.sizes] == [("L", 10, 24)]
    assert {how for how, _, _ in change_rows(difference)} == {"changed"}


# reshape instead of view


def test_reshape_instead_of_view_is_one_changed_step() -> None:
    difference = compared(version("Separate"), version("Reshaped"))
    assert difference.kinds == ("steps",)
    text = "Wq(x).reshape(B, L, heads, -1)"
    assert change_rows(difference) == [("changed", text, ("operation", "expression"))]


def test_reshape_instead_of_view_in_an_example(tmp_path: Path) -> None:
    edit = ("key = self.Wk(x).view", "key = self.Wk(x).reshape")
    old = example(tmp_path / "old", "self_attention.py", "CausalSelfAttention")
    new = example(tmp_path / "new", "self_attention.py", "CausalSelfAttention", edit)
    difference = compared(old, new)
    assert difference.kinds == ("steps",)
    assert change_rows(difference) == [("changed", "Wk(x).reshape(B, L, H, Dk)", ("operation", "expression"))]


def test_reshape_that_copies_changes_the_storage(tmp_path: Path) -> None:
    edit = ("context.transpose(1, 2).contiguous().view(B, L, D)", "context.transpose(1, 2).reshape(B, L, D)")
    old = example(tmp_path / "old", "self_attention.py", "CausalSelfAttention")
    new = example(tmp_path / "new", "self_attention.py", "CausalSelfAttention", edit)
    difference = compared(old, new)
    assert difference.kinds == ("storage", "steps")
    assert change_rows(difference) == [
        ("removed", "context.transpose(1, 2).contiguous()", ()),
        ("changed", "context.transpose(1, 2).reshape(B, L, D)", ("operation", "expression", "storage", "bytes")),
    ]


# fused instead of separate projections


def assert_fused(difference: Difference, projected: str, split: str) -> None:
    rows = change_rows(difference)
    assert difference.kinds == ("stride", "steps")
    assert [row[1] for row in rows if row[0] == "added"] == [projected, split]
    assert [row[1] for row in rows if row[0] == "removed"] == ["Wq(x)", "Wk(x)", "Wv(x)"]
    changed = [row for row in rows if row[0] == "changed"]
    assert len(changed) == 7  # three views, three transpositions, and that of the keys
    assert {facts for _, _, facts in changed} == {("stride",)}


def test_fused_projections() -> None:
    assert_fused(compared(version("Separate"), version("Fused")), "Wqkv(x)", "Wqkv(x).chunk(3, dim=-1)")


def test_fused_projections_of_an_example(tmp_path: Path) -> None:
    three = "".join(f"        self.W{letter} = nn.Linear(d_model, d_model)\n" for letter in "qkv")
    new = example(tmp_path / "new", "fused_qkv.py", "FusedSelfAttention")
    edits = [
        ("        self.Wqkv = nn.Linear(d_model, 3 * d_model)\n", three),
        ("        qkv = self.Wqkv(x)\n        q, k, v = qkv.chunk(3, dim=-1)\n", ""),
        *((f"{letter}.view", f"self.W{letter}(x).view") for letter in "qkv"),
    ]
    old = example(tmp_path / "old", "fused_qkv.py", "FusedSelfAttention", *edits)
    assert_fused(compared(old, new), "Wqkv(x)", "qkv.chunk(3, dim=-1)")


# another dtype


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_another_dtype_changes_only_the_dtype(dtype: str) -> None:
    difference = compared(version("Separate"), version("Separate", dtype=dtype))
    assert difference.kinds == ("dtype",)
    assert {fact for _, _, facts in change_rows(difference) for fact in facts} == {"dtype", "bytes"}
    assert len(change_rows(difference)) == len(difference.steps)
    factor = 2 if dtype == "float64" else 0.5
    assert difference.new.totals.new_bytes == difference.old.totals.new_bytes * factor


def test_another_dtype_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    how = {"init": "D, H", "inputs": {"x": "B L D"}}
    target = "examples/torch_multihead.py:Block"
    old, new = (attnshape.trace(target, dtype=dtype, **how) for dtype in ("float32", "float64"))  # type: ignore[arg-type]
    assert compared(old, new).kinds == ("dtype",)


# other changes


def test_moved_step_is_reported_only_as_moved() -> None:
    difference = compared(version("Separate"), version("Swapped"))
    assert difference.kinds == ("steps",)
    rows = change_rows(difference)
    assert len(rows) == 3
    assert {(how, facts) for how, _, facts in rows} == {("changed", ("moved",))}


def test_other_operands_of_the_same_shapes_are_a_difference() -> None:
    difference = attnshape.diff(version("Separate"), version("Misled"))
    used = [change for change in difference.steps if "uses" in change.changed and change.new is not None]
    assert [change.new.expression for change in used if change.new is not None] == ["weights @ k"]
    assert "steps" in difference.kinds


def test_copy_changes_strides_and_steps() -> None:
    difference = compared(version("Separate"), version("Copied"))
    assert difference.kinds == ("stride", "steps")
    rows = change_rows(difference)
    assert ("added", "Wk(x).view(B, L, heads, -1).permute(0, 2, 1, 3).contiguous()", ()) in rows
    assert ("changed", "k.mT", ("stride",)) in rows


# the same code


def test_same_code_in_another_folder_with_another_seed_is_no_difference(tmp_path: Path) -> None:
    one, other = (
        example(tmp_path / name, "self_attention.py", "CausalSelfAttention", seed=seed, train=train)
        for name, seed, train in (("a", 0, False), ("b/deeper", 7, True))
    )
    difference = compared(one, other)
    assert (difference.kinds, difference.renamed, change_rows(difference)) == ((), (), [])


def test_reformatted_code_is_no_difference(tmp_path: Path) -> None:
    rows = "".join(f"            {name},\n" for name in ("B", "L", "self.H", "self.Dk"))
    long = f"self.Wq(x).view(\n{rows}        ).transpose(1, 2)"
    edit = ("self.Wq(x).view(B, L, self.H, self.Dk).transpose(1, 2)", long)
    old = example(tmp_path / "old", "self_attention.py", "CausalSelfAttention")
    new = example(tmp_path / "new", "self_attention.py", "CausalSelfAttention", edit)
    difference = compared(old, new)
    assert (difference.kinds, change_rows(difference)) == ((), [])


# output


TEXTS: dict[str, tuple[str, int, Callable[[], tuple[Trace, Trace]]]] = {
    f"{name}_{form}{'' if form == 'markdown' else f'_{width}'}": (form, width, pair)
    for name, pair in {
        "renamed": lambda: (version("Separate"), version("Renamed")),
        "added": lambda: (version("Separate"), version("Masked")),
        "size": lambda: (version("Separate"), version("Separate", L=20)),
        "reshaped": lambda: (version("Separate"), version("Reshaped")),
        "fused": lambda: (version("Separate"), version("Fused")),
        "dtype": lambda: (version("Separate"), version("Separate", dtype="bfloat16")),
        "moved": lambda: (version("Separate"), version("Swapped")),
    }.items()
    for form, width in (("markdown", 100), ("table", 80), ("table", 100), ("table", 160))
    if form == "markdown" or width == 100 or name == "fused"
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    form, width, pair = TEXTS[name]
    text = find_renderer(form, "difference")(attnshape.diff(*pair()), "attnshape diff old.json new.json", Screen(width))
    # all versions are in one module
    text = re.sub(r"tests\.comparing\.versions:", "", text)
    path = GOLDENS / f"{name}.txt"
    assert_golden(path, text)


def test_every_golden_is_used() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(TEXTS)
