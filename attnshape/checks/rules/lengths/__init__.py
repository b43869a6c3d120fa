"""Do batch elements use as many tokens as an argument with one number for each of them says?

Such an argument holds lengths, or indices of last tokens. attnshape gives it other numbers, and looks at which tokens
results depend on. Where these are the first or the last tokens, and always as many more or less than the number, that
is what the code takes the number for. Where attention leaves out the tokens beyond it, results may still be pooled over
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.perturbation import PerturbationDiff, constant
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.lengths.attended import AttendedTokens, End, WrongToken, attended_tokens
from attnshape.checks.rules.lengths.beyond import is_reached, layout_line, uses_no_others
from attnshape.checks.rules.masks.hidden_tokens import TokenChange
from attnshape.checks.rules.masks.pooling import judge_pooling
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Violation
from attnshape.model.report import Level
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS411", "AS412")
TOPIC = "lengths"
_FEWEST_TOKENS = 5
_FEWEST_NUMBERS = 3
"""How many different numbers must agree, so that the tokens that are used are no coincidence."""
_MORE = {"length": 0, "last-token": 1}
"""How many more tokens than its number a batch element uses, by what the number is claimed to be."""
_COUNTING = (ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS | ops.MULTIPLICATIONS) | (
    ops.DIVISIONS | ops.FLOOR_DIVISIONS | ops.LOWER_BOUNDS
)
"""The operations that make other counts of counts."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Give the argument other numbers, and change one token after the other."""
    meanings = {name: is_a for name, is_a in subject.claims.arguments.items() if is_a in _MORE}
    candidates = [name for name, value in subject.base.inputs.items() if _has_number_for_each(subject, value)]
    for name in dict.fromkeys([*meanings, *candidates]):
        used = _tokens_used(subject, name) if name in candidates else None
        if used is not None and used.more and _mixes_neighbours(subject):
            used = None
        if used is not None and name in meanings and _is_written(subject, name, used.more, _MORE[meanings[name]]):
            used = None
        if used is not None and used.more != _MORE[meanings.get(name, "length")]:
            yield _violation(subject, name, used, meanings.get(name))
        elif name in meanings:
            yield _claimed(subject, name, meanings[name], used, name in candidates)
        elif used is not None:
            yield Observation(f"each batch element uses its {used.end} {name} tokens")
        else:
            attended = attended_tokens(subject, name, 0)
            if attended is not None and attended.is_one_missing and attended.wrong:
                yield _wrong_attention(subject, name, None, attended.wrong[0])


def _is_written(subject: Subject, name: str, used: int, more: int) -> bool:
    """Return whether a token that no result depends on gets weight: the argument says where a new one replaces it."""
    attended = attended_tokens(subject, name, more) if used < more else None
    return attended is not None and attended.is_whole and attended.are_counted and not attended.wrong


def _claimed(subject: Subject, name: str, meaning: str, used: _Used | None, is_candidate: bool) -> Outcome:
    """Judge a claimed argument by the tokens that attention gives weight, unless results show that others are used."""
    attended: AttendedTokens | None = None
    if is_candidate:
        pooled = _pooled(subject, name, meaning) if used is None else None
        if pooled is not None:
            return pooled
        attended = attended_tokens(subject, name, _MORE[meaning])
    if attended is not None and attended.wrong:
        return _wrong_attention(subject, name, meaning, attended.wrong[0])
    if used is not None:
        return Observation(f"each batch element uses its {used.end} {used.describe(name)} tokens", claims=(name,))
    if attended is not None and attended.leaks:
        return Undecided(TOPIC, "a convolution or a pooling mixes neighbouring tokens", (name,))
    if attended is not None and attended.is_whole and attended.are_counted:
        return Observation(f"attention leaves out the tokens that {name} doesn't count, and no others", claims=(name,))
    by_results = _by_results(subject, name, meaning) if is_candidate and not _mixes_neighbours(subject) else None
    if by_results is not None:
        return by_results
    why = f"the tokens on which results depend don't follow {name}, or that can't be told"
    return Undecided(TOPIC, why, (name,))


