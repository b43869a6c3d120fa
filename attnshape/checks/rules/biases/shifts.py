"""Does each score of a position belong to its own query, and to the distance of its key?

Queries are multiplied by vectors of positions, and the product is rearranged, so that each query finds the score of a
key's distance in the key's column: by padding and viewing (Transformer-XL, Dai et al. 2019,
https://arxiv.org/abs/1901.02860, appendix B), or by gathering.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore, between, product
from attnshape.checks.attention.elementwise import index_along
from attnshape.checks.attention.operands import AttentionOperand
from attnshape.checks.attention.perturbation import changed_indices, differs, others_at
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.biases.mirrored import mirrored_vectors
from attnshape.checks.rules.biases.terms import added_sources, behind, product_map, term_map
from attnshape.checks.rules.protocol import Verification, Violation
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator

_MOST_PRODUCTS = 4
_FEWEST_OWN = 0.25
"""The least part of the entries that must be their own query's, else the product's rows may be something else.

All may also come from the row a fixed number before or after their own, where both products read the same queries.
"""
_REARRANGES = ops.RESHAPES | ops.TRANSPOSES | ops.SELECTIONS | ops.GATHERS | ops.PATTERNED_LAYOUT | {"as_strided"}


def check_shifts(
    subject: Subject, visible: VisibleKeys, query: AttentionOperand, key: AttentionOperand
) -> Iterator[Violation | Verification]:
    """Follow each entry of the products of queries, or keys, and positions to the scores of the visible keys."""
    if not _are_laid_out_alike(subject, visible, query, key):
        return
    judged: dict[str, bool] = {}
    for term, place, own in _products(subject, query, key):
        outcome = _judge(subject, visible, term, place, own)
        if isinstance(outcome, Violation):
            yield outcome
            return
        judged[own.role] = outcome and judged.get(own.role, True)
    for role in (role for role, holds in judged.items() if holds):
        yield Verification(f"the scores that a {role} gets for positions are its own")


def _are_laid_out_alike(subject: Subject, visible: VisibleKeys, query: AttentionOperand, key: AttentionOperand) -> bool:
    """Return whether the scores are in the order of the weights, so that the layout of these is that of both."""
    core = visible.core
    if isinstance(core, FusedCore):
        return True
    if not core.more_scores and not core.positional:
        return False
    mapping = product_map(subject, visible)
    if mapping is None:
        return False
    known = visible.keys & (mapping.source >= 0)
    queries, keys = _indices(visible)
    for operand, expected in ((query, queries), (key, keys)):
        axis = _axis_of(core.scores, operand.place, expected.numel())
        if axis is None or not bool((_along(mapping.source, core.scores, axis) == expected)[known].all()):
            return False
    return bool(known.any())


def _products(
    subject: Subject, query: AttentionOperand, key: AttentionOperand
) -> Iterator[tuple[Product, int, AttentionOperand]]:
    """Yield the products of queries, or keys, and something else that are added to the scores.

    Each comes with the place of the queries or keys among its operands, and with their operand in the attention.
    """
    core, graph = query.core, subject.graph
    if isinstance(core, FusedCore):
        calls = (product(event, graph) for event in graph.upstream(core.sources("attn_mask")))
        candidates = [found for found in calls if found is not None and found.first.name != "linear"]
    else:
        candidates = [*core.more_scores, *core.positional]
    data = graph.depends_on_data | graph.data
    of_query, of_key = (behind(subject, operand.sources) & data for operand in (query, key))
    for candidate in candidates[:_MOST_PRODUCTS]:
        reached = {place: behind(subject, candidate.sources(place)) for place in candidate.places}
        own = [
            (place, operand)
            for place, refs in reached.items()
            for operand, only in ((query, of_query - of_key), (key, of_key - of_query))
            if not refs.isdisjoint(only)
        ]
        if len(own) == 1:
            ((place, operand),) = own
            yield candidate, place, operand


def _judge(
    subject: Subject, visible: VisibleKeys, term: Product, place: int, own: AttentionOperand
) -> Violation | bool:
    """Return a violation, or whether each entry is certainly that of its own query or key."""
    queries, keys = _indices(visible)
    expected = queries if own.role == "query" else keys
    axis = _axis_of(term, place, expected.numel())
    mapping = term_map(subject, visible, term.ref, term.added) if axis is not None else None
    if mapping is None or axis is None:
        return False
    known = visible.keys & mapping.known & (mapping.source >= 0)
    steps = (_along(mapping.source, term, axis) - expected)[known]
    is_own = steps == 0
    if not is_own.numel():
        return False
    other = (keys if own.role == "query" else queries).expand(known.shape)[known]
    if queries.numel() == keys.numel() and bool((_along(mapping.source, term, axis)[known] == other).all()):
        along, at = ("row", "query") if own.role == "key" else ("column", "key")
        message = f"scores of positions are transposed: those that {own.role} i gets are in the {along} of {at} i"
        return _violation(subject, visible, term, message, "transpose them before they are added: .transpose(-1, -2)")
    if float(is_own.double().mean()) < _FEWEST_OWN:
        is_shifted = bool((steps == steps[0]).all())
        if not is_shifted or not _have_the_same_rows(subject, term, place, own, expected.numel()):
            return False
    if not bool(is_own.all()):
        count = int((~is_own).sum())
        which = f"{count} of {is_own.numel()} that are visible come from its row of the product"
        message = f"scores of positions belong to another {own.role}: {which}"
        hint = "drop the first row after padding and viewing, and give every distance that is visible its own position"
        return _violation(subject, visible, term, message, hint)
    lacking = _only_distance(visible.keys & (mapping.factor == 0), visible.keys, keys - queries)
    if lacking is not None:
        where = "the own position" if lacking == 0 else f"the key {abs(lacking)} {'after' if lacking > 0 else 'before'}"
        message = (
            f"{where} of each {own.role} gets padding instead of a score, and the others those of another distance"
        )
        hint = "pad on the left, F.pad(scores, (1, 0)), before viewing and dropping the first row"
        return _violation(subject, visible, term, message, hint)
    length = queries.numel() + keys.numel() - 1
    columns = _axis_of(term, term.other(place), length)
    distance = keys - queries + queries.numel() - 1
    if columns is None or _depends_on_distance(_along(mapping.source, term, columns), known, distance):
        mirrored = None
        if columns is not None:
            read = _along(mapping.source, term, columns)
            mirrored = mirrored_vectors(subject, visible, term, term.other(place), read, columns)
        return mirrored or _stay_apart(mapping.source, known, term, [axis, *term.free(term.other(place))])
    message = f"the position whose score a {own.role} gets isn't determined by the distance"
    hint = "shift the rows, so that column j of row i has the score of the distance i - j"
    return _violation(subject, visible, term, message, hint)


def _have_the_same_rows(subject: Subject, term: Product, place: int, own: AttentionOperand, size: int) -> bool:
    """Change a row of what a product and an attention's queries, or keys, come from: the same row of both must follow.

    Code may shift the rows on purpose, and shift them back after the product.
    """
    common = behind(subject, own.sources) & behind(subject, term.sources(place)) & subject.graph.depends_on_data
    last = max((ref for ref in common if isinstance(ref, OutputRef)), default=None)
    axis = _only_axis(subject.base.value(last), size) if last is not None else None
    if last is None or axis is None:
        return False
    run = subject.experiment.run(Intervention(results={last: others_at(axis, 1)}))
    if not run.follows(subject.base):
        return False
    of_attention = _changed_rows(own.value, own.of(run), size, subject.experiment.tolerance)
    read = run.events[term.first.order - 1].operand_values[place]
    of_term = _changed_rows(term.operand(place), read, size, subject.experiment.tolerance)
    return len(of_attention) == 1 and of_attention == of_term


def _changed_rows(before: Tensor, after: Tensor, size: int, tolerance: float) -> set[int]:
    """Return the indices of the one axis of a size at which two tensors differ; none if that axis isn't clear."""
    axis = _only_axis(before, size)
    return changed_indices(differs(before, after, tolerance), axis) if axis is not None else set()


