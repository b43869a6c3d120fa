"""The registry of formats: the values that each can render, and its errors."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import get_args

import pytest

from attnshape.errors import AttnshapeError
from attnshape.reporters.registry import REPORTERS, find_renderer, formats_for
from attnshape.reporters.reporter import Kind, Reporter

TRACE_FORMATS = ["table", "markdown", "json", "mermaid", "html"]
REPORT_FORMATS = ["text", "markdown", "json", "html", "github", "sarif"]


def test_formats_of_each_kind() -> None:
    assert {kind: formats_for(kind) for kind in get_args(Kind)} == {
        "trace": TRACE_FORMATS,
        "report": REPORT_FORMATS,
        "difference": ["table", "markdown", "json", "html"],
        "differences": ["table", "markdown", "json", "html"],
        "traces": ["table", "markdown", "json", "html"],
        "reports": REPORT_FORMATS,
        "targets": ["text", "markdown", "json"],
        "explanation": ["markdown", "json", "html", "notebook"],
    }


@pytest.mark.parametrize("kind", get_args(Kind))
def test_unknown_format_lists_the_choices(kind: Kind) -> None:
    with pytest.raises(AttnshapeError) as caught:
        find_renderer("\x1bxml", kind)
    assert caught.value.message == "there is no format '\\\\x1bxml'"
    assert caught.value.hint == f"the formats are {', '.join(('auto', *formats_for(kind)))}"


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("name", REPORTERS)
def test_unsupported_format_lists_the_choices(name: str, kind: Kind) -> None:
    if name in formats_for(kind):
        assert find_renderer(name, kind) is getattr(REPORTERS[name], kind)
        return
    with pytest.raises(AttnshapeError, match=f"--format {name} can't show ") as caught:
        find_renderer(name, kind)
    others = re.findall(r"\w+", (caught.value.hint or "").partition(": ")[2])
    assert others == ["auto", *formats_for(kind)]
    assert all(find_renderer(other, kind) for other in others[1:])


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_selection_of_a_trace(name: str) -> None:
    if name not in ("json", "mermaid"):
        assert find_renderer(name, "trace", selects=True)
        return
    with pytest.raises(AttnshapeError, match="always has the whole trace") as caught:
        find_renderer(name, "trace", selects=True)
    assert caught.value.hint == "leave them out, or choose another format: table, markdown, html"


def test_a_page_of_several_traces_shows_them_whole() -> None:
    assert find_renderer("html", "traces")
    assert find_renderer("table", "traces", selects=True)
    with pytest.raises(AttnshapeError, match="always has the whole trace") as caught:
        find_renderer("html", "traces", selects=True)
    assert caught.value.hint == "leave them out, or choose another format: table, markdown"


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_picture_beside_a_table(name: str) -> None:
    if name in ("markdown", "html"):
        assert find_renderer(name, "trace", picture=True)
        return
    with pytest.raises(AttnshapeError, match=f"--format {name} has no room for --picture") as caught:
        find_renderer(name, "trace", picture=True)
    assert caught.value.hint == "choose another format: markdown, html"


@pytest.mark.parametrize("name", REPORT_FORMATS)
def test_formats_that_draw_patterns(name: str) -> None:
    if name in ("text", "markdown", "html"):
        assert find_renderer(name, "report", draws_patterns=True)
        return
    with pytest.raises(AttnshapeError, match=f"--format {name} can't draw patterns") as caught:
        find_renderer(name, "report", draws_patterns=True)
    assert caught.value.hint == "leave it out, or choose another format: text, markdown, html"


def test_new_format_needs_one_registry_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REPORTERS, "names", Reporter("names", trace=lambda trace, options, screen: trace.target))
    assert formats_for("trace") == [*TRACE_FORMATS, "names"]
    with pytest.raises(AttnshapeError, match="--format names can't show several traces"):
        find_renderer("names", "traces")


def test_registry_imports_neither_torch_nor_rich_console() -> None:
    script = (
        "import sys\n"
        "from attnshape.reporters import reference_pages\n"
        "from attnshape.reporters.registry import REPORTERS\n"
        "from attnshape.reporters.report_view import ReportOptions\n"
        "from attnshape.reporters.reporter import Screen\n"
        "from attnshape.reporters.trace_view import ViewOptions\n"
        "from attnshape.checks.rules.pages import page, pages\n"
        "from tests.reporters.sample_reports import two_findings\n"
        "from tests.reporters.sample_traces import multi_head\n"
        "reference_pages.glossary_text(80), reference_pages.glossary_markdown()\n"
        "reference_pages.rule_list(pages(), 80), reference_pages.rule_page(page('AS201'), 80, False)\n"
        "for one in REPORTERS.values():\n"
        "    one.trace and one.trace(multi_head(), ViewOptions(), Screen(100))\n"
        "    one.report and one.report(two_findings(), Screen(100), ReportOptions())\n"
        "print([name for name in ('torch', 'rich.console', 'attnshape.comparison') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
