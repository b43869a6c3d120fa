"""Runs one tool on the subject in a separate process: `python -m benchmarks.peer once|warm NAME [CALLS]`.

`once` prints the tool's output; `warm` prints the median seconds of a plain and of a traced call, as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import subject

Trace = Callable[[Any, tuple[Any, ...]], Any]
"""A function from a module and its inputs to the tool's result."""

WARMING_CALLS = 3


def _attnshape() -> Trace:
    from attnshape.tracing.runner import Runnable, record

    return lambda model, inputs: record(Runnable(model, inputs), seed=0)


def _torchinfo() -> Trace:
    import torchinfo

    return lambda model, inputs: torchinfo.summary(model, input_data=inputs, verbose=0)


def _torchview() -> Trace:
    import torchview

    return lambda model, inputs: torchview.draw_graph(model, input_data=inputs, expand_nested=True).visual_graph


def _torchlens() -> Trace:
    import torchlens

    return lambda model, inputs: torchlens.trace(model, inputs)


def _export() -> Trace:
    import torch.export

    return lambda model, inputs: torch.export.export(model, inputs)


PEERS: dict[str, Callable[[], Trace]] = {
    "attnshape": _attnshape,
    "torchinfo": _torchinfo,
    "torchview": _torchview,
    "torchlens": _torchlens,
    "torch.export": _export,
}


def _seconds(call: Callable[[], Any], calls: int) -> float:
    for _ in range(WARMING_CALLS):
        call()
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


def once(name: str) -> None:
    """Trace the subject and print the result."""
    trace = PEERS[name]()
    print(trace(*subject.build()))


def warm(name: str, calls: int) -> None:
    """Time the plain calls first, since a tool may leave torch patched."""
    model, inputs = subject.build()
    plain = _seconds(lambda: model(*inputs), calls)
    trace = PEERS[name]()
    traced = _seconds(lambda: trace(model, inputs), calls)
    print(json.dumps({"plain": plain, "traced": traced}))


if __name__ == "__main__":
    mode, name, *rest = sys.argv[1:]
    if mode == "warm":
        warm(name, int(rest[0]))
    else:
        once(name)
