"""The HTML pages without a browser: they load nothing, contain their own data, and stay small."""

from __future__ import annotations

import base64
import hashlib
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import replace as with_fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from attnshape import __version__
from attnshape.checks.rules.pages import page, pages
from attnshape.comparison.compare import compare
from attnshape.comparison.outline import outline
from attnshape.model.behaviour import Behaviour, KeyPattern, Property, Statement
from attnshape.model.explanation import Paragraph
from attnshape.model.report import Pattern
from attnshape.model.trace import Size, Source
from attnshape.reporters import web
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import Screen
from attnshape.reporters.trace_view import ViewOptions, trace_view
from attnshape.reporters.web.markup import SymbolColors, escaped, prose
from attnshape.reporters.web.report_page import _blocks, report_document
from attnshape.reporters.web.source_lines import lines_around, source_figure
from attnshape.reporters.web.trace_page import trace_document
from tests.reporters import sample_batches, sample_differences, sample_explanations, sample_reports
from tests.reporters.sample_pages import data_of, deep_model, page_of, source_of
from tests.reporters.sample_traces import failed, fused, multi_head, step, tensor, trace_of, verified

SCREEN = Screen(100)
ASSETS = sorted((Path(web.__file__).parent / "assets").iterdir())


def _difference() -> str:
    difference = compare(outline(multi_head()), outline(fused()))
    return find_renderer("html", "difference")(difference, "attnshape diff old new", SCREEN)


def _behaviour() -> str:
    name = "/".join(["a_long_path"] * 8)
    patterns = tuple(
        KeyPattern(attention=f"{name}.py:8", part=f"head {head}", queries="L", keys="L", rows=("#..", "##.", "###"))
        for head in range(4)
    )
    facts = (Property(topic="scale", statements=(Statement("scores are scaled by 1/sqrt(Dk)"),), unknown=(name,)),)
    behaviour = Behaviour(properties=(*facts, Property(topic="positions")), visible=patterns)
    return page_of(replace(multi_head(), behaviour=behaviour))


def _article() -> str:
    trace = replace(multi_head(), target=f"{'/'.join(['a_long_path'] * 8)}.py:Attention")
    explanation = sample_explanations.explanation_of(trace, (1, 2))
    text = f"`{trace.target}` ran"
    part = replace(explanation.introduction, title=text, paragraphs=(Paragraph("note", text),))
    return find_renderer("html", "explanation")(replace(explanation, introduction=part), SCREEN)


PAGES: dict[str, Callable[[], str]] = {
    "trace": lambda: page_of(multi_head()),
    "behaviour": _behaviour,
    "composite": lambda: page_of(fused()),
    "expectations": lambda: page_of(verified()),
    "failure": lambda: page_of(failed()),
    "nothing": lambda: page_of(trace_of(())),
    "report": lambda: report_document(sample_reports.two_findings(), sample_reports.read_lines),
    "levels": lambda: report_document(sample_reports.every_level(), sample_reports.read_lines),
    "no findings": lambda: find_renderer("html", "report")(sample_reports.no_findings(), SCREEN, ReportOptions()),
    "incomplete": lambda: find_renderer("html", "report")(sample_reports.incomplete(), SCREEN, ReportOptions()),
    "article": _article,
    "difference": _difference,
    "folders": lambda: find_renderer("html", "differences")(sample_differences.folders(), "attnshape diff a b", SCREEN),
    "traces": lambda: find_renderer("html", "traces").render_summary(sample_batches.traces(), SCREEN),
    "reports": lambda: find_renderer("html", "reports").render_summary(sample_batches.reports(), SCREEN),
}


