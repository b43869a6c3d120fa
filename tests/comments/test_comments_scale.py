"""Comments and stores are looked up by line: the work grows linearly with a function's lines."""

from __future__ import annotations

import ast

import pytest

from attnshape.comments.functions import _parsed, comments_in
from attnshape.comments.notation import find_shapes
from attnshape.comments.observed_shapes import FunctionCall, StepEvent
from attnshape.comments.unification import constrain, unify
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import Binding, Invocation, TensorValue
from tests.work import calls_made_by

STYLES = {
    "trailing": "    x = x + 1  # (L, D)\n",
    "above": "    # (L, D)\n    x = x + 1\n",
    "apart": "    # (L, D)\n\n    x = x + 1\n",
}


@pytest.mark.parametrize("style", STYLES)
def test_comments_take_linear_work(style):
    def work(count: int) -> int:
        file = _parsed((*"def f(x):\n".splitlines(keepends=True), *(STYLES[style] * count).splitlines(keepends=True)))
        assert file is not None
        (function,) = file.tree.body
        assert isinstance(function, ast.FunctionDef)
        assert len(list(comments_in(file, function))) == count
        return calls_made_by(lambda: list(comments_in(file, function)))

    assert work(800) < 6 * work(200)


def test_stores_take_linear_work():
    def work(count: int) -> int:
        value = TensorValue((3, 4), "float32")
        statements = ast.parse("x = x + 1\n" * count).body
        stores = [Binding(line, 0, "x", value) for line in range(1, count + 1)]
        events = [StepEvent(line, line, "x + 1", "add", line, ((3, 4),), (), line) for line in range(1, count + 1)]
        call = FunctionCall({}, Invocation(FunctionId("f.py", "f", 1), {}, {}, 0, stores), tuple(events))

        def look_up() -> None:
            for statement in statements:
                assert call.reached(statement)
                assert len(call.events_of(statement)) == 1
                assert call.shapes_bound_by("x", statement.lineno) == [value]

        return calls_made_by(look_up) + count

    assert work(800) < 6 * work(200)


def test_names_that_share_no_shape_take_linear_work():
    """Each pair of names has two shapes that contradict each other, so that its values have to be chosen."""

    def work(count: int) -> int:
        shapes = [
            constrain(list(find_shapes(text.format(n))), [[[shape]]])
            for n in range(count)
            for text, shape in (("(p{0}, q{0})", (5, 7)), ("(q{0}, p{0})", (5, 11)))
        ]
        call = FunctionCall({"B": 5}, Invocation(FunctionId("f.py", "f", 1), {}, {}, 0), ())
        return calls_made_by(lambda: unify(shapes, [call]))

    assert work(40) < 6 * work(10)
