"""A trace's representations as text, HTML, Markdown and JSON."""

import dataclasses
import re
from collections.abc import Callable

import msgspec
import pytest

import attnshape
from attnshape import AttnshapeError, Trace
from attnshape.reporters.trace_view import ViewOptions, trace_view
from tests.reporters import sample_traces as samples


@pytest.mark.parametrize("sample", [samples.multi_head, samples.fused, samples.failed, samples.verified])
def test_html_has_every_row(sample: Callable[[], Trace]) -> None:
    view = trace_view(sample(), ViewOptions())
    html = sample()._repr_html_()
    assert re.findall("<th[^>]*>([^<]*)</th>", html) == ["#", "step", "signature", "shape", "stride", "storage"]
    headings = [row.heading for row in view.rows if row.heading]
    assert html.count("<tr>") == 1 + len(view.rows) + len(headings)
    assert all(f"<strong>{heading}</strong>" in html for heading in headings)


def test_html_disables_mathjax() -> None:
    assert 'class="attnshape tex2jax_ignore mathjax_ignore"' in samples.multi_head()._repr_html_()


def test_str_and_repr_are_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    trace = samples.multi_head()
    wide = str(trace)
    assert repr(trace) == wide
    assert not wide.endswith("\n")
    assert "scores" in wide
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, str(trace).splitlines())) <= 60


def test_repr_markdown_is_a_markdown_table() -> None:
    assert "| --: |" in samples.multi_head()._repr_markdown_().replace("-----", "--").replace("---:", "--:")


def test_json_round_trip() -> None:
    trace = attnshape.trace("scaled-dot-product", Lk=7)
    assert Trace.from_json(trace.to_json()) == trace
    assert Trace.from_json(trace.to_json().encode()) == trace


def test_json_round_trip_of_a_recorded_trace() -> None:
    import torch

    x = torch.ones(2, 3)
    with attnshape.record(sizes={"B": 2}) as recording:
        x @ x.mT
    assert Trace.from_json(recording.trace.to_json()) == recording.trace


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"schema": "attnshape/trace/9"}', b"\xff\xfe", "[" * 99999]
)
def test_invalid_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(AttnshapeError) as caught:
        Trace.from_json(text)
    assert caught.value.hint


def test_trace_is_immutable() -> None:
    trace = samples.multi_head()
    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
        trace.target = "other"  # type: ignore[misc]
    assert msgspec.structs.replace(trace, target="other").target == "other"
