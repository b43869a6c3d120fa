"""Does each token's result come from its own query, and a key's value from the key's token?

Attention is equivariant to the order of its queries: whatever moves tokens before it, such as the shift of windows (Liu
et al. 2021, https://arxiv.org/abs/2103.14030) or sorting into buckets, has to be undone after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import (
    PerturbationDiff,
    changed_indices,
    differs,
    others_at_each,
    others_where,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.checks.rules.token_order.chosen import PathAxes, check_chosen
from attnshape.checks.rules.token_order.cut_ends import cut_at_other_end
from attnshape.checks.rules.token_order.joined import check_joined
from attnshape.checks.rules.token_order.pairs import check_pairs, check_sources
from attnshape.checks.rules.token_order.ranked import check_ranked
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator

CODES: tuple[str, ...] = ("AS106", "AS107", "AS108")
TOPIC = "order of tokens"
_MOST_ATTENTIONS = 4
_MOST_CHANGED = 1.5
"""How many tokens' contexts at most may differ, where one of each batch element was changed."""
_REORDERS = ops.SELECTIONS | {"roll", "flip", "gather", "take_along_dim", "index_select"}


def check(subject: Subject) -> Iterator[Outcome]:
    """Change a token's query alone, then the contexts that differ, and look at which tokens of the results change."""
    yield from check_sources(subject)
    yield from check_pairs(subject)
    yield from check_ranked(subject)
    kept = _kept_keys_and_values(subject)
    if kept is None:
        return
    joined = list(check_joined(subject, kept))
    yield from joined
    if joined:
        return
    queries = [query for query, *_ in by_attention(subject)]
    judged = False
    for path in _paths(subject, queries):
        # one run for all attentions: without other keys and values a token reaches nothing but its own result
        run = subject.perturb(_of_tokens(path, kept))
        moves = _read_moves(run, path) if run.comparable else None
        reached = [query for query in queries if run.comparable and run.any(query.core.context)]
        if moves is not None and all(token == end for token, end in moves):
            judged = judged or bool(reached)
            continue
        if run.comparable and (cut := _cut(subject, run, path)) is not None:
            yield cut
            return
        in_order = []
        for query in reached[:_MOST_ATTENTIONS]:
            contexts = _with_contexts_changed(subject, run, query, path, kept)
            moves = _read_moves(contexts, path) if contexts is not None else None
            if moves is None and contexts is not None:  # something after attention mixes tokens
                met = _first_meeting(subject, run, contexts, query, path)
                if met is not None:
                    yield _violation(subject, query, path, met, contexts)
                    return
            wrong = [(token, end) for token, end in moves or () if token != end]
            if contexts is not None and wrong and _is_reordering(moves or [], path.size):
                token, end = wrong[0]
                move = _Move(token, end, f"ends up at {path.place(end)} of {path.result}")
                yield _violation(subject, query, path, move, contexts)
                return
            in_order.append(moves is not None and not wrong)
        judged = judged or (0 < len(in_order) == len(reached) and all(in_order))
    for outcome in _of_chosen(subject, queries, kept):
        if isinstance(outcome, Violation):
            yield outcome
            return
        judged = True
    if judged:
        yield Verification("tokens come out of attention in the order in which they went in")


def _cut(subject: Subject, run: PerturbationDiff, path: _Path) -> Violation | None:
    """Return the finding about joined tokens that are kept where some of the input's are cut off."""
    mask = dict(run.returned()).get(path.result)
    if mask is None or len(path.sizes) > 1:
        return None
    ends = dict(_ends_in(mask, path))
    return cut_at_other_end(subject, path.name, path.result, (path.rows, path.tokens), path.size, ends)


