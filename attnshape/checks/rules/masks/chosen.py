"""Does attention that keeps a part of the keys by their scores keep those with the largest?

Examples are top-k attention (Zhao et al. 2019, https://arxiv.org/abs/1912.11637, equation 3) and thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.elementwise import HIDES, MeasuredCore
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Outcome, Verification, Violation

_FEWEST_ROWS = 4
"""How many queries must have a kept and a hidden key, so that their order is no coincidence."""


def judge_chosen(subject: Subject) -> Iterator[Outcome]:
    """Compare the scores of kept and of hidden keys wherever the scores decide which keys are hidden."""
    judged = [outcome for measured in subject.measured if (outcome := _judge(subject, measured)) is not None]
    wrong = [outcome for outcome in judged if isinstance(outcome, Violation)]
    yield from wrong[:1] or judged[:1]


def _judge(subject: Subject, measured: MeasuredCore) -> Violation | Verification | None:
    core, mapping = measured.core, measured.scores_map
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


def _range(
    scores: torch.Tensor, chosen: torch.Tensor, axis: int, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest of the chosen scores of each of the rows."""
    least = scores.masked_fill(~chosen, torch.inf).amin(axis)[rows]
    return least, scores.masked_fill(~chosen, -torch.inf).amax(axis)[rows]
