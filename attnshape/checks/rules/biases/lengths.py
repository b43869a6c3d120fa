"""Is what positions add to a score for a distance the same at other lengths?

A bias, a rotation or a product with positions may depend on the distance alone at each length, and still be that of
another distance at the next: where positions are counted from the wrong end, or without the cached tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import of_distinct_code
from attnshape.checks.attention.perturbation import constant
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, scores_by_distance, uniform_run
from attnshape.checks.attention.visibility import explain_visibility
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.protocol import Observation, Outcome, Verification, Violation
from attnshape.model.formatting import pluralize

_CLOSE = 1e-4
"""The difference of two scores, relative to their spread, from which they differ; many tables are in float32."""
_FEWEST = 4
"""How many steps between distances must agree to tell a shift."""


def check_lengths(subject: Subject) -> Iterator[Outcome]:
    """Give all queries and keys the same vector at two sets of lengths, and compare the scores by distance."""
    found = [
        (place, same, scores)
        for place, own in enumerate(of_distinct_code(subject))
        if (same := uniform_run(subject, own)) is not None and (scores := scores_by_distance(same)) is not None
    ]
    other = _with_other_lengths(subject) if found else None
    if other is None:
        return
    every = of_distinct_code(other)
    shared = {name: value for name, value in subject.base.inputs.items() if _is_shared(other, name, value)}
    given: dict[str, Replace] = {name: constant(value) for name, value in shared.items()}
    for place, same, scores in found if len(every) == len(of_distinct_code(subject)) else ():
        again = uniform_run(other, every[place], given)
        others = scores_by_distance(again) if again is not None else None
        if again is not None and others is not None:
            yield from _compared(same, again, scores, others)


def _with_other_lengths(subject: Subject) -> Subject | None:
    """Return the target at other lengths, with the same parameters; None if some depend on the lengths."""
    if subject.other is None:
        return None
    experiment = subject.experiment.at(subject.other)
    before, after = subject.base.state, experiment.base.state
    alike = before.keys() == after.keys() and all(before[name].shape == after[name].shape for name in before)
    if experiment.base.error is not None or experiment.raw.failure is not None or not alike:
        return None
    other = Subject(experiment, subject.claims, None)
    return other if len(other.attentions) == len(subject.attentions) else None


def _is_shared(other: Subject, name: str, value: Tensor) -> bool:
    """Return whether an input is a table that doesn't depend on the lengths, such as one of buckets."""
    after = other.base.inputs.get(name)
    return after is not None and after.shape == value.shape and after.dtype == value.dtype


def _compared(same: UniformRun, again: UniformRun, scores: Tensor, others: Tensor) -> Iterator[Outcome]:
    count = min(scores.shape[-1], others.shape[-1])
    if scores.shape[0] != others.shape[0] or count <= _FEWEST:
        return
    before, after = scores.diff(dim=-1), others.diff(dim=-1)
    if _are_close(before[:, : count - 1], after[:, : count - 1]):
        yield Verification("what a distance adds to a score is the same at other lengths")
        return
    shift = _shift(before, after, _differences(same.subject.numbers, again.subject.numbers))
    core = same.own[1].core
    if shift is None:
        text = "what a distance adds to a score depends on the lengths"
        yield Observation(text, attention=core.context)
        return
    keys = [one.own[1].value.shape[one.tokens(one.own[1]) or 0] for one in (same, again)]
    back = max(-shift, 0) + 1
    message = (
        f"positions are counted from another place than the query's own: with {keys[0]} keys the score of a key "
        f"{pluralize(back + shift, 'position')} back gets what that of one {pluralize(back, 'position')} back gets "
        f"with {keys[1]}"
    )
    hint = "count the distance from the query to the key, with queries numbered from the end of the keys"
    evidence = "gave all queries and keys the same vector, at two sets of lengths"
    yield Violation("AS711", message, _place(same), hint, evidence)


def _differences(before: Mapping[str, int], after: Mapping[str, int]) -> list[int]:
    """Return by how much the lengths, and sums of two of them, differ, in both directions."""
    single = {after[name] - before[name] for name in before.keys() & after.keys()} - {0}
    every = single | {one + other for one in single for other in single}
    return sorted((sign * one for one in every for sign in (1, -1)), key=abs)


def _shift(before: Tensor, after: Tensor, candidates: list[int]) -> int | None:
    """Return by how many distances the first steps come later than the others, if that makes them equal."""
    for shift in candidates:
        begin, end = max(shift, 0), min(before.shape[-1], after.shape[-1] + shift)
        first, second = before[:, begin:end], after[:, begin - shift : end - shift]
        if (
            end - begin >= _FEWEST
            and _are_close(first, second)
            and bool((first.abs() > _CLOSE * _spread(before)).any())
        ):
            return shift
    return None


def _are_close(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() <= _CLOSE * max(_spread(one), _spread(other))).all())


def _spread(steps: Tensor) -> float:
    return float(steps.abs().max()) if steps.numel() else 0.0


def _place(same: UniformRun) -> OutputRef:
    """Return the call that computes distances or positions, as far as it is known."""
    core, subject = same.own[1].core, same.subject
    if isinstance(core, Core) and core.positional:
        return core.positional[-1].ref
    varying = same.first_varying(same.own[0])
    if varying is not None:
        return varying
    visible = next(one.visible for one in explain_visibility(subject)[0] if one.visible.core is core)
    shape = torch.Size(visible.keys.shape[-2:])
    return MaskLines(subject, core).first_constant(lambda value: value.shape[-2:] == shape)
