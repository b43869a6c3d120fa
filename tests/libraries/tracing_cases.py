"""The table entry, the file and the traces of each case."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from attnshape.model.trace import Trace
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.trace import trace_request
from tests.libraries.hand_worked import HandWorked

FOLDER = Path(__file__).parent


def _tables() -> Iterator[tuple[str, HandWorked]]:
    for path in sorted((FOLDER / "hand").glob("*.py")):
        table = importlib.import_module(f"tests.libraries.hand.{path.stem}").CASES
        for name, worked in table.items():
            yield f"{path.stem}:{name}", worked


HAND_WORKED = dict(_tables())
"""Table entries by `file:case`; the table of a file of cases has the same name in hand/."""

FILES = sorted({case.partition(":")[0] for case in HAND_WORKED})

QUICK = {
    *("torch_cases:mha_self", "labml_cases:cross", "diffusers_cases:cross", "transformers_text_cases:gpt2"),
}
"""Cases that are traced and checked by default; the others are marked as slow."""

RUNS = [(case, which) for case, worked in HAND_WORKED.items() for which in range(len(worked.sizes))]
"""Each case at each of its sizes."""


each_run = pytest.mark.parametrize(
    ("case", "which"),
    [
        pytest.param(
            case,
            which,
            id=f"{case}-{which}",
            marks=[pytest.mark.xdist_group(case.partition(":")[0]), *(() if case in QUICK else [pytest.mark.slow])],
        )
        for case, which in RUNS
    ],
)


def target_of(case: str) -> str:
    """Return the target of a case, as on the command line."""
    file, _, name = case.partition(":")
    return f"{FOLDER / 'cases' / file}.py:{name}"


@cache
def traced(case: str, which: int) -> Trace:
    """Return a case's trace at one of its sizes."""
    request = TargetSpec(target_of(case), sizes=HAND_WORKED[case].sizes[which])
    return trace_request(request, RunOptions(command=case))
