"""Judges claims about visible keys by the results, where which keys are visible can't be laid out.

Queries and keys may be blocks, windows or gathered neighbours, whose positions aren't known. Then a token of the inputs
is changed, and the positions of the results that change are those that depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.dependence import reaches
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.permutation import changed_elements
from attnshape.checks.attention.perturbation import PerturbationDiff, changed_indices, divergences, others_at
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import CONVOLUTIONS, DATA_MOVEMENT

NO_TOKENS = "no axis of the results holds the tokens of the inputs"
Attention = Core | FusedCore
_MISSING = 2
"""The most positions that a result may lack of the tokens, such as those without a next token."""


@dataclass(frozen=True)
class _Reached:
    """A token that changes positions of the results."""

    symbol: str
    token: int
    positions: frozenset[int]


def judge_causal(subject: Subject, hidden: Sequence[Attention], topic: str) -> Iterator[Outcome]:
    """Yield whether a position of the results depends on a later token.

    `hidden` are the attentions of which it isn't known which keys are visible.
    """
    looked = False
    for reached in _reaches(subject):
        looked = True
        earlier = min(reached.positions)
        if earlier < reached.token:
            text = f"the future leaks: position {earlier} of the results depends on token {reached.token}"
            hint = "let every position depend only on itself and earlier positions"
            at = _line(subject, hidden, reached)
            yield Violation("AS501", text, at, hint, _evidence(subject, reached), claims=("causal",))
            return
    what = "no position of the results depends on a later token"
    yield Verification(what, ("causal",)) if looked else Undecided(topic, NO_TOKENS, ("causal",))


def judge_window(subject: Subject, hidden: Sequence[Attention], topic: str) -> Iterator[Outcome]:
    """Yield whether a position of the results depends on a token outside of the claimed window.

    `hidden` are the attentions of which it isn't known which keys are visible. With a causal claim, later tokens are
    left to `judge_causal`.
    """
    width, claimed = subject.claims.window_at(subject.numbers), subject.claims.window
    if width is None or claimed is None:
        return
    looked = False
    for reached in _reaches(subject):
        looked = True
        for position in sorted(reached.positions):
            distance = position - reached.token
            if (distance if subject.claims.causal else abs(distance)) >= width:
                why = mixes_layers(subject) or mixes_tokens(subject)
                if why is not None:
                    yield Undecided(topic, why, ("window",))
                    return
                outside = f"which is outside of its window of {claimed.text} keys"
                text = f"position {position} of the results depends on token {reached.token}, {outside}"
                hint = "keep keys with 0 <= i - j < W"
                at = _line(subject, hidden, reached)
                yield Violation("AS505", text, at, hint, _evidence(subject, reached), claims=("window",))
                return
    what = f"no position of the results depends on a token outside of its window of {claimed.text} keys"
    yield Verification(what, ("window",)) if looked else Undecided(topic, NO_TOKENS, ("window",))


@once
def _reaches(subject: Subject) -> list[_Reached]:
    """Return each token that changes a result that has an axis of such tokens, with the positions that it changes."""
    return [
        _Reached(symbol, reach.token, reach.positions)
        for symbol in subject.lengths
        for found in reaches(subject, inputs_beside_queries(subject), symbol, keeps_elements_apart(subject))
        for reach in found
        if reach.positions and reach.size == subject.numbers[symbol]
    ]


@once
def inputs_beside_queries(subject: Subject) -> list[str]:
    """Return the inputs but those whose tokens come before all queries, such as a memory of earlier ones.

    Where there are more keys than queries, they are what changes no key and no value of the queries' own tokens.
    """
    earlier: set[str] = set()
    for query, *others in by_attention(subject):
        of_queries, of_keys = (max(sizes, default=0) for sizes in query.core.token_sizes)
        if 1 < of_queries < of_keys:
            own = subject.graph.origins(query.sources)
            read = {str(name) for one in others for name in subject.graph.origins(one.sources) - own}
            earlier |= {
                name for name in read & subject.inputs.keys() if _is_earlier(subject, name, others, of_queries, of_keys)
            }
    return [name for name in subject.inputs if name not in earlier]


def _is_earlier(
    subject: Subject, name: str, operands: Sequence[AttentionOperand], of_queries: int, of_keys: int
) -> bool:
    """Return whether an input changes keys or values, and none of those of the last tokens."""
    if not subject.inputs[name].ndim:
        return False
    run = subject.perturb(Intervention(inputs={name: others_at(0, 0, len(subject.inputs[name]))})).changed
    if not run.follows(subject.base):
        return False
    changed: set[int] = set()
    for one in operands:
        differs = one.of(run) != one.value
        axes = [axis for axis, size in enumerate(one.value.shape) if size == of_keys]
        changed |= changed_indices(differs, axes[-1]) if axes else {of_keys}
    return bool(changed) and max(changed) < of_keys - of_queries


def keeps_elements_apart(subject: Subject) -> bool:
    """Return whether one element of the batch changes no other one."""
    if subject.batch is None:
        return False
    index = subject.batch_size // 2
    run = subject.perturb(Intervention(inputs=subject.at_index(subject.batch, index))).changed
    tolerance = subject.experiment.tolerance
    return changed_elements(subject.base, run, subject.batch, subject.numbers, tolerance) == {index}


def _line(subject: Subject, hidden: Sequence[Attention], reached: _Reached) -> OutputRef | None:
    """Return the call that cuts weights off or builds the causal mask, or the first one after which others change."""
    if hidden:
        cuts = _cuts(subject, hidden[0])
        return cuts[0] if cuts else MaskLines(subject, hidden[0]).triangle()
    change = at_token(subject, reached.symbol, reached.token)
    moved = subject.perturb(Intervention(inputs=change))
    parted = divergences(moved, reached.symbol, reached.token, subject.numbers, change)
    return next((one.ref for one in parted if one.indices and one.indices[0] < reached.token), None)


def at_token(subject: Subject, symbol: str, token: int) -> dict[str, Replace]:
    """Return replacements of one token of the inputs, but of those whose tokens come before all queries."""
    names = inputs_beside_queries(subject)
    return {name: change for name, change in subject.at_index(symbol, token).items() if name in names}


def _cuts(subject: Subject, core: Attention) -> list[OutputRef]:
    """Return the calls after the softmax that leave out some of its weights, as where a sink has a column of them."""
    if not isinstance(core, Core):
        return []
    path = between(subject.graph, core.softmax.ref, core.value.sources(core.weights_place))
    whole = core.softmax.event.numel
    return [event.refs[0] for event in path if event.name in DATA_MOVEMENT and event.numel < whole]


def mixes_layers(subject: Subject) -> str | None:
    """Return why a result may depend on the keys of several attentions in turn, or None."""
    contexts = [core.context for core in subject.attentions]
    if not contexts:
        return "no attention was found, and a result may depend on more tokens than the keys of one"
    if any(subject.graph.downstream_of(context) & set(contexts) != {context} for context in contexts):
        return "an attention reads the results of another one, which widens what a result depends on"
    return None


def mixes_tokens(subject: Subject) -> str | None:
    """Return why tokens may affect each other other than through attention, or None."""
    if any(event.name in CONVOLUTIONS for event in subject.base.events):
        return "a convolution may widen what a result depends on"
    for symbol in subject.lengths if subject.attentions else ():
        token = subject.numbers[symbol] // 2
        past = subject.perturb_each(Intervention(inputs=subject.at_index(symbol, token))).diff
        if not past.comparable or not changed_positions(past, subject.numbers[symbol]) <= {token}:
            return "tokens affect each other past attention, which may widen what a result depends on"
    return None


def changed_positions(moved: PerturbationDiff, number: int) -> set[int]:
    """Return the positions of the results that differ, along axes that have this number of positions."""
    return {
        position
        for _, mask in moved.returned()
        for axis, size in enumerate(mask.shape)
        if size == number and mask.shape.count(size) == 1
        for position in changed_indices(mask, axis)
    }


def leaked_position(
    moved: PerturbationDiff, subject: Subject, symbol: str, token: int, ignored: Set[int] = frozenset()
) -> int | None:
    """Return the first position of the results that a token changes although all that it may depend on is earlier.

    Those that are `ignored` may change.

    A few positions may be missing at either end, as where the last token has no next one: with `n` missing, a position
    may depend on the `n` tokens behind it.
    """
    number, others = subject.numbers[symbol], set(subject.numbers.values())
    for missing in range(_MISSING + 1):
        size = number - missing
        if missing and (size in others or size < 2):
            continue
        earlier = min(changed_positions(moved, size) - ignored, default=token)
        if earlier + missing < token:
            return earlier
    return None


def _evidence(subject: Subject, reached: _Reached) -> str:
    return f"changed token {reached.token} of {' and '.join(at_token(subject, reached.symbol, reached.token))}"
