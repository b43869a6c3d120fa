"""Checks that the softmax runs over the keys and that its weights reach the value product unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from attnshape.checks.attention.cores import Core, between, drops, row_sums, sum_to_one
from attnshape.checks.attention.definitions import module_definition, number_definition
from attnshape.checks.attention.elementwise import MeasuredCore, axis_after, distinct
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.attention_weights.averaged import check_averaged
from attnshape.checks.rules.attention_weights.distributions import check_distributions
from attnshape.checks.rules.attention_weights.flattened_heads import check_flattened_heads
from attnshape.checks.rules.attention_weights.indexed_sums import check_indexed
from attnshape.checks.rules.attention_weights.joint_sums import check_joint, common_number, counted_sizes
from attnshape.checks.rules.attention_weights.merged_blocks import check_merged_blocks
from attnshape.checks.rules.attention_weights.pairwise import check_pairwise
from attnshape.checks.rules.attention_weights.pooled import check_pooled
from attnshape.checks.rules.attention_weights.renormalised import check_renormalised
from attnshape.checks.rules.attention_weights.stabilisers import check_stabilisers
from attnshape.checks.rules.attention_weights.used_again import check_used_again
from attnshape.checks.rules.attention_weights.without_scores import WeightSums, has_sums_of_keys, weight_sums
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.model.report import Level
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS301", "AS302", "AS303", "AS304", "AS305", "AS307", "AS310", "AS311")
TOPIC = "softmax"
_TWO_SOFTMAXES = 2
"""Rows sum to at least this if several softmaxes are concatenated or added."""
_MASK_HINT = "mask the scores with -inf before the softmax"
_VALUE_NAMES = {"v", "value", "values"}
_MASKS = ops.MASKS | ops.ELEMENT_WRITES


def check(subject: Subject) -> Iterator[Outcome]:
    """Check the axis along which the weights sum to one, and the operations on them after the softmax."""
    without_products = [*check_indexed(subject, TOPIC), *check_pairwise(subject)]
    if not without_products and not has_sums_of_keys(subject):
        without_products = list(check_joint(subject))
    yield from without_products
    yield from check_averaged(subject)
    yield from check_pooled(subject)
    yield from check_distributions(subject)
    yield from check_flattened_heads(subject)
    yield from check_used_again(subject)
    yield from check_stabilisers(subject)
    merged = list(check_merged_blocks(subject))
    yield from merged
    if not subject.measured and not subject.fused:
        implied = list(weight_sums(subject))
        if implied:
            yield from _check_implied(implied)
        elif not without_products and not any(isinstance(one, Violation) for one in merged):
            outcomes_of_ones = _check_blockwise(subject)
            yield from (one for one in outcomes_of_ones if not merged or not isinstance(one, Undecided))
        return
    # of PyTorch's fused attention there is nothing to check
    all_verified = bool(subject.measured)
    for measured in subject.measured:
        outcomes: list[Outcome] = [*_dropout_before(subject, measured.core), *_applied_twice(subject, measured.core)]
        outcome: Outcome | None = _check_infinite(subject, measured.core)
        outcome = outcome or _check_selection(subject, measured.core) or _check_mean(subject, measured.core)
        outcome = outcome or check_renormalised(subject, measured.core, _after_softmax(subject, measured.core))
        if outcome := outcome or _check_axis(subject, measured) or _check_rows(subject, measured):
            outcomes.append(outcome)
        yield from outcomes
        all_verified = all_verified and not outcomes and _sums_are_one(measured.core)
        yield from _given_dropout(subject, measured)
    if all_verified:
        yield Verification("the softmax runs over the keys, and each row of weights sums to one")


def _after_softmax(subject: Subject, core: Core) -> list[ReplayedCall]:
    """Return the calls between the softmax and the product with the values."""
    return between(subject.graph, core.softmax.ref, core.value.sources(core.weights_place))


def _sums_are_one(core: Core) -> bool:
    """Return whether each row of weights was seen to sum to one, rows without any visible key aside."""
    return core.softmax.deferred or sum_to_one(core.weights, core.key_axes) is True


def _given_dropout(subject: Subject, measured: MeasuredCore) -> Iterator[Outcome]:
    """Compare the weights that are dropped after the softmax with each claimed dropout pattern."""
    mapping = measured.weights_map
    for name, meaning in subject.claims.arguments.items():
        if meaning != "dropout":
            continue
        pattern = subject.base.inputs.get(name)
        if pattern is None:
            yield Undecided(TOPIC, f"{name} is claimed, but no tensor is given for it", (name,))
            continue
        if not bool((pattern == 0).any()):
            yield Undecided(TOPIC, f"{name} drops nothing", (name,))
            continue
        dropped = _like_weights(pattern == 0, mapping.factor.shape) if mapping is not None else None
        if mapping is None or not mapping.elementwise or dropped is None:
            yield Undecided(TOPIC, f"what {name} does to the weights can't be told apart", (name,))
        elif bool(((mapping.factor == 0) == dropped).all()):
            yield Verification(f"{name} drops weights after the softmax", (name,))
        else:
            yield Undecided(TOPIC, f"other weights are dropped than {name} says", (name,))


def _like_weights(pattern: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Return a pattern of weights in their shape: broadcast, or with folded axes unfolded; None if it can't be one."""
    if pattern.numel() == shape.numel():
        return pattern.reshape(shape)
    try:
        return pattern.expand(shape)
    except RuntimeError:
        return None


