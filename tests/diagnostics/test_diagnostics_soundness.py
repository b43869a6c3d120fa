"""A diagnosis doesn't change the process, keep tensors alive, allocate memory, guess, or trust names."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from torch import Tensor

from attnshape.diagnostics import explain
from attnshape.diagnostics.context import FailureContext, failure_context
from attnshape.diagnostics.diagnosis import Fix, change_operand
from attnshape.diagnostics.explain import find_hint
from attnshape.inference.assemble import SimilarFailures
from attnshape.tracing.runner import Runnable, record
from tests.cli.running import Attnshape
from tests.diagnostics.failing_case import Failing, marked, traced_as
from tests.diagnostics.products import CASES as PRODUCTS

QUERY = torch.ones(2, 3, 5, 4)
KEY = torch.ones(2, 3, 7, 4)
NUMBERS = {"B": 2, "H": 3, "Lq": 5, "Lk": 7, "Dk": 4}


def matmul(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query, key)


def context_of_call(function, *args) -> FailureContext:
    raw = record(Runnable(function, args), 0)
    assert raw.failure is not None
    return failure_context(SimilarFailures(raw.failure, NUMBERS), (), (), "cpu", "float32")


def transposed_key(context: FailureContext, rank: int = 0) -> Fix:
    (found,) = change_operand(context.operands[1], ".mT", lambda tensor, _: tensor.mT, rank)
    return found


def test_working_fix_is_a_hint():
    context = context_of_call(matmul, QUERY, KEY)
    assert find_hint(context, [transposed_key(context)]) == "key.mT makes it B H Lq Lk (tried)"


def test_failing_fix_is_not_a_hint():
    context = context_of_call(matmul, QUERY, KEY)
    (flattened,) = change_operand(context.operands[1], ".flatten()", lambda tensor, _: tensor.flatten())
    assert find_hint(context, [flattened]) is None


def test_two_equally_common_fixes_give_no_hint():
    context = context_of_call(matmul, QUERY, KEY)
    assert find_hint(context, [transposed_key(context), transposed_key(context)]) is None
    assert find_hint(context, [transposed_key(context, rank=1), transposed_key(context)]) is not None


def test_fix_with_an_implausible_result_is_not_a_hint():
    context = context_of_call(matmul, QUERY, KEY)
    refused = replace(transposed_key(context), accepts=lambda shape, operands: shape == operands[0])
    assert find_hint(context, [refused]) is None


def test_call_that_succeeds_on_placeholders_has_no_hint():
    def picks(query: Tensor, index: Tensor) -> Tensor:
        return query[index]

    context = context_of_call(picks, QUERY, torch.tensor([9]))
    (changed,) = change_operand(context.operands[0], ".mT", lambda tensor, _: tensor.mT)
    assert find_hint(context, [changed]) is None


def test_trying_fixes_keeps_the_random_state():
    context = context_of_call(matmul, QUERY, KEY)
    (noisy,) = change_operand(context.operands[1], ".mT", lambda tensor, _: torch.rand_like(tensor).mT)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert find_hint(context, [noisy]) is not None
    assert torch.equal(torch.rand(4), expected)


def test_trying_fixes_allocates_no_memory():
    query = torch.empty(1, 8, 200_000, 64, device="meta")
    context = context_of_call(matmul, query, query)
    before = _resident()
    assert find_hint(context, [transposed_key(context)]) is not None
    assert _resident() - before < 2**26


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_no_tensor_is_kept_alive_by_a_diagnosis():
    kept: list[weakref.ref[Tensor]] = []

    def fails(query: Tensor) -> Tensor:
        doubled = query * 2
        kept.append(weakref.ref(doubled))
        return doubled @ doubled

    raw = record(Runnable(fails, (QUERY,)), 0)
    gc.collect()
    assert raw.failure is not None
    assert kept[0]() is None


def test_no_tensor_is_kept_alive_by_an_exception():
    kept: list[weakref.ref[Tensor]] = []

    def fails(query: Tensor) -> Tensor:
        doubled = query * 2
        kept.append(weakref.ref(doubled))
        try:
            return doubled @ doubled
        except RuntimeError as error:
            raise ValueError("as I said") from error

    raw = record(Runnable(fails, (QUERY,)), 0)
    gc.collect()
    assert isinstance(raw.failure.error, ValueError)
    assert kept[0]() is None


def test_reading_the_failed_line_executes_no_code(attnshape: Attnshape, folder: Path):
    case = Failing(
        """
        class Attention(nn.Module):
            @property
            def width(self):
                print("read")
                return 3

            def forward(self, x):
                assert x.shape[-1] == self.width  # fails
                return x
        """,
        ("x: B L D",),
        None,
        {},
        target="Attention",
        init="",
    )
    made = traced_as(case, "json", attnshape, folder)
    assert "x.shape[-1] is 512" in made.trace["failure"]["explanation"]
    assert "width" not in made.trace["failure"]["explanation"]


def test_broken_diagnosis_keeps_the_librarys_message(
    attnshape: Attnshape, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(_: FailureContext) -> None:
        raise ArithmeticError

    monkeypatch.setattr(explain, "diagnose", broken)
    failure = traced_as(PRODUCTS["key_not_transposed"], "json", attnshape, folder).trace["failure"]
    assert failure["explanation"] is None
    assert failure["error"].startswith("RuntimeError: Expected size")
    assert [one["name"] for one in failure["operands"]] == ["query", "key"]


def test_operands_without_a_step_are_verified_by_small_runs(attnshape: Attnshape, folder: Path):
    failure = traced_as(PRODUCTS["linear_of_another_width"], "json", attnshape, folder).trace["failure"]
    weight = next(one for one in failure["operands"] if one["name"] == "Wo.weight")
    assert marked(weight) == "D [D]"
    assert [axis["known"] for axis in weight["tensor"]["axes"]] == ["verified", "verified"]
    assert weight["tensor"]["strides"] == ["D", "1"]


def test_sizes_are_only_matched_if_the_small_runs_succeed(attnshape: Attnshape, folder: Path):
    case = Failing(
        """
        class Attention(nn.Module):
            def __init__(self, D):
                super().__init__()
                self.Wq, self.Wk = nn.Linear(D, D), nn.Linear(D, D + (D == 512))

            def forward(self, x):
                return self.Wq(x) @ self.Wk(x).mT  # fails
        """,
        ("x: B L D",),
        None,
        {},
        target="Attention",
        init="D",
    )
    failure = traced_as(case, "json", attnshape, folder).trace["failure"]
    assert [marked(one) for one in failure["operands"]] == ["B L [D]", "B [513] L"]
    assert failure["hint"] is None


def test_fix_that_fits_only_at_these_sizes_is_not_a_hint(attnshape: Attnshape, folder: Path):
    # the transposed operand fits at these sizes, but not at others
    case = Failing(
        """
        def f(weights, value):
            return weights @ value  # fails
        """,
        ("weights: B H Lq Lk", "value: B H Dv Lq"),
        None,
        {},
        options=("--queries", "12", "--keys", "7", "--d-value", "9"),
    )
    assert traced_as(case, "json", attnshape, folder).trace["failure"]["hint"] is None
    equal = Failing(case.source, case.inputs, None, {}, options=("--queries", "12", "--keys", "12", "--d-value", "9"))
    assert traced_as(equal, "json", attnshape, folder).trace["failure"]["hint"] is None


HOSTILE = "[bold red]x[/] | `a` <script> \\x1b[31m \\u202e \\n## h"


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_error_messages_are_escaped(form: str, attnshape: Attnshape, folder: Path):
    case = Failing(
        f"""
        def f(x):
            raise ValueError("{HOSTILE}")  # fails
        """,
        ("x: B L D",),
        None,
        {},
    )
    out = traced_as(case, form, attnshape, folder).out
    assert "\x1b[31m" not in out
    assert "\u202e" not in out
    assert "[bold red]x[/]" in out.replace("\\", "")
    if form == "markdown":
        parsed = MarkdownIt("commonmark").enable("table").parse(out)
        found = {token.type for one in parsed for token in (one, *(one.children or []))}
        assert not found & {"html_inline", "html_block", "heading_open"}


def test_names_with_backticks_and_pipes_are_escaped(attnshape: Attnshape, folder: Path):
    case = Failing(
        """
        def f(x):
            table = {"a`|[bold]": x * 2}
            return table["a`|[bold]"] @ x.mT.mT  # fails
        """,
        ("x: B L D",),
        None,
        {},
    )
    parsed = MarkdownIt("commonmark").enable("table").parse(traced_as(case, "markdown", attnshape, folder).out)
    rows = sum(token.type == "tr_open" for token in parsed)
    assert rows == 1 + 1 + 3 + 1
