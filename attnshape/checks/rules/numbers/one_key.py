"""Are the results finite where the claimed mask leaves a single key visible, the first or the last?

A running softmax over blocks of keys starts from a maximum of -inf. Where the keys of its first blocks are hidden, the
difference of two infinite maxima is NaN, although later keys are visible.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import explain_visibility
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import Replace, ReplayedCall
from attnshape.checks.rules.masks.empty_rows import hide_all
from attnshape.checks.rules.protocol import Outcome, Violation

_SHOWS = {"keep": 1.0, "drop": 0.0, "add": 0.0}


def check_single_keys(subject: Subject) -> Iterator[Outcome]:
    """Hide all keys but the first, then all but the last, by the only mask that is claimed."""
    claims = subject.claims
    masks = [name for name in claims.masks if name in subject.base.inputs]
    # with more of them the visible key may be hidden by another one
    if len(masks) != 1 or claims.positional or claims.visible is not None:
        return
    (name,) = masks
    if not _is_of_keys_alone(subject, name):
        return
    for place, words in ((-1, "last"), (0, "first")):
        run = subject.experiment.run(Intervention(inputs={name: _shown(subject, name, place)}))
        if not run.follows(subject.base) or _has_empty_rows(subject, name, run):
            continue
        wrong = next(((path, value) for path, value in run.returned if bool(torch.isnan(value).any())), None)
        if wrong is not None:
            path, value = wrong
            call = _first_nan(run)
            count = f"{int(torch.isnan(value).sum())} of {value.numel()} numbers of {path} are NaN"
            message = f"where {name} leaves only the {words} key visible, {count}"
            hint = "where a maximum is -inf, subtract 0 instead of it, and divide by a sum that isn't 0"
            at = call.refs[0] if call is not None else None
            evidence = f"hid all keys but the {words} one by {name}"
            yield Violation("AS306", message, at, hint, evidence, "measured", claims=(name,))
            return


def _is_of_keys_alone(subject: Subject, name: str) -> bool:
    """Return whether a mask has no axis of queries: only the keys at its end, and perhaps the batch at its start."""
    *before, _ = subject.base.inputs[name].shape or (1,)
    batch = subject.numbers.get(subject.batch) if subject.batch is not None else None
    return all(size == 1 for size in before[1:]) and all(size in (1, batch) for size in before[:1])


def _has_empty_rows(subject: Subject, name: str, run: ReplayRun) -> bool:
    """Return whether a mask that the code makes itself, such as a causal one, hides the visible key from a query.

    A softmax over a block of the keys may have rows without any. Where all rows are, the visible token is no key, as in
    a mask of several inputs that are joined, of which one makes the keys.
    """
    keys = subject.base.inputs[name].shape[-1]
    scores = [explanation.visible.scores_in(run) for explanation in explain_visibility(subject)[0]]
    known = [one for one in scores if one is not None]
    is_no_key = bool(known) and all(bool((one <= HIDES).all()) for one in known)
    return is_no_key or any(bool((one <= HIDES).all(-1).any()) for one in known if one.shape[-1] == keys)


def _shown(subject: Subject, name: str, place: int) -> Replace:
    hide = hide_all(subject).inputs[name]

    def change(value: Tensor) -> Tensor:
        changed = hide(value)
        changed[..., place] = _SHOWS[subject.claims.arguments[name]]
        return changed

    return change


def _first_nan(run: ReplayRun) -> ReplayedCall | None:
    """Return the first call that makes NaN of numbers that aren't."""
    for event in run.events:
        made = any(value.is_floating_point() and bool(torch.isnan(value).any()) for value in event.values)
        given = any(value.is_floating_point() and bool(torch.isnan(value).any()) for value in event.operand_values)
        if made and not given:
            return event
    return None