def _has_sink(subject: Subject) -> bool:
    """Return whether an exponential of what no product reads is computed, as that of a sink without a key."""
    read = [source for event in subject.base.events if event.name in ops.PRODUCTS for source in event.producers]
    of_products = subject.graph.origins(tuple(read))
    exponents = (event for event in subject.base.events if event.name in ops.EXPONENTIALS)
    return any(subject.graph.origins(tuple(event.producers)) - of_products - {"constant"} for event in exponents)


def _check_blockwise(subject: Subject) -> Iterator[Outcome]:
    """Check a softmax that is computed block by block: if all values are 1, all results must be 1."""
    names = [name for name in subject.inputs if name.rpartition(".")[2].lower() in _VALUE_NAMES]
    operations = {event.name for event in subject.base.events}
    online = operations & ops.EXPONENTIALS and operations & (ops.MAXIMA | {"maximum"})
    if not online or len(names) != 1 or subject.base.state:
        is_other = any(event.name in ops.SOFTMAXES | ops.LOG_SOFTMAXES for event in subject.base.events)
        why = "no product that makes its scores or sums values with its weights" if is_other else "no softmax"
        yield Undecided(TOPIC, f"{why} was found")
        return
    run = subject.experiment.run(Intervention(inputs={names[0]: torch.ones_like}))
    if not run.follows(subject.base) or len(run.returned) != 1:
        yield Undecided(TOPIC, "it is computed block by block")
        return
    result = run.returned[0][1]
    if bool(torch.isclose(result, torch.ones_like(result), rtol=1e-5).all()):
        yield Verification("each row of weights sums to one over all blocks")
        return
    if _has_sink(subject) and bool((result < 1).all()):
        yield Undecided(TOPIC, "it is computed block by block, with a sink")
        return
    last = next(event for event in reversed(subject.base.events) if event.name in ops.SCALINGS | ops.EXPONENTIALS)
    message = f"rows of weights don't sum to one: if every value is 1, a result is {float(result.flatten()[0]):.4g}"
    hint = "with each new maximum, multiply both the sum and the output by exp(old - new)"
    yield Violation("AS302", message, last.refs[0], hint, f"set {names[0]} to 1 everywhere")


def _check_implied(implied: Sequence[WeightSums]) -> Iterator[Outcome]:
    """Check the sums of weights where keys and values are summed up first, so that no scores are formed."""
    for found in implied:
        if found.are_one or (found.are_equal and not found.is_multiplied):
            continue
        spread = f"{found.sums.min():.4g} to {found.sums.max():.4g}"
        message = f"the weights of a query don't sum to one: if every value is 1, the context is {spread}"
        hint = "divide by the product of each query and the sum of the keys that it reads"
        if found.is_multiplied:
            hint = "divide by the sum of the weights instead of multiplying by it"
        if found.by_softmax:
            hint = "take the softmax of queries over their features, and that of keys over the tokens"
        if found.may_be_features:
            hint += ", or if both are meant as feature maps, put # attnshape: ignore[AS302] on the line"
        level: Level = "notice" if found.may_be_features else "error"
        evidence = "set the values to 1 everywhere, queries and keys as they were"
        yield Violation("AS302", message, found.at, hint, evidence, level=level)
    if all(found.are_one for found in implied):
        yield Verification("the weights that each query implies sum to one")
    elif all(found.are_equal for found in implied):
        yield Undecided(
            TOPIC, "the weights that each query implies have a sum other than one, the same for all queries"
        )


