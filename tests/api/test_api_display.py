"""A trace's representations as text, HTML, Markdown and JSON."""

import dataclasses
from collections.abc import Callable
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnshape
from attnshape import AttnshapeError, Trace
from attnshape.reporters.escaping import visible
from attnshape.reporters.html import trace_html, trace_page
from attnshape.reporters.trace_view import ViewOptions, trace_view
from tests.reporters import sample_traces as samples
from tests.reporters.test_trace_hostile import NASTY, TEXT

TAGS = {"div", "p", "code", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


class ParsedHtml(HTMLParser):
    """Parse HTML: its tags, whether they match, and the text of each cell, item and paragraph."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: dict[str, list[str]] = {"td": [], "th": [], "li": [], "p": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        block = next((tag for tag in reversed(self.open) if tag in self.texts), None)
        if block is not None:
            self.texts[block][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


@settings(deadline=None, max_examples=150)
@given(TEXT, st.booleans())
def test_html_escapes_any_name(text: str, explained: bool) -> None:
    view = trace_view(samples.hostile(text), ViewOptions(explain=explained))
    parsed = ParsedHtml(trace_html(view))
    assert not parsed.open
    assert parsed.tags <= TAGS
    assert parsed.attributes <= {"class", "style", "colspan", "cellpadding"}
    cells = [visible(cell) for row in view.rows for cell in row.cells]
    sentences = {row.explanation[1] for row in view.rows if row.explanation} | {""}
    assert [cell for cell in parsed.texts["td"] if cell not in sentences] == [c for c in cells if c not in sentences]
    assert parsed.texts["th"] == list(view.names)
    tensors = [tensor for line in view.footer for tensor in line.tensors]
    assert len(parsed.texts["li"]) == len(view.footer) + len(tensors)
    if not tensors:
        assert parsed.texts["li"] == [line.text for line in view.footer]
    page = ParsedHtml(trace_page(view).removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))
    assert not page.open
    assert page.tags <= {*TAGS, "html", "head", "title", "body"}
    assert page.texts == parsed.texts


@pytest.mark.parametrize("sample", [samples.multi_head, samples.fused, samples.failed, samples.verified])
def test_html_has_every_row(sample: Callable[[], Trace]) -> None:
    view = trace_view(sample(), ViewOptions())
    html = sample()._repr_html_()
    assert ParsedHtml(html).texts["th"] == ["#", "step", "signature", "shape", "stride", "storage"]
    headings = [row.heading for row in view.rows if row.heading]
    assert html.count("<tr>") == 1 + len(view.rows) + len(headings)
    assert all(f"<strong>{heading}</strong>" in html for heading in headings)


def test_html_disables_mathjax() -> None:
    assert 'class="attnshape tex2jax_ignore mathjax_ignore"' in samples.hostile("$x$")._repr_html_()


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


@pytest.mark.parametrize("text", NASTY)
def test_hostile_names_do_not_break_the_representations(text: str) -> None:
    trace = samples.hostile(text)
    assert str(trace)
    assert trace._repr_html_()
    assert trace._repr_markdown_()


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
