"""Judges keys that are hidden without a claim: a mistake by any intent, or what the user may claim."""

from __future__ import annotations

import torch
from torch import Tensor

from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import is_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import READ, ExplainedVisibility
from attnshape.checks.rules.protocol import Violation


def judge_inverted(explanation: ExplainedVisibility, lines: MaskLines) -> Violation | None:
    """Return the finding about a mask that hides each query's own key, or all keys of a batch element.

    Either may be meant by itself, but together they are the inverse of a mask that leaves some batch elements all keys,
    and the others their own.
    """
    visible = explanation.visible
    own, empty = visible.keys.diagonal(dim1=-2, dim2=-1), visible.empty
    if own.shape != empty.shape or visible.keys.shape[-2] != visible.keys.shape[-1]:
        return None
    without_keys = empty.flatten(1).all(1)
    if not bool(without_keys.any()) or bool(empty[~without_keys].any()) or bool(own[~without_keys].any()):
        return None
    if bool(without_keys.all()):
        return None
    number, count = int(without_keys.sum()), len(without_keys)
    message = (
        f"a mask is inverted: all keys are hidden in {number} of {count} batch elements, "
        "and in the others every query sees other keys but not that of its own position"
    )
    return Violation("AS401", message, lines.first_hiding(), "invert it: ~mask, or mask == 0", READ, "reproduced")


def judge_unclaimed(subject: Subject, explanation: ExplainedVisibility, lines: MaskLines) -> Violation:
    """Return the finding about a pattern of visible keys that nothing claims, and that no causal mask or window makes.

    A mask for each head that is folded with the batch in the wrong order is an error by any intent.
    """
    if _has_misordered_heads(explanation.visible.keys) and not lines.inputs_that_hide() & subject.base.inputs.keys():
        message = "the heads' masks are repeated in a different order than batch and heads are folded in"
        hint = "use repeat(B, 1, 1) for an axis (B H), and repeat_interleave(B, dim=0) for (H B)"
        return Violation("AS403", message, lines.repeated_constant(), hint, READ, "reproduced")
    message = "keys are hidden, which nothing claims"
    own = _own_hidden(explanation)
    if own:
        message += f": {own} of {explanation.visible.keys.shape[-2]} queries don't see the key of their own position"
    hint = (
        'claim what is meant: --claim "visible=…", such as visible=k <= q or k < W, --claim causal, --claim window=W'
        " or --claim mask=keep; --pattern shows what is"
    )
    return Violation("AS408", message, lines.triangle(), hint, READ, "reproduced", level="notice")


def judge_unclaimed_arguments(subject: Subject, lines: MaskLines) -> Violation | None:
    """Return the finding about masks among the arguments that hide keys, though no claim says what their values mean.

    Returns None if no argument of zeros and ones, or of zeros and fill values, has a part in what hides keys.
    """
    masks = sorted(
        name for name in lines.inputs_that_hide() - subject.claims.arguments.keys() if _is_mask(subject, name)
    )
    if not masks:
        return None
    message = f"{' and '.join(masks)} {'hides' if len(masks) == 1 else 'hide'} keys, and no claim says which values do"
    hint = (
        f"claim what is meant: --claim {masks[0]}=keep if True, or 1, keeps a key, --claim {masks[0]}=drop if it hides"
        f" one, or --claim {masks[0]}=add if the mask is added to the scores"
    )
    return Violation("AS408", message, lines.first_hiding(), hint, READ, "reproduced", level="notice")


def _is_mask(subject: Subject, name: str) -> bool:
    return name in subject.base.inputs and is_pattern(subject.base.inputs[name])


def _own_hidden(explanation: ExplainedVisibility) -> int:
    """Return how many queries don't see the key at their own place, where there are as many queries as keys."""
    keys = explanation.visible.keys
    if keys.shape[-2] != keys.shape[-1]:
        return 0
    own = keys.diagonal(dim1=-2, dim2=-1) | explanation.visible.empty
    return int((~own).flatten(0, -2).any(0).sum())


def _has_misordered_heads(keys: Tensor) -> bool:
    """Return whether each head has visible keys of its own, which (B, H, …) gets in the order of another folding."""
    batch, heads = keys.shape[:2]
    if batch < 2 or heads < 2 or bool((keys == keys[:1]).all()):
        return False
    b, h = torch.arange(batch)[:, None], torch.arange(heads)
    for owner in ((b * heads + h) // batch, (h * batch + b) % heads):
        of_heads = [keys[owner == head] for head in range(heads)]
        is_one_each = all(bool((one == one[:1]).all()) for one in of_heads)
        if is_one_each and any(not torch.equal(one[0], of_heads[0][0]) for one in of_heads):
            return True
    return False
