"""Are joined tokens, such as registers in front of the others, cut off at the end at which they were joined?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnshape.checks.attention.perturbation import others_at_each
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import JOINS, SELECTIONS, SPLITS

_EVIDENCE = "changed a token, another one in each batch element, and kept all keys and values"


def cut_at_other_end(
    subject: Subject, name: str, result: str, axes: tuple[int, int], size: int, ends: Mapping[int, Sequence[int]]
) -> Violation | None:
    """Return the finding about a result that has joined tokens where the last or the first ones of the input belong.

    Where tokens that have no result can't influence the others either, as the last one of a decoder whose result is
    that of the token before, a result may be meant to belong to the next token.

    Args:
        subject: What is checked.
        name: The input, whose tokens are changed.
        result: The result that differs.
        axes: The axes of the batch and of the tokens in the input.
        size: The number of tokens.
        ends: For tokens of the input the tokens of the result that differ.
    """
    shifts = {end - token for token, differing in ends.items() for end in differing}
    if len(shifts) != 1 or 0 in shifts or not all(len(differing) < 2 for differing in ends.values()):
        return None
    (shift,) = shifts
    lost = [token for token, differing in ends.items() if not differing]
    if not lost or any(0 <= token + shift < size for token in lost) or len(lost) > len(ends) - 2:
        return None
    longer = size + abs(shift)
    joins = [event for event in subject.base.events if event.name in JOINS and _extends(event, size, longer)]
    cuts = [event for event in subject.base.events if event.name in SELECTIONS | SPLITS and _cuts(event, longer, size)]
    if not joins or not cuts or not _influence(subject, name, result, axes, lost):
        return None
    first, end = next((token, differing[0]) for token, differing in ends.items() if differing)
    number = abs(shift)
    joined = "a token" if number == 1 else f"{number} tokens"
    where, which = ("in front of", "last") if shift > 0 else ("behind", "first")
    cut = f"the {which} token" if number == 1 else f"the {which} {number} tokens"
    message = (
        f"{joined} joined {where} those of {name} {'is' if number == 1 else 'are'} kept, and {cut} of {name} cut off: "
        f"token {first} ends up at {end} of {result}"
    )
    text = symbol_or_number(number, subject.numbers)
    hint = f"cut off the joined tokens: x[:, {text}:]" if shift > 0 else f"cut off the joined tokens: x[:, :-{text}]"
    return Violation("AS106", message, cuts[-1].refs[0], hint, _EVIDENCE)


def _extends(event: ReplayedCall, size: int, longer: int) -> bool:
    """Return whether a call joins something with so many tokens."""
    shape = event.values[0].shape
    return any(
        value.ndim == len(shape) and any(a == size and b == longer for a, b in zip(value.shape, shape, strict=True))
        for value in event.operand_values
    )


def _cuts(event: ReplayedCall, longer: int, size: int) -> bool:
    """Return whether a call takes so many tokens of more."""
    before = event.operand_values[0].shape if event.operand_values else ()
    return any(
        len(before) == value.ndim and any(a == longer and b == size for a, b in zip(before, value.shape, strict=True))
        for value in event.values
    )


def _influence(subject: Subject, name: str, result: str, axes: tuple[int, int], lost: Sequence[int]) -> bool:
    """Return whether tokens without a result of their own change those of others."""
    rows = subject.inputs[name].shape[axes[0]]
    run = subject.perturb(Intervention(inputs={name: others_at_each(*axes, [lost[-1]] * rows)}))
    mask = dict(run.returned()).get(result) if run.comparable else None
    return mask is not None and bool(mask.any())