class _Tags(HTMLParser):
    """The tags of a page with their attributes; `open` are those that aren't closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PAGES)
def test_tags_are_closed_and_ids_are_unique(name: str) -> None:
    tags = _Tags(PAGES[name]())
    assert tags.open == []
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len({*ids})
    links = {attributes["href"] for tag, attributes in tags.found if tag == "a"}
    assert links == {f"#{one}" for one in ids}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_nothing(name: str) -> None:
    text = PAGES[name]()
    tags = _Tags(text)
    references = [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href")]
    assert {value for value in references if value is not None and not value.startswith("#result-")} == {"data:,"}
    assert set(re.findall(r"https?://[^\s\"'<)]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\((?!#)|@import|\bimport\(|fetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon", text)


@pytest.mark.parametrize("name", PAGES)
def test_only_the_script_of_the_page_may_run(name: str) -> None:
    text = PAGES[name]()
    policy = next(one["content"] for tag, one in _Tags(text).found if tag == "meta" and "http-equiv" in one)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    handlers = [key for _, attributes in _Tags(text).found for key in attributes if key.startswith("on")]
    assert handlers == []


@pytest.mark.parametrize("asset", ASSETS, ids=lambda asset: asset.name)
def test_assets_make_no_markup_of_texts(asset: Path) -> None:
    text = asset.read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert asset.suffix == ".html" or not re.search(r"</(script|style)|<!--", text)
    assert max(map(len, text.splitlines())) < 250


def test_the_data_holds_the_rows_of_the_table() -> None:
    data = data_of(page_of(multi_head()))
    view = trace_view(multi_head(), ViewOptions())
    assert [name for name, _ in data["columns"]] == ["step", "signature", "shape", "stride", "storage"]
    cells = [[data["texts"][cell] for cell in row[3]] for row in data["rows"]]
    assert cells == [[*row.cells[1:]] for row in view.rows]
    assert [row[0] for row in data["rows"]] == [row.kind for row in view.rows]


def test_chosen_columns_and_matching_steps_are_shown() -> None:
    columns = trace_view(multi_head(), ViewOptions()).columns[:2]
    data = data_of(page_of(multi_head(), ViewOptions(columns, match="scores", explain=True)))
    assert [name for name, _ in data["columns"]] == ["step", "signature"]
    (row,) = data["rows"]
    assert row[1] == 11
    assert data["texts"][row[5]].startswith("Contracts ")
    assert len(data["steps"]) == len(multi_head().steps)


def test_without_a_script_the_table_is_there() -> None:
    text = page_of(multi_head())
    plain = re.search(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    assert plain is not None
    assert plain[1].count("<tr>") == len(trace_view(multi_head(), ViewOptions()).rows) + 1 + 3


def test_ten_thousand_steps_stay_below_five_megabytes() -> None:
    trace = deep_model(556)
    assert len(trace.steps) > 10_000
    lines = source_of(trace)
    text = trace_document(trace, trace_view(trace, ViewOptions()), lambda name: lines)
    assert len(text.encode()) < 5_000_000
    assert len(data_of(text)["steps"]) == len(trace.steps)


# what is marked in the source

FILE = "marked.py"


@pytest.fixture
def lines() -> Iterator[Callable[[str], Any]]:
    def write(text: str) -> Any:
        kept = text.splitlines(keepends=True)
        linecache.cache[FILE] = (len(text), None, kept, FILE)
        return lambda name: kept

    yield write
    linecache.cache.pop(FILE, None)


def test_an_expression_of_several_lines_is_marked_in_each(lines: Callable[[str], Any]) -> None:
    read = lines(
        "class A:\n    def f(self):\n        x = where(\n            m,\n\t\t0,\n        )\n        return x\n"
    )
    found = lines_around(Source(FILE, 3, 13, "f"), "where(\n            m,\n\t\t0,\n        )", read)
    assert found is not None
    marked = [found.lines[mark.line - found.first][mark.start : mark.start + mark.length] for mark in found.marks]
    assert marked == ["where(", "m,", "0,", ")"]
    assert (found.first, found.lines[0], found.lines[-1]) == (1, "class A:", "        return x")


@pytest.mark.parametrize("expression", ["y + 1", "", "x +  1"])
def test_lines_that_have_changed_are_not_shown(lines: Callable[[str], Any], expression: str) -> None:
    read = lines("y = x + 1\n")
    assert lines_around(Source(FILE, 1, 5, "f"), "x + 1", read) is not None
    assert lines_around(Source(FILE, 1, 5, "f"), expression, read) is None
    assert lines_around(None, "x + 1", read) is None
    shown = source_figure(Source(FILE, 1, 5, "f"), expression, read)
    assert "y = x + 1" not in shown
    assert escaped(expression) in shown


def test_carets_stand_below_what_is_marked(lines: Callable[[str], Any]) -> None:
    shown = source_figure(Source(FILE, 2, 9, "f"), "q @ k", lines("def f(q, k):\n    s = q @ k / 2\n"))
    plain = re.sub(r"<[^>]*>", "", shown.partition("<pre")[2].partition(">")[2]).splitlines()
    assert plain[1:3] == ["2     s = q @ k / 2", "          ^^^^^"]


# reports and comparisons


def test_each_finding_has_its_line_its_hint_and_the_page_of_its_rule() -> None:
    text = report_document(sample_reports.two_findings(), sample_reports.read_lines)
    scale, fill = re.findall(r"<article.*?</article>", text, re.DOTALL)
    assert "<mark>q @ k.transpose(-2, -1) / math.sqrt(D)</mark>" in scale
    assert "divide by math.sqrt(Dk)" in scale
    assert prose(page("AS201").title) in scale
    assert "<mark>mask, scores, -10.0</mark>" in fill
    assert all(escaped(name) in scale for name in page("AS201").sections)


def test_a_pattern_has_a_square_for_each_pair_of_positions() -> None:
    text = report_document(sample_reports.report_of(patterns=(sample_reports.CAUSAL,)))
    assert (text.count('class="seen"'), text.count('class="unseen"')) == (6, 3)
    large = Pattern(output="y", input="x", queries="L", keys="L", rows=("#" * 200,) * 200)
    assert 'class="seen"' not in report_document(sample_reports.report_of(patterns=(large,)))


@pytest.mark.parametrize("code", [one.code for one in pages()])
def test_rule_pages_are_paragraphs_and_code(code: str) -> None:
    for body in page(code).sections.values():
        shown = "".join(_blocks(body))
        assert not re.search(r"```|<p>\s*(?:[-*#|]|\d+\. )|\]\(", shown)
        words = re.sub(r"<[^>]*>", " ", shown).split()
        assert words
        assert len(words) >= len(body.replace("```python", "").split()) // 2


@pytest.mark.parametrize("name", ["difference", "folders"])
def test_a_comparison_names_the_version(name: str) -> None:
    assert PAGES[name]().count(f'<footer class="page-footer">attnshape {__version__}</footer>') == 1


def test_what_a_comparison_changes_is_marked() -> None:
    old = trace_of((step(1, "x.mT", "mT", None, tensor("B Lq D")),))
    new = trace_of((step(1, "x.mT", "mT", None, tensor("B Lk D")),))
    text = find_renderer("html", "difference")(compare(outline(old), outline(new)), "", SCREEN)
    assert '<del><code><span class="symbol s0">B</span> <span class="symbol s6">Lq</span>' in text
    assert '<ins><code><span class="symbol s0">B</span> <span class="symbol s7">Lk</span>' in text


def test_a_symbol_has_one_colour_on_all_pages() -> None:
    names = [one[0] for one in data_of(page_of(multi_head()))["sizes"]]
    colors = [one[6] for one in data_of(page_of(multi_head()))["sizes"]]
    assert dict(zip(names, colors, strict=True)) == {"B": 0, "H": 1, "Lq": 6, "Lk": 7, "D": 8, "Dk": 9}
    own = replace(multi_head(), sizes={**multi_head().sizes, "nh": multi_head().sizes["H"]})
    assert {one[0]: one[6] for one in data_of(page_of(own))["sizes"]}["nh"] == 12


def test_several_results_are_listed_and_folded() -> None:
    batch = sample_batches.traces()
    text = find_renderer("html", "traces").render_summary(batch, SCREEN)
    assert re.findall(r'<a href="#(.*?)">(.*?)</a>', text) == [
        (f"result-{number}", item.name) for number, item in enumerate(batch.items, 1)
    ]
    assert text.count('<div class="trace">') == 3
    assert escaped(sample_batches.MISSING.message) in text
    assert escaped(sample_batches.MISSING.hint or "-") in text
    empty = with_fields(batch, items=())
    assert "no results" in find_renderer("html", "traces").render_summary(empty, SCREEN)


def test_behaviour_has_its_facts_and_a_picture_for_each_group_of_heads() -> None:
    text = PAGES["behaviour"]()
    assert "<dt>scale</dt>" in text
    assert "<dt>positions</dt>" not in text  # nothing is known of it, nor why
    assert text.count('<figure class="pattern">') == 4
    assert "head 3: queries (rows, L) see keys (columns, L), where # stands: #.. ##. ###" in text


@pytest.mark.parametrize("symbols", [("nh", "C"), ("C", "nh")])
def test_a_symbol_has_one_colour_in_the_page_and_its_data(symbols: tuple[str, str]) -> None:
    trace = multi_head()
    sizes = {symbol: Size(8, "given") for symbol in symbols}
    colors = {name: color for name, *_, color in data_of(page_of(replace(trace, sizes=trace.sizes | sizes)))["sizes"]}
    for symbol in (*symbols, "B"):
        assert f's{colors[symbol]}"' in SymbolColors(colors).formula(symbol)


def test_formulas_of_the_summary_have_the_colours_of_symbols() -> None:
    shown = SymbolColors(["B", "M", "lt"]).prose("at B=2: 8 M = 4*M, `B` is M < lt")
    assert re.sub(r"<[^>]*>", "", shown) == "at B=2: 8 M = 4*M, B is M &lt; lt"
    assert re.findall(r'<span class="symbol s\d+">(\w+)<', shown) == ["B", "M"]


def test_results_without_sizes_have_no_column_of_sizes() -> None:
    batch = sample_batches.reports()
    with_sizes = find_renderer("html", "reports").render_summary(batch, SCREEN)
    items = tuple(with_fields(item, sizes={}) for item in batch.items)
    without = find_renderer("html", "reports").render_summary(with_fields(batch, items=items), SCREEN)
    assert '<th scope="col">sizes</th>' in with_sizes
    assert '<th scope="col">sizes</th>' not in without
    assert without.count("<td>") < with_sizes.count("<td>")
