"""Do sequences that are packed one after the other leave each other alone?

Which tokens belong together is known from an argument: boundaries from 0 to the number of all tokens, or lengths that
add up to it. The tokens of one sequence are changed, and the positions of the results that change must be its own,
whatever X
"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.packing import Packing, token_axis
from attnshape.checks.attention.perturbation import changed_indices, constant, others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import SAME_VALUES

CODES: tuple[str, ...] = ("AS413",)
TOPIC = "packed sequences"
_LONG = 5
"""How many tokens a sequence has whose two ends are far from each other."""
Reached = list[set[int]]
"""The positions of the results that each sequence reaches."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Change the tokens of one sequence after the other."""
    packing = subject.packing
    if packing is None or len(packing.sequences) < 2:
        return
    reached = _reached(subject, packing)
    if reached is None:
        yield Undecided(TOPIC, "no axis of the results holds the tokens of the inputs")
        return
    varied = join_words(sorted(_inputs(subject, packing.count)))
    leak = _leak(packing, reached)
    if leak is None:
        yield from _own(subject, packing, reached, varied)
        return
    sequence, position = leak
    begin, end = packing.sequences[sequence]
    what = f"tokens {begin} to {end - 1}, which are one sequence, affect position {position} of another one"
    found = _elsewhere(subject, packing)
    hint = "a token at a boundary is the first one of the sequence that begins there: compare by >=, or with right=True"
    if found is None and _has_no_effect(subject, packing):
        found, hint = (
            f"{packing.name} has no effect",
            f"let tokens attend to their own sequence only, by {packing.name}",
        )
    if found is None:
        yield Observation(f"{what}, by {packing.name}")
    else:
        at, evidence = _line(subject, packing.name), f"changed these tokens of {varied}"
        yield Violation("AS413", f"{what}: {found}", at, hint, evidence)


def _own(subject: Subject, packing: Packing, reached: Reached, varied: str) -> Iterator[Outcome]:
    """Judge sequences that reach no others: each must reach its own positions."""
    without = next((one for one, positions in zip(packing.sequences, reached, strict=True) if not positions), None)
    if without is None:
        yield Verification(f"packed sequences don't affect each other (varied: {varied})")
    elif any(reached):
        begin, end = without
        message = f"no result depends on tokens {begin} to {end - 1}, which are one sequence by {packing.name}"
        hint = "boundaries begin with 0: the first sequence has the tokens up to the first sum of lengths"
        evidence = f"changed these tokens of {varied}"
        yield Violation("AS413", message, _line(subject, packing.name), hint, evidence)


def _elsewhere(subject: Subject, packing: Packing) -> str | None:
    """Return how the sequences that are told apart differ from those that an argument says; None if none are."""
    apart = _boundaries(subject, packing.count)
    wrong = next((place for place in apart if place not in packing.boundaries), None)
    if wrong is not None:
        expected = min(packing.boundaries[1:-1], key=lambda place: abs(place - wrong))
        return f"a sequence begins at {wrong}, and by {packing.name} at {expected}"
    if _overlap(subject, packing, before=0, behind=1):
        return f"a sequence takes in the first token of the one behind it, which begins at a boundary in {packing.name}"
    if _overlap(subject, packing, before=1, behind=0):
        return f"a sequence takes in the last token of the one before it, which ends at a boundary in {packing.name}"
    return None


def _boundaries(subject: Subject, count: int) -> list[int]:
    """Return the positions that no effect crosses, neither from what comes before nor from what follows."""
    left = set(range(1, count))
    for token in range(count):
        positions = _changed(subject, count, token, token + 1) or set(range(count))
        left -= set(range(min(token, *positions) + 1, max(token, *positions) + 1))
        if not left:
            break
    return sorted(left)


def _overlap(subject: Subject, packing: Packing, before: int, behind: int) -> bool:
    """Return whether each sequence takes in so many tokens of its neighbours, and no others.

    The tokens that no neighbour takes in reach no further. A window may reach as far, but not from the other end of a
    long sequence.
    """
    for begin, end in packing.sequences:
        own = _changed(subject, packing.count, begin + behind, end - before) if end - begin > 1 else set[int]()
        if own is None or not own <= set(range(begin - before, end + behind)):
            return False
    places = [place for place in range(len(packing.sequences)) if 0 <= place + behind - before < len(packing.sequences)]
    long = max(places, key=lambda place: packing.sequences[place][1] - packing.sequences[place][0])
    begin, end = packing.sequences[long]
    least, most = packing.sequences[long + behind - before]
    taken_in, opposite, inner = (end, begin, begin + 1) if behind else (begin - 1, end - 1, end - 2)
    reached, back = (_changed(subject, packing.count, token, token + 1) or set() for token in (taken_in, inner))
    both = set(range(min(begin, least) - before, max(end, most) + behind))
    # what all others see may be meant for all
    is_seen_by_others = len(both) >= packing.count or not reached <= both
    return end - begin >= _LONG and not is_seen_by_others and (opposite in reached or taken_in in back)


def _inputs(subject: Subject, count: int) -> dict[str, int]:
    """Return the inputs that have an axis of all packed tokens, with this axis."""
    axes = {name: token_axis(value) for name, value in subject.inputs.items()}
    return {name: axis for name, axis in axes.items() if axis is not None and subject.inputs[name].shape[axis] == count}


def _changed(subject: Subject, count: int, begin: int, end: int) -> set[int] | None:
    """Return the positions of the results that some tokens reach; None if no result has an axis of the tokens."""
    axes = _inputs(subject, count)
    change: dict[str, Replace] = {name: others_at(axis, begin, end - begin) for name, axis in axes.items()}
    diff = subject.perturb(Intervention(inputs=change))
    masks = [mask for _, mask in diff.returned() if mask.shape.count(count) == 1]
    if not axes or not masks or not diff.comparable:
        return None
    return {at for mask in masks for at in changed_indices(mask, mask.shape.index(count))}


def _reached(subject: Subject, packing: Packing) -> Reached | None:
    """Return the positions that each sequence reaches; None if no result has an axis of the tokens."""
    found = [_changed(subject, packing.count, begin, end) for begin, end in packing.sequences]
    known = [positions for positions in found if positions is not None]
    return known if len(known) == len(found) else None


def _leak(packing: Packing, reached: Reached) -> tuple[int, int] | None:
    """Return a sequence and a position of another one that it reaches, if there is one."""
    for sequence, ((begin, end), positions) in enumerate(zip(packing.sequences, reached, strict=True)):
        others = sorted(at for at in positions if not begin <= at < end)
        if others:
            return sequence, others[0]
    return None


def _has_no_effect(subject: Subject, packing: Packing) -> bool:
    """Return whether other boundaries, or other lengths, change no result."""
    value = subject.base.inputs[packing.name]
    others = [packing.shifted(by).numbers for by in (1, -1)]
    changes = [Intervention(inputs={packing.name: constant(value.new_tensor(numbers))}) for numbers in others]
    return all(diff.has_no_effect and diff.returned() for diff in map(subject.perturb, changes))


def _line(subject: Subject, name: str) -> OutputRef | None:
    """Return the first call that computes something of an argument's numbers, else the one that builds a mask."""
    after = subject.graph.downstream({name})
    readers = (event for event in subject.base.events if not after.isdisjoint(event.refs))
    first = next((event.refs[0] for event in readers if event.name not in SAME_VALUES), None)
    masks = (MaskLines(subject, core).triangle() for core in subject.attentions)
    return first or next(masks, None)