def _check_axis(subject: Subject, measured: MeasuredCore) -> Outcome | None:
    core = measured.core
    weights = core.softmax.event.values[0]
    if not core.softmax.axes or not core.key_axes:
        return None
    axes = {_axis_in_value_product(measured, axis) for axis in core.softmax.axes}
    if None in axes:
        return Undecided(TOPIC, "the code between the softmax and the values mixes weights")
    if axes & set(core.key_axes) or sum_to_one(core.weights, core.key_axes) is not False:
        return None
    if _was_normalised_over_keys(subject, core):
        return Undecided(TOPIC, "the scores are normalised over the keys first, and over the queries last")
    softmax_axis, key = min(core.softmax.axes), core.key_axes[0]
    softmax_size = symbol_or_number(weights.shape[softmax_axis], subject.numbers)
    key_size = symbol_or_number(core.weights.shape[key], subject.numbers)
    reduction = f"are summed over axis {key} of the weights ({key_size}, the keys)"
    message = f"the softmax runs over axis {softmax_axis} ({softmax_size}), but the values {reduction}"
    hint = "take the softmax over the key axis: dim=-1 for scores of shape (…, Lq, Lk)"
    evidence = "changed the weights at one index at a time before the product with the values"
    at = core.softmax.ref
    made = module_definition(subject, at) or number_definition(subject, at)
    return Violation("AS301", message, at, hint, evidence, made=made)


def _was_normalised_over_keys(subject: Subject, core: Core) -> bool:
    """Return whether scores, or their exponentials, sum to one over the keys at some call before the softmax.

    Sinkhorn's iteration normalises rows and columns by turns (Tay et al. 2020, https://arxiv.org/abs/2002.11296).
    """
    return any(
        value.shape == core.weights.shape and sum_to_one(numbers, core.key_axes) is True
        for event in between(subject.graph, core.scores.ref, core.softmax.sources)
        for value in event.values
        if value.is_floating_point()
        for numbers in (value, value.exp())
    )


def _axis_in_value_product(measured: MeasuredCore, axis: int) -> int | None:
    """Return the axis of the weights in the value product that corresponds to an axis of the softmax."""
    core, mapping = measured.core, measured.weights_map
    weights = core.softmax.event.values[0]
    if mapping is not None and mapping.elementwise:
        return axis_after(mapping, tuple(weights.shape), axis)
    return axis if weights.ndim == core.weights.ndim else None


def _check_rows(subject: Subject, measured: MeasuredCore) -> Outcome | None:
    """Return why rows of weights don't sum to one in the value product; None if no reason was found."""
    core, mapping = measured.core, measured.weights_map
    chain = _after_softmax(subject, core)
    dropout = any(event.name in ops.DROPOUTS for event in chain)
    if core.softmax.deferred or sum_to_one(core.weights, core.key_axes) is not False:
        return None
    if not core.softmax.axes and core.softmax.event.name not in ops.SOFTMAXES:
        if any(_has_one_more_score(subject, core, axis) for axis in range(core.softmax.scores.ndim)):
            return Observation("each row of weights has one more score, which no key has", core.softmax.ref)
        message = "rows of weights don't sum to one over any axis"
        return _violation("AS302", message, core.softmax.ref, "divide by the sum over the keys")
    if core.softmax.event.name in ops.LOG_SOFTMAXES:
        return _violation("AS302", "the weights are logarithms, from log_softmax", core.softmax.ref, "use softmax")
    sums = distinct((row_sums(core.weights, core.key_axes) * 1e6).round() / 1e6)
    if len(sums) == 1 and sums[0] >= _TWO_SOFTMAXES and not dropout and not _sums_over_others(subject, core, sums[0]):
        at = chain[-1].refs[0] if chain and len(core.key_axes) == 1 else core.softmax.ref
        hint = "take one softmax over all keys together"
        return _violation("AS302", f"rows of weights sum to {sums[0]:.4g}", at, hint)
    if mapping is None or not mapping.elementwise:
        return Undecided("rows of weights", "the code between the softmax and the values mixes weights")
    combined = _is_combined(subject, core)
    if bool((mapping.added != 0).any()):
        return None if combined else _late_addition(subject, measured, chain)
    factors = distinct(mapping.factor[torch.isfinite(mapping.factor)])
    if len(factors) == 2 and factors[0] == 0:
        return _late_mask(subject, core, chain) if factors[1] == 1 else None
    if len(factors) == 1 and factors[0] != 1 and not dropout and not combined:
        at = _first_call(chain, ops.SCALINGS, core)
        event = subject.base.event(at)
        if len(event.operand_values) == 1 or min(value.numel() for value in event.operand_values) == 1:
            message = f"rows of weights sum to {factors[0]:.4g}: they are multiplied after the softmax"
            return _violation("AS302", message, at, "scale the scores before the softmax")
    if factors and factors[0] == 0:
        return _late_mask(subject, core, chain) if not dropout else None
    return None


