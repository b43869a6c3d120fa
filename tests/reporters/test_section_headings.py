from __future__ import annotations

from msgspec.structs import replace

from attnshape.model.trace import Role, Trace
from attnshape.reporters.trace_view import section_headings
from tests.reporters.sample_traces import fused, multi_head, step, tensor, trace_of


def of_roles(*roles: Role | None) -> Trace:
    return trace_of(tuple(step(index, "x", "f", role, tensor("B")) for index, role in enumerate(roles, 1)))


def test_headings_of_multi_head() -> None:
    assert section_headings(multi_head()) == {1: "project and split", 10: "attend", 15: "merge"}


def test_heading_is_above_a_composite_not_inside_it() -> None:
    assert section_headings(fused()) == {1: "project and split", 9: "attend"}


def test_steps_around_the_attention_have_separate_headings() -> None:
    trace = of_roles(None, "projection", "scores", "context", "merge", "output", None)
    assert section_headings(trace) == {
        1: "before the attention",
        2: "project and split",
        3: "attend",
        5: "merge",
        7: "after the attention",
    }
    assert section_headings(of_roles("scores", "context", None)) == {1: "attend", 3: "after the attention"}


def test_other_orders_have_no_headings() -> None:
    two_layers = ("projection", "scores", "context", "output") * 2
    assert section_headings(of_roles(*two_layers)) == {}  # type: ignore[arg-type]
    assert section_headings(of_roles("projection", "scores", "projection", "context")) == {}
    assert section_headings(of_roles("merge", "scores", "context")) == {}


def test_no_roles_no_headings() -> None:
    assert section_headings(of_roles(None, None)) == {}
    assert section_headings(of_roles("scores", "softmax", "context")) == {}
    assert section_headings(of_roles("projection", "scores")) == {}
    assert section_headings(trace_of(())) == {}


def test_named_step_before_the_scores_has_no_heading() -> None:
    trace = multi_head()
    key = trace.step(10)
    named = replace(key, outputs=(replace(key.outputs[0], name="kt"),))
    steps = (*trace.steps[:9], named, *trace.steps[10:])
    assert section_headings(replace(trace, steps=steps))[11] == "attend"