def _of_chosen(
    subject: Subject, queries: Sequence[AttentionOperand], kept: dict[OutputRef, Replace]
) -> Iterator[Violation | None]:
    """Look at queries that are chosen by their numbers; yield None where all go back to their tokens."""
    for path in _paths(subject, queries):
        if len(path.sizes) > 1:
            continue
        axes = PathAxes(path.name, path.result, (path.rows, path.tokens), (path.result_rows, path.result_tokens))
        for displaced in check_chosen(subject, axes, kept):
            if displaced is None:
                yield None
                continue
            (row, token), (end_row, end) = displaced.token, displaced.end
            of_row, of_end = (f" of batch element {one}" if row != end_row else "" for one in (row, end_row))
            message = (
                "tokens leave attention in another order than they entered it: the context of token "
                f"{token}{of_row} of {path.name} ends up at {end}{of_end} of {path.result}"
            )
            hint = "write results back at the indices at which the queries were taken, in the same order"
            evidence = "changed a number of the context, then a token's queries; what is chosen was kept"
            yield Violation("AS106", message, displaced.at.refs[0], hint, evidence)


@dataclass(frozen=True)
class _Path:
    """The tokens of an input and of a result, along one axis or along two adjacent ones, such as rows and columns."""

    name: str
    result: str
    rows: int
    """The input's axis of the batch."""
    tokens: int
    """The input's first axis of tokens; `result_tokens` is the result's."""
    result_rows: int
    result_tokens: int
    sizes: tuple[int, ...]
    """The sizes of the axes of tokens."""
    changed: tuple[int, ...]
    """The token that is changed in each batch element."""

    @property
    def size(self) -> int:
        """The number of tokens."""
        return math.prod(self.sizes)

    def place(self, token: int) -> str:
        """Return a token as people write it: its index, or its row and column."""
        return str(token) if len(self.sizes) == 1 else str(divmod(token, self.sizes[1]))


@dataclass(frozen=True)
class _Move:
    """Where a token's context is found."""

    token: int
    end: int
    text: str
    """What happens to the token."""
    until: int | None = None
    """The call at which that is seen, if it isn't the last one."""


def _paths(subject: Subject, queries: Sequence[AttentionOperand]) -> Iterator[_Path]:
    """Yield the axes of tokens whose sizes are unambiguous, in the inputs from which the queries come."""
    batch = subject.batch_size
    sources = tuple(source for query in queries for source in query.sources)
    for name in sorted(subject.graph.origins(sources) & set(subject.inputs)):
        shape = subject.inputs[name].shape
        for result, value in subject.base.returned[:1]:
            if batch < 2 or shape.count(batch) != 1 or value.shape.count(batch) != 1:
                continue
            rows, result_rows = shape.index(batch), value.shape.index(batch)
            grids = _adjacent(shape, 2, batch) if min(len(shape), value.ndim) > 3 else ()
            for sizes, axis in (*_adjacent(shape, 1, batch), *grids):
                ends = [end for other, end in _adjacent(value.shape, len(sizes), batch) if other == sizes]
                count = math.prod(sizes)
                if len(ends) == 1 and count > 2:
                    changed = _spread(batch, count) if len(sizes) == 1 else _over_grid(batch, sizes)
                    yield _Path(name, result, rows, axis, result_rows, ends[0], sizes, changed)


