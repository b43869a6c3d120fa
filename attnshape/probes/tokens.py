"""Whether a token stays at its place until attention mixes it with others."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.attention.core import product
from attnshape.attention.cuts import cut, cuts_fused
from attnshape.attention.following import Parting, partings
from attnshape.attention.kinds import MOVES
from attnshape.attention.outcome import Measured, Mistake, NotExamined, Outcome, Proved
from attnshape.attention.scrambles import scrambles
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import PRODUCT, SPLIT
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address, Event

CODES = ("AS103", "AS104", "AS105", "AS111", "AS113", "AS602")
WHAT = "tokens before attention"
_NORMALISES = {"layer_norm", "batch_norm", "rms_norm", "native_layer_norm"}
"""Not those of groups and instances: in pictures they run over all pixels on purpose."""
_QUOTIENT = {"div", "div_", "true_divide", "divide", "__rdiv__", "__rtruediv__"}
_DIFFERENCE = {"sub", "sub_", "subtract"}
_MULTIPLIED = {"mul", "mul_", "multiply"}
_INVERSE = {"rsqrt", "reciprocal", "pow", *_QUOTIENT}
_NEAR = 4
"""Calls between a difference from the mean and the division by the deviation."""


def examine(subject: Subject) -> Iterator[Outcome]:
    """Change one token of the inputs, and follow it to where it is found at other positions."""
    looked, mixing = False, None
    scores = [one for core in subject.cores for one in (core.scores, *core.more_scores, *core.positional)]
    mixed_by = [*(one.address for one in scores), *(core.context for core in subject.fused)]
    behind = {address for start in mixed_by for address in subject.flow.behind(start)}
    for letter in subject.lengths:
        index = subject.numbers[letter] // 2
        change = subject.at_index(letter, index)
        if not change:
            continue
        moved = subject.moved(Change(inputs=change))
        if not moved.comparable:
            yield NotExamined(WHAT, f"with another token {index} the code takes other steps")
            continue
        looked = True
        for parting in partings(moved, letter, index, subject.numbers, change):
            if parting.address in behind:
                continue
            mistake = _mistake(subject, parting, letter, index, next(iter(change)))
            if mistake is not None:
                yield mistake
                return
            if _before_attention(subject, parting.event):
                mixing = mixing or parting
    if mixing is not None:
        what = (mixing.summary or mixing.event).name
        yield Measured(f"tokens are mixed, or change places, before attention: {what}", mixing.address)
    elif looked:
        yield Proved("tokens keep their places up to the scores")
    else:
        yield NotExamined(WHAT, "no input has an axis of tokens")


def _mistake(subject: Subject, parting: Parting, letter: str, index: int, name: str) -> Mistake | None:
    event = parting.event
    evidence = f"changed token {index} of {name}"
    if event.name in MOVES:
        if not scrambles(subject, parting, letter, index, lambda i: Change(inputs=subject.at_index(letter, i))):
            return None
        return _scrambled(subject, parting, letter, index, evidence)
    if not _before_attention(subject, event):
        return None
    return mixed(subject, parting, index, evidence)


def mixed(subject: Subject, parting: Parting, index: int, evidence: str) -> Mistake | None:
    """Return the finding where a call that isn't attention mixes tokens and shouldn't, else None."""
    event, which = parting.event, parting.summary or parting.event
    if event.name in _NORMALISES or _normalises(subject, parting):
        return Mistake(
            code="AS104",
            message=f"{which.name} runs over the tokens: token {index} moves the numbers of all others",
            at=which.addresses[0],
            hint="normalise over the last axis, each token by itself",
            evidence=evidence,
        )
    if (event.name in PRODUCT and _with_parameters(subject, event)) or _is_wide_convolution(parting):
        return Mistake(
            code="AS103",
            message=f"{event.name} mixes the tokens where nothing should: token {index} reaches {parting.places}",
            at=parting.address,
            hint="let the weights multiply the last axis, the tokens' own numbers",
            evidence=evidence,
        )
    return None


def _scrambled(subject: Subject, parting: Parting, letter: str, index: int, evidence: str) -> Mistake:
    shape = tuple(parting.event.values[parting.address.output].shape)
    summary = parting.summary
    repeat = _repeat(subject, parting)
    if repeat is not None:
        return Mistake(
            code="AS602",
            message=f"key and value heads are repeated along the wrong axis: axis {parting.axis} is {letter} by its "
            f"size, but token {index} is found at {parting.places}",
            at=repeat,
            hint="repeat the axis of heads: k.repeat_interleave(G, dim=1) for (B, Hkv, L, Dk)",
            evidence=evidence,
        )
    if summary is not None and summary.name in SPLIT:
        return cut(summary.addresses[0], letter, parting, f"token {index}", evidence)
    if cuts_fused(subject, parting):
        return cut(parting.address, letter, parting, f"token {index}", evidence)
    said = f"axis {parting.axis} is {letter} by its size, but token {index} is found at {parting.places}"
    if subject.head_sizes & set(shape):
        return Mistake(
            code="AS111",
            message=f"heads are split without a transpose: {said}",
            at=parting.address,
            hint=".view(B, L, H, Dk).transpose(1, 2)",
            evidence=evidence,
        )
    return Mistake(
        code="AS105",
        message=f"tokens are scrambled: {said}",
        at=parting.address,
        hint="reshape only axes that lie next to each other, in their order; transpose before",
        evidence=evidence,
    )


def _repeat(subject: Subject, parting: Parting) -> Address | None:
    """Return the call that repeats what is scrambled, where heads are shared and nothing else lies between."""
    if subject.numbers.get("Hkv", 0) < 2 and "G" not in subject.numbers:
        return None
    for event in (parting.event, *subject.flow.upstream(parting.event.sources[0])):
        if event.name not in MOVES:
            return None
        if event.values[0].numel() > event.given[0].numel():
            return event.addresses[0]
    return None


def _normalises(subject: Subject, parting: Parting) -> bool:
    """Say whether a call divides by what was summed up over the tokens, or what it makes is divided by that."""
    event = parting.event
    if event.name in _QUOTIENT:
        return parting.summary is not None
    if parting.summary is None:
        return False
    if event.name in _MULTIPLIED:
        behind = subject.flow.behind(parting.summary.addresses[0])
        return any(
            one.name in _INVERSE and one.addresses[0] in behind
            for every in event.sources
            for one in subject.flow.upstream(every)
        )
    if event.name in _DIFFERENCE:
        behind = subject.flow.behind(parting.address)
        return any(
            one.name in _QUOTIENT
            and len(one.given) == 2
            and one.sources[0][0] in behind
            and one.given[1].shape == parting.summary.values[0].shape
            for one in subject.base.events[event.order : event.order + _NEAR]
        )
    return False


def _is_wide_convolution(parting: Parting) -> bool:
    """Say whether a convolution takes tokens for channels: it reaches further than its kernel."""
    event = parting.event
    return event.name.startswith("conv") and len(event.given) > 1 and len(parting.found) > event.given[1].shape[-1]


def _before_attention(subject: Subject, event: Event) -> bool:
    """Say whether scores over tokens are made of what a call makes."""
    behind = subject.flow.behind(Address(event.order))
    for core in subject.cores:
        parts = {Address(core.scores.first.order), Address(core.value.first.order)}
        if parts & behind and any(_is_length(subject, core.weights.shape[axis]) for axis in core.key_axes):
            return True
    return any(core.context in behind for core in subject.fused)


def _is_length(subject: Subject, size: int) -> bool:
    return any(size == subject.numbers[letter] for letter in subject.lengths) or size not in subject.numbers.values()


def _with_parameters(subject: Subject, event: Event) -> bool:
    """Say whether a product is one with what doesn't depend on the inputs."""
    made = product(event, subject.flow)
    return made is not None and not all(
        subject.flow.carries_data(made.sources(place)) for place in (made.left, made.right)
    )
