"""Is the position bias added to the scores along the right axes?

ALiBi (Press et al. 2022, https://arxiv.org/abs/2108.12409, section 3) adds slope * (j - i) to the score of query i and
key j.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.mask_layouts import MaskLayout, fold_otherwise, swap_queries_and_keys
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import of_distinct_code
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys, explain_visibility
from attnshape.checks.rules.biases.distances import check_distances, uneven_slopes
from attnshape.checks.rules.biases.effects import check_effects
from attnshape.checks.rules.biases.lengths import check_lengths
from attnshape.checks.rules.biases.mirrored_rows import check_mirrored_rows
from attnshape.checks.rules.biases.offsets import check_offsets
from attnshape.checks.rules.biases.published import check_loop_of_heads, check_published
from attnshape.checks.rules.biases.scaling import check_scaling, zero_bias
from attnshape.checks.rules.biases.shifts import check_shifts
from attnshape.checks.rules.biases.sizes import check_sizes
from attnshape.checks.rules.biases.tables import check_tables
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.model.trace import Source

CODES: tuple[str, ...] = ("AS706", "AS707", "AS708", "AS710", "AS711", "AS712", "AS713", "AS714", "AS715", "AS718")
TOPIC = "biases"


def check(subject: Subject) -> Iterator[Outcome]:
    """Set the scores to 0, and compare what is added to them with the bias along each axis."""
    outcomes = list(_outcomes(subject))
    if not any(isinstance(outcome, Violation) and outcome.level == "error" for outcome in outcomes):
        outcomes += check_lengths(subject)
    mixed_up = any(isinstance(outcome, Violation) and outcome.code == "AS710" for outcome in outcomes)
    for outcome in outcomes:
        # whose heads are mixed up also has other slopes in other batch elements
        if not (mixed_up and isinstance(outcome, Violation) and outcome.code == "AS707" and "alibi" in outcome.claims):
            yield outcome


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    claims = subject.claims
    names = [name for name, meaning in claims.arguments.items() if meaning in ("bias", "relative-bias")]
    judged: set[Source | None] = set()
    wrong: set[str] = set()
    ignored = list(check_effects(subject, names))
    yield from ignored
    yield from check_mirrored_rows(subject)
    names = [name for name in names if all(name not in one.claims for one in ignored)]
    explained, unseen = explain_visibility(subject)
    for why in unseen if names or claims.alibi else ():
        yield Undecided(TOPIC, why, (*names, *(["alibi"] if claims.alibi else [])))
    of_loops = check_loop_of_heads(subject, [one.visible for one in explained]) if claims.alibi else {}
    for explanation in explained:
        lines = MaskLines(subject, explanation.visible.core)
        for name in names:
            outcome = _bias(subject, explanation.visible, lines, name)
            wrong |= {name} if isinstance(outcome, Violation) else set()
            yield replace(outcome, claims=(name,))
        if claims.alibi:
            late = _adds_after_softmax(subject, explanation.visible)
            of_loop = of_loops.get(explanation.visible.core.context)
            yield replace(late or of_loop or _alibi(subject, explanation.visible, lines), claims=("alibi",))
        elif not wrong and (source := subject.source(explanation.visible.core.context)) not in judged:
            judged.add(source)
            yield from check_distances(subject, explanation.visible, lines)
    visible_by_context = {one.visible.core.context: one.visible for one in explained}
    for query, key, _ in of_distinct_code(subject):
        yield from check_tables(subject, query, wrong)
        visible = visible_by_context.get(query.core.context)
        if visible is not None:
            yield from check_shifts(subject, visible, query, key)
            yield from check_offsets(subject, visible)


def _bias(subject: Subject, visible: VisibleKeys, lines: MaskLines, name: str) -> Outcome:
    if name not in subject.base.inputs:
        return Undecided(TOPIC, f"{name} is claimed, but no tensor is given for it")
    bias = subject.base.inputs[name].double()
    layout = MaskLayout(*visible.added.shape)
    roles = layout.roles(tuple(bias.shape), subject.claims.axes.get(name, ()))
    right = layout.lay_out(bias, roles)
    if right is None and subject.claims.arguments[name] == "relative-bias":
        return _table(visible, lines, name, bias)
    if roles is None or right is None:
        return Undecided(TOPIC, f"the shape of {name} doesn't determine the meaning of its axes")
    if _is_added(visible, right):
        return Verification(f"{name} is added along the right axes")
    swapped = layout.lay_out(bias, swap_queries_and_keys(roles))
    if swapped is not None and _is_added(visible, swapped):
        if "q" in roles:
            message = f"{name} is transposed: its query axis is aligned with the keys"
            hint = "remove the transpose: queries come before keys"
            return _violation("AS706", message, lines.last_transpose(name), hint)
        message = f"{name} is aligned with the query axis, expected the key axis"
        return _violation(
            "AS707", message, lines.first_rearrangement(name), "put the key axis last: bias[:, None, None, :]"
        )
    folded = layout.lay_out(bias, fold_otherwise(roles)) if {"bh", "hb"} & set(roles) else None
    others = itertools.product((True, False), repeat=2) if folded is None else ()
    orders = [layout.misordered(right, batch_outside, of_heads) for batch_outside, of_heads in others]
    for order in [folded] if folded is not None else orders:
        if _is_added(visible, order):
            message = f"{name} is repeated in a different order than batch and heads are folded in"
            hint = "use repeat(B, 1, 1) for an axis (B H): bias[head] belongs to row batch*H + head"
            return _violation("AS707", message, lines.repetition(name), hint)
    return Undecided(TOPIC, f"what is added to the scores doesn't match {name} along any axis")


def _table(visible: VisibleKeys, lines: MaskLines, name: str, table: Tensor) -> Outcome:
    """Check a table of relative biases, with an entry for each distance from 1 - Lk to Lq - 1."""
    _, heads, queries, keys = visible.added.shape
    length = queries + keys - 1
    axis = next((axis for axis, size in enumerate(table.shape) if size == length), None)
    if axis is None or table.ndim > 2:
        return Undecided(TOPIC, f"the shape of {name} doesn't determine the meaning of its axes")
    rows = table.movedim(axis, -1).reshape(-1, length)
    if rows.shape[0] not in (1, heads):
        return Undecided(TOPIC, f"{name} has neither one row nor one for each head")
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    if _is_added(visible, rows[:, i - j + keys - 1][None]):
        return Observation(f"{name} is indexed by the query position minus the key position")
    if _is_added(visible, rows[:, j - i + queries - 1][None]):
        text = f"{name} is indexed by the key position minus the query position"
        return Observation(text, lines.first_difference(name))
    return Undecided(TOPIC, f"what is added to the scores doesn't match {name} indexed by distance")


def _adds_after_softmax(subject: Subject, visible: VisibleKeys) -> Undecided | None:
    """Return that the scores get nothing if a bias is added to the weights instead, which has a finding of its own."""
    maps = [measured.weights_map for measured in subject.measured if measured.core is visible.core]
    if any(one is not None and bool((one.added != 0).any()) for one in maps):
        return Undecided(TOPIC, "something is added to the weights, after the softmax")
    return None


def _alibi(subject: Subject, visible: VisibleKeys, lines: MaskLines) -> Outcome:
    """Look at how the bias changes from one key to the next, up to the query, and behind it."""
    added, keep = visible.added, visible.keys
    queries, keys = added.shape[-2:]
    past = torch.arange(keys)[None, 1:] <= torch.arange(queries)[:, None] + keys - queries
    every = added[..., 1:] - added[..., :-1]
    both = keep[..., 1:] & keep[..., :-1]
    steps, later = every[both & past], every[both & ~past]
    if not steps.numel():
        return Undecided(TOPIC, "no query attends to two keys")
    if bool((steps > 0).all()) and later.numel() and bool((later > 0).all()):
        message = "the bias rises behind the query: it favours far keys over near ones there"
        return _violation("AS706", message, lines.constant(), "subtract slope * (i - j).abs(), or hide later keys")
    if bool((steps > 0).all()):
        return _falling(subject, visible, lines)
    if bool((steps < 0).all()):
        message = "the bias rises with distance: it favours far keys over near ones"
        return _violation("AS706", message, lines.constant(), "subtract slope * (i - j)")
    if bool((steps == 0).all()) and bool((added[keep] != 0).any()):
        equal = "it is equal for all keys of a query, so the softmax cancels it"
        message = f"the bias is aligned with the query axis: {equal}"
        hint = "put the positions along the keys: slopes[:, None, None] * positions[None, None, :]"
        return _violation("AS707", message, lines.constant(), hint)
    other = next(
        (outcome for outcome in check_distances(subject, visible, lines) if isinstance(outcome, Violation)), None
    )
    if other is not None and other.level == "error":
        return other
    message = "what is added to the scores neither falls nor rises with distance"
    at = zero_bias(subject, visible) or lines.softmax
    return _violation("AS708", message, at, "add -slope * (i - j) to the score of query i and key j")


def _falling(subject: Subject, visible: VisibleKeys, lines: MaskLines) -> Outcome:
    """Look at the slopes of a bias that falls with distance in every head."""
    scaled = uneven_slopes(visible, lines) or check_scaling(subject, visible, TOPIC)
    sizes = check_sizes(subject, visible, lines) if not isinstance(scaled, Violation) else False
    if isinstance(sizes, Violation):
        return sizes
    return check_published(subject, visible, lines) if sizes or scaled is None else scaled


def _is_added(visible: VisibleKeys, bias: Tensor) -> bool:
    """Return whether a bias is what is added to the scores of the visible keys."""
    added = visible.added
    return bool(torch.isclose(added, bias.expand_as(added), rtol=1e-5, atol=1e-7)[visible.keys].all())


_violation = partial(Violation, evidence="set the scores to 0, and read the bias at the softmax", shown="reproduced")
