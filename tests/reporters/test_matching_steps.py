from __future__ import annotations

import pytest
from msgspec.structs import replace

from attnshape.errors import AttnshapeError
from attnshape.model.trace import Step, Trace
from attnshape.reporters.columns import DEFAULT
from attnshape.reporters.trace_view import ViewOptions, matching_steps, trace_view
from tests.reporters.sample_traces import failed, fused, multi_head, step, tensor, trace_of


def nested() -> Trace:
    return trace_of(
        (
            step(1, "a", "linear", None, tensor("B Lq D"), module="layers.0.attn"),
            step(2, "b", "linear", None, tensor("B Lq D"), module="layers.1.attn"),
            step(3, "c", "linear", None, tensor("B Lq D"), module="layers.10"),
        )
    )


def matched_indices(trace: Trace, match: str | None) -> list[int]:
    return [step.index for step in matching_steps(trace, match)]


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("scores", [11]),
        ("view", [2, 5, 8, 17]),
        ("concat", [17]),
        ("Wo", [18]),
        ("W*", [1, 4, 7, 18]),
        ("transpose", [3, 6, 9, 10, 15]),
        ("matmul, Wq", [1, 11, 14]),
    ],
)
def test_match_by_role_operation_and_module(match: str, expected: list[int]) -> None:
    assert matched_indices(multi_head(), match) == expected


def test_no_pattern_matches_every_step() -> None:
    assert matched_indices(multi_head(), None) == list(range(1, 19))


@pytest.mark.parametrize(
    ("match", "expected"), [("layers.1", [2]), ("layers", [1, 2, 3]), ("layers.*.attn", [1, 2]), ("layers.0.attn", [1])]
)
def test_match_by_module_path(match: str, expected: list[int]) -> None:
    assert matched_indices(nested(), match) == expected


def test_cat_matches_concat_and_in_place_matches_the_plain_name() -> None:
    one: Step = replace(step(1, "cat([a, b])", "cat", None, tensor("B Lq D")), operation="torch.cat")
    assert matched_indices(trace_of((one,)), "concat") == [1]
    assert matched_indices(fused(), "masked_fill") == [12]
    assert matched_indices(fused(), "masked_fill_") == [12]


def test_view_that_merges_nothing_is_not_concat() -> None:
    with pytest.raises(AttnshapeError):
        matching_steps(trace_of((step(1, "x.view(B, Lq, D)", "view", "split", tensor("B Lq D")),)), "concat")


@pytest.mark.parametrize("match", ["scors", "scores,scors", "", " ,", "Wqq", "W"])
def test_unmatched_pattern_lists_the_choices(match: str) -> None:
    with pytest.raises(AttnshapeError) as caught:
        matching_steps(multi_head(), match)
    assert caught.value.hint == (
        "this trace has roles: projection, split, transpose, scores, scale, softmax, context, merge, output; "
        "operations: linear, view, transpose, matmul, truediv, softmax, contiguous, concat; modules: Wq, Wk, Wv, Wo"
    )


def test_trace_without_steps_has_a_hint() -> None:
    with pytest.raises(AttnshapeError) as caught:
        matching_steps(trace_of(()), "scores")
    assert caught.value.hint == "this trace has no steps"


def test_failed_trace_without_a_match_shows_the_failure() -> None:
    assert [row.kind for row in trace_view(failed(), ViewOptions(DEFAULT, match="softmax")).rows] == ["failure"]
