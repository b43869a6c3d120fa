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


def nested(roles: dict[int, Role | None], inside: dict[int, int]) -> Trace:
    """Return a trace of steps with these roles, of which some are inside others."""
    steps = (step(index, "x", "f", role, tensor("B")) for index, role in roles.items())
    return trace_of(tuple(replace(one, parent=inside.get(one.index)) for one in steps))


def test_attention_inside_a_composite_has_one_heading() -> None:
    roles: dict[int, Role | None] = dict(enumerate((None, None, "projection", "scores", "context", "output", None), 1))
    assert section_headings(nested(roles, dict.fromkeys(range(3, 7), 2))) == {
        1: "before the attention",
        2: "attention",
        7: "after the attention",
    }
    # a composite around all steps needs no heading
    assert section_headings(nested(roles, dict.fromkeys(range(2, 8), 1))) == {}


def test_section_that_begins_inside_a_composite_has_no_heading() -> None:
    roles: dict[int, Role | None] = dict(enumerate(("projection", None, "scores", "context", "merge", None, None), 1))
    trace = nested(roles, dict.fromkeys((3, 4, 5, 6), 2))
    assert section_headings(trace) == {1: "attention", 7: "after the attention"}


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
