"""What explaining a failure must not do: change the process, keep tensors, take memory, guess, or trust names."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from torch import Tensor

from attnshape.failing import report
from attnshape.failing.finding import Candidate, on_operand
from attnshape.failing.scene import Scene, scene_of
from attnshape.failing.trying import hint
from attnshape.inference.failed import Alike
from attnshape.tracing.runner import Runnable, record
from tests.cli.running import Attnshape
from tests.failing.failing_case import Failing, drawn, marked
from tests.failing.products import CASES as PRODUCTS

QUERY = torch.ones(2, 3, 5, 4)
KEY = torch.ones(2, 3, 7, 4)
NUMBERS = {"B": 2, "H": 3, "Lq": 5, "Lk": 7, "Dk": 4}


def matmul(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query, key)


def scene_of_call(function, *args) -> Scene:
    raw = record(Runnable(function, args), 0)
    assert raw.failure is not None
    return scene_of(Alike(raw.failure, NUMBERS), (), (), "cpu", "float32")


def transposed_key(scene: Scene, rank: int = 0) -> Candidate:
    (found,) = on_operand(scene.parties[1], ".mT", lambda tensor, _: tensor.mT, rank)
    return found


def test_a_change_that_works_is_a_hint():
    scene = scene_of_call(matmul, QUERY, KEY)
    assert hint(scene, [transposed_key(scene)]) == "key.mT makes it B H Lq Lk (tried)"


def test_a_change_that_fails_is_none():
    scene = scene_of_call(matmul, QUERY, KEY)
    (flattened,) = on_operand(scene.parties[1], ".flatten()", lambda tensor, _: tensor.flatten())
    assert hint(scene, [flattened]) is None


def test_of_two_equally_usual_changes_none_is_shown():
    scene = scene_of_call(matmul, QUERY, KEY)
    assert hint(scene, [transposed_key(scene), transposed_key(scene)]) is None
    assert hint(scene, [transposed_key(scene, rank=1), transposed_key(scene)]) is not None


def test_a_change_whose_result_is_not_what_was_meant_is_none():
    scene = scene_of_call(matmul, QUERY, KEY)
    refused = replace(transposed_key(scene), accepts=lambda shape, operands: shape == operands[0])
    assert hint(scene, [refused]) is None


def test_a_call_that_does_not_fail_on_stand_ins_has_no_hint():
    def picks(query: Tensor, index: Tensor) -> Tensor:
        return query[index]

    scene = scene_of_call(picks, QUERY, torch.tensor([9]))
    (changed,) = on_operand(scene.parties[0], ".mT", lambda tensor, _: tensor.mT)
    assert hint(scene, [changed]) is None


def test_trying_leaves_the_random_numbers_as_they_were():
    scene = scene_of_call(matmul, QUERY, KEY)
    (noisy,) = on_operand(scene.parties[1], ".mT", lambda tensor, _: torch.rand_like(tensor).mT)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert hint(scene, [noisy]) is not None
    assert torch.equal(torch.rand(4), expected)


def test_trying_allocates_nothing_at_large_sizes():
    query = torch.empty(1, 8, 200_000, 64, device="meta")
    scene = scene_of_call(matmul, query, query)
    before = _resident()
    assert hint(scene, [transposed_key(scene)]) is not None
    assert _resident() - before < 2**26


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_no_tensor_outlives_the_run():
    kept: list[weakref.ref[Tensor]] = []

    def fails(query: Tensor) -> Tensor:
        doubled = query * 2
        kept.append(weakref.ref(doubled))
        return doubled @ doubled

    raw = record(Runnable(fails, (QUERY,)), 0)
    gc.collect()
    assert raw.failure is not None
    assert kept[0]() is None


def test_no_tensor_outlives_an_exception_of_the_codes_own():
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


def test_reading_the_failed_line_runs_no_code(attnshape: Attnshape, folder: Path):
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
    made = drawn(case, "json", attnshape, folder)
    assert "x.shape[-1] is 512" in made.trace["failure"]["explanation"]
    assert "width" not in made.trace["failure"]["explanation"]


def test_an_explanation_that_breaks_leaves_the_librarys_words(
    attnshape: Attnshape, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(_: Scene) -> None:
        raise ArithmeticError

    monkeypatch.setattr(report, "explain", broken)
    failure = drawn(PRODUCTS["key_not_transposed"], "json", attnshape, folder).trace["failure"]
    assert failure["explanation"] is None
    assert failure["error"].startswith("RuntimeError: Expected size")
    assert [one["name"] for one in failure["operands"]] == ["query", "key"]


def test_operands_that_no_step_made_are_proved_by_the_small_runs(attnshape: Attnshape, folder: Path):
    failure = drawn(PRODUCTS["linear_of_another_width"], "json", attnshape, folder).trace["failure"]
    weight = next(one for one in failure["operands"] if one["name"] == "Wo.weight")
    assert marked(weight) == "D [D]"
    assert [axis["known"] for axis in weight["tensor"]["axes"]] == ["proved", "proved"]
    assert weight["tensor"]["strides"] == ["D", "1"]


def test_where_the_small_runs_do_not_fail_sizes_are_only_matched(attnshape: Attnshape, folder: Path):
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
    failure = drawn(case, "json", attnshape, folder).trace["failure"]
    assert [marked(one) for one in failure["operands"]] == ["B L [D]", "B [513] L"]
    assert failure["hint"] is None


def test_a_value_that_only_happens_to_fit_is_no_hint(attnshape: Attnshape, folder: Path):
    # at these sizes the transposed operand fits, at others it doesn't
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
    assert drawn(case, "json", attnshape, folder).trace["failure"]["hint"] is None
    equal = Failing(case.source, case.inputs, None, {}, options=("--queries", "12", "--keys", "12", "--d-value", "9"))
    assert drawn(equal, "json", attnshape, folder).trace["failure"]["hint"] is None


HOSTILE = "[bold red]x[/] | `a` <script> \\x1b[31m \\u202e \\n## h"


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_errors_are_shown_as_text(form: str, attnshape: Attnshape, folder: Path):
    case = Failing(
        f"""
        def f(x):
            raise ValueError("{HOSTILE}")  # fails
        """,
        ("x: B L D",),
        None,
        {},
    )
    out = drawn(case, form, attnshape, folder).out
    assert "\x1b[31m" not in out
    assert "\u202e" not in out
    assert "[bold red]x[/]" in out.replace("\\", "")
    if form == "markdown":
        parsed = MarkdownIt("commonmark").enable("table").parse(out)
        found = {token.type for one in parsed for token in (one, *(one.children or []))}
        assert not found & {"html_inline", "html_block", "heading_open"}


def test_names_with_backticks_and_pipes_are_text(attnshape: Attnshape, folder: Path):
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
    parsed = MarkdownIt("commonmark").enable("table").parse(drawn(case, "markdown", attnshape, folder).out)
    rows = sum(token.type == "tr_open" for token in parsed)
    assert rows == 1 + 1 + 3 + 1
