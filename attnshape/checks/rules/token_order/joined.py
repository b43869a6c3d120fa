"""Are tokens of two inputs that attend in one sequence split again where they were joined?

Each kind of token may have projections of its own before and after joint attention (Esser et al. 2024,
https://arxiv.org/abs/2403.03206, section 4). A split in another order gives them some of the other's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from attnshape.checks.attention.operands import by_attention
from attnshape.checks.attention.perturbation import PerturbationDiff, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Violation
from attnshape.model.formatting import join_words
from attnshape.tracing import operations as ops

_EVIDENCE = "changed one input, kept all keys and values, and looked at which tokens of each part differ"
_Names = tuple[list[str], list[str]]


def check_joined(subject: Subject, kept: Mapping[OutputRef, Replace]) -> Iterator[Violation]:
    """Change one of two inputs whose tokens are joined, and look after attention for a part with tokens of both.

    `kept` replaces keys and values by themselves, so that tokens reach nothing but their own contexts.
    """
    attentions = by_attention(subject)
    queries = tuple(source for query, *_ in attentions for source in query.sources)
    contexts = subject.graph.downstream({query.core.context for query, *_ in attentions})
    for join in subject.graph.upstream(queries):
        axis = _axis(join)
        names = _inputs(subject, join) if axis is not None else None
        if axis is None or names is None:
            continue
        first, second = (value.shape[axis] for value in join.operand_values)
        run = subject.perturb(Intervention(inputs=dict.fromkeys(names[0], other_numbers), results=kept))
        if not run.comparable or _changed(run.mask(join.refs[0]), axis) != [True] * first + [False] * second:
            continue
        cuts = (event for event in subject.base.events[join.order :] if event.name in ops.SELECTIONS | ops.SPLITS)
        for event in cuts:
            if event.refs[0] in contexts and _has_both(run, event, (first, second)):
                yield _violation(subject, event, names, (first, second))
                return


def _axis(join: ReplayedCall) -> int | None:
    """Return the axis along which a call joins two tensors of different sizes, if it does."""
    if join.name not in ops.JOINS or len(join.operand_values) != 2:
        return None
    one, other = (value.shape for value in join.operand_values)
    shape = join.values[0].shape
    if not len(one) == len(other) == len(shape):
        return None
    axes = [axis for axis, size in enumerate(shape) if (one[axis], other[axis]) != (size, size)]
    is_joined = len(axes) == 1 and one[axes[0]] != other[axes[0]] and one[axes[0]] + other[axes[0]] == shape[axes[0]]
    return axes[0] if is_joined else None


def _inputs(subject: Subject, join: ReplayedCall) -> _Names | None:
    """Return the inputs from which each of two joined tensors alone comes; None if there are none of either."""
    first, second = (subject.graph.origins(sources) & set(subject.inputs) for sources in join.sources)
    return (sorted(first - second), sorted(second - first)) if first - second and second - first else None


def _changed(mask: Tensor, axis: int) -> list[bool]:
    """Return which tokens differ."""
    flags: list[bool] = mask.movedim(axis, 0).flatten(1).any(1).tolist()
    return flags


def _has_both(run: PerturbationDiff, event: ReplayedCall, sizes: tuple[int, int]) -> bool:
    """Return whether a call cuts joined tokens into parts of these sizes, one of which has tokens of both inputs."""
    before = event.operand_values[0].shape if event.operand_values else ()
    for ref in event.refs:
        shape = event.values[ref.output].shape
        if len(shape) != len(before):
            continue
        axes = [axis for axis in range(len(shape)) if shape[axis] != before[axis]]
        if len(axes) == 1 and before[axes[0]] == sum(sizes) and shape[axes[0]] in sizes:
            flags = _changed(run.mask(ref), axes[0])
            if any(flags) and not all(flags):
                return True
    return False


def _violation(subject: Subject, cut: ReplayedCall, names: _Names, sizes: tuple[int, int]) -> Violation:
    first, second = map(join_words, names)
    one, other = (symbol_or_number(size, subject.numbers) for size in sizes)
    message = (
        f"tokens of {first} are joined in front of those of {second}, {one} and {other}, and split into other parts: "
        "one of them has tokens of both"
    )
    hint = f"split them in the order in which they were joined, the {one} of {first} first"
    return Violation("AS106", message, cut.refs[0], hint, _EVIDENCE)
