from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from attnshape.model.trace import Axis, NamedTensor, Reference, Size, TargetOutput, Trace, decode_trace
from attnshape.reporters.columns import parse_columns
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
    trace = trace_of((), sizes=sizes, command="attnshape trace model.py:Attention --init Dk")
    assert trace_header(trace).sizes == ("B=2 (default)", "Dk=64 (D//H)", "T=3")


def test_size_that_follows_is_shown_where_an_axis_has_it() -> None:
    sizes = {"D": Size(512, "default"), "H": Size(8, "default"), "Dk": Size(64, "derived", "D//H")}
    traces = [
        trace_of((step(1, "q", "linear", None, tensor(text)),), sizes=sizes, command="attnshape trace model.py")
        for text in ("B D", "B Dk")
    ]
    assert [trace_header(trace).sizes for trace in traces] == [
        ("H=8 (default)", "D=512 (default)"),
        ("H=8 (default)", "D=512 (default)", "Dk=64 (D//H)"),
    ]


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


def returning(**outputs: Reference) -> Trace:
    return replace(
        multi_head(), outputs=tuple(TargetOutput(name.replace("_", "."), of) for name, of in outputs.items())
    )


def returned(trace: Trace, **options: str) -> list[tuple[str, ...]]:
    return [row.cells for row in trace_view(trace, ViewOptions(**options)).rows if row.kind == "returned"]


def test_what_is_returned_has_a_section() -> None:
    last = len(multi_head().steps)
    trace = returning(output_hidden=Reference(step=last), output_weights=Reference(step=13))
    trace = replace(trace, outputs=(*trace.outputs, TargetOutput("output['k']", Reference(input="memory"))))
    rows = [row for row in trace_view(trace, ViewOptions()).rows if row.kind == "returned"]
    assert [row.heading for row in rows] == ["returned", None, None]
    assert [(row.cells[0], row.cells[1], row.cells[2], row.cells[-1]) for row in rows] == [
        ("", "output.hidden", "B Lq D", f"same as {last}"),
        ("", "output.weights = weights", "B H Lq Lk", "same as 13"),
        ("", "output['k']", "B Lk D", "same as memory"),
    ]
    assert returned(trace, match="scores") == []


def test_the_last_result_alone_needs_no_section() -> None:
    assert returned(returning(output=Reference(step=len(multi_head().steps)))) == []
    assert returned(returning(output=Reference(step=3)))[0][1] == "output = query"
    assert returned(multi_head()) == []


def test_a_long_list_of_returned_tensors_is_cut() -> None:
    rows = returned(returning(**{f"x{number}": Reference(step=1) for number in range(100)}))
    assert len(rows) == 25
    assert rows[-1][1] == "… and 76 more"


@pytest.mark.parametrize("name", ["table", "markdown", "html"])
def test_saved_references_to_nothing_are_text(name: str) -> None:
    trace = replace(
        trace_of(()),
        outputs=(TargetOutput("output\x1b[31m", Reference(step=0)), TargetOutput("output[1]", Reference())),
    )
    text = find_renderer(name, "trace")(trace, ViewOptions(), Screen(100))
    assert "returned" in text
    assert "\x1b" not in text


def test_dtypes_and_devices_have_a_column_where_they_differ() -> None:
    trace = multi_head()
    assert "dtype" not in trace_view(trace, ViewOptions()).names
    mask = replace(trace.steps[3], outputs=(NamedTensor("m", replace(tensor("Lk"), dtype="bool", device="cuda:1")),))
    trace = replace(trace, device="cpu", steps=(*trace.steps[:3], mask, *trace.steps[4:]))
    view = trace_view(trace, ViewOptions())
    assert view.names == ("#", "step", "signature", "shape", "dtype", "device", "stride", "storage")
    dtypes = [(row.cells[0], *row.cells[4:6]) for row in view.rows if row.cells[4] or row.cells[5]]
    assert dtypes == [("4", "bool", "cuda:1")]
    assert trace_view(trace, ViewOptions(parse_columns("step,shape"))).names == ("#", "step", "shape")
