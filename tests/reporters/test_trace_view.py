from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from attnshape.model.trace import Axis, NamedTensor, Size, Trace, decode_trace
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from attnshape.reporters.trace_view import ViewOptions, trace_footer, trace_header, trace_view
from tests.reporters.sample_traces import failed, fused, multi_head, step, tensor, trace_of, verified


def test_json_is_the_whole_trace() -> None:
    text = find_renderer("json", "trace")(verified(), ViewOptions(), Screen(80))
    assert decode_trace(text) == verified()
    assert text.endswith("}\n")


@pytest.mark.parametrize("name", ["table", "markdown", "html"])
@pytest.mark.parametrize("make", [multi_head, fused, failed, verified, lambda: trace_of(())])
def test_every_format_renders_every_trace(name: str, make: Callable[[], Trace]) -> None:
    text = find_renderer(name, "trace")(make(), ViewOptions(), Screen(100))
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_only_matching_steps_are_shown() -> None:
    view = trace_view(multi_head(), ViewOptions(match="scores"))
    assert [row.cells[:2] for row in view.rows] == [("11", "query @ key.transpose(-2, -1)")]
    assert view.footer[0].text.startswith("1 of 18 steps shown")


def test_sizes_have_their_origin_in_canonical_order() -> None:
    sizes = {"T": Size(3, "given"), "Dk": Size(64, "derived", "D//H"), "B": Size(2, "default")}
    assert trace_header(trace_of((), sizes=sizes)).sizes == ("B=2 (default)", "Dk=64 (D//H)", "T=3")


def axes_line(*axes: Axis, runs: int = 3) -> str:
    record = replace(tensor(" ".join("B" for _ in axes)), axes=axes)
    one = replace(step(1, "x", "f", None, record), outputs=(NamedTensor(None, record),))
    return trace_footer(trace_of((one,), verified_at=runs), 1)[1].text


def test_axis_counts() -> None:
    verified, matched, constant = Axis("B", "verified"), Axis("Lk", "matched"), Axis("3", "literal")
    assert axes_line(verified, verified) == "2/2 axes verified at 3 sets of sizes"
    assert (
        axes_line(verified, matched, constant)
        == "1/2 axes verified at 3 sets of sizes, 1 only matched by size, 1 constant"
    )
    assert axes_line(matched, constant, runs=1) == "axes: 1 only matched by size, 1 constant"
    assert axes_line(Axis("D//3", "literal")) == "axes: 1 literal"


def test_unchecked_signatures_are_reported() -> None:
    record = replace(tensor("B"), checked=None)
    one = replace(step(1, "x", "f", None, record), outputs=(NamedTensor("x", record),))
    assert trace_footer(trace_of((one,)), 1)[0].text == "1 step · 1 signature, none checked"


def test_incomplete_trace_says_so() -> None:
    texts = [line.text for line in trace_footer(replace(multi_head(), complete=False), 18)]
    assert "incomplete: not every step of the run is in this trace" in texts
