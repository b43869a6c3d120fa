"""The texts of a difference's cells: a step, a tensor's signature, shape, stride, storage and type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnshape.comparing.difference import Fact
from attnshape.comparing.outline import OutlineStep, Tensor
from attnshape.model import Reference
from attnshape.render.columns import NOT_CONTIGUOUS
from attnshape.render.expression import LONG, clipped, elided
from attnshape.render.numbers import memory
from attnshape.render.text import visible

Steps = Sequence[OutlineStep]
"""One side's steps, in order of their numbers."""


@dataclass(frozen=True)
class Column:
    """A column of tensors' facts: its name, text, what changes it, and whether it is code."""

    name: str
    text: Callable[[Tensor, Steps], str]
    facts: frozenset[Fact]
    code: bool = False
    least: int | None = None


def label(step: OutlineStep, depth: int, above: OutlineStep | None = None) -> str:
    """Return a step as its row shows it: how often it turns, how deep it lies, its names and its expression.

    `…` in it stands for the step in the row above, where that has no name and is what it reads.
    """
    text = clipped(visible(step.expression)) or visible(step.operation)
    nameless = above is not None and [output.name for output in above.outputs] == [None]
    if above is not None and nameless and any(one.step == above.index for one in step.uses):
        text = elided(text, clipped(visible(above.expression)), len(text) > LONG)
    turns = "".join(f"×{visible(turn.expression)} " for turn in step.turns)
    names = [output.name for output in step.outputs]
    before = after = ""
    if names and all(names) and not any(output.kind == "inplace" for output in step.outputs):
        bound = visible(", ".join(name for name in names if name))
        if bound != text:
            by_use = any(output.by_use for output in step.outputs)
            before, after = ("", f" as {bound}") if by_use else (f"{bound} = ", "")
    return turns + "↳ " * depth + before + text + after


def output_name(tensor: Tensor, place: int) -> str:
    """Return how one of several outputs is called."""
    return visible(tensor.name or f"[{place}]")


def words(reference: Reference | None, steps: Steps) -> str:
    """Return a reference as a table names it: a step's number, an input's or a parameter's name."""
    if reference is None:
        return "an unseen tensor"
    if reference.step is None:
        name = reference.input or reference.parameter
        return visible(name) if name else "a constant"
    outputs = steps[reference.step - 1].outputs if 0 < reference.step <= len(steps) else ()
    if len(outputs) < 2:
        return str(reference.step)
    name = outputs[reference.output].name if 0 <= reference.output < len(outputs) else None
    return f"{reference.step} ({visible(name)})" if name else f"{reference.step}[{reference.output}]"


def named(reference: Reference, steps: Steps) -> str:
    """Return a reference as a sentence names it: `step 4 (o)`, `input x`."""
    text = words(reference, steps)
    if reference.step is None:
        kind = "input " if reference.input else "parameter " if reference.parameter else ""
        return f"{kind}{text}"
    outputs = steps[reference.step - 1].outputs if 0 < reference.step <= len(steps) else ()
    # where there are several outputs, `words` says which
    name = outputs[0].name if len(outputs) == 1 else None
    return f"step {text} ({visible(name)})" if name else f"step {text}"


def _shape(tensor: Tensor, steps: Steps) -> str:
    return " ".join(map(str, tensor.shape)) or "()"


def _stride(tensor: Tensor, steps: Steps) -> str:
    return (" ".join(map(str, tensor.stride)) or "()") + ("" if tensor.contiguous else f" {NOT_CONTIGUOUS}")


def _storage(tensor: Tensor, steps: Steps) -> str:
    if tensor.kind == "new":
        return f"new {memory(tensor.bytes)}" if tensor.bytes else ""
    verb = {"view": "view of", "same": "same as", "inplace": "writes"}[tensor.kind]
    return f"{verb} {words(tensor.of, steps)}"


def _of(*facts: Fact) -> frozenset[Fact]:
    return frozenset(facts)


STEP_LEAST = 16
DTYPE = Column("dtype", lambda tensor, steps: visible(tensor.dtype), _of("dtype"))
COLUMNS: tuple[Column, ...] = (
    Column("signature", lambda tensor, steps: visible(tensor.signature) or "scalar", _of("signature"), True, 12),
    Column("shape", _shape, _of("shape")),
    # a stride that only follows from a shape is another number too
    Column("stride", _stride, _of("stride", "shape")),
    Column("storage", _storage, _of("storage", "bytes"), least=12),
)
