"""Which tokens attention gives weight, by the numbers of an argument that may hold the lengths of batch elements.

The argument gets other numbers: every length is that of some element, and in each run one element fills the whole
length. So padding that attention doesn't leave out shows, and so does a token of an element that it leaves out. What
reaches a key is known by changing one token after the other; a convolution may mix several in one key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import HIDES, HIDES_BESIDE_SCORES
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import AttentionOperand, AttentionOperands, by_attention
from attnshape.checks.attention.perturbation import constant, differs
from attnshape.checks.attention.slots import by_pair
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys, explain_visibility
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.rules.masks.hidden_tokens import TokenChange

End = Literal["first", "last"]


@dataclass(frozen=True)
class WrongToken:
    """A token of a batch element that attention shouldn't leave out, or should."""

    core: Core | FusedCore
    token: int
    number: int
    """What the argument holds for the element."""
    is_hidden: bool
    """Whether attention leaves it out; else it is padding that gets weight."""
    is_forgotten: bool = False
    """Whether the argument hides keys of other attentions, and none of this one."""


@dataclass(frozen=True)
class AttendedTokens:
    """What the attentions of a target give weight to, at several numbers of an argument."""

    counts: tuple[int, ...]
    """How many tokens of each length from 1 on get weight, by the attention that gives the fewest."""
    is_whole: bool
    """Whether this is about every attention of the target."""
    mixes: bool
    """Whether several tokens reach one key, as behind a convolution."""
    leaks: bool
    """Whether keys that get weight mix padding with tokens of an element."""
    wrong: tuple[WrongToken, ...]
    """The tokens that are wrong by the argument's numbers, those that are hidden first."""

    @property
    def are_counted(self) -> bool:
        """Whether elements with larger numbers use more tokens."""
        return self.counts == tuple(sorted(self.counts)) and self.counts[0] < self.counts[-1]

    @property
    def is_one_missing(self) -> bool:
        """Whether elements use one token less than their numbers say, the single one of the shortest aside."""
        return not self.mixes and self.counts[1:] == tuple(range(1, len(self.counts)))


@dataclass(frozen=True)
class _Given:
    """A run in which the argument has other numbers."""

    numbers: Tensor
    """Those of the argument, (B)."""
    change: Intervention
    run: ReplayRun
    weighed: Tensor
    """Which keys get weight, (B, H, queries, keys); none before that is known of an attention."""


