from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from attnshape.errors import AttnshapeError
from attnshape.model import Axis, NamedTensor, Size
from attnshape.render.columns import parse_columns
from attnshape.render.formats import FORMATS, Screen, find
from attnshape.render.summary import footer, header
from attnshape.render.view import Choice, view
from attnshape.schema import from_json
from tests.render.sample_traces import failed, fused, multi_head, step, tensor, trace_of, verified


def test_json_is_the_whole_trace() -> None:
    text = find("json", Choice()).draw(verified(), Choice(), Screen(80))
    assert from_json(text) == verified()
    assert text.endswith("}\n")


@pytest.mark.parametrize("choice", [Choice(match="view"), Choice(explain=True), Choice(parse_columns("step"))])
def test_json_refuses_a_choice(choice: Choice) -> None:
    with pytest.raises(AttnshapeError, match="always is the whole trace") as caught:
        find("json", choice)
    assert caught.value.hint == "leave them out, or choose another format: table, markdown"


def test_an_unknown_format_lists_the_known() -> None:
    with pytest.raises(AttnshapeError) as caught:
        find("html", Choice())
    assert caught.value.message == "there is no format 'html'"
    assert caught.value.hint == "the formats are auto, table, markdown, json"


@pytest.mark.parametrize("name", ["table", "markdown"])
@pytest.mark.parametrize("make", [multi_head, fused, failed, verified, lambda: trace_of(())])
def test_every_format_draws_every_trace(name: str, make: object) -> None:
    text = FORMATS[name].draw(make(), Choice(), Screen(100))  # type: ignore[operator]
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_a_choice_shows_its_steps_only() -> None:
    shown = view(multi_head(), Choice(match="scores"))
    assert [row.cells[:2] for row in shown.rows] == [("11", "query @ key.transpose(-2, -1)")]
    assert shown.footer[0].text.startswith("1 of 18 steps shown")


def test_sizes_say_where_they_are_from_in_the_order_of_the_vocabulary() -> None:
    sizes = {"T": Size(3, "given"), "Dk": Size(64, "derived", "D//H"), "B": Size(2, "default")}
    assert header(trace_of((), sizes=sizes)).sizes == ("B=2 (default)", "Dk=64 (D//H)", "T=3")


def axes_line(*axes: Axis, runs: int = 3) -> str:
    record = replace(tensor(" ".join("B" for _ in axes)), axes=axes)
    one = replace(step(1, "x", "f", None, record), outputs=(NamedTensor(None, record),))
    return footer(trace_of((one,), proved_by_runs=runs), 1)[1].text


def test_counts_of_axes() -> None:
    proved, matched, constant = Axis("B", "proved"), Axis("Lk", "matched"), Axis("3", "literal")
    assert axes_line(proved, proved) == "2/2 axes proved by 3 runs"
    assert axes_line(proved, matched, constant) == "1/2 axes proved by 3 runs, 1 only matched by size, 1 constant"
    assert axes_line(matched, constant, runs=1) == "axes: 1 only matched by size, 1 constant"
    assert axes_line(Axis("D//3", "literal")) == "axes: 1 literal"


def test_unchecked_signatures_are_not_called_checked() -> None:
    record = replace(tensor("B"), checked=None)
    one = replace(step(1, "x", "f", None, record), outputs=(NamedTensor("x", record),))
    assert footer(trace_of((one,)), 1)[0].text == "1 step · 1 signature, none checked"


def test_an_incomplete_trace_says_so() -> None:
    texts = [remark.text for remark in footer(replace(multi_head(), complete=False), 18)]
    assert "incomplete: not every step of the run is in this trace" in texts


def test_no_torch_and_no_console_is_imported() -> None:
    script = (
        "import sys\n"
        "from attnshape.render import formats, glossary\n"
        "from attnshape.render.view import Choice\n"
        "from tests.render.sample_traces import multi_head\n"
        "glossary.terminal(80), glossary.markdown()\n"
        "for name in formats.FORMATS:\n"
        "    formats.FORMATS[name].draw(multi_head(), Choice(), formats.Screen(100))\n"
        "print([name for name in ('torch', 'rich.console', 'difflib') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
