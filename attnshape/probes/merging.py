"""Whether the heads' results are put together again token by token, in the order in which they were split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attnshape.attention.chain import by_moves_only
from attnshape.attention.core import Core, FusedCore
from attnshape.attention.following import Parting, along, differs, partings
from attnshape.attention.kinds import JOINS, MOVES
from attnshape.attention.numbers import other_numbers, others_at
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.scrambles import scrambles
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import PRODUCT
from attnshape.probes.tokens import mixed
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address, Event, Replace

CODES = ("AS103", "AS104", "AS105", "AS114", "AS115")
WHAT = "merging of heads"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Change one query's context, then one head's, and follow it to the output."""
    if not subject.attentions:
        yield NotExamined(WHAT, "no attention with a softmax was found")
        return
    for core in subject.attentions:
        mistake = _tokens(subject, core) or _heads(subject, core)
        if mistake is not None:
            yield mistake
            return
    yield Proved("contexts are merged token by token")


def _tokens(subject: Subject, core: Core | FusedCore) -> Mistake | None:
    context = subject.base.value(core.context)
    for axis in query_axes(core):
        letter = next((one for one in subject.lengths if subject.numbers[one] == context.shape[axis]), None)
        if letter is None:
            continue
        index = subject.numbers[letter] // 2
        moved = subject.moved(_of_query(core, axis, index))
        if not moved.comparable:
            return None
        for parting in partings(moved, letter, index, subject.numbers, {core.context}):
            evidence = f"changed the context of query {index}"
            if parting.event.name not in MOVES:
                return mixed(subject, parting, index, evidence)
            if not scrambles(subject, parting, letter, index, partial(_of_query, core, axis)):
                return None
            return _scrambled(subject, core, parting, letter, index, evidence)
    return None


def _of_query(core: Core | FusedCore, axis: int, index: int) -> Change:
    """Return the change of one query's context."""
    return Change(results={core.context: others_at(axis, index)})


def _scrambled(
    subject: Subject, core: Core | FusedCore, parting: Parting, letter: str, index: int, evidence: str
) -> Mistake:
    cat = _join_before(subject, core, parting.event)
    heads = subject.numbers.get("H", 0)
    folded = heads * subject.numbers.get(subject.batch or "", 0)
    shape = subject.base.value(core.context).shape
    code, how = "AS105", "tokens are scrambled"
    if not by_moves_only(subject.flow, [core.context], parting.event):
        pass
    elif cat is not None and len(subject.attentions) >= heads > 1:
        code, how = "AS115", "heads are joined along the wrong axis"
    elif heads > 1 and (heads in shape or folded in shape):
        code, how = "AS114", "heads are merged without transposing back"
    return Mistake(
        code=code,
        message=f"{how}: axis {parting.axis} is {letter} by its size, but the context of query {index} is found at "
        f"{parting.places}",
        at=cat if cat is not None and code == "AS115" else parting.address,
        hint="torch.cat(heads, dim=-1)" if code == "AS115" else ".transpose(1, 2).reshape(B, L, D)",
        evidence=evidence,
    )


def _join_before(subject: Subject, core: Core | FusedCore, event: Event) -> Address | None:
    """Return the joining of heads between a context and a later call, that call included."""
    reached = {core.context}
    for one in subject.base.events[core.context.order : event.order]:
        if any(source in reached for every in one.sources for source in every):
            reached.update(one.addresses)
            if one.name in JOINS:
                return one.addresses[0]
    return None


def _heads(subject: Subject, core: Core | FusedCore) -> Mistake | None:
    """Look in which features the contexts of two heads come to lie."""
    heads = subject.numbers.get("H", 0)
    context = subject.base.value(core.context)
    if heads < 2:
        return None
    width = context.shape[-1]
    axis = next((a for a in range(context.ndim - 1) if context.shape[a] == heads), None)
    every = subject.attentions
    changes: list[dict[Address, Replace]]
    if axis is not None:
        changes = [{core.context: others_at(axis, head)} for head in (0, 1)]
    elif len(every) == heads and core is every[0]:
        changes = [{every[head].context: other_numbers} for head in (0, 1)]
    else:
        return None
    read = _projection(subject, core.context, heads * width)
    if read is None:
        return None
    event, place = read
    found = []
    for change in changes:
        run = subject.bench.run(Change(results=change))
        if not run.follows(subject.base):
            return None
        before, after = event.given[place], run.events[event.order - 1].given[place]
        found.append(along(differs(before, after, subject.bench.tolerance), before.ndim - 1))
    if not all(found[head] == set(range(head, heads * width, heads)) for head in (0, 1)):
        return None
    behind = subject.flow.behind(core.context)
    layout = [
        one
        for one in subject.base.events[core.context.order : event.order - 1]
        if one.name in MOVES and one.addresses[0] in behind
    ]
    joined = next((one for one in layout if one.name in JOINS), None)
    last = joined or next((one for one in layout if one.values[0].shape[-1] == heads * width), event)
    return Mistake(
        code="AS115",
        message=f"heads are joined in the wrong order: head 0 goes to features 0, {heads}, {2 * heads}, …, expected "
        f"0 to {width - 1}",
        at=last.addresses[0],
        hint="bring the axes into the order (B, L, H, Dk) before the reshape",
        evidence="changed the context of heads 0 and 1",
    )


def _projection(subject: Subject, start: Address, width: int) -> tuple[Event, int] | None:
    """Return the call, behind layout operations only, that takes the merged heads."""
    reached = {start}
    for event in subject.base.events[start.order :]:
        for place, sources in enumerate(event.sources):
            if not any(source in reached for source in sources):
                continue
            if event.name in PRODUCT:
                return (event, place) if event.given[place].shape[-1] == width else None
            if event.name in MOVES | {"dropout", "to", "type_as"}:
                reached.update(event.addresses)
    return None


def query_axes(core: Core | FusedCore) -> tuple[int, ...]:
    """Return the axes of the context that stand for an axis of the weights only: queries, and heads that share."""
    if isinstance(core, FusedCore):
        return (core.event.values[0].ndim - 2,)
    return tuple(sorted(core.value.free(core.weights_place)))