def _check_infinite(subject: Subject, core: Core) -> Violation | None:
    """Return a violation if finite weights become minus infinity before the product with the values."""
    if not bool(torch.isfinite(core.softmax.event.values[0]).all()):
        return None
    at = next(
        (event.refs[0] for event in _after_softmax(subject, core) if bool(event.values[0].isneginf().any())), None
    )
    if at is None:
        return None
    message = "the mask is applied after the softmax: weights of hidden keys become minus infinity, and results NaN"
    return Violation(
        "AS303", message, at, _MASK_HINT, "read the weights between the softmax and the values", "measured"
    )


def _check_mean(subject: Subject, core: Core) -> Violation | None:
    """Return a violation if every row of weights sums to the number of keys: it is divided by its mean.

    A factor after the softmax that makes such sums is measured, and reported, by itself.
    """
    chain = _after_softmax(subject, core)
    divisions = [event for event in chain if event.name in ops.SCALINGS and _is_by_its_own(subject, core, event)]
    count = math.prod(core.weights.shape[axis] for axis in core.key_axes)
    sums = row_sums(core.weights, core.key_axes)
    sums = sums[sums != 0]
    is_count = bool(torch.isclose(sums, torch.full_like(sums, count), rtol=1e-4).all())
    if not divisions or count == 1 or not sums.numel() or not is_count or any(map(drops, chain)):
        return None
    message = f"each row of weights sums to {count}, the number of its keys: it is divided by its mean"
    hint = "divide by the sum over the keys: weights / weights.sum(dim=-1, keepdim=True)"
    evidence = "summed the weights over the keys just before the product with the values"
    return Violation("AS302", message, divisions[-1].refs[0], hint, evidence)


def _is_by_its_own(subject: Subject, core: Core, event: ReplayedCall) -> bool:
    """Return whether a call multiplies or divides weights by what is computed from them."""
    downstream = subject.graph.downstream_of(core.softmax.ref)
    return len(event.sources) == 2 and all(not downstream.isdisjoint(sources) for sources in event.sources)


def _sums_over_others(subject: Subject, core: Core, total: float) -> bool:
    """Return whether the values' product also sums over heads, batch elements or queries, as a pooling does."""
    if len(core.key_axes) == 1:
        return False
    ones = torch.ones_like(core.value.operand(core.values_place))
    number = common_number([core.value.with_operands({core.values_place: ones})])
    return number != total or any(number % size == 0 for size in counted_sizes(subject))


def _is_combined(subject: Subject, core: Core) -> bool:
    """Return whether the values' product reads these weights together with those of another, independent softmax.

    Their coefficients are the mechanism's own, as those of a difference, whose rows needn't sum to one.
    """
    place = (core.value.first.order, core.weights_place)
    return any(
        (other.value.first.order, other.weights_place) == place
        and other.softmax.ref not in subject.graph.downstream_of(core.softmax.ref)
        and core.softmax.ref not in subject.graph.downstream_of(other.softmax.ref)
        for other in subject.cores
        if other is not core
    )


def _check_selection(subject: Subject, core: Core) -> Outcome | None:
    """Return a violation if only some weights of each row are kept, chosen by their values, and not renormalised."""
    chain = _after_softmax(subject, core)
    removing = [event for event in chain if event.name in _MASKS | ops.MULTIPLICATIONS]
    selecting = [event for event in removing if _is_chosen_by_data(subject, event)]
    if any(event.name in ops.SORTS for event in chain):
        selecting = removing or chain
    kept = core.weights[core.weights != 0]
    if not selecting or not kept.numel() or sum_to_one(core.weights, core.key_axes) is not False:
        return None
    if not bool(torch.isin(kept, core.softmax.event.values[0]).all()):
        return None
    if bool(((core.weights != 0).sum(core.key_axes) <= 1).all()):
        # divided by its sum it would be the constant one, through which its scores get no gradient
        return Undecided("rows of weights", "one weight of each row is kept, which may be a gate")
    sums = row_sums(core.weights, core.key_axes)
    message = f"rows of weights sum to {sums.min():.4g} to {sums.max():.4g}: only some are kept after the softmax"
    hint = "divide the weights that are kept by their sum, or select before the softmax"
    return _violation("AS302", message, selecting[0].refs[0], hint)


