"""Does attention that keeps a part of the keys by their scores keep those with the largest?

Examples are top-k attention (Zhao et al. 2019, https://arxiv.org/abs/1912.11637, equation 3) and thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.elementwise import HIDES, ElementwiseMap, MeasuredCore
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.tracing.operations import MULTIPLICATIONS

_LARGE = 100.0
"""What multiplies scores by less may be a factor of their own, such as a learned one."""
_ROUNDING = 1e-6
_FEWEST_ROWS = 4
"""How many queries must have a kept and a hidden key, so that their order is no coincidence."""


def judge_chosen(subject: Subject) -> Iterator[Outcome]:
    """Compare the scores of kept and of hidden keys wherever the scores decide which keys are hidden."""
    judged = [outcome for measured in subject.measured if (outcome := _judge(subject, measured)) is not None]
    wrong = [outcome for outcome in judged if isinstance(outcome, Violation)]
    yield from wrong[:1] or judged[:1]


def _judge(subject: Subject, measured: MeasuredCore) -> Violation | Verification | None:
    core, mapping = measured.core, measured.scores_map
    if mapping is not None and mapping.elementwise and (times := _flipped(mapping)) is not None:
        return _multiplied(MaskLines(subject, core), times)
    scores, read = core.scores.result, core.softmax.scores
    if mapping is None or mapping.always_hidden is None or not scores.shape == read.shape == mapping.added.shape:
        return None
    if len(core.softmax.axes) != 1:
        return None
    (keys,) = core.softmax.axes
    kept = read > HIDES
    dropped = ~kept & ~mapping.always_hidden
    both = kept.any(keys) & dropped.any(keys)
    if int(both.sum()) < _FEWEST_ROWS:
        return None
    least_kept, most_kept = _range(scores, kept, keys, both)
    least_dropped, most_dropped = _range(scores, dropped, keys, both)
    if bool((most_dropped <= least_kept).all()):
        return Verification("where the scores decide which keys get weight, these are the keys with the largest ones")
    if bool((most_kept <= least_dropped).all()):
        message = "the keys with the largest scores are hidden, and those with the smallest get weight"
        hint = "invert the mask: hide the scores below the k-th largest"
        evidence = "compared the scores of kept and of hidden keys"
        return Violation("AS401", message, MaskLines(subject, core).triangle(), hint, evidence, "measured")
    return None


def _flipped(mapping: ElementwiseMap) -> float | None:
    """Return the large negative number, over the factor of other scores, by which some scores are multiplied."""
    factors = mapping.factor[mapping.known]
    if not factors.numel():
        return None
    flipped, usual = float(factors.min()), float(factors.max())
    close = [torch.isclose(factors, torch.full_like(factors, one), rtol=_ROUNDING) for one in (flipped, usual)]
    are_two = usual > 0 and bool((close[0] | close[1]).all())
    return flipped / usual if are_two and flipped / usual <= -_LARGE else None


def _multiplied(lines: MaskLines, times: float) -> Violation:
    message = (
        f"scores of masked keys are multiplied by {times:.4g}: those below zero become the largest scores, and the "
        "others the smallest"
    )
    hint = "add the number to the scores, or fill them with -inf: scores.masked_fill(~mask, -torch.inf)"
    at = next((event.refs[0] for event in lines.applications if event.name in MULTIPLICATIONS), lines.softmax)
    evidence = "replaced the scores by known numbers, and read their factors at the softmax"
    return Violation("AS405", message, at, hint, evidence, "reproduced")


def _range(
    scores: torch.Tensor, chosen: torch.Tensor, axis: int, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest of the chosen scores of each of the rows."""
    least = scores.masked_fill(~chosen, torch.inf).amin(axis)[rows]
    return least, scores.masked_fill(~chosen, -torch.inf).amax(axis)[rows]
