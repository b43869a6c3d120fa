"""Flow charts as Mermaid itself draws them in headless Chromium: each node, each edge, all their text.

The tests are skipped where there is no Chromium, no Playwright, or no Mermaid from npm: `npm install --no-save mermaid`
puts it where they look, in node_modules in the root of the repository; NODE_PATH may name other folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import attnshape
from attnshape.model.trace import Trace
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.trace import trace_request
from attnshape.reporters.escaping import visible
from attnshape.reporters.mermaid import trace_mermaid
from attnshape.targets.builtin.registry import CATALOG
from tests.examples.expectations import EXPECTED, example_spec
from tests.reporters.hostile_text import with_text
from tests.reporters.sample_traces import every_text, failed
from tests.reporters.test_page_in_browser import chromium  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
_FOLDERS = [ROOT / "node_modules", *map(Path, filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)))]
MERMAID = next(filter(Path.exists, (folder / "mermaid" / "dist" / "mermaid.min.js" for folder in _FOLDERS)), None)
if MERMAID is None:
    pytest.skip("Mermaid isn't installed: npm install --no-save mermaid", allow_module_level=True)

QUICK = {"multi-head", "latent", "examples/language_model.py"}
TARGETS = [
    pytest.param(name, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name in (*CATALOG, *EXPECTED)
]
HOSTILE = (
    "1. a list",
    "- a list",
    "# a heading",
    "*a* **b** _c_ `d` ~~e~~",
    "www.example.org",
    "https://example.org",
    "<img src=x onerror=document.title='hit'>",
    '"]; click n0 "javascript:alert(1)"',
    "fa:fa-car",
    "$$x^2$$",
    "&lt;b&gt; #35; #quot;",
    "%% a comment",
    "%%{init: {'theme': 'dark'}}%%",
    "end",
    "a\\nb",
    "a\nb",
    "    indented",
)
_DRAW = """async (chart) => {
  mermaid.initialize({startOnLoad: false, securityLevel: "strict"});
  const {svg} = await mermaid.render("drawn", chart);
  document.body.innerHTML = svg;
}"""
_HIDDEN = """() => [...document.querySelectorAll("foreignObject")].filter((one) => {
  const [inner, outer] = [one.firstElementChild.getBoundingClientRect(), one.getBoundingClientRect()];
  return inner.width > outer.width + 1 || inner.height > outer.height + 1;
}).map((one) => one.textContent)"""


@dataclass(frozen=True)
class Drawn:
    """What a drawn chart shows."""

    nodes: list[str]
    edges: list[str]
    arrows: int
    hidden: list[str]
    """The texts that are larger than the room that they have."""


class Board:
    """A page with Mermaid, which draws one chart after another."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._page.set_content("<!doctype html><title>charts</title>")
        self._page.add_script_tag(path=MERMAID)
        self.problems: list[str] = []
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.problems.append(request.url))

    def draw(self, chart: str) -> Drawn:
        """Return what Mermaid makes of a chart; it raises an error for one that it can't parse."""
        self._page.evaluate(_DRAW, chart)
        assert self._page.locator("svg").locator("img, script, iframe, a, [onerror], [onmouseover]").count() == 0
        return Drawn(
            self._page.locator(".nodeLabel").all_inner_texts(),
            self._page.locator("span.edgeLabel").all_inner_texts(),
            self._page.locator("path.flowchart-link").count(),
            self._page.evaluate(_HIDDEN),
        )

    @property
    def title(self) -> str:
        return str(self._page.title())


@pytest.fixture(scope="module")
def board(chromium: Any) -> Iterator[Board]:  # noqa: F811
    context = chromium.new_context(offline=True)
    yield Board(context.new_page())
    context.close()


def labels(chart: str) -> tuple[list[str], list[str]]:
    """Return the labels of the nodes and of the edges that stand in a chart, as they should be read."""
    lines = [line.split('"', 1) for line in chart.splitlines()[1:]]
    texts = [(opening, _read(rest.rpartition('"')[0])) for opening, rest in lines]
    return [text for opening, text in texts if " -- " not in opening], [text for one, text in texts if " -- " in one]


def _read(label: str) -> str:
    """Return a label without entities, whose numbers are decimal, with its break as one of lines; blanks are one."""
    parts = label.replace("<br>", "\n").replace("<wbr>", "").split("#")
    text = parts[0] + "".join(chr(int(code)) + rest for code, _, rest in (one.partition(";") for one in parts[1:]))
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))


def assert_drawn(trace: Trace, board: Board) -> None:
    chart = trace_mermaid(trace)
    drawn, (nodes, edges) = board.draw(chart), labels(chart)
    assert drawn.nodes == nodes
    assert sorted(drawn.edges) == sorted(edges)
    assert drawn.arrows == len(edges)
    assert drawn.hidden == []
    assert board.problems == []


@pytest.mark.parametrize("name", TARGETS)
def test_chart_of_the_catalog_and_the_examples_is_drawn(name: str, board: Board) -> None:
    spec = example_spec(name) if name in EXPECTED else TargetSpec(name)
    assert_drawn(trace_request(spec, RunOptions(command=name)), board)


def test_chart_of_a_failure_is_drawn(board: Board) -> None:
    assert_drawn(failed(), board)


def test_chart_of_twelve_layers_is_drawn(board: Board) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    module = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    trace = attnshape.trace(module, inputs={"src": "B L 16"})
    assert "×12" in trace_mermaid(trace)
    assert_drawn(trace, board)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_that_looks_like_markup_is_shown(text: str, board: Board) -> None:
    trace = with_text(every_text(), text)
    assert_drawn(trace, board)
    assert any(" ".join(visible(text).split()) in label for label in labels(trace_mermaid(trace))[0])
    assert board.title == "charts"


def test_a_chart_that_is_wrong_is_an_error(board: Board) -> None:
    with pytest.raises(Exception, match="Parse error"):
        board.draw('flowchart TD\n  n0["a"\n')