def _is_chosen_by_data(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call masks weights by a pattern that depends on the data."""
    operands = zip(event.operand_values, event.sources, strict=True)
    return any(value.dtype == torch.bool and subject.graph.carries_data(sources) for value, sources in operands)


def _has_one_more_score(subject: Subject, core: Core, axis: int) -> bool:
    """Return whether weights are those of a softmax over an axis with one more score, such as softmax plus one.

    That score is the same in all rows of a head: the softmax's denominator has the summand exp(score).
    """
    scores, weights = core.softmax.scores.double() * core.softmax.base, core.softmax.event.values[0].double()
    sums = weights.sum(axis)
    if scores.shape != weights.shape or weights.shape[axis] == 1 or not bool(((sums > 0) & (sums < 1)).all()):
        return False
    more = (1 / sums - 1).log() + scores.logsumexp(axis)
    return len(distinct((more * 1e4).round())) <= max(1, subject.numbers.get("H", 1))


def _late_addition(subject: Subject, measured: MeasuredCore, chain: list[ReplayedCall]) -> Outcome:
    core, mapping = measured.core, measured.weights_map
    assert mapping is not None
    added, factors = mapping.added[torch.isfinite(mapping.added)], mapping.factor[mapping.known]
    at = _first_call(chain, ops.ADDITIONS | ops.SUBTRACTIONS | _MASKS, core)
    if subject.base.event(at).name in _MASKS or not added.numel() or float(added.min()) < -1e3:
        message = "the mask is applied after the softmax: rows of weights don't sum to one"
        return _violation("AS303", message, at, _MASK_HINT)
    claimed = subject.claims.alibi or not {"bias", "relative-bias"}.isdisjoint(subject.claims.arguments.values())
    dropout = any(event.name in ops.DROPOUTS for event in chain)
    scaled = not torch.isclose(factors, torch.ones_like(factors), rtol=1e-4).all()
    if scaled and not dropout and not claimed:
        # terms with coefficients of their own are mixed on purpose
        return Observation("the weights are multiplied and added to another term after the softmax", at)
    hint = "add it to the scores before the softmax"
    message = "the bias is added after the softmax: rows of weights don't sum to one"
    return _violation("AS304", message, at, hint)


def _late_mask(subject: Subject, core: Core, chain: list[ReplayedCall]) -> Violation | None:
    claims = subject.claims.arguments
    at = _first_call(chain, ops.SCALINGS | _MASKS, core)
    origins = subject.graph.origins(tuple(subject.base.event(at).producers))
    if any(claims.get(name) == "dropout" for name in origins):
        return None
    message = "the mask is applied after the softmax: rows of weights sum to less than one"
    return _violation("AS303", message, at, _MASK_HINT)


def _first_call(chain: list[ReplayedCall], names: frozenset[str], core: Core) -> OutputRef:
    return next((event.refs[0] for event in chain if event.name in names), core.softmax.ref)


_violation = partial(
    Violation, evidence="replaced the softmax's weights by 0 and 1, and read them at the product with the values"
)


def _applied_twice(subject: Subject, core: Core) -> Iterator[Violation]:
    """Yield a violation for a softmax of weights, and for a dropout of weights that were dropped already."""
    weights = [core.softmax.event, *_after_softmax(subject, core)]
    before: dict[str, ReplayedCall] = {}
    for event in weights:
        kind = "softmax" if event.name in ops.SOFTMAXES else "dropout" if drops(event) else ""
        if kind in before:
            message = f"the weights go through {kind} twice"
            hint = f"leave out one {kind}"
            if kind == "softmax":
                message += ": numbers between 0 and 1 become nearly equal weights"
            evidence = f"found two calls of {kind} between the product and the values"
            yield Violation("AS307", message, event.refs[0], hint, evidence)
            return
        if kind:
            before[kind] = event
        elif event.name not in ops.SAME_VALUES:
            before.clear()


def _dropout_before(subject: Subject, core: Core) -> Iterator[Violation]:
    """Yield a violation for each dropout before the softmax, including dropout masks that are arguments."""
    for event in between(subject.graph, core.scores.ref, core.softmax.sources):
        patterns = {name for name, meaning in subject.claims.arguments.items() if meaning == "dropout"}
        if drops(event) or event.producers & patterns:
            message = "dropout comes before the softmax: a dropped score becomes 0, and its key still gets weight"
            hint = "apply dropout to the weights, after the softmax"
            evidence = "found the dropout between the product and the softmax"
            yield Violation("AS305", message, event.refs[0], hint, evidence)
