"""The rows of a difference, which show both sides."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

import attnshape
from attnshape import Difference
from attnshape.comparison.compare import compare
from attnshape.comparison.outline import outline
from attnshape.reporters.diff_view import diff_view
from attnshape.reporters.markdown import diff_markdown
from attnshape.reporters.reporter import Screen
from attnshape.reporters.table import diff_table
from tests.reporters.sample_traces import multi_head, tensor

HEADS = dict.fromkeys("qkv", "B H L Dk")


def lines(difference: Difference, width: int = 120) -> list[str]:
    """Return a table's lines with single spaces between words."""
    return [" ".join(line.split()) for line in diff_table(diff_view(difference), Screen(width)).splitlines()]


def test_old_row_has_the_old_stride_and_shape() -> None:
    def doubled(x: Any) -> Any:
        return x * 2

    old, new = (attnshape.trace(doubled, inputs={"x": "B L D"}, L=length) for length in (10, 20))
    difference = attnshape.diff(old, new)
    assert difference.kinds == ("size",)
    rows = lines(difference)
    place = next(number for number, row in enumerate(rows) if row.startswith("1 x * 2"))
    assert rows[place] == "1 x * 2 B L D 2 10 512 5120 512 1 new 40 KiB"
    assert rows[place + 1] == "→ 2 20 512 → 10240 512 1 → new 80 KiB"
    assert "| 2 10 512 → 2 20 512 | 5120 512 1 → 10240 512 1 |" in diff_markdown(diff_view(difference))


def test_changed_operand_shows_both_expressions() -> None:
    def valued(q: Any, k: Any, v: Any) -> Any:
        weights = (q @ k.mT).softmax(-1)
        y = weights @ v
        return y * 2

    def keyed(q: Any, k: Any, v: Any) -> Any:
        weights = (q @ k.mT).softmax(-1)
        y = weights @ k
        return y * 2

    rows = lines(attnshape.diff(*(attnshape.trace(one, inputs=HEADS) for one in (valued, keyed))))
    place = next(number for number, row in enumerate(rows) if row.startswith("4 y = weights @ v "))
    assert rows[place + 1] == "→ y = weights @ k"
    assert "step 4 reads 3, k; the old step 4 reads 3, v" in rows


def test_step_with_a_removed_operand_shows_its_operands() -> None:
    def attending(q: Any, k: Any, v: Any) -> Any:
        weights = (q @ k.mT).softmax(-1)
        y = weights @ v
        y = y.transpose(1, 2)
        return y.flatten(2)

    def skipping(q: Any, k: Any, v: Any) -> Any:
        weights = (q @ k.mT).softmax(-1)  # noqa: F841 - deliberately unused
        y = v.transpose(1, 2)
        return y.flatten(2)

    old, new = (attnshape.trace(one, inputs=HEADS) for one in (attending, skipping))
    rows = lines(attnshape.diff(old, new))
    place = next(number for number, row in enumerate(rows) if row.startswith("5→4 "))
    assert ".transpose(1, 2)" in rows[place]
    assert "v" not in rows[place].partition(".transpose")[0]
    assert rows[place + 1].startswith("→ y = v.transpose(1, 2)")
    assert "step 4 reads v; the old step 5 reads 4" in rows


def test_equal_columns_are_left_out_first() -> None:
    def doubled(x: Any) -> Any:
        return x * 2

    how: dict[str, Any] = {"inputs": {"x": "B L D"}}
    old, new = (attnshape.trace(doubled, dtype=dtype, **how) for dtype in ("float32", "bfloat16"))
    for width in (45, 55, 65):
        rows = lines(attnshape.diff(old, new), width)
        message = next(row for row in rows if row.startswith("too narrow for "))
        assert "dtype" not in message
        assert "→ bfloat16" in " ".join(rows)
    message = next(row for row in lines(attnshape.diff(old, new), 60) if row.startswith("too narrow for "))
    assert "stride" in message
    assert "too narrow" not in " ".join(lines(attnshape.diff(old, new), 120))


def test_functions_are_not_listed_as_renamed() -> None:
    def viewed(q: Any) -> Any:
        return q.view(4, -1).transpose(0, 1) * 2

    def reshaped(q: Any) -> Any:
        return q.reshape(4, -1).transpose(0, 1) * 2

    def renamed(query: Any) -> Any:
        return query.reshape(4, -1).transpose(0, 1) * 2

    old, new = (attnshape.trace(one, inputs={"q": "B L D"}) for one in (viewed, reshaped))
    assert attnshape.diff(old, new).renamed == ()
    assert attnshape.diff(old, new).kinds == ("steps",)
    other = attnshape.trace(renamed, inputs={"query": "B L D"})
    assert [(rename.old, rename.new) for rename in attnshape.diff(old, other).renamed] == [("q", "query")]


def test_strides_that_follow_from_shapes_go_first() -> None:
    old = multi_head()
    scores = old.steps[10]
    reshaped = replace(scores.outputs[0], tensor=tensor("B H Lq Lq"))
    new = replace(old, steps=(*old.steps[:10], replace(scores, outputs=(reshaped,)), *old.steps[11:]))
    view = diff_view(compare(outline(old), outline(new)))
    assert "stride" not in diff_table(view, Screen(75)).partition("too narrow for ")[0]
    assert "stride" in diff_table(view, Screen(160))
    # where only a stride differs, it stays
    strides = {"stride": (1, 2, 3, 4), "strides": ("1", "2", "3", "4"), "contiguous": False}
    permuted = replace(scores.outputs[0], tensor=replace(scores.outputs[0].tensor, **strides))
    new = replace(old, steps=(*old.steps[:10], replace(scores, outputs=(permuted,)), *old.steps[11:]))
    assert "→ 1 2 3 4" in diff_table(diff_view(compare(outline(old), outline(new))), Screen(75))