def _spread(batch: int, count: int) -> tuple[int, ...]:
    """Return tokens from both ends, where shifts can be told from rolls, to the middle, where windows are reordered."""
    return tuple(element * (count - 1) // (batch - 1) for element in range(batch))


def _over_grid(batch: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return tokens each in the next row, but not along a diagonal, where rows and columns may be swapped."""
    count, step = math.prod(sizes), sizes[1] + 2
    first = count - step * ((batch + 1) // 2)
    return tuple((first + element * step) % count for element in range(batch))


def _adjacent(shape: torch.Size, count: int, batch: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield adjacent axes whose sizes no other axis has, the batch left out: their sizes, and the first one."""
    for axis in range(len(shape) - count + 1):
        sizes = tuple(shape[axis : axis + count])
        if batch not in sizes and all(size > 1 and shape.count(size) == 1 for size in sizes):
            yield sizes, axis


def _kept_keys_and_values(subject: Subject) -> dict[OutputRef, Replace] | None:
    """Return replacements that keep all keys and values as they are; None if some can't be replaced."""
    kept: dict[OutputRef, Replace] = {}
    for _, *others in by_attention(subject):
        for operand in others:
            source = operand.sources[0]
            if isinstance(source, OutputRef):
                kept[source] = _constant(subject.base.value(source))
            elif source in subject.inputs and source in subject.graph.origins(_query_sources(subject)):
                return None  # the queries come from this very tensor
    queries = {operand.sources[0] for operand, *_ in by_attention(subject)}
    return kept if queries.isdisjoint(kept) else None


def _query_sources(subject: Subject) -> tuple[OutputRef | str, ...]:
    return tuple(source for query, *_ in by_attention(subject) for source in query.sources)


def _constant(value: Tensor) -> Replace:
    return lambda _: value.clone()


def _of_tokens(path: _Path, kept: dict[OutputRef, Replace]) -> Intervention:
    """Return the intervention that changes another token in each batch element, and keeps keys and values."""
    last = path.tokens + len(path.sizes) - 1
    change = others_at_each(_flat(path.rows, path.tokens, last), path.tokens, path.changed)

    def flattened(value: Tensor) -> Tensor:
        return change(value.flatten(path.tokens, last)).reshape(value.shape)

    return Intervention(inputs={path.name: flattened}, results=kept)


def _flat(axis: int, first: int, last: int) -> int:
    """Return where an axis is after those from `first` to `last` were flattened."""
    return axis if axis < first else axis - (last - first)


def _with_contexts_changed(
    subject: Subject, run: PerturbationDiff, query: AttentionOperand, path: _Path, kept: dict[OutputRef, Replace]
) -> PerturbationDiff | None:
    """Return the run in which the contexts are changed that a change of tokens has reached."""
    context = query.core.context
    is_changed = run.mask(context)
    if float(is_changed.double().mean()) > _MOST_CHANGED / path.size:
        return None  # an axis of features, or tokens that are mixed before
    later = {ref: keep for ref, keep in kept.items() if ref.order > context.order}
    contexts = subject.perturb(Intervention(results={**later, context: others_where(is_changed)}))
    return contexts if contexts.comparable else None


def _first_meeting(
    subject: Subject, run: PerturbationDiff, contexts: PerturbationDiff, query: AttentionOperand, path: _Path
) -> _Move | None:
    """Return a token whose context is added to another one where both first meet; None if there is none.

    Where the residual stream itself was moved, as between the shift of windows and its reversal, both have moved alike.
    """
    downstream = subject.graph.downstream_of(query.core.context)
    for event in subject.base.events[query.core.context.order :]:
        producers = [sources[0] for sources in event.sources]
        own = [producer for producer in producers if producer in downstream]
        others = [one for one in producers if one not in downstream and subject.graph.carries_data((one,))]
        if event.name not in ops.ADDITIONS or len(own) != 1 or len(others) != 1 or not isinstance(own[0], OutputRef):
            continue
        shape, batch = event.values[0].shape, subject.batch_size
        starts = [start for sizes, start in _adjacent(shape, len(path.sizes), batch) if sizes == path.sizes]
        if len(starts) != 1 or shape.count(batch) != 1:
            return None
        at = replace(path, result_rows=shape.index(batch), result_tokens=starts[0])
        mask = run.mask(others[0]) if isinstance(others[0], OutputRef) else _of_input(subject, run, others[0])
        before, after = (dict(_ends_in(one, at)) for one in (mask, contexts.mask(own[0])))
        if any(len(ends) > 1 for ends in (*before.values(), *after.values())):
            return None  # tokens are mixed, which is another mistake
        both = [(before[token][0], after[token][0]) for token in before if before[token] and after[token]]
        if len({end for _, end in both}) < len(both):
            return None
        moves = [_Move(token, end, f"is added to token {path.place(end)}", event.order) for token, end in both]
        return next((move for move in moves if move.token != move.end), None)
    return None


def _of_input(subject: Subject, run: PerturbationDiff, name: str) -> Tensor:
    return differs(subject.base.inputs[name], run.changed.inputs[name], subject.experiment.tolerance)


def _read_moves(run: PerturbationDiff, path: _Path) -> list[tuple[int, int]] | None:
    """Return each token that was changed, with the token of the result that differs; None if several differ."""
    mask = dict(run.returned()).get(path.result)
    return _moves_in(mask, path) if mask is not None else None


def _moves_in(mask: Tensor, path: _Path) -> list[tuple[int, int]] | None:
    """Return each token that was changed, with the token that differs in a mask of a result's axes."""
    moves = []
    for token, ends in _ends_in(mask, path):
        if len(ends) > 1 or (not ends and token not in (0, path.size - 1)):
            return None
        moves += [(token, end) for end in ends]
    return moves or None


def _ends_in(mask: Tensor, path: _Path) -> Iterator[tuple[int, list[int]]]:
    """Yield each token that was changed, with the tokens that differ in a mask of a result's axes."""
    last = path.result_tokens + len(path.sizes) - 1
    rows = _flat(path.result_rows, path.result_tokens, last)
    after = path.result_tokens - (path.result_tokens > path.result_rows)
    by_element = mask.flatten(path.result_tokens, last).movedim(rows, 0)
    for token, differing in zip(path.changed, by_element, strict=True):
        yield token, sorted(changed_indices(differing, after))


def _is_reordering(moves: list[tuple[int, int]], size: int) -> bool:
    """Return whether tokens come out in another order: not all moved on by one number, nor several to one place."""
    if len({end for _, end in moves}) < len({token for token, _ in moves}):
        return False  # a place that has parts of several tokens is scrambled
    by = {end - token for token, end in moves}
    is_shift = len(by) == 1 and all(0 <= token + min(by) < size for token, _ in moves) and len(moves) > 1
    return not is_shift


def _violation(
    subject: Subject, query: AttentionOperand, path: _Path, move: _Move, contexts: PerturbationDiff
) -> Violation:
    context = query.core.context
    downstream = subject.graph.downstream_of(context)
    later = subject.base.events[context.order : move.until]
    after = [event for event in later if event.refs and event.refs[0] in downstream]
    moving = _last_move(contexts, after, path)
    at = next(iter((*_last(after, _REORDERS), *moving, *_last(after, ops.DATA_MOVEMENT))), None)
    place = _caller(subject, at) if moving and at is moving[0] else None
    token = f"token {path.place(move.token)} of {path.name}"
    message = f"tokens leave attention in another order than they entered it: {token} {move.text}"
    hint = "undo after attention what moves the tokens before it, in the reverse order"
    evidence = "changed the queries of a token, then the contexts that differ; keys and values were kept"
    return Violation("AS106", message, at.refs[0] if at is not None else context, hint, evidence, place=place)


def _last(events: list[ReplayedCall], names: frozenset[str]) -> list[ReplayedCall]:
    return [event for event in events if event.name in names][-1:]


def _last_move(contexts: PerturbationDiff, events: list[ReplayedCall], path: _Path) -> list[ReplayedCall]:
    """Return the last call that gives the tokens another order, as their numbers lie one after the other."""
    known: list[int] | None = None
    found: list[ReplayedCall] = []
    for event in events:
        order = _order(contexts.mask(event.refs[0]), path) if event.name in ops.DATA_MOVEMENT else None
        if order is not None:
            found = [event] if known is not None and order != known else found
            known = order
    return found


def _order(mask: Tensor, path: _Path) -> list[int] | None:
    """Return at which token each batch element differs, if it has the tokens one after the other; None if it hasn't."""
    batch = len(path.changed)
    if mask.numel() % (batch * path.size):
        return None
    tokens = [element.any(-1).nonzero().flatten().tolist() for element in mask.reshape(batch, path.size, -1)]
    return [one[0] for one in tokens] if all(len(one) == 1 for one in tokens) else None


def _caller(subject: Subject, event: ReplayedCall) -> SourceLocation | None:
    """Return where a function of a module was called that only moves numbers, as the sizes say that it was given."""
    code = event.calls[0].f_code if len(event.calls) > 1 else None
    if code is None or "." in code.co_qualname or code.co_argcount < 2:
        return None
    inside = [one for one in subject.base.events if any(frame.f_code is code for frame in one.calls)]
    return SourceLocator().find(event.calls[1])[0] if all(one.name in ops.DATA_MOVEMENT for one in inside) else None
