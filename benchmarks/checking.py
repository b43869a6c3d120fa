"""CPU time of whole processes: `check` against `trace` of the same module, for modules of several libraries."""

import importlib.util
from collections.abc import Callable
from functools import partial
from statistics import median

from benchmarks.measure import Options, cpu_time, interleaved
from benchmarks.ratio import Budget, Row, Table

TRACE = "attnshape trace"
CHECK = "attnshape check"
ROUNDS = 4
TIMES_THE_TRACE = 1.5
FOLDER = "tests/libraries/cases"
SUBJECTS = {
    "torch": ("torch_cases.py:mha_self",),
    "transformers": (
        "transformers_text_cases.py:llama",
        "transformers_text_cases.py:falcon",
        "transformers_text_cases.py:mistral",
        "transformers_text_cases.py:distilbert",
        "transformers_text_cases.py:falcon_grouped",
        "transformers_text_cases.py:bert",
        "transformers_other_cases.py:deepseek_v3",
        "transformers_other_cases.py:t5_self",
    ),
    "x_transformers": ("x_transformers_cases.py:talking_heads",),
    "performer_pytorch": ("efficient_cases.py:performer",),
    "vit_pytorch": ("vit_pytorch_cases.py:levit",),
    "labml_nn": ("labml_cases.py:alibi",),
}
"""The checked cases by the package that they need: nn.MultiheadAttention, Llama's attention, and a random choice of the
others, without those in which `check` finds something."""


def run(options: Options) -> list[Table]:
    """Measure the modules one after the other, and the median of all."""
    rounds = options.rounds(ROUNDS)
    traces: list[float] = []
    checks: list[float] = []
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for package, cases in SUBJECTS.items():
        if importlib.util.find_spec(package) is None:
            missing |= dict.fromkeys(cases, f"{package} is not installed")
            continue
        for case in cases:
            measured = interleaved(_tasks(options, case), rounds)
            missing |= {f"{label} of {case}": why for label, why in measured.missing.items()}
            if measured.missing:
                continue
            trace, check = measured.samples[TRACE], measured.samples[CHECK]
            rows.append(Row(case, check, {TRACE: trace}))
            traces.append(median(trace))
            checks.append(median(check))
    if rows:
        budget = Budget(TIMES_THE_TRACE, TRACE)
        rows.append(Row(f"median of the {len(rows)} modules", checks, {TRACE: traces}, budget))
    return [Table(f"checking: CPU time of {CHECK}, whole process, {rounds} rounds", rows, missing)]


def _tasks(options: Options, case: str) -> dict[str, Callable[[], float]]:
    target = f"{FOLDER}/{case}"
    return {
        TRACE: partial(cpu_time, (*options.attnshape, "trace", target)),
        CHECK: partial(cpu_time, (*options.attnshape, "check", target, "--no-cache")),
    }
