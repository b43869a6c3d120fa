"""The changes of a tensor, a reference or a name that count as a difference; expected values are derived by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import attnshape
from attnshape.comparison.compare import compare, kinds_of, same_strides
from attnshape.comparison.outline import Outline, outline
from attnshape.model.difference import Fact, Kind, OutlineStep, OutlineTensor
from attnshape.model.trace import Reference
from tests.comparison.strategies import step, tensor


def laid_out(shape: tuple[int, ...], stride: tuple[int, ...], formulas: str = "") -> OutlineTensor:
    return OutlineTensor(
        dtype="float32",
        signature="",
        shape=shape,
        stride=stride,
        stride_formulas=tuple(formulas.split()),
        contiguous=False,
        kind="new",
    )


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        # a transposed tensor of another length, without stride formulas
        (laid_out((8, 10, 64), (64, 512, 1)), laid_out((8, 20, 64), (64, 512, 1)), True),
        (laid_out((2, 8, 10), (80, 1, 8)), laid_out((2, 8, 20), (160, 1, 8)), True),
        (laid_out((2, 8, 10), (80, 1, 8)), laid_out((2, 8, 20), (20, 40, 1)), False),
        # a third of a wider tensor: rows with gaps between them
        (laid_out((10, 64), (192, 1), "3*D 1"), laid_out((10, 32), (96, 1), "3*D 1"), True),
        (laid_out((10, 64), (192, 1), "3*D 1"), laid_out((10, 32), (128, 1), "2*D 1"), False),
        (laid_out((10, 64), (192, 1)), laid_out((10, 32), (96, 1), "3*D 1"), True),
        (laid_out((10, 64), (192, 1)), laid_out((10, 32), (96, 1)), False),
        (laid_out((10, 64), (192, 1), "3*X 1"), laid_out((10, 32), (96, 1), "3*X 1"), False),
        (laid_out((10, 64), (192, 1), "D//0 1"), laid_out((10, 32), (96, 1), "((( 1"), False),
        # numeric strides that change with the sizes, and axes in another order
        (laid_out((10, 64), (192, 1), "192 1"), laid_out((10, 32), (96, 1), "96 1"), True),
        (laid_out((10, 64), (192, 1), "192 1"), laid_out((10, 32), (1, 96), "1 96"), False),
        (laid_out((10, 64), (192, 1), "192 1"), laid_out((10, 32), (96, 1)), False),
        # the stride of an axis of size one doesn't matter
        (laid_out((1, 10, 5), (99, 1, 20)), laid_out((1, 10, 5), (7, 1, 20)), True),
        (laid_out((2, 10, 5), (99, 1, 20)), laid_out((2, 10, 5), (7, 1, 20)), False),
        # another number of axes, and no strides
        (laid_out((10, 64), (1, 10)), laid_out((10, 8, 8), (1, 10, 80)), False),
        (laid_out((10, 64), ()), laid_out((10, 64), ()), True),
    ],
)
def test_same_strides(old: OutlineTensor, new: OutlineTensor, same: bool) -> None:
    small, large = {"D": 64}, {"D": 32}
    assert same_strides(old, new, (small, large)) is same
    assert same_strides(new, old, (large, small)) is same


def test_numeric_strides_differ_at_the_same_sizes() -> None:
    old, new = laid_out((10, 64), (192, 1), "192 1"), laid_out((10, 64), (96, 1), "96 1")
    assert not same_strides(old, new, ({"D": 64}, {"D": 64}))


def test_contiguous_tensors_have_the_same_layout_at_any_shape() -> None:
    flat = replace(laid_out((2, 3), (3, 1)), contiguous=True)
    assert same_strides(flat, replace(laid_out((4, 5), (5, 1)), contiguous=True), ({}, {}))
    assert not same_strides(flat, laid_out((2, 3), (1, 2)), ({}, {}))


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ((), set()),
        (("shape", "bytes"), {"size"}),
        (("signature", "shape", "bytes"), {"signature"}),
        (("dtype", "bytes"), {"dtype"}),
        (("stride", "storage", "bytes"), {"stride", "storage"}),
    ],
)
def test_derived_facts_do_not_count(facts: tuple[Fact, ...], found: set[Kind]) -> None:
    assert kinds_of(facts) == found


def code(*steps: OutlineStep) -> Outline:
    input_step = OutlineStep(index=0, expression="x", operation="input", outputs=(tensor("x", "B L D"),))
    return Outline(target="code", sizes={"B": 2}, inputs=(input_step,), steps=steps)


def view_of(one: OutlineStep, of: Reference) -> OutlineStep:
    return replace(one, outputs=(replace(one.outputs[0], kind="view", of=of, bytes=0),))


X = (Reference(input="x"),)


def read(*steps: int) -> tuple[Reference, ...]:
    return tuple(Reference(step=index) for index in steps)


def test_view_of_an_inserted_step_keeps_its_storage() -> None:
    first = step(1, "w(x)", "linear", X, None, "B L D")
    old = code(first, view_of(step(2, "w(x).view()", "view", read(1), "q", "B H L"), read(1)[0]))
    doubled = step(2, "w(x) * 2", "mul", read(1), None, "B L D")
    new = code(first, doubled, view_of(step(3, "(w(x) * 2).view()", "view", read(2), "q", "B H L"), read(2)[0]))
    difference = compare(old, new)
    assert [(change.old is None, change.kinds) for change in difference.steps if change.shown] == [(True, ("steps",))]


def test_view_of_an_inserted_sum_counts_as_a_view_of_its_terms() -> None:
    first, second = step(1, "a(x)", "a", X, "a", "B L D"), step(2, "b(x)", "b", X, "b", "B L D")
    old = code(first, second, view_of(step(3, "a.view()", "view", read(1), "q", "B H L"), read(1)[0]))
    total = step(3, "a + b", "add", read(1, 2), "total", "B L D")
    new = code(first, second, total, view_of(step(4, "total.view()", "view", read(3), "q", "B H L"), read(3)[0]))
    difference = compare(old, new)
    assert [(change.old is None, change.kinds) for change in difference.steps if change.kinds] == [(True, ("steps",))]
    # the additional operand is displayed
    assert [change.changed for change in difference.steps if change.shown] == [(), ("operands",)]


def test_view_of_another_tensor_changes_the_storage() -> None:
    first, second = step(1, "a(x)", "a", X, "a", "B L D"), step(2, "b(x)", "b", X, "b", "B L D")
    viewed = step(3, "a.view()", "view", read(1), "q", "B H L")
    other = replace(viewed, expression="b.view()", uses=read(2))
    difference = compare(
        code(first, second, view_of(viewed, read(1)[0])), code(first, second, view_of(other, read(2)[0]))
    )
    (changed,) = (change for change in difference.steps if change.shown)
    assert changed.kinds == ("storage", "steps")
    assert changed.changed == ("uses",)


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("weight", "weight", ()),
        ("weight", "renamed", ()),
        ("weight", "bias", ("storage",)),  # both sides have both
    ],
)
def test_renamed_parameter_is_the_same(old: str, new: str, kinds: tuple[Kind, ...]) -> None:
    def of(name: str) -> Outline:
        parts = [
            view_of(step(place, f"part{place}()", f"part{place}", (), None, "D"), Reference(parameter=one))
            for place, one in enumerate((name, "bias", "weight" if kinds else "bias"), 1)
        ]
        return code(*parts)

    assert compare(of(old), of(new)).kinds == kinds


def test_names_on_both_sides_are_not_renamed() -> None:
    old = code(step(1, "f(x)", "f", X, "a", "B L"), step(2, "f(x)", "f", X, "b", "B L"))
    new = code(step(1, "f(x)", "f", X, "b", "B L"), step(2, "f(x)", "f", X, "a", "B L"))
    difference = compare(old, new)
    assert difference.renamed == ()
    assert [change.changed for change in difference.steps if change.shown] == [("moved",)]


def test_renamed_argument_does_not_count() -> None:
    old = code(step(1, "f(x, scale=D)", "f", X, "a", "B L"), step(2, "g(x, D, Dk)", "g", X, "b", "B L"))
    new = code(step(1, "f(x, scale=Dk)", "f", X, "a", "B L"), step(2, "g(x, D, Dk)", "g", X, "b", "B L"))
    difference = compare(old, new)
    assert (difference.kinds, difference.renamed) == ((), ())
    assert [change.changed for change in difference.steps] == [("expression",), ()]
    assert "no difference in sizes, tensors and steps; 1 step only rewritten" in str(difference)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("softmax(x, dim=-1)", "softmax(x, dim=-2)", True),
        ("softmax(x, dim=-1)", "softmax(x, dim=1)", False),  # the same axis of two
        ("dropout(x, 0.1)", "dropout(x, 0.2)", True),
        ("x * 8", "x * 8.0", False),
        ("x / 8", "x / size", False),
        ("x[:, -1]", "x[:, -2]", True),
        ("x.sum(-1)", "x.sum( -1 )", False),
    ],
)
def test_changed_number_in_a_call_counts(old: str, new: str, counts: bool) -> None:
    difference = compare(code(step(1, old, "f", X, "a", "B L")), code(step(1, new, "f", X, "a", "B L")))
    assert difference.kinds == (("steps",) if counts else ())
    assert ("numbers" in difference.steps[0].changed) is counts


@pytest.mark.parametrize(("old", "new"), [("x.view(-1, 3)", "x.view(2, 3)"), ("x.view(2, -1)", "x.view(-1, 3)")])
def test_numbers_that_only_determine_the_shape_do_not_count(old: str, new: str) -> None:
    difference = compare(code(step(1, old, "view", X, "a", "B L")), code(step(1, new, "view", X, "a", "B L")))
    assert difference.kinds == ()


def test_text_without_operands() -> None:
    code_outline = code(
        step(1, "w(x)", "linear", X, None, "B"),
        step(2, "(w(x)).view(B)", "view", read(1), "q", "B"),
        step(3, "f(q, q_len) + w(x)", "add", read(2, 1), None, "B"),
    )
    assert [code_outline.text_without_operands(outline_step) for outline_step in code_outline.steps] == [
        "w(…)",
        "….view(B)",
        "f(…, q_len) + …",
    ]


class Looped:
    """A loop over the heads, whose iterations are folded."""

    @staticmethod
    def heads(x: object, H: int) -> object:
        import torch

        parts = [part * 2 for part in x.chunk(H, dim=-1)]  # type: ignore[attr-defined]
        return torch.cat(parts, dim=-1)


def test_loop_with_more_iterations_is_a_size_difference() -> None:
    def heads(H: int, B: int, D: int) -> object:
        import torch

        return Looped.heads, (torch.ones(B, D), H)

    traces = [attnshape.trace(heads, H=number, D=240) for number in (8, 4)]
    assert traces[0].loops
    difference = attnshape.diff(*traces)
    assert difference.kinds == ("size",)
    loops = [step.loops[0] for step in outline(traces[0]).steps if step.loops]
    assert {(loop.expression, loop.count) for loop in loops} == {("H", 8)}


def test_added_inner_steps_are_counted_and_changed_ones_listed_below_their_composite() -> None:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int, need: bool) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
            self.linear = nn.Linear(width, width)
            self.need = need

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = self.linear(x)
            return x + (self.attention(y, y, y, need_weights=self.need)[0] if self.need is not None else y)

    def of(need: bool | None) -> attnshape.Trace:
        return attnshape.trace(Block, init=f"D, H, {need}", inputs={"x": "B L D"})

    text = str(attnshape.diff(of(None), of(True)))
    assert "steps inside it" in text
    assert text.count("↳") == 1
    inside = str(attnshape.diff(of(False), of(True)))
    rows = [line for line in inside.splitlines() if "↳" in line or "attention(" in line]
    assert "attention(" in rows[0]
    assert any("↳ ↳" in row for row in rows)
