"""A replay keeps each call's operands, results and sources, and can replace results."""

import collections

import torch
from hypothesis import given
from hypothesis import strategies as st

from attnshape.checks.interventions.replay import OutputRef
from tests.checks.subjects import named, normal, replayed


def zeros(value):
    return torch.zeros_like(value)


def test_later_calls_see_a_replaced_result():
    def function(x):
        doubled = x * 2
        return (doubled + 1).sum(-1)

    run = replayed(function, {OutputRef(1): zeros}, x=normal(3, 4))
    assert [event.name for event in run.events] == ["mul", "add", "sum"]
    assert run.value(OutputRef(1)).eq(0).all()
    assert run.events[1].operand_values[0].eq(0).all()
    assert run.returned[0][1].tolist() == [4.0] * 3


def test_one_of_several_outputs_is_replaced():
    def function(x):
        first, second, third = x.chunk(3, dim=-1)
        return first, second, third

    x = normal(2, 6)
    run = replayed(function, {OutputRef(1, 1): zeros}, x=x)
    first, second, third = (value for _, value in run.returned)
    assert torch.equal(first, x[:, :2])
    assert second.eq(0).all()
    assert torch.equal(third, x[:, 4:])


def test_torch_return_types_are_kept():
    def function(x):
        found = x.max(dim=-1)
        return found.values, found.indices

    run = replayed(function, {OutputRef(1, 0): zeros}, x=normal(2, 6))
    values, indices = (value for _, value in run.returned)
    assert values.eq(0).all()
    assert torch.equal(indices, normal(2, 6).argmax(-1))


def test_namedtuples_and_dicts_are_rebuilt():
    from attnshape.checks.interventions.replay import _with

    Pair = collections.namedtuple("Pair", "first second")
    old, other, new = normal(2), normal(3), normal(4)
    pair = _with(Pair(old, [other, {"x": old}]), old, new)
    assert isinstance(pair, Pair)
    assert pair.first is new
    assert pair.second[0] is other
    assert pair.second[1]["x"] is new


def test_in_place_result_is_replaced_in_its_memory():
    def function(x):
        total = torch.ones_like(x)
        view = total[0]
        total.add_(x)
        return view, total

    run = replayed(function, {OutputRef(named(replayed(function, x=normal(2, 3)), "add").order): zeros}, x=normal(2, 3))
    assert all(value.eq(0).all() for _, value in run.returned)


def test_setitem_result_is_the_whole_tensor():
    def function(x):
        total = torch.ones_like(x)
        total[0] += x[0]
        return total * 1

    base = replayed(function, x=normal(2, 3))
    order = named(base, "setitem").order
    run = replayed(function, {OutputRef(order): zeros}, x=normal(2, 3))
    assert run.returned[0][1].eq(0).all()
    assert base.returned[0][1][1].eq(1).all()


def test_replacing_function_gets_a_copy():
    def spoiling(value):
        return value.zero_() + 3

    def function(x):
        kept = x.view(-1)
        return kept * 1, x * 1

    run = replayed(function, {OutputRef(1): spoiling}, x=normal(2, 2))
    kept, other = (value for _, value in run.returned)
    assert kept.eq(3).all()
    assert torch.equal(other, normal(2, 2))


