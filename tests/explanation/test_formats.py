"""An article in each format: Markdown that renders, a page, a notebook that runs, JSON that reads back."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnshape.model.explanation import Explanation
from attnshape.options.spec import TargetSpec
from attnshape.reporters.article import article
from attnshape.reporters.notebook import notebook
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from attnshape.runtime.files import source_lines
from tests.explanation.explained import SOURCES, SPECS, explained, explanation_of, text_of
from tests.reporters import oracles

SCREEN = Screen(100)


def render(name: str, form: str) -> str:
    return find_renderer(form, "explanation")(explained(name), SCREEN)


@pytest.mark.parametrize("name", SPECS)
def test_markdown_has_the_lines_of_the_code_and_every_text(name: str) -> None:
    text = render(name, "markdown")
    tokens = oracles.markdown_tokens(text)
    code = [token.content for token in tokens if token.type == "fence" and token.info == "python"]
    source = "\n".join(line.strip() for line in (SOURCES / f"{name}.py").read_text().splitlines())
    assert code
    for block in code:
        lines = [line.strip() for line in block.splitlines()]
        assert "\n".join(lines) in source
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert [heading.count("#") for heading in headings[:3]] == [1, 2, 3]
    plain = re.sub(r"\\(?=[^\w\s])", "", text)
    for section in explained(name).sections:
        for paragraph in text_of(section).splitlines():
            assert paragraph.replace("`", "") in plain.replace("`", "").replace("&#124;", "|") or "|" in plain
    assert not [token for token in tokens if token.type == "html_block"]


def test_each_step_of_a_section_is_a_row() -> None:
    shown = article(explained("causal_module"), source_lines)
    heads = next(section for part in shown.parts for section in part.sections if section.title == "Split into heads")
    assert [row.number for row in heads.rows] == ["2", "", "", "", "3", "4", "5", "6", "7", "8"]
    assert [row.step for row in heads.rows[1:4]] == ["q", "k", "v"]
    row = heads.rows[5]
    assert (row.step, row.signature, row.shape, row.storage) == (
        "k = ….transpose(1, 2)",
        "B H L Dk",
        "2 8 10 64",
        "view of 3",
    )
    assert heads.source[0].place.endswith("causal_module.py:20-23")
    assert heads.source[0].lines[1].startswith("k = k.view(B, T, self.n_head")


def test_lines_of_a_file_that_has_changed_are_left_out() -> None:
    shown = article(explained("causal_module"), lambda file: ["# another file\n"] * 40)
    assert not any(section.source for part in shown.parts for section in part.sections)


def test_purpose_is_said_once_for_paragraphs_in_a_row() -> None:
    shown = article(explained("causal_module"), source_lines)
    scale = next(section for part in shown.parts for section in part.sections if section.title == "Scale the scores")
    labels = [block.label for block in scale.blocks if hasattr(block, "label")]
    assert labels == ["", "Why.", "", "", "", "Without it."]


def test_page_has_the_article_and_the_whole_trace() -> None:
    page = render("causal_module", "html")
    oracles.check_page(page, page)
    assert "Scale the scores" in page
    assert '<div class="trace">' in page
    assert "B=2 sequences and H=8 heads" in re.sub("<[^>]*>", "", page)


def test_symbols_have_their_colours_in_the_article() -> None:
    article_, _, _ = render("causal_module", "html").partition("The whole trace")
    assert "`" not in article_
    for before, after in (("for each of ", "=2 sequences"), ("<code>6*", "*")):
        assert re.search(rf'{re.escape(before)}<span class="symbol s\d+">B</span>{re.escape(after)}', article_)
    assert re.search(r'<th><code><span class="symbol s\d+">L</span>=0</code></th>', article_)


@pytest.mark.parametrize("name", SPECS)
def test_json_reads_back(name: str) -> None:
    explanation = explained(name)
    text = render(name, "json")
    assert json.loads(text)["schema"] == "attnshape/explanation/1"
    assert msgspec.json.decode(text, type=Explanation) == explanation


def cells_of(text: str, kind: str) -> list[str]:
    return [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("name", SPECS)
def test_notebook_is_one(name: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat says what a notebook is")
    nbformat.validate(nbformat.reads(render(name, "notebook"), as_version=4))


def test_notebook_runs_and_repeats_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(SOURCES / "causal_module.py", tmp_path / "model.py")
    monkeypatch.chdir(tmp_path)
    spec = TargetSpec("model.py:CausalSelfAttention", init="D, H", inputs={"x": "B L D"}, sizes={"L": 7, "H": 4})
    explanation = explanation_of(spec)
    assert explanation.call == (
        'attnshape.trace("model.py:CausalSelfAttention", init="D, H", inputs={"x": "B L D"}, B=2, H=4, L=7, D=512)'
    )
    printed = run_cells(cells_of(notebook(explanation, SCREEN), "code"))
    traced, simulated, observed = printed
    assert "11 | B H L L | (2, 4, 7, 7)" in re.sub(r"(?m)^(\d+) [^|]*", r"\1 ", traced)
    spreads = dict(re.findall(r"width (\d+) without the scale spread +([\d.]+)", re.sub(r" +", " ", simulated)))
    for width, spread in spreads.items():
        assert abs(float(spread) / int(width) ** 0.5 - 1) < 0.05
    assert len(spreads) == 3
    for section in explanation.sections:
        for one in section.measurements:
            if one.basis == "observed":
                value = f"{one.value:.4g}" if one.value is not None else one.text
                assert re.search(rf"^{section.topic} +{value}  {re.escape(one.name)}$", observed, re.MULTILINE)


def run_cells(cells: list[str]) -> list[str]:
    """Run cells of code in one namespace, and return what each prints."""
    names: dict[str, Any] = {}
    outputs = []
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(cell, "<cell>", "exec"), names)
        outputs.append(printed.getvalue())
    return outputs


def test_notebook_of_objects_of_python_has_no_code_that_needs_them() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return (query @ key.mT).softmax(-1) @ value

    inputs = {"query": "B Lq Dk", "key": "B Lk Dk", "value": "B Lk Dv"}
    explanation = explanation_of(TargetSpec("attention", inputs=inputs, callable=attention))
    text = notebook(explanation, SCREEN)
    assert not explanation.call
    assert cells_of(text, "code") == []
    assert "has no code that makes them again" in cells_of(text, "markdown")[0]


@pytest.mark.parametrize(
    "call",
    [
        "attnshape.trace('x', init=__import__('os').system('reboot'))",
        "attnshape.trace('x', **{})",
        "attnshape.check('x')",
        "attnshape.trace('x')\nimport os",
        "print('attnshape.trace()')",
    ],
)
def test_notebook_repeats_no_other_code(call: str) -> None:
    explanation = msgspec.structs.replace(explained("function"), call=call)
    assert [cell for cell in cells_of(notebook(explanation, SCREEN), "code") if "attnshape" in cell] == []