def _only_axis(value: Tensor, size: int) -> int | None:
    """Return the one axis that has a size."""
    axes = [axis for axis, own in enumerate(value.shape) if own == size]
    return axes[0] if len(axes) == 1 else None


def _only_distance(lacking: Tensor, seen: Tensor, distance: Tensor) -> int | None:
    """Return the distance of all entries that come from nowhere, if they are all that are seen at this one distance."""
    distances = {*distance.expand(lacking.shape)[lacking].tolist()}
    if len(distances) != 1:
        return None
    (only,) = distances
    return int(only) if bool(lacking[(distance == only) & seen].all()) else None


def _indices(visible: VisibleKeys) -> tuple[Tensor, Tensor]:
    queries, keys = visible.keys.shape[-2:]
    return torch.arange(queries)[:, None], torch.arange(keys)[None, :]


def _axis_of(term: Product, place: int, size: int) -> int | None:
    """Return the one axis of a size that a product's result has from one operand.

    From that operand alone, or else from both, as where a table has a vector for each query and key.
    """
    axes = [axis for axis in term.free(place) if term.result.shape[axis] == size]
    if not axes:
        axes = [axis for stays in term.axes[place] for axis in stays if term.result.shape[axis] == size]
    return axes[0] if len(axes) == 1 else None