def _by_results(subject: Subject, name: str, meaning: str) -> Observation | Violation | None:
    """Judge a claimed argument by all tokens beyond its numbers together; None if they can't be told."""
    alone = uses_no_others(subject, name, _other_numbers(subject, name), _MORE[meaning])
    if alone is None:
        return None
    if alone:
        return Observation(f"no batch element uses a token that {name} doesn't count", claims=(name,))
    message = f"results depend on tokens that {name} doesn't count"
    hint = f"hide the keys that come from these tokens: compare the positions of keys with {name}"
    evidence = f"gave {name} other numbers, and changed all tokens beyond them"
    return Violation("AS411", message, layout_line(subject, name), hint, evidence, claims=(name,))


@dataclass(frozen=True)
class _Used:
    """Which tokens batch elements use, by the numbers of an argument."""

    end: End
    more: int
    """How many more tokens they use than their numbers say."""
    number: int
    """One of the numbers."""

    def describe(self, name: str) -> str:
        """Return how many tokens these are: `lengths + 1`."""
        return f"{name} {'+' if self.more > 0 else '-'} {abs(self.more)}" if self.more else name


def _has_number_for_each(subject: Subject, value: Tensor) -> bool:
    """Return whether an input holds one integer for each batch element."""
    is_integer = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return is_integer and subject.batch_size > 1 and [size for size in value.shape if size > 1] == [subject.batch_size]


