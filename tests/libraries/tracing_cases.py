"""Each case's table entry, its file, and its trace at each of its sizes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attnshape.model import Trace
from attnshape.pipeline import trace_request
from attnshape.settings import Settings
from attnshape.target.request import Request
from tests.libraries.hand_worked import HandWorked

FOLDER = Path(__file__).parent


def _tables() -> Iterator[tuple[str, HandWorked]]:
    for path in sorted((FOLDER / "hand").glob("*.py")):
        table = importlib.import_module(f"tests.libraries.hand.{path.stem}").CASES
        for name, worked in table.items():
            yield f"{path.stem}:{name}", worked


HAND_WORKED = dict(_tables())
"""By `file:case`; a file of cases has its table under the same name in hand/."""

FILES = sorted({case.partition(":")[0] for case in HAND_WORKED})

RUNS = [(case, which) for case, worked in HAND_WORKED.items() for which in range(len(worked.sizes))]
"""Each case at each of its sizes."""


def target_of(case: str) -> str:
    """Return the target to type for a case."""
    file, _, name = case.partition(":")
    return f"{FOLDER / 'cases' / file}.py:{name}"


@cache
def traced(case: str, which: int) -> Trace:
    """Return a case's trace at one of its sizes."""
    request = Request(target_of(case), given=HAND_WORKED[case].sizes[which])
    return trace_request(request, Settings(command=case))
