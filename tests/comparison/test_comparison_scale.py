"""The work on a trace grows linearly with its steps: comparing, labelling, summing up, finding roles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from attnshape.comparison.outline import outline
from attnshape.comparison.saved import compare_saved
from attnshape.inference.roles import with_roles
from attnshape.model.trace import Loop, Reference, Trace
from attnshape.reporters.diff_view import diff_view
from attnshape.reporters.trace_view import ViewOptions, trace_view
from tests.reporters.sample_traces import step, tensor, trace_of
from tests.work import lines_run_by

INPUT = Reference(input="x")


def chain(count: int) -> Trace:
    steps = (step(n, f"x{n - 1} + {n}", "add", None, tensor("B D"), n - 1 or INPUT) for n in range(1, count + 1))
    return trace_of(tuple(steps))


def composites(count: int) -> Trace:
    """Every other step is inside of the step before it."""
    steps = (replace(one, parent=one.index - 1 if one.index % 2 == 0 else None) for one in chain(count).steps)
    return trace_of(tuple(steps))


def loops(count: int) -> Trace:
    return replace(chain(count), loops=tuple(Loop(n, n + 1, 2, "H", "verified") for n in range(1, count, 2)))


def operands(count: int) -> Trace:
    """The last step reads all others, by name."""
    steps = [replace(one, outputs=(replace(one.outputs[0], name=f"x{one.index}"),)) for one in chain(count).steps]
    names = ", ".join(f"x{n}" for n in range(1, count + 1))
    stack = step(count + 1, f"torch.stack([{names}])", "stack", None, tensor("B D"), *range(1, count + 1))
    return trace_of((*steps, stack))


TRACES: dict[str, Callable[[int], Trace]] = {
    "chain": chain,
    "composites": composites,
    "loops": loops,
    "operands": operands,
}
ACTIONS: dict[str, Callable[[Trace], object]] = {
    "outline": outline,
    "same": lambda trace: diff_view(compare_saved(trace, trace)),
    "table": lambda trace: trace_view(trace, ViewOptions(explain=True)),
    "removed": lambda trace: diff_view(compare_saved(trace, chain(1))),
    "added": lambda trace: diff_view(compare_saved(chain(1), trace)),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", TRACES)
def test_work_is_linear(kind: str, action: str) -> None:
    def work(count: int) -> int:
        trace = TRACES[kind](count)
        return lines_run_by(lambda: ACTIONS[action](trace))

    assert work(800) < 5 * work(200)


def test_softmax_of_a_chain_of_doublings() -> None:
    def work(count: int) -> int:
        doublings = (step(n, "x + x", "add", None, tensor("B D"), *[n - 1 or INPUT] * 2) for n in range(1, count))
        softmax = step(count, "x.softmax(-1)", "softmax", None, tensor("B D"), count - 1)
        product = step(count + 1, "x @ y", "matmul", None, tensor("B D"), count, count - 1)
        return lines_run_by(lambda: with_roles((*doublings, softmax, product)))

    assert work(16) < 3 * work(8)
