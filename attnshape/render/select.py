"""Which steps `--match` picks."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from attnshape.errors import AttnshapeError
from attnshape.model import Step, Trace
from attnshape.render.reference import operation
from attnshape.render.text import visible

CONCAT = "concat"
"""The word for what joins heads: a concatenation, or the reshape that merges them."""

_JOINS = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"})
_RESHAPES = frozenset({"view", "reshape", "flatten", "_unsafe_view"})


def select(trace: Trace, match: str | None) -> tuple[Step, ...]:
    """Return the steps whose role, operation or module one of the comma-separated words names; all for None.

    A word is a role, an operation's short name, `concat`, or a module's path, its beginning or a glob of these.
    Raises AttnshapeError for a word that no step of this trace answers to.
    """
    if match is None:
        return trace.steps
    words = [word.strip() for word in match.split(",") if word.strip()]
    if not words:
        raise AttnshapeError("nothing is named to match", _way_out(trace))
    for word in words:
        # a trace that ends in a failure shows that, whether or not it came to such a step
        if trace.failure is None and not any(_answers(step, word) for step in trace.steps):
            raise AttnshapeError(f"no step matches {visible(word)!r}", _way_out(trace))
    return tuple(step for step in trace.steps if any(_answers(step, word) for word in words))


def up_to_depth(trace: Trace, steps: Sequence[Step], depth: int | None) -> tuple[Step, ...]:
    """Return those of the steps that lie at most so deep inside composites; 0 leaves none inside."""
    depths: dict[int, int] = {}
    for step in trace.steps:
        depths[step.index] = depths[step.parent] + 1 if step.parent is not None else 0
    return tuple(step for step in steps if depth is None or depths[step.index] <= depth)


def _answers(step: Step, word: str) -> bool:
    short = operation(step.operation)
    if word == CONCAT:
        return _concatenates(step)
    if step.role == word or fnmatchcase(short.rstrip("_"), word.rstrip("_")):
        return True
    module = step.module or ""
    return bool(module) and (module.startswith(f"{word}.") or fnmatchcase(module, word))


def _concatenates(step: Step) -> bool:
    short = operation(step.operation)
    return short in _JOINS or (step.role == "merge" and short in _RESHAPES)


def _way_out(trace: Trace) -> str:
    steps = trace.steps
    present: dict[str, dict[str, None]] = {
        "roles": {step.role: None for step in steps if step.role},
        "operations": {operation(step.operation): None for step in steps}
        | ({CONCAT: None} if any(map(_concatenates, steps)) else {}),
        "modules": {step.module: None for step in steps if step.module},
    }
    listed = [f"{kind}: {', '.join(map(visible, names))}" for kind, names in present.items() if names]
    return "what would match: " + "; ".join(listed) if listed else "this trace has no steps"