def _other_numbers(subject: Subject, name: str) -> Iterator[tuple[str, Tensor, Intervention]]:
    """Yield a symbol of tokens, and other numbers for an argument, (B), most of which differ and hide some tokens."""
    value = subject.base.inputs[name]
    for symbol in subject.lengths:
        length = subject.numbers[symbol]
        if length < _FEWEST_TOKENS or not subject.is_distinct(symbol):
            continue
        numbers = 1 + (length // 2 + torch.arange(subject.batch_size)) % (length - 2)
        if len(set(numbers.tolist())) >= _FEWEST_NUMBERS:
            given = constant(numbers.reshape(value.shape).to(value.dtype))
            yield symbol, numbers, Intervention(inputs={name: given})


def _tokens_used(subject: Subject, name: str) -> _Used | None:
    """Return which tokens the numbers of an argument choose; None if they don't."""
    for symbol, numbers, given in _other_numbers(subject, name):
        before = subject.experiment.run(given)
        diffs = []
        for token in range(subject.numbers[symbol]) if before.error is None else ():
            after = subject.experiment.run(Intervention(inputs={**subject.at_index(symbol, token), **given.inputs}))
            diffs.append(PerturbationDiff(before, after, subject.experiment.tolerance))
        for end in ("first", "last"):
            used = _followed(subject, symbol, diffs, end)
            more = (
                _constant_difference(used if end == "first" else used.flip(-1), numbers) if used is not None else None
            )
            if more is not None:
                return _Used(end, more, int(numbers[0]))
    return None


def _pooled(subject: Subject, name: str, meaning: str) -> Violation | None:
    """Return what pools results over the tokens beyond those that an argument counts, whichever end they are at."""
    for symbol, numbers, given in _other_numbers(subject, name):
        first = torch.arange(subject.numbers[symbol]) < numbers[:, None] + _MORE[meaning]
        for kept in (first, first.flip(-1)):
            hidden, others = (TokenChange(symbol, ~one, one, by_every_query=True) for one in (kept, kept.flip(-1)))
            found = judge_pooling(subject, name, hidden, given)
            # padding before the tokens affects nothing where it is left out, and causal attention ends at the last one
            if found is not None and is_reached(subject, others, given):
                return found
    return None


def _followed(subject: Subject, symbol: str, diffs: list[PerturbationDiff], end: End) -> Tensor | None:
    """Return whether a batch element's results depend on each token, (B, tokens); None if no result tells.

    Of results with an axis of tokens only the one at the end counts, since those of padding don't matter.
    """
    used = torch.zeros(subject.batch_size, len(diffs), dtype=torch.bool)
    position = 0 if end == "first" else len(diffs) - 1
    is_known = False
    for token, diff in enumerate(diffs):
        for _, mask in diff.returned():
            sizes = list(mask.shape)
            tokens = sizes.count(subject.numbers[symbol])
            if sizes.count(subject.batch_size) != 1 or tokens > 1:
                continue
            is_known = True
            changed = mask.movedim(sizes.index(subject.batch_size), 0)
            if tokens:
                changed = changed.select(list(changed.shape).index(subject.numbers[symbol]), position)
            used[:, token] |= changed.flatten(1).any(1) if changed.ndim > 1 else changed
    return used if is_known else None


def _constant_difference(used: Tensor, numbers: Tensor) -> int | None:
    """Return how many more tokens are used than the numbers say, if it is always as many from the start on, else None.

    >>> used = torch.tensor([[True, True, False], [True, True, True]])
    >>> _constant_difference(used, torch.tensor([1, 2]))
    1
    """
    counts = used.sum(-1)
    if not torch.equal(used, torch.arange(used.shape[-1]) < counts[:, None]):
        return None
    more = set((counts - numbers).tolist())
    return more.pop() if len(more) == 1 else None


def _mixes_neighbours(subject: Subject) -> bool:
    """Return whether the code mixes neighbouring tokens, so that a token may bring padding with it."""
    return any(
        event.name in ops.POOLINGS
        or (event.name in ops.CONVOLUTIONS and any(size > 1 for size in event.operand_values[1].shape[2:]))
        for event in subject.base.events
    )


def _violation(subject: Subject, name: str, used: _Used, meaning: str | None) -> Violation:
    expected = used.number + _MORE[meaning or "length"]
    message = f"each batch element uses its {used.end} {used.describe(name)} tokens: {used.number + used.more} where "
    message += f"{name} is {used.number}, expected {expected}"
    hint = f"compare positions with {name} by {'<' if meaning != 'last-token' else '<='}"
    if meaning is None:
        claims = " or ".join(f"--claim {name}={one}" for one in _MORE)
        hint = f"claim what it holds: {claims}; if these are numbers of tokens, {hint}"
    evidence = f"gave {name} other numbers, and changed one token after the other"
    level: Level = "notice" if meaning is None else "error"
    claimed = (name,) if meaning is not None else ()
    return Violation("AS411", message, _reading(subject, name), hint, evidence, claims=claimed, level=level)


def _wrong_attention(subject: Subject, name: str, meaning: str | None, wrong: WrongToken) -> Violation:
    if wrong.is_hidden:
        message = f"token {wrong.token} gets no weight from any query, where {name} is {wrong.number}"
    else:
        message = f"token {wrong.token} gets weight, where {name} is {wrong.number}"
    claimed = (name,) if meaning is not None else ()
    evidence = f"gave {name} other numbers, and read which keys get weight"
    if wrong.is_forgotten:
        hint = f"hide these keys here as well, as {name} does in other attentions"
        return Violation("AS411", message, wrong.core.context, hint, evidence, claims=claimed)
    hint = "count what reaches attention: with the rounding of strides, and with the tokens that are added or removed"
    if meaning is None:
        hint = f"claim what it holds: {' or '.join(f'--claim {name}={one}' for one in _MORE)}; if it is that, {hint}"
    level: Level = "notice" if meaning is None else "error"
    return Violation(
        "AS411", message, _counting(subject, name, wrong.core), hint, evidence, claims=claimed, level=level
    )


def _counting(subject: Subject, name: str, core: Core | FusedCore) -> OutputRef | None:
    """Return the first call that computes other numbers of an argument's for an attention, else the comparison."""
    after, before = subject.graph.downstream({name}), {event.order for event in subject.graph.upstream((core.context,))}
    path = [event for event in subject.base.events if event.order in before and not after.isdisjoint(event.refs)]
    numbers = [event for event in path if event.name in _COUNTING and not event.values[0].is_floating_point()]
    return next((event.refs[0] for event in numbers), None) or _reading(subject, name)


def _reading(subject: Subject, name: str) -> OutputRef | None:
    """Return the first comparison of what comes from an argument, else the first call that reads it."""
    after = subject.graph.downstream({name})
    readers = [event for event in subject.base.events if not after.isdisjoint(event.refs)]
    compared = [event for event in readers if event.name in ops.ORDER_COMPARISONS]
    return next((event.refs[0] for event in (*compared, *readers)), None)