def _along(source: Tensor, term: Product, axis: int) -> Tensor:
    """Return the index along one axis of a product's result from which each entry comes."""
    return index_along(source.clamp(min=0), term.result.shape, axis)


def _depends_on_distance(columns: Tensor, known: Tensor, distance: Tensor) -> bool:
    """Return whether all entries of a distance, which counts from 0, come from one column."""
    distance = distance.expand(columns.shape)[known]
    columns = columns[known]
    first = torch.full((int(distance.max()) + 1,), -1).scatter(0, distance, columns)
    return bool((first[distance] == columns).all())


def _stay_apart(source: Tensor, known: Tensor, term: Product, within: Collection[int]) -> bool:
    """Return whether each batch element and head gets the entries of one of its own.

    `within` are the axes of a product's result that have the entries of one batch element and head.
    """
    batch, heads = source.shape[:2]
    outer = torch.zeros_like(source)
    for axis in range(term.result.ndim):
        if axis not in within:
            outer = outer * term.result.shape[axis] + _along(source, term, axis)
    own = [set(outer[b, h][known[b, h]].tolist()) for b in range(batch) for h in range(heads)]
    return all(len(one) == 1 for one in own) and len(set[int]().union(*own)) == batch * heads


def _violation(subject: Subject, visible: VisibleKeys, term: Product, message: str, hint: str) -> Violation:
    event = _last_rearrangement(subject, visible, term)
    evidence = "replaced the product by the numbers of its entries, and read them at the softmax"
    helper = _call_of_helper(event, term)
    made = subject.place(event.refs[0]) if helper is not None else None
    return Violation("AS714", message, event.refs[0], hint, evidence, place=helper, made=made)


def _last_rearrangement(subject: Subject, visible: VisibleKeys, term: Product) -> ReplayedCall:
    """Return the last call that rearranges a product before something is added to it."""
    last = term.last
    for event in between(subject.graph, term.ref, added_sources(visible)):
        if event.name in ops.ADDITIONS:
            break
        last = event if event.name in _REARRANGES else last
    return last


def _call_of_helper(event: ReplayedCall, term: Product) -> SourceLocation | None:
    """Return where the function that makes the product calls the one that rearranges it, if that is another one."""
    if not event.calls or not term.last.calls or event.calls[0].f_code is term.last.calls[0].f_code:
        return None
    callers = (frame for frame in event.calls if frame.f_code is term.last.calls[0].f_code)
    caller = next(callers, None)
    return SourceLocator().find(caller)[0] if caller is not None else None