def test_identity_replacement_changes_nothing():
    def function(x):
        weights = x.softmax(-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights.mT @ x

    base = replayed(function, x=normal(4, 5))
    for event in base.events:
        run = replayed(function, {address: lambda value: value for address in event.refs}, x=normal(4, 5))
        assert run.follows(base)
        assert torch.equal(run.returned[0][1], base.returned[0][1])


def test_sources_name_inputs_and_calls():
    def function(x, weight):
        return (x @ weight).relu() + x

    run = replayed(function, x=normal(3, 4), weight=normal(4, 4, seed=1))
    product, relu, total = run.events
    assert product.sources == [("x",), ("weight",)]
    assert relu.sources == [(OutputRef(1),)]
    assert total.sources == [(OutputRef(2),), ("x",)]


def test_view_of_an_input_has_the_input_as_source():
    x = normal(3, 4)
    inside = x[0]

    def function(x):
        return inside + x

    (total,) = replayed(function, x=x).events
    assert total.sources == [("x",), ("x",)]


def test_closure_tensor_is_a_constant():
    constant = normal(4, seed=2)

    def function(x):
        return x * constant

    (product,) = replayed(function, x=normal(3, 4)).events
    assert product.sources == [("x",), ("constant",)]


def test_each_output_is_a_separate_source():
    def function(x):
        low, high = x.chunk(2, dim=-1)
        return high - low

    run = replayed(function, x=normal(3, 4))
    assert run.events[1].sources == [(OutputRef(1, 1),), (OutputRef(1, 0),)]


def test_later_writes_to_shared_memory_are_sources():
    def function(x):
        total = torch.zeros_like(x)
        row = total[0]
        total.add_(x)
        total[1] = 7.0
        return row + 1, total + 1, total[0] + 1

    run = replayed(function, x=normal(3, 4))
    zeros_like, row, added, setitem, of_row, of_total, again, _ = run.events
    assert [event.name for event in run.events] == [
        *("zeros_like", "getitem", "add", "setitem", "add", "add", "getitem", "add")
    ]
    assert of_row.sources == [(row.refs[0], added.refs[0], setitem.refs[0])]
    assert of_total.sources == [(setitem.refs[0],)]
    assert again.sources == [(setitem.refs[0],)]
    assert zeros_like.refs[0] not in of_row.sources[0]


def test_writes_before_a_view_are_not_its_sources():
    def function(x):
        total = torch.zeros_like(x)
        total.add_(x)
        row = total[0]
        return row + 1

    run = replayed(function, x=normal(3, 4))
    assert run.events[-1].sources == [(OutputRef(3),)]


def test_view_of_a_modified_input_has_the_write_as_source():
    def function(x):
        view = x.view(-1)
        x.mul_(2)
        return view + 1

    run = replayed(function, x=normal(3, 4))
    assert run.events[-1].sources == [(OutputRef(1), OutputRef(2))]


def test_operands_have_their_values_before_the_call():
    def function(x):
        total = x.clone()
        total.mul_(3)
        total[0] = 0.0
        total.add_(total)
        return total

    x = normal(2, 3)
    run = replayed(function, x=x.clone())
    multiplied, setitem, doubled = run.events[1:]
    assert torch.equal(multiplied.operand_values[0], x)
    assert torch.equal(multiplied.values[0], 3 * x)
    assert torch.equal(setitem.operand_values[0], 3 * x)
    assert setitem.values[0][0].eq(0).all()
    assert torch.equal(doubled.operand_values[0], setitem.values[0])
    assert torch.equal(doubled.operand_values[1], setitem.values[0])
    assert all(event.in_place for event in run.events[1:])
    assert not run.events[0].in_place


def test_values_are_kept_when_memory_is_overwritten():
    def function(x):
        total = x * 1
        total.zero_()
        return total

    run = replayed(function, x=normal(2, 3))
    assert torch.equal(run.value(OutputRef(1)), normal(2, 3))
    assert run.events[0].outputs[0].eq(0).all()


def test_out_argument_is_detected_by_its_version():
    def function(x):
        target = torch.empty_like(x)
        torch.mul(x, 2, out=target)
        return target + 0

    run = replayed(function, x=normal(2, 3))
    product = named(run, "mul")
    assert product.in_place
    assert run.events[-1].sources == [(product.refs[0],)]


def test_writes_in_inference_mode_are_detected():
    def function(x):
        with torch.inference_mode():
            total = x * 1
            view = total[0]
            total.mul_(2)
            total[1] = 0.0
            return view + 1

    run = replayed(function, x=normal(2, 3))
    assert [event.in_place for event in run.events] == [False, False, True, True, False]
    assert run.events[-1].sources == [(OutputRef(2), OutputRef(3), OutputRef(4))]


@given(
    st.lists(st.sampled_from(("add", "add_", "view", "row", "set", "mT")), min_size=1, max_size=6), st.integers(1, 99)
)
def test_a_replay_changes_no_result(steps, factor):
    def function(x):
        views = [x * factor]
        for step in steps:
            last = views[-1]
            match step:
                case "add":
                    views.append(last + 1)
                case "add_":
                    last.add_(x.sum())
                case "view":
                    views.append(last[None])
                case "row":
                    views.append(views[0][:1])
                case "set":
                    views[0][0] = 5.0
                case "mT":
                    views.append(last.mT)
        return torch.cat([view.reshape(-1) for view in views])

    run = replayed(function, x=normal(2, 2))
    assert torch.equal(run.returned[0][1], function(normal(2, 2)))
    assert [event.order for event in run.events] == list(range(1, len(run.events) + 1))
    for event in run.events:
        assert len(event.operands) == len(event.operand_values) == len(event.sources)
        assert len(event.outputs) == len(event.values) == len(event.refs)
        assert all(s.order < event.order for every in event.sources for s in every if isinstance(s, OutputRef))
