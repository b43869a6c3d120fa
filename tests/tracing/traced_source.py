"""Traces Python source given as text."""

import itertools
import textwrap
from pathlib import Path
from typing import Any

from attnshape.model.trace import Step, Trace
from attnshape.options.spec import RunOptions, TargetSpec, parse_dims, parse_expect, parse_inputs
from attnshape.pipelines.trace import trace_request

_count = itertools.count()
HEAD = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n\n\n"
"""The beginning of every traced file; the source follows in line 8."""


def write(folder: Path, source: str) -> str:
    """Write HEAD and the source to a file with a unique name, and return its path."""
    path = folder / f"traced_{next(_count)}.py"
    path.write_text(HEAD + textwrap.dedent(source).strip() + "\n", encoding="utf-8")
    return str(path)


def trace(
    folder: Path,
    source: str,
    *inputs: str,
    target: str = "f",
    init: str | None = None,
    arguments: dict[str, str] | None = None,
    dims: tuple[str, ...] = (),
    expect: tuple[str, ...] = (),
    train: bool = False,
    **given: int,
) -> Trace:
    """Trace one target of the source, with inputs and sizes as on the command line."""
    request = TargetSpec(
        target=f"{write(folder, source)}:{target}",
        init=init,
        inputs=parse_inputs(inputs),
        arguments=arguments or {},
        sizes={**given, **parse_dims(dims)},
        expect=parse_expect(expect),
    )
    return trace_request(request, RunOptions(train=train))


def names(traced: Trace) -> list[Any]:
    """Return each step's name, or a tuple of names if it has several outputs."""
    found = [tuple(output.name for output in step.outputs) for step in traced.steps]
    return [several[0] if len(several) == 1 else several for several in found]


def step_named(traced: Trace, name: str) -> Step:
    """Return the one step that makes a tensor of that name."""
    (found,) = [step for step in traced.steps if name in [output.name for output in step.outputs]]
    return found


def at(traced: Trace, expression: str) -> Step:
    """Return the one step of that expression."""
    (found,) = [step for step in traced.steps if step.expression == expression]
    return found
