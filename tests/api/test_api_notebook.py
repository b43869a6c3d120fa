"""The line magic `%attnshape`, with a shell that stands for IPython's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnshape
from attnshape import Difference, Explanation, Report, Trace

ROOT = Path(__file__).parents[2]


class Shell:
    """What the magic uses of IPython's shell."""

    def __init__(self, **names: Any) -> None:
        self.user_ns = names
        self.magics: dict[str, Callable[[str], Any]] = {}

    def register_magic_function(self, function: Callable[[str], Any], kind: str, name: str) -> None:
        assert kind == "line"
        self.magics[name] = function

    def ev(self, expression: str) -> Any:
        return eval(expression, self.user_ns)

    def run(self, line: str) -> Any:
        attnshape.load_ipython_extension(self)  # type: ignore[attr-defined]
        return self.magics["attnshape"](line)


def attend(query: Tensor, key: Tensor) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.softmax(-1) @ key


def unscaled(query: Tensor, key: Tensor) -> Tensor:
    scores = query @ key.mT
    return scores.softmax(-1) @ key


def masked(query: Tensor, mask: Tensor) -> Tensor:
    return (query @ query.mT).masked_fill(mask, -1e9).softmax(-1)


INPUTS = '--input "query: B Lq Dk" --input "key: B Lk Dk"'


def test_trace_of_a_name_of_the_notebook() -> None:
    trace = Shell(attend=attend).run(f"trace attend {INPUTS} --queries 7 --dtype float64")
    assert isinstance(trace, Trace)
    assert trace.sizes["Lq"].size == 7
    assert trace.dtype == "float64"
    assert trace.steps[1].outputs[0].tensor.signature == "B Lq Lk"


def test_names_with_attributes_and_items() -> None:
    layers = [nn.MultiheadAttention(8, 2, batch_first=True)]
    given = " ".join(f'--input "{name}: B L D"' for name in ("query", "key", "value"))
    trace = Shell(layers=layers).run(f"trace layers[0] --d-model 8 --heads 2 {given}")
    assert trace.failure is None
    assert trace.sizes["D"].size == 8


def test_catalog_and_files_are_targets_too() -> None:
    assert Shell().run("trace multi-head --heads 4 --causal").sizes["H"].size == 4


def test_variables_are_arguments() -> None:
    shell = Shell(masked=masked, future=torch.ones(10, 10).triu(1).bool())
    trace = shell.run('trace masked --input "query: B L Dk" --with mask=future --length 10')
    assert [named.name for named in trace.inputs] == ["query", "mask"]


def test_check_and_diff() -> None:
    shell = Shell(attend=attend, unscaled=unscaled)
    report = shell.run(f"check unscaled {INPUTS} --time-limit 30")
    assert isinstance(report, Report)
    assert "AS204" in [finding.code for finding in report.findings]
    difference = shell.run(f"diff attend unscaled {INPUTS}")
    assert isinstance(difference, Difference)
    assert "steps" in difference.kinds
    shell.user_ns["saved"] = shell.run(f"trace attend {INPUTS}")
    assert not shell.run(f"diff saved saved {INPUTS}")


def test_explain() -> None:
    explanation = Shell(attend=attend).run(f"explain attend {INPUTS} --queries 7 --dtype float64")
    assert isinstance(explanation, Explanation)
    assert explanation.trace.sizes["Lq"].size == 7
    assert explanation.trace.dtype == "float64"
    assert "softmax" in [section.topic for section in explanation.sections]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "error: %attnshape needs a verb and a name\nhint: for example %attnshape trace NAME"),
        ("trace", "error: %attnshape trace takes one name\n"),
        ("diff attend", "error: Missing argument"),
        (
            "rule AS201",
            "error: %attnshape has no verb 'rule', only trace, check, explain, diff\nhint: in a cell: !attnshape rule",
        ),
        ("trce attend", "hint: did you mean trace?"),
        ("trace attend --format json", "error: %attnshape trace takes no --format\nhint: leave it out"),
        ("trace attend --time-limit 3", "error: %attnshape trace takes no --time-limit\n"),
        ("explain attend --grad", "error: %attnshape explain takes no --grad\nhint: leave it out"),
        ("explain", "error: %attnshape explain takes one name\n"),
        ("check attend --device cpu", "error: %attnshape check takes no --device\n"),
        ("trace attend --heads many", "error: --heads is 'many'"),
        ("trace attend --nonsense", "error: No such option: --nonsense"),
        ("trace attend 'x", "error: %attnshape can't read its line: No closing quotation\nhint: close each quote"),
        ("trace attend.nothing", "error: attend.nothing can't be evaluated: AttributeError"),
        ("trace number", "error: attnshape.trace was given a int, expected something to call"),
        ("trace nowhere", "error: the notebook has no name 'nowhere'\nhint: run the cell that defines it"),
        ("trace no-where", "error: there is no mechanism 'no-where' in the catalog"),
        ("trace attend --causal", "error: options are those of built-in mechanisms"),
    ],
)
def test_errors_are_messages(line: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Shell(attend=attend, number=3).run(line) is None
    printed = capsys.readouterr()
    assert printed.out == ""
    assert error in printed.err
    assert "hint: " in printed.err
    assert "Traceback" not in printed.err


def test_nothing_of_it_is_imported_before() -> None:
    code = (
        "import sys, attnshape\n"
        "assert hasattr(attnshape, 'load_ipython_extension')\n"
        "assert not {'IPython', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
