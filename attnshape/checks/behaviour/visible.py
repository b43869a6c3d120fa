"""States which keys each query of an attention sees, by a causal mask, a window, or the masks among the inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import is_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import ExplainedVisibility, Hypothesis, MaskMistake, explain_visibility
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided
from attnshape.model.formatting import join_words, pluralize
from attnshape.options.claims import Meaning, parse_claims

_FAR_BELOW = -1e3
"""Smaller numbers in a mask hide keys when they are added to the scores."""


def visible_keys(subject: Subject) -> Iterator[Outcome]:
    """Yield who sees whom in each attention."""
    with_masks = _with_masks(subject)
    explained, unseen = explain_visibility(with_masks)
    plain = {one.visible.core.context: one for one in explain_visibility(subject)[0]}
    for why in unseen:
        yield Undecided("visible keys", why)
    for explanation in explained:
        context = explanation.visible.core.context
        # integers may be tokens or positions instead of masks, and explain nothing
        known = explanation if explanation.hypothesis is not None else plain.get(context, explanation)
        yield Observation(_text(known, subject), attention=context)
    if not explained and not unseen:
        yield Undecided("visible keys", "no attention with weights was found")


def _with_masks(subject: Subject) -> Subject:
    """Return the subject with a claim for each input that looks like a mask, so that its polarity can be told."""
    found = subject
    if subject.claims.texts:
        return found
    for name, value in subject.base.inputs.items():
        meaning = _meaning(value) if name.isidentifier() else None
        if meaning is not None:
            claims = parse_claims([*found.claims.texts, f"{name}={meaning}"])
            claimed = Subject(subject.experiment, claims, subject.other, subject.requested_dtype)
            # what attention is computed from is no mask: integers may be the tokens
            found = claimed if _contexts(subject) <= _contexts(claimed) else found
    return found


def _contexts(subject: Subject) -> set[OutputRef]:
    return {one.context for one in subject.attentions}


def _meaning(value: Tensor) -> Meaning | None:
    """Return how a tensor may be a mask, None if it can't be one."""
    if value.ndim < 2 or value.is_complex() or not value.numel() or bool((value == value.flatten()[:1]).all()):
        return None
    if not value.is_floating_point():
        return "keep" if bool((value == 0).any()) else None
    if not is_pattern(value):
        return None
    return "keep" if float(value.double().min()) > _FAR_BELOW else "add"


def _text(explanation: ExplainedVisibility, subject: Subject) -> str:
    hypothesis, keys = explanation.hypothesis, explanation.visible.keys
    parts: list[str] = []
    if hypothesis is not None:
        masks = list(_of_masks(hypothesis, subject))
        is_masked = any(slip != "ignored" for _, slip in hypothesis.masks)
        anywhere = hypothesis.offset is None and hypothesis.window is None
        parts += masks if is_masked and anywhere else [_of_positions(hypothesis, keys), *masks]
    if hypothesis is None:
        counts = keys.sum(-1)
        least, most = int(counts.min()), int(counts.max())
        number = str(least) if least == most else f"{least} to {most}"
        parts.append(f"a query sees {number} of {pluralize(keys.shape[-1], 'key')} (pattern {_digest(keys)})")
    if explanation.visible.is_weak:
        parts.append("hidden keys keep some weight")
    return join_words(parts)


def _of_positions(hypothesis: Hypothesis, keys: Tensor) -> str:
    aligned = keys.shape[-1] - keys.shape[-2]
    offset, window = hypothesis.offset, hypothesis.window
    if window is not None:
        width = pluralize(window, "key")
        return (
            f"attends to a window of the last {width}"
            if offset is not None
            else f"attends to keys less than {width} away"
        )
    if offset is None:
        return "every query sees every key"
    if hypothesis.backwards:
        return f"query i sees the keys from i{offset:+d} on"
    return "attends causally" if offset == aligned else f"query i sees the keys up to i{offset:+d}"


_MASK_SLIPS: dict[MaskMistake, str] = {
    "ignored": "hides no key",
    "on queries": "hides queries instead of keys",
    "transposed": "hides keys with queries and keys exchanged",
    "batch order": "hides the keys of other batch elements",
    "batch order, heads outside": "hides the keys of other batch elements",
}


def _of_masks(hypothesis: Hypothesis, subject: Subject) -> Iterator[str]:
    for name, slip in hypothesis.masks:
        if slip is None or slip == "inverted":
            yield f"keys are hidden where {name} {_where_hidden(subject.base.inputs[name], slip is not None)}"
        elif slip != "ignored" or subject.base.inputs[name].dtype == torch.bool or "mask" in name.lower():
            yield f"{name} {_MASK_SLIPS[slip]}"  # other integers are tokens or positions


def _where_hidden(mask: Tensor, inverted: bool) -> str:
    """Return where a mask hides keys: where it is false or far below 0, or if it is inverted everywhere else."""
    if mask.dtype == torch.bool:
        return "is True" if inverted else "is False"
    if mask.is_floating_point() and _meaning(mask) == "add":
        return "is 0" if inverted else "is far below 0"
    return "isn't 0" if inverted else "is 0"


def _digest(pattern: Tensor) -> str:
    """Return a few characters that tell one pattern from another."""
    return hashlib.sha256(bytes(pattern.flatten().to(torch.uint8).tolist())).hexdigest()[:6]
