"""Folded tables: nothing is truncated, and no line is too long."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnshape.reporters.columns import parse_columns
from attnshape.reporters.labels import step_label
from attnshape.reporters.reporter import Screen
from attnshape.reporters.table import trace_table
from attnshape.reporters.terminal import fold_code, fold_command, fold_words, longest_identifier
from attnshape.reporters.trace_view import ViewOptions, trace_view
from tests.reporters.sample_traces import fused, multi_head

PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me", "Mc"]))


@pytest.mark.parametrize("width", range(24, 180, 4))
@pytest.mark.parametrize("make", [multi_head, fused])
def test_table_fits_every_width(make: object, width: int) -> None:
    trace = make()  # type: ignore[operator]
    rendered = trace_table(trace_view(trace, ViewOptions(explain=True)), Screen(width))
    lines = rendered.splitlines()
    assert max(map(cell_len, lines)) <= width
    words = " ".join(rendered.split())
    left_out = words.partition("too narrow for ")[2]
    for step in trace.steps:
        for output in step.outputs:
            shape = " ".join(map(str, output.tensor.shape))
            assert "shape" in left_out or shape in words


def test_default_table_fits_100_columns_without_folding() -> None:
    rendered = trace_table(trace_view(multi_head(), ViewOptions()), Screen(100))
    assert rendered == trace_table(trace_view(multi_head(), ViewOptions()), Screen(1000))


def test_strides_go_first() -> None:
    view = trace_view(multi_head(), ViewOptions())
    rendered = trace_table(view, Screen(80))
    assert "too narrow for stride: widen the terminal, or choose with --columns step,stride" in rendered
    titles = next(line for line in rendered.splitlines() if line.lstrip().startswith("#"))
    assert titles.split() == ["#", "step", "signature", "shape", "storage"]
    # what isn't contiguous is still marked
    wide = trace_table(view, Screen(100))
    assert rendered.count("≁") == wide.count("≁") > 5
    assert "2 8 30 64 ≁" in rendered
    assert "….transpose(1, 2)" in rendered


def test_strides_that_are_chosen_alone_stay() -> None:
    view = trace_view(multi_head(), ViewOptions(parse_columns("stride,source")))
    assert "stride" in trace_table(view, Screen(24)).partition("too narrow")[0]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_identifiers_stay_whole(width: int) -> None:
    for trace in (multi_head(), fused()):
        table = trace_table(trace_view(trace, ViewOptions()), Screen(width))
        words = set(re.findall(r"\w+", table))
        for step in trace.steps:
            assert set(re.findall(r"\w+", step_label(trace, step, range(1000), ()))) <= words


@given(st.lists(st.sampled_from([*"()[]=.,", " ", "key_padding_mask", "x", "head_dim", "-1"]), max_size=30))
def test_folded_code_keeps_identifiers_whole(parts: list[str]) -> None:
    text = " ".join("".join(parts).split())
    lines = fold_code(text, longest_identifier(text))
    assert [word for line in lines for word in re.findall(r"\w+", line)] == re.findall(r"\w+", text)


def test_omitted_columns_are_named_with_a_hint() -> None:
    rendered = " ".join(trace_table(trace_view(multi_head(), ViewOptions()), Screen(50)).split())
    assert (
        "too narrow for stride, storage: widen the terminal, or choose with --columns step,stride,storage" in rendered
    )


def test_last_remaining_column_is_folded() -> None:
    rendered = trace_table(trace_view(multi_head(), ViewOptions(parse_columns("expression,bytes"))), Screen(24))
    assert max(map(cell_len, rendered.splitlines())) <= 24
    assert "too narrow for bytes" in rendered


@given(PRINTABLE, st.integers(4, 60))
def test_folding_loses_no_text(text: str, width: int) -> None:
    for fold in (fold_words, fold_code):
        lines = fold(text, width)
        assert all(cell_len(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_long_word_is_folded_with_a_shell_continuation() -> None:
    lines = fold_command(f"attnshape trace --with {'x' * 70} --keys 5", 30)
    assert max(map(len, lines)) <= 30
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == [
        "attnshape",
        "trace",
        "--with",
        "x" * 70,
        "--keys",
        "5",
    ]


@given(st.lists(st.text("abc-=:* '\"\\", min_size=1), max_size=8), st.integers(24, 60))
def test_folded_command_is_equivalent(arguments: list[str], width: int) -> None:
    command = shlex.join(["attnshape", "trace", *(argument.replace("'", "") for argument in arguments)])
    if max(map(len, shlex.split(command))) < width - 8:
        lines = fold_command(command, width)
        assert all(len(line) <= width for line in lines)
        assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
