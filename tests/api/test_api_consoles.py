"""Code typed at a console, with and without readable source."""

import json
import linecache
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape import Trace

ROOT = Path(__file__).parents[2]
DEFINITION = """\
import torch, attnshape
def attend(query, key):
    scores = query @ key.mT
    return scores.softmax(-1)
"""
RECORDING = """\
query, key = torch.ones(2, 10, 8), torch.ones(2, 12, 8)
with attnshape.record(sizes=dict(B=2, Lq=10, Lk=12, Dk=8)) as recording:
    weights = attend(query, key)
recorded = recording.trace
"""
TRACING = 'traced = attnshape.trace(attend, inputs={"query": "B Lq Dk", "key": "B Lk Dk"})\n'
SIGNATURES = ["B Dk Lk", "B Lq Lk", "B Lq Lk"]


@pytest.fixture
def cells() -> Iterator[dict[str, Trace]]:
    """Run each text as a notebook cell: under its own file name, with its lines in `linecache`."""
    names: dict[str, Trace] = {}
    files = []
    for place, text in enumerate((DEFINITION, RECORDING, TRACING)):
        file = f"<ipython-input-{place}-abc>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        files.append(file)
        exec(compile(text, file, "exec"), names)
    yield names
    for file in files:
        del linecache.cache[file]


def test_notebook_cells_have_names_and_expressions(cells: dict[str, Trace]) -> None:
    for trace in (cells["recorded"], cells["traced"]):
        assert [step.expression for step in trace.steps] == ["key.mT", "query @ key.mT", "scores.softmax(-1)"]
        assert [step.outputs[0].tensor.signature for step in trace.steps] == SIGNATURES
        assert trace.steps[1].outputs[0].name == "scores"
        assert trace.steps[1].source is not None
        assert trace.steps[1].source.file == "<ipython-input-0-abc>"
    assert [named.name for named in cells["recorded"].inputs] == ["key", "query"]


@pytest.mark.parametrize("name", ["<stdin>", "<string>"])
def test_steps_without_source_use_operation_names(name: str) -> None:
    names: dict[str, Trace] = {}
    exec(compile(DEFINITION + RECORDING, name, "exec"), names)
    trace = names["recorded"]
    assert [step.operation for step in trace.steps] == [
        "torch.Tensor.mT",
        "torch.Tensor.matmul",
        "torch.Tensor.softmax",
    ]
    assert [step.expression for step in trace.steps] == [step.operation for step in trace.steps]
    assert [step.outputs[0].tensor.signature for step in trace.steps] == SIGNATURES
    assert f"the source of {name} can't be read: its steps go by their operations" in trace.notes


def test_interactive_interpreter_prints_the_table() -> None:
    typed = (
        f"{DEFINITION}\n{RECORDING.replace('weights = attend(query, key)', 'weights = attend(query, key)' + chr(10))}"
    )
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=f"{typed}\nrecorded\n{TRACING}traced\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.count("B Lq Lk") >= 4
    assert "9/9 axes verified" in done.stdout
    assert "Error" not in done.stderr


def test_exec_code_is_not_confused_with_the_command_line() -> None:
    """Python 3.13 keeps the text of `python -c` under the name `<string>`, which `exec` also uses."""
    outer = f"""
import json
def other(query, key):
    product = key @ query.mT
    return product.exp()
inner = {DEFINITION + RECORDING!r}
exec(inner)
print(json.dumps([[step.expression for step in recorded.steps], list(recorded.notes)]))
"""
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True, check=True, cwd=ROOT)
    expressions, notes = json.loads(done.stdout)
    assert expressions == ["torch.Tensor.mT", "torch.Tensor.matmul", "torch.Tensor.softmax"]
    assert "the source of <string> can't be read: its steps go by their operations" in notes
