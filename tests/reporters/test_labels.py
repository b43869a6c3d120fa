from __future__ import annotations

from collections.abc import Container

import pytest
from msgspec.structs import replace

from attnshape.model.trace import NamedTensor, Step, Trace, loops_by_step
from attnshape.reporters.labels import one_line, step_label
from tests.reporters.sample_traces import fused, multi_head, step, tensor, trace_of

EVERY = range(1, 100)


def label(trace: Trace, step: Step, shown: Container[int]) -> str:
    return step_label(trace, step, shown, loops_by_step(trace.loops).get(step.index, ()))


def labels(*expressions: str, name: str | None = None) -> list[str]:
    """Return the labels of a chain of steps, each the operand of the next; the last one has the name."""
    last = len(expressions)
    steps = tuple(
        step(index, text, "view", None, tensor("B Lq D"), index - 1, name=name if index == last else None)
        for index, text in enumerate(expressions, 1)
    )
    return [label(trace_of(steps), step, EVERY) for step in steps]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x.view(\n        B,\n        L,\n    )", "x.view(B, L)"),
        ("foo(  # why\n    a,  # that\n    b\n)", "foo(a, b)"),
        ("(x\n    .view(B, L)\n    .mT)", "(x.view(B, L).mT)"),
        ("a +\n    b", "a + b"),
        ("x[\n    0,\n]", "x[0,]"),
        ("f((\n    a,\n))", "f((a,))"),
        ('einsum("b  d",\n    x)', 'einsum("b  d", x)'),
        ("a  +  b", "a  +  b"),
        ("f('''\n''',\n x", "f(''' ''', x"),
        ("a\tb\x00", "a b\\x00"),
        ("", ""),
    ],
)
def test_one_line(text: str, expected: str) -> None:
    assert one_line(text) == expected


def test_previous_row_is_not_repeated() -> None:
    trace = multi_head()
    assert [label(trace, step, EVERY) for step in trace.steps[:3]] == [
        "Wq(input)",
        "….view(B, Lq, H, Dk)",
        "query = ….transpose(1, 2)",
    ]
    assert label(trace, trace.step(11), EVERY) == "query @ key.transpose(-2, -1)"
    assert label(trace, trace.step(12), EVERY) == "scores = … / sqrt(Dk)"
    assert label(trace, trace.step(18), EVERY) == "Wo(…)"


def test_label_without_a_previous_row_is_complete() -> None:
    trace = multi_head()
    assert label(trace, trace.step(12), {12}) == "scores = query @ key.transpose(-2, -1) / sqrt(Dk)"


def test_brackets_around_omitted_text_are_dropped() -> None:
    assert labels("a @ b", "(a @ b).softmax(-1)")[1] == "….softmax(-1)"
    assert labels("a @ b", "f(a @ b).softmax(-1)" + " " * 3 + "# a long enough line of text")[1].startswith("f(…)")


def test_repeated_text_and_parts_of_names_are_kept() -> None:
    assert labels("x.T", "x.T[0] @ x.T")[1] == "x.T[0] @ x.T"
    assert labels("x.T", "x.Tail[0] + a.x.T + something_that_is_rather_long")[1].startswith("x.Tail[0] + a.x.T")


def test_step_that_does_not_use_the_previous_row_is_complete() -> None:
    trace = trace_of(
        (step(1, "a.T", "view", None, tensor("B")), step(2, "a.T.view(9, 9)", "view", None, tensor("B"), 7))
    )
    assert label(trace, trace.step(2), EVERY) == "a.T.view(9, 9)"


def test_expression_of_a_named_row_is_kept() -> None:
    trace = trace_of(
        (step(1, "f(x)", "view", None, tensor("B"), name="y"), step(2, "f(x).view(3)", "view", None, tensor("B"), 1))
    )
    assert label(trace, trace.step(2), EVERY) == "f(x).view(3)"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n += f(x)", "n += f(x)"),  # n was a number
        ("n //= f(x)", "n //= f(x)"),
        ("n == f(x)", "n = n == f(x)"),
        ("n.f(x)", "n = n.f(x)"),
    ],
)
def test_augmented_assignment_is_not_assigned_again(expression: str, expected: str) -> None:
    one = step(1, expression, "f", None, tensor("B"), name="n")
    assert label(trace_of((one,)), one, EVERY) == expected


def test_self_is_omitted() -> None:
    assert labels("self.f(x, self.y, myself.z)") == ["f(x, y, myself.z)"]


def test_several_names_and_composites() -> None:
    trace = fused()
    assert label(trace, trace.step(2), EVERY) == "q, k, v = ….split(n_embd, dim=2)"
    assert label(trace, trace.step(9), EVERY) == "y = attend(q, k, v)"
    assert label(trace, trace.step(12), EVERY) == "↳ ….masked_fill_(mask | causal, -inf)"


def test_unnamed_output_keeps_the_expression() -> None:
    one = step(1, "f(x)", "f", None, tensor("B"))
    one = replace(one, outputs=(NamedTensor("a", tensor("B")), NamedTensor(None, tensor("B"))))
    assert label(trace_of((one,)), one, EVERY) == "f(x)"
