"""Refuses a run that can't fit into memory, before anything of it is allocated."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from attnshape import axis
from attnshape.dims import flag_of
from attnshape.errors import AttnshapeError
from attnshape.inference.plan import Plan
from attnshape.inference.solve import Solver
from attnshape.inference.vary import Explorer
from attnshape.tracing.raw import RawTensor

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_WORTH_ASKING = 2**20
"""Below this many elements in the product of all sizes nothing is forecast."""


def refuse_too_large(explorer: Explorer, plan: Plan, device: torch.device) -> None:
    """Raise AttnshapeError where one step alone needs more memory than is free.

    The bytes come from the formulas that the small runs give; where these fail, nothing is refused.
    """
    numbers = plan.sizes.numbers
    if device.type == "meta" or math.prod(numbers.values()) < _WORTH_ASKING:
        return
    runs = [explorer.run(plan, round_) for round_ in range(2)]
    if not runs[0].steps or [step.key for step in runs[0].steps] != [step.key for step in runs[1].steps]:
        return
    solver = Solver(plan, 2)
    free = free_memory(device)
    for first, second in zip(runs[0].steps, runs[1].steps, strict=True):
        for one, other in zip(first.outputs, second.outputs, strict=False):
            needed = _bytes(solver, one.tensor, other.tensor, numbers)
            if one.tensor.kind == "new" and needed > free:
                expression = first.place.expression if first.place else first.operation
                raise AttnshapeError(
                    f"{' '.join(expression.split())} needs {_readable(needed)}, free are {_readable(free)} on {device}",
                    _way_out(plan),
                )
    for (name, small), (_, larger) in zip(runs[0].inputs, runs[1].inputs, strict=False):
        needed = _bytes(solver, small, larger, numbers)
        if needed > free:
            raise AttnshapeError(
                f"{name} needs {_readable(needed)}, free are {_readable(free)} on {device}", _way_out(plan)
            )


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2**63


def _bytes(solver: Solver, one: RawTensor, other: RawTensor, numbers: dict[str, int]) -> int:
    """Return a tensor's bytes at the user's sizes, 0 where its shape has no formula."""
    total = one.itemsize
    if len(one.shape) != len(other.shape):
        return 0
    for small, large in zip(one.shape, other.shape, strict=True):
        text = solver.product((small, large))
        if text is None:
            return 0
        total *= axis.parse(text).evaluate(numbers)
    return total


def _way_out(plan: Plan) -> str:
    numbers = plan.sizes.numbers
    largest = max(numbers, key=lambda letter: numbers[letter])
    return f"--device meta needs no memory; or give a smaller {flag_of(largest)}"


def _readable(count: int) -> str:
    """Write a number of bytes, rounded down.

    >>> _readable(3 * 2**30)
    '3 GiB'
    """
    power = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{count >> 10 * power:,} {_UNITS[power]}"