@dataclass(frozen=True, eq=False)
class _Attention:
    """One attention at several numbers of an argument. Pairs are (B, H, queries, keys)."""

    operands: AttentionOperands
    """Its query, key and value."""
    visible: VisibleKeys
    of_queries: Tensor
    """For each token, the pairs whose query depends on it, (tokens, B, H, queries, keys)."""
    of_keys: Tensor
    """For each token, the pairs whose key or value depends on it."""
    given: tuple[_Given, ...]
    more: int
    """How many more tokens than its number a batch element has."""
    is_alone: bool
    """Whether no other argument hides keys, as the lengths of another sequence do where they are taken for these."""

    @property
    def core(self) -> Core | FusedCore:
        """The attention itself."""
        return self.visible.core

    @cached_property
    def follows(self) -> bool:
        """Whether the numbers decide which keys get weight."""
        return any(not torch.equal(one.weighed, self.given[0].weighed) for one in self.given[1:])

    @cached_property
    def mixes(self) -> bool:
        """Whether several tokens reach one key, as behind a convolution."""
        return bool((self.of_keys.sum(0) > 1).any())

    @cached_property
    def starts_first(self) -> int:
        """How many tokens get weight more often than the next one, less those that get it less often.

        What queries give to their own tokens doesn't count, since padding may see itself.
        """
        pairs = self.of_keys & ~self.of_queries
        used = sum((pairs & one.weighed).flatten(2).any(-1).sum(-1) for one in self.given)
        return int(torch.as_tensor(used).diff().sign().neg().sum())

    def used(self, one: _Given, kept: Tensor) -> Tensor:
        """Return which tokens get weight from a query that isn't padding, (B, tokens)."""
        pairs = one.weighed & self.of_elements(kept)
        return (self.of_keys & pairs).flatten(2).any(-1).T

    def of_elements(self, kept: Tensor) -> Tensor:
        """Return the pairs whose query depends on a token that an element has, or on none."""
        own = (self.of_queries & kept.T[:, :, None, None, None]).any(0)
        return own | ~self.of_queries.any(0)

    def padding(self, one: _Given, kept: Tensor) -> Tensor:
        """Return which tokens reach a key that gets weight and that no token of the element reaches, (B, tokens)."""
        of_padding = ~(self.of_keys & kept.T[:, :, None, None, None]).any(0)
        pairs = one.weighed & self.of_elements(kept) & of_padding
        return (self.of_keys & pairs).flatten(2).any(-1).T

    def kept(self, one: _Given, end: End) -> Tensor:
        """Return the tokens that each element has by its number, (B, tokens)."""
        first = torch.arange(len(self.of_keys)) < one.numbers[:, None] + self.more
        return first if end == "first" else first.flip(-1)

    @cached_property
    def reached(self) -> Tensor:
        """The tokens that reach a key."""
        return self.of_keys.flatten(1).any(-1)

    def ever_used(self, end: End) -> Tensor:
        """Return the tokens that get weight at some number, and those at the end of padding.

        What no number gives weight is hidden for another reason, unless it comes last.
        """
        used = torch.stack([self.used(one, self.kept(one, end)).any(0) for one in self.given]).any(0)
        ordered = used if end == "first" else used.flip(-1)
        after = ordered.flip(-1).cummax(-1).values.flip(-1)
        return (used | ~(after if end == "first" else after.flip(-1))) & self.reached

    def wrong(self, end: End) -> Iterator[WrongToken]:
        """Yield the tokens that are wrong by the numbers: those that are hidden only if nothing else may hide them.

        Where a key mixes several tokens, one that an element has may be left out together with padding, unless the
        element has no padding.
        """
        expected = self.ever_used(end)
        for one in self.given:
            kept = self.kept(one, end)
            hidden = kept & ~self.used(one, kept) & expected
            if self.mixes:
                hidden &= kept.all(-1, keepdim=True)
            hidden &= self.is_alone
            for wrong, is_hidden in ((hidden, True), (self.padding(one, kept), False)):
                for element, token in wrong.nonzero().tolist():
                    yield WrongToken(self.core, token, int(one.numbers[element]), is_hidden)

    def counts(self, end: End) -> list[int] | None:
        """Return how many tokens elements use, by their numbers in order; None if elements with one number differ."""
        counts: dict[int, set[int]] = {}
        for one in self.given:
            used = self.used(one, self.kept(one, end)).sum(-1).tolist()
            for number, count in zip(one.numbers.tolist(), used, strict=True):
                counts.setdefault(number, set()).add(count)
        found = [counts[number] for number in sorted(counts)]
        return [min(one) for one in found] if all(len(one) == 1 for one in found) else None


def attended_tokens(subject: Subject, name: str, more: int) -> AttendedTokens | None:
    """Return what attentions give weight by an argument's numbers; None if it hides nothing, or that can't be told.

    `more` is how many more tokens than its number a batch element has, if the numbers are what they are said to be.
    """
    for symbol in subject.lengths:
        if not subject.is_distinct(symbol) or not subject.at_index(symbol, 0):
            continue
        every = list(_attentions(subject, name, symbol, more))
        attentions = [attention for attention in every if bool(attention.reached.any())]
        if any(attention.follows and attention.is_alone for attention in attentions):
            return _judged(subject, symbol, attentions, is_whole=len(every) == len(subject.attentions))
    return None


def _judged(subject: Subject, symbol: str, attentions: list[_Attention], is_whole: bool) -> AttendedTokens | None:
    """Return what holds of all attentions, with the end at which the tokens are that they give weight."""
    following = [attention for attention in attentions if attention.follows and attention.is_alone]
    end: End = "first" if sum(attention.starts_first for attention in following) >= 0 else "last"
    every = [attention.counts(end) for attention in following]
    known = [counts for counts in every if counts is not None]
    if len(known) < len(every):
        return None
    wrong = [one for attention in following for one in attention.wrong(end)]
    if not wrong:
        others = (attention for attention in attentions if attention not in following)
        wrong = [replace(one, is_forgotten=True) for attention in others for one in attention.wrong(end)]
    wrong.sort(key=lambda one: not one.is_hidden)
    fewest = tuple(min(counts) for counts in zip(*known, strict=True))
    mixing = [attention for attention in following if attention.mixes]
    leaks = not wrong and any(_leaks(subject, symbol, attention, end) for attention in mixing)
    return AttendedTokens(fewest, is_whole, bool(mixing), leaks, tuple(wrong))


def _leaks(subject: Subject, symbol: str, attention: _Attention, end: End) -> bool:
    """Return whether keys that get weight from a query that isn't padding depend on padding, or that can't be told.

    An element that is shorter than what reaches its first key has no key without padding, and tells nothing.
    """
    for one in attention.given:
        kept = attention.kept(one, end)
        hidden = TokenChange(symbol, ~kept, kept, by_every_query=True).inputs(subject)
        run = subject.perturb_each(Intervention(inputs={**hidden, **one.change.inputs})).run
        if not run.follows(subject.base):
            return True
        weighed = one.weighed & attention.of_elements(kept)
        for operand in attention.operands[1:]:
            pairs = _pairs(subject, attention.visible, operand, one.run, run)
            if pairs is None:
                return True
            leaking, whole = ((part & weighed).flatten(1).any(-1) for part in (pairs, ~pairs))
            if bool((leaking & whole).any()):
                return True
    return False


def _attentions(subject: Subject, name: str, symbol: str, more: int) -> Iterator[_Attention]:
    """Yield the attentions that the argument reaches, and whose keys come from tokens."""
    length = subject.numbers[symbol]
    value = subject.base.inputs[name]
    lengths = {other for other, meaning in subject.claims.arguments.items() if meaning in ("length", "last-token")}
    given: list[_Given] = []
    for numbers in _numbers(subject.batch_size, length - more):
        change = Intervention(inputs={name: constant(numbers.reshape(value.shape).to(value.dtype))})
        run = subject.perturb_each(change).run
        if run.follows(subject.base):
            given.append(_Given(numbers, change, run, torch.empty(0)))
    if not given or int(given[0].numbers.min()) < length - more:
        return
    full = given[0].change.inputs
    changed = [
        subject.perturb_each(Intervention(inputs={**subject.at_index(symbol, token), **full})).run
        for token in range(length)
    ]
    if not all(run.follows(subject.base) for run in changed):
        return
    visible = {one.visible.core.context: one.visible for one in explain_visibility(subject)[0]}
    for own in by_attention(subject):
        core = own[0].core
        others = _others_that_hide(subject, core, name)
        if core.context in visible and others <= lengths:
            found = _attention(subject, visible[core.context], own, given, changed, more, is_alone=not others)
            if found is not None:
                yield found


def _numbers(batch: int, most: int) -> Iterator[Tensor]:
    """Yield numbers for the elements of a batch, the largest ones first: all are the most, then any in turn.

    >>> [numbers.tolist() for numbers in _numbers(3, 4)]
    [[4, 4, 4], [4, 3, 2], [4, 1, 1]]
    """
    yield torch.full((batch,), most)
    for start in range(most - 1, 0, 1 - batch):
        yield torch.tensor([most, *(max(1, start - place) for place in range(batch - 1))])


def _others_that_hide(subject: Subject, core: Core | FusedCore, name: str) -> set[str]:
    """Return the other arguments on which it depends which keys an attention hides."""
    return MaskLines(subject, core).inputs_that_hide() & subject.base.inputs.keys() - {name}


def _attention(
    subject: Subject,
    visible: VisibleKeys,
    own: AttentionOperands,
    given: Sequence[_Given],
    changed: Iterable[ReplayRun],
    more: int,
    is_alone: bool,
) -> _Attention | None:
    """Return one attention at several numbers; None if its weights can't be laid out."""
    weighed = [(one, _weighed(visible, one.run)) for one in given]
    known = tuple(replace(one, weighed=pairs) for one, pairs in weighed if pairs is not None)
    if len(known) < len(given) or known[0].weighed.shape[0] != subject.batch_size:
        return None
    of_queries: list[Tensor] = []
    of_keys: list[Tensor] = []
    for run in changed:
        query, key, value = (_pairs(subject, visible, operand, given[0].run, run) for operand in own)
        if query is None or key is None or value is None:
            return None
        of_queries.append(query)
        of_keys.append(key | value)
    return _Attention(own, visible, torch.stack(of_queries), torch.stack(of_keys), known, more, is_alone)


def _pairs(
    subject: Subject, visible: VisibleKeys, operand: AttentionOperand, before: ReplayRun, after: ReplayRun
) -> Tensor | None:
    """Return the pairs whose query, key or value differs between two runs; None if that can't be laid out."""
    one, other = operand.of(before), operand.of(after)
    if not one.shape == other.shape == operand.value.shape:
        return None
    pairs = by_pair(subject, operand, differs(one, other, subject.experiment.tolerance))
    return visible.arranged(pairs) if pairs is not None else None


def _weighed(visible: VisibleKeys, run: ReplayRun) -> Tensor | None:
    """Return which keys get weight in a run; None if it computes weights of another shape."""
    core = visible.core
    if isinstance(core, FusedCore):
        added = FusedCore(run.events[core.event.order - 1]).added
        pairs = added > HIDES
        shape = core.added.shape
    else:
        weights = run.events[core.value.first.order - 1].operand_values[core.weights_place].double()
        pairs = weights > torch.tensor(HIDES_BESIDE_SCORES, dtype=torch.float64).exp()
        shape = core.weights.shape
    return visible.arranged(pairs) if pairs.shape == shape else None
