"""Does each parameter that is read change the result, and get a gradient? Do the inputs of attention get one?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn

from attnshape.checks.attention.choices import choosing_call, hard_gates, is_gated_by_choice
from attnshape.checks.attention.dead_ends import DeadEnd, dead_ends, holds_attention, live_results
from attnshape.checks.attention.definitions import attribute_definition
from attnshape.checks.attention.operands import by_attention, projection
from attnshape.checks.attention.perturbation import PerturbationDiff, other_numbers, others_where
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.interventions.uses import Gradients, gradients, kept_results
from attnshape.checks.rules.parameters.attended_inputs import cut_attentions
from attnshape.checks.rules.parameters.listing import listed
from attnshape.checks.rules.parameters.selected_twice import check_selected_twice
from attnshape.checks.rules.parameters.siblings import used_in_place_of
from attnshape.checks.rules.parameters.zero_starts import check_zero_starts
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.inference.dataflow import numbers_read, reads_numbers
from attnshape.model.formatting import join_words, pluralize
from attnshape.model.report import Level
from attnshape.tracing.operations import (
    CONVOLUTIONS,
    CUTS_GRADIENTS,
    DATA_MOVEMENT,
    DIAGONALS,
    ELEMENT_WRITES,
    GATHERS,
    LOWER_BOUNDS,
    MULTIPLICATIONS,
    NORMS,
    PRODUCTS,
    PRODUCTS_WITH_ADDEND,
    RESHAPES,
    SAME_VALUES,
    SCALINGS,
    SELECTIONS,
    SPLITS,
    TRANSPOSES,
)
from attnshape.tracing.raw import SourceLocation

_LOSING = SELECTIONS | SPLITS | ELEMENT_WRITES | MULTIPLICATIONS
_MULTIPLYING = PRODUCTS | CONVOLUTIONS | SCALINGS
_OF_LAYERS = PRODUCTS | CONVOLUTIONS | NORMS | GATHERS
_WITH_DIAGONALS = PRODUCTS | MULTIPLICATIONS | DIAGONALS
_NO_STEP = 1e-9
"""The largest difference of two numbers of keys that is rounding."""
_MOST_NUMBERS = 4
"""How many parameters that no call reads are changed one by one."""
_LET_THROUGH = "leave out detach, .data, no_grad and casts to integers on this path"
CODES: tuple[str, ...] = ("AS807", "AS808", "AS811")
TOPIC = "parameters"


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for parameters without effect, whole or in part, and for those that autograd doesn't reach."""
    values = {name: value for name, value in subject.parameters.items() if value.numel() and value.is_floating_point()}
    cut = list(cut_attentions(subject))
    yield from cut
    selected = list(check_selected_twice(subject))
    yield from selected
    weights = _given_weights(subject)
    if not values and not weights:
        return
    live = live_results(subject)
    read = [name for name in values if any(map(reads_numbers, _readers(subject, name)))]
    dead = {name for name in read if name not in live}
    gradient = subject.gradients
    found = [*_dead(subject, dead, values), *_never_read(subject, values, gradient), *_unregistered(subject)]
    alive = [name for name in read if name in live]
    found += [*_cut(subject, alive, gradient, values), *_cut_parts(subject, alive, gradient)]
    parts = [*_unused_parts(subject, alive, gradient), *_diagonals(subject, alive, gradient)]
    given = [name for name in weights if name in live]
    found += [*parts, *_cancelled(subject, [*alive, *given], gradient)]
    still = _without_slope(subject, alive, gradient)
    found += _saturated(subject, alive, gradient)
    if not any(violation.code == "AS808" for violation in found):  # else what is cut off may be what keeps them there
        found += check_zero_starts(subject, [name for name in alive if name not in still])
    yield from found
    if gradient.failure:
        yield Undecided("the gradients of parameters", f"the run with autograd fails: {gradient.failure}")
    elif not dead and not parts and not any(violation.level == "error" for violation in [*cut, *selected, *found]):
        yield from _verified(subject, alive, gradient)


def _given_weights(subject: Subject) -> list[str]:
    """Return the arguments that are parameters, as functions get them: matrices by which products multiply data."""
    found = []
    for name, value in subject.inputs.items():
        products = (event for event in _readers(subject, name) if event.name in PRODUCTS)
        others = (sources for event in products for sources in event.sources if name not in sources)
        is_matrix = value.is_floating_point() and value.ndim > 1 and subject.batch_size not in value.shape
        if is_matrix and any(subject.graph.carries_data(sources) for sources in others):
            found.append(name)
    return found


def _readers(subject: Subject, name: str) -> list[ReplayedCall]:
    return [event for event, _ in subject.graph.consumers.get(name, ())]


def _dead(subject: Subject, dead: set[str], values: Mapping[str, Tensor]) -> Iterator[Violation]:
    """Yield the parameters that calls read and on which no result depends, by the statement that drops the result."""
    left = set(dead)
    for end in reversed(dead_ends(subject)):
        names = sorted(left & subject.graph.origins((end.ref,)))
        left -= set(names)
        if not names or end.fate == "discarded":  # the statement has a finding of its own
            continue
        if not _changed(subject, names).has_no_effect:
            continue
        message = f"{listed(names, values)} no effect on the result{_fate(end)}"
        hint = f"use {end.variable or 'its result'}, or remove what computes it"
        evidence = "no result depends on it: changed it, and no result changes"
        may_be_meant = end.fate == "ignored" and not holds_attention(subject, end)
        level: Level = "notice" if end.is_leftover or may_be_meant else "error"
        yield Violation("AS807", message, end.ref, hint, evidence, place=end.place, level=level)


def _fate(end: DeadEnd) -> str:
    if end.fate == "ignored" or end.is_leftover:
        return ""
    what = "what it computes" if end.variable.startswith("_") else end.variable
    return f": {what} is {'never read' if end.fate == 'unread' else 'bound again before it is read'}"


def _changed(subject: Subject, names: Iterable[str]) -> PerturbationDiff:
    return subject.perturb(Intervention(parameters=dict.fromkeys(names, other_numbers)))


def _never_read(subject: Subject, values: Mapping[str, Tensor], gradient: Gradients) -> Iterator[Violation]:
    """Yield the parameters that no call reads: an error where the sibling is used twice, or Python reads it."""
    unread = [name for name in values if not _readers(subject, name) and not _may_be_read_between_calls(subject, name)]
    replaced = list(used_in_place_of(subject, unread, values, partial(_readers, subject)))
    if replaced:
        yield from replaced
        return
    moved = _changed(subject, unread) if unread else None
    if moved is not None and moved.comparable and not moved.has_no_effect:
        yield from _read_by_python(subject, [name for name in unread if gradient.by_name.get(name, 0) is None])
    elif moved is not None and moved.has_no_effect:
        message = (
            f"{listed(unread, values)} no effect on the result: nothing reads {'it' if len(unread) == 1 else 'them'}"
        )
        hint = "use it, or remove it if this is no option of the model"
        yield Violation("AS807", message, None, hint, "no call reads it", level="notice")


def _may_be_read_between_calls(subject: Subject, name: str) -> bool:
    """Return whether a parameter is of a module with a `train` of its own, which may compute something from it."""
    path = name.removeprefix("self.").split(".")[:-1]
    owners = [".".join(path[:length]) for length in range(len(path) + 1)]
    classes = subject.experiment.structure.classes
    return any(classes[owner].train is not nn.Module.train for owner in owners if owner in classes)


def _read_by_python(subject: Subject, names: Sequence[str]) -> Iterator[Violation]:
    """Yield a violation if Python reads the number of a trainable parameter, by `item`, `float` or `int`."""
    for name in names[:_MOST_NUMBERS]:
        moved = _changed(subject, [name])
        if moved.comparable and not moved.has_no_effect:
            message = f"{name} has an effect on the result but no gradient: Python reads its number"
            hint = "compute with the tensor instead of item(), float() or int(), or freeze it by requires_grad_(False)"
            yield Violation("AS808", message, None, hint, "ran it with autograd, and changed the parameter")


def _unregistered(subject: Subject) -> Iterator[Violation]:
    """Yield a violation if calls read parameters that no module has registered, such as those of layers in a list."""
    readers = [
        event
        for event in subject.base.events
        for operand, sources in zip(event.operands, event.sources, strict=True)
        if isinstance(operand, nn.Parameter) and sources[0] == "constant" and event.name in _OF_LAYERS
    ]
    if readers and subject.experiment.parameters:
        number = len(
            {id(operand) for event in readers for operand in event.operands if isinstance(operand, nn.Parameter)}
        )
        message = f"{pluralize(number, 'parameter')} of layers, such as this one's, belong to no registered module"
        hint = "keep layers in nn.ModuleList or nn.ModuleDict, and parameters in attributes or nn.ParameterList"
        evidence = "compared what calls read with the module's named parameters"
        made = [attribute_definition(*container) for container in subject.experiment.structure.plain_containers[:1]]
        yield Violation("AS811", message, readers[0].refs[0], hint, evidence, "measured", made=next(iter(made), None))


def _cut(
    subject: Subject, alive: Sequence[str], gradient: Gradients, values: Mapping[str, Tensor]
) -> Iterator[Violation]:
    """Yield the parameters that change the result and get no gradient, by the call after which there is none."""
    groups: dict[OutputRef | None, list[str]] = {}
    choosing: dict[OutputRef, list[str]] = {}
    for name in alive:
        if gradient.by_name.get(name, 0) is None:
            if (choice := choosing_call(subject, name)) is not None:
                choosing.setdefault(choice.refs[0], []).append(name)
            else:
                groups.setdefault(_first_without_gradient(subject, name, gradient), []).append(name)
    yield from _only_choosing(subject, choosing, values)
    for ref, names in groups.items():
        moved = _changed(subject, names)
        if not moved.comparable or moved.has_no_effect or _train_in_training(subject, names):
            continue
        by = f": {_why(subject.base.event(ref))}" if ref is not None else ""
        message = f"{listed(names, values)} an effect on the result but no gradient{by}"
        hint = f"{_LET_THROUGH}, or freeze it by requires_grad_(False)"
        at = ref if ref is not None else _readers(subject, names[0])[0].refs[0]
        yield Violation("AS808", message, at, hint, "ran it with autograd, and changed the parameter")


def _saturated(subject: Subject, alive: Sequence[str], gradient: Gradients) -> Iterator[Violation]:
    """Yield the parameters all of whose numbers lie beyond a bound at the start, so that none gets a gradient."""
    for event in subject.base.events:
        if event.name not in LOWER_BOUNDS or len(event.operand_values) != 1 or event.unusual is not None:
            continue
        before, after = event.operand_values[0], event.values[0]
        names = sorted(subject.graph.origins(event.sources[0]) & set(alive))
        slopes = [gradient.by_name.get(name) for name in names]
        is_cut = bool(names) and all(slope is not None and not bool(slope.any()) for slope in slopes)
        is_bound = bool((after == after.flatten()[0]).all()) and bool((after != before).all())
        if is_cut and is_bound and not subject.graph.carries_data(event.sources[0]):
            message = (
                f"{join_words(names)} {'gets' if len(names) == 1 else 'get'} no gradient: every number that this call "
                f"bounds starts beyond the bound, {float(after.flatten()[0]):.4g}"
            )
            hint = "bound it where its numbers are at the start, such as a logarithm before exp"
            yield Violation("AS808", message, event.refs[0], hint, "compared the numbers before and after the bound")


def _train_in_training(subject: Subject, names: Sequence[str]) -> bool:
    """Return whether parameters get a gradient in training mode, as those that evaluation folds into others."""
    if subject.experiment.training:
        return False
    found = gradients(subject.experiment.in_training(), ())
    return all((slope := found.by_name.get(name)) is not None and bool(slope.any()) for name in names)


def _cut_parts(subject: Subject, alive: Sequence[str], gradient: Gradients) -> Iterator[Violation]:
    """Yield the outputs of projections that change the result and get no gradient, by the call that cuts them off.

    A projection of queries, keys and values together gets a gradient through any of them.
    """
    if gradient.calls != len(subject.base.events) or not _has_cut(subject):
        return
    found: dict[tuple[OutputRef, Fraction], list[str]] = {}
    for name in alive:
        slopes = gradient.by_name.get(name)
        if slopes is None or slopes.ndim == 0 or not bool(torch.isfinite(slopes).all()):
            continue
        for axis in range(min(slopes.ndim, 2)):
            zero = (slopes == 0).movedim(axis, 0).reshape(slopes.shape[axis], -1).all(1)
            if not bool(zero.any()) or bool(zero.all()):
                continue
            part = zero.reshape([-1 if one == axis else 1 for one in range(slopes.ndim)])
            moved = subject.perturb(Intervention(parameters={name: others_where(part)}))
            cut = _cutting_call(subject, moved, name) if moved.comparable and not moved.has_no_effect else None
            if cut is not None:
                found.setdefault((cut.refs[0], Fraction(int(zero.sum()), len(zero))), []).append(name)
    for (at, share), names in found.items():
        features = f"{share} of the features that {join_words(names)} {'computes' if len(names) == 1 else 'compute'}"
        message = f"{features} have an effect on the result but no gradient: {_why(subject.base.event(at))}"
        evidence = f"ran it with autograd, and changed this part of {names[0]}"
        yield Violation("AS808", message, at, _LET_THROUGH, evidence)


def _has_cut(subject: Subject) -> bool:
    """Return whether some call reads what has a graph, or a parameter, and returns numbers without one."""
    with_graph: set[Producer] = {*subject.gradients.differentiable, *subject.base.state}
    return any(
        value.is_floating_point() and ref not in with_graph
        for event in subject.base.events
        if not with_graph.isdisjoint(event.producers)
        for ref, value in zip(event.refs, event.values, strict=True)
    )


def _cutting_call(subject: Subject, moved: PerturbationDiff, name: str) -> ReplayedCall | None:
    """Return the first call that returns a tensor without a graph on the way of a change; None if another way has one.

    Features that a call happens to set to zero, as relu does, get no gradient either. What is only chosen by numbers
    never gets one, and a loss of its own may train what an attribute holds.
    """
    differentiable = subject.gradients.differentiable
    reached: set[Producer] = {name}
    cuts: list[ReplayedCall] = []
    for event in moved.base.events:
        changed = [ref for ref in event.refs if moved.any(ref)]
        if not changed or not any(reached.intersection(producers) for producers in numbers_read(event)):
            continue
        if differentiable.isdisjoint(changed):
            cuts.append(event)
        reached.update(differentiable.intersection(changed))
    if not cuts or not all(event.values[0].is_floating_point() for event in cuts):
        return None
    return None if reached & kept_results(subject.experiment) else cuts[0]


def _only_choosing(
    subject: Subject, choosing: Mapping[OutputRef, list[str]], values: Mapping[str, Tensor]
) -> Iterator[Violation]:
    """Yield the parameters that decide only which indices are chosen, by the call that chooses.

    These may be meant, unless the choice gates what attention returns.
    """
    for ref, names in choosing.items():
        moved = _changed(subject, names)
        if moved.comparable and moved.has_no_effect:
            continue
        choice = subject.base.event(ref)
        message = (
            f"{listed(names, values)} an effect on the result only through what {choice.short_name} chooses, "
            "and no gradient"
        )
        evidence = "ran it with autograd, and changed the parameter"
        if (gates := hard_gates(subject, choice, names)) is not None:
            message += ": what attention returns is chosen by scores, and not multiplied by them"
            yield Violation("AS808", message, gates, "multiply what is chosen by its score", evidence)
        else:
            hint = "train it by a loss of its own, or multiply what is chosen by its score"
            yield Violation("AS808", message, ref, hint, evidence, level="notice")


def _why(event: ReplayedCall) -> str:
    stops = event.name in CUTS_GRADIENTS or not event.values[0].is_floating_point()
    return f"{event.short_name} stops it" if stops else f"{event.short_name} runs without autograd"


def _first_without_gradient(subject: Subject, name: str, gradient: Gradients) -> OutputRef | None:
    """Return the first call on the way from a parameter to the result that returns a tensor without a graph."""
    live = live_results(subject)
    reached: set[Producer] = {name}
    for event in subject.base.events:
        if reached & event.producers and reads_numbers(event) and any(ref in live for ref in event.refs):
            if not any(ref in gradient.differentiable for ref in event.refs):
                return event.refs[0]
            reached.update(event.refs)
    return None


def _unused_parts(subject: Subject, alive: Sequence[str], gradient: Gradients) -> Iterator[Violation]:
    """Yield the blocks of projections' outputs that are computed, and then not selected, or replaced."""
    found: dict[tuple[OutputRef, Fraction, str, Level], tuple[list[str], SourceLocation | None]] = {}
    for name in alive:
        slopes = gradient.by_name.get(name)
        product = _product_of(subject, name) or _product_of_part(subject, name)
        if slopes is None or slopes.ndim != 2 or product is None or not bool(torch.isfinite(slopes).all()):
            continue
        for axis in (0, 1):
            zero = (slopes == 0).all(1 - axis)
            if not bool(zero.any()) or bool(zero.all()) or not _are_blocks(zero):
                continue
            moved = subject.perturb(Intervention(parameters={name: others_where(zero.unsqueeze(1 - axis))}))
            losing = _calls_that_lose(moved, name) if moved.has_no_effect else None
            if any(is_gated_by_choice(subject, event) for event in losing or ()):
                continue
            end = next((end for end in dead_ends(subject) if moved.any(end.ref)), None) if losing is not None else None
            wrong = bool(losing) or (end is not None and _is_passed_over(subject, product))
            if losing is None or not (wrong or _is_left_over(end)):
                continue
            at, why, place = _loss(end, losing, product)
            share = Fraction(int(zero.sum()), len(zero))
            level: Level = "error" if wrong else "notice"
            found.setdefault((at, share, why, level), ([], place))[0].append(name)
    for (at, share, why, level), (names, place) in found.items():
        computes, has = ("computes", "has") if len(names) == 1 else ("compute", "have")
        message = f"{share} of the features that {join_words(names)} {computes} {has} no effect on the result{why}"
        hint = "use each feature once, or make the projection smaller"
        evidence = f"changed this part of {names[0]}"
        yield Violation("AS807", message, at, hint, evidence, place=place, level=level)


def _diagonals(subject: Subject, alive: Sequence[str], gradient: Gradients) -> Iterator[Violation]:
    """Yield the square matrices of which only the diagonal has an effect, by the product that reads them."""
    for name in alive:
        slopes = gradient.by_name.get(name)
        product = _product_of(subject, name)
        if slopes is None or product is None or slopes.ndim != 2 or len(set(slopes.shape)) > 1 or len(slopes) < 2:
            continue
        outside = ~torch.eye(len(slopes), dtype=torch.bool)
        if bool((slopes[outside] != 0).any()) or not bool((slopes != 0).any()):
            continue
        moved = subject.perturb(Intervention(parameters={name: others_where(outside)}))
        if moved.has_no_effect:
            message = f"only the diagonal of {name} has an effect: features are scaled, and never mixed"
            hint = f"give the two axes of {name} letters of their own, so that the product sums over one of them"
            evidence = f"changed {name} outside of its diagonal, and no result changes"
            yield Violation("AS807", message, product.refs[0], hint, evidence)


def _cancelled(subject: Subject, alive: Sequence[str], gradient: Gradients) -> Iterator[Violation]:
    """Yield the parameters that multiply data without any effect, by the call in which what they change cancels out.

    A bias of keys has no effect either, and is right: it adds the same to all scores of a row.
    """
    groups: dict[OutputRef, list[str]] = {}
    # NaN stays NaN, whatever is changed
    for name in _without_slope(subject, alive, gradient) if gradient.results_are_finite else ():
        reads = _readers_through(SAME_VALUES | GATHERS, subject, name)
        if not any(event.name in _MULTIPLYING and not _is_only_added(event, source) for event, source in reads):
            continue
        moved = _changed(subject, [name])
        is_in_vain = moved.has_no_effect and not _moves_keys_alike(subject, moved)
        end = _last_loss(moved, name) if is_in_vain else None
        if end is not None:
            groups.setdefault(end, []).append(name)
    for end, names in groups.items():
        has, contribute = ("has", "it contributes") if len(names) == 1 else ("have", "they contribute")
        message = f"{join_words(names)} {has} no effect on the result: this call cancels what {contribute}"
        hint = f"look at what this call reads: both sides of it depend on {names[0]} in the same way"
        # a context of one token, such as the embedding of an image, may have more elsewhere
        of_one_key = any(core.softmax.ref == end and core.weights.shape[-1] == 1 for core in subject.cores)
        level: Level = "notice" if of_one_key else "error"
        yield Violation("AS807", message, end, hint, f"changed {names[0]}, and no result changes", level=level)


def _is_only_added(event: ReplayedCall, source: Producer) -> bool:
    """Return whether a product reads a parameter, or a part of it, as what it adds, as `linear` does its bias."""
    places = [place for place, sources in enumerate(event.sources) if source in sources]
    added = 0 if event.name in PRODUCTS_WITH_ADDEND else 2
    return places == [added] and event.name in PRODUCTS_WITH_ADDEND | CONVOLUTIONS | {"linear"}


def _moves_keys_alike(subject: Subject, moved: PerturbationDiff) -> bool:
    """Return whether all that moves in attention are keys, and all of them by the same vector."""
    has_moved = False
    for query, key, value in by_attention(subject):
        steps = [operand.of(moved.changed) - operand.value for operand in (query, key, value)]
        of_query, of_keys, of_value = (bool((step.abs() > _NO_STEP).any()) for step in steps)
        axes = [axis for axis in range(key.value.ndim) if axis not in key.contracted and key.value.shape[axis] > 1]
        alike = any(bool((steps[1].diff(dim=axis).abs() <= _NO_STEP).all()) for axis in axes)
        if of_query or of_value or (of_keys and not alike):
            return False
        has_moved = has_moved or of_keys
    return has_moved


def _last_loss(moved: PerturbationDiff, name: str) -> OutputRef | None:
    """Return the last result that doesn't differ although what its call computes with does; None if nothing differs."""
    changed: set[Producer] = {name}
    lost = None
    for event in moved.base.events:
        if any(changed.intersection(producers) for producers in numbers_read(event)):
            reached = [ref for ref in event.refs if moved.any(ref)]
            changed.update(reached)
            if not reached and event.name not in DATA_MOVEMENT:
                lost = event.refs[0]
    return lost if len(changed) > 1 else None


def _is_left_over(end: DeadEnd | None) -> bool:
    """Return whether features are selected together with others, and then never read, and not bound to `_`."""
    return end is not None and (end.is_leftover or end.fate == "ignored") and not end.variable.startswith("_")


def _is_passed_over(subject: Subject, product: ReplayedCall) -> bool:
    """Return whether an attention takes its keys from a projection, and as its values what the projection reads."""
    for _, key, value in by_attention(subject):
        if projection(subject, key.sources) != OutputRef(product.order):
            continue
        data = {producer for sources in product.sources if subject.graph.carries_data(sources) for producer in sources}
        for event in subject.base.events[: value.event.order - 1]:
            if event.name in DATA_MOVEMENT and event.producers & data:
                data.update(event.refs)
        if not data.isdisjoint(value.sources):
            return True
    return False


def _loss(
    end: DeadEnd | None, losing: Sequence[ReplayedCall], product: ReplayedCall
) -> tuple[OutputRef, str, SourceLocation | None]:
    """Return where features are lost, how, as the end of a message, and the place to name instead."""
    if end is not None:
        return end.ref, _fate(end), end.place
    replacing = [event for event in losing if event.name not in SELECTIONS | SPLITS]
    if replacing:
        return replacing[-1].refs[0], f": {replacing[-1].short_name} replaces them", None
    return (_overlapping(losing) or product).refs[0], ": nothing selects them", None


def _product_of(subject: Subject, name: str) -> ReplayedCall | None:
    """Return the first call that multiplies a parameter, transposed or not, or takes its diagonal."""
    reads = _readers_through(TRANSPOSES, subject, name)
    return next((event for event, _ in reads if event.name in _WITH_DIAGONALS), None)


def _product_of_part(subject: Subject, name: str) -> ReplayedCall | None:
    """Return the first product of a part of a linear layer's weight, of which several products may have parts."""
    path, _, attribute = name.removeprefix("self.").rpartition(".")
    owner = subject.experiment.structure.classes.get(path)
    if attribute != "weight" or owner is None or not issubclass(owner, nn.Linear):
        return None
    reads = _readers_through(TRANSPOSES | RESHAPES | SELECTIONS | SPLITS, subject, name)
    return next((event for event, _ in reads if event.name in PRODUCTS), None)


def _readers_through(names: Set[str], subject: Subject, name: str) -> Iterator[tuple[ReplayedCall, Producer]]:
    """Yield what reads a parameter, as it is or after calls of the given names, and which of these tensors it reads."""
    wanted: list[Producer] = [name]
    while wanted:
        source = wanted.pop()
        for event, _ in subject.graph.consumers.get(source, ()):
            yield event, source
            if event.name in names:
                wanted += event.refs


def _are_blocks(mask: Tensor) -> bool:
    """Return whether the true elements fill some of the blocks of one size of which the whole axis consists."""
    edges = (mask.int().diff().nonzero().flatten() + 1).tolist()
    return math.gcd(len(mask), *edges) > 1


def _calls_that_lose(moved: PerturbationDiff, name: str) -> list[ReplayedCall] | None:
    """Return the calls that select none of the changed numbers, or replace them; None if others lose them."""
    changed: set[Producer] = {name}
    losing = []
    for event in moved.base.events if moved.comparable else ():
        if not event.producers & changed:
            continue
        reached = [ref for ref in event.refs if moved.any(ref)]
        changed.update(reached)
        if not reached:
            losing.append(event)
    return losing if len(changed) > 1 and all(event.name in _LOSING for event in losing) else None


def _overlapping(selections: Sequence[ReplayedCall]) -> ReplayedCall | None:
    """Return the last selection that contains numbers of another one."""
    for place in reversed(range(len(selections))):
        values = selections[place].values[0]
        if any(bool(torch.isin(values, other.values[0]).any()) for other in selections[:place]):
            return selections[place]
    return None


def _without_slope(subject: Subject, alive: Sequence[str], gradient: Gradients) -> list[str]:
    """Return the parameters that get no gradient, or one that is zero but for rounding."""
    known_to = ((name, gradient.by_name.get(name)) for name in alive)
    sizes = {name: float(value.abs().max()) for name, value in known_to if value is not None}
    limit = 1e-9 * max(sizes.values(), default=0.0)
    # the gradients of all parameters may be rounding, which the results tell
    rounding = 1e-13 * _largest([value for _, value in subject.base.returned])
    values = {**subject.base.inputs, **subject.base.state}
    effects = {name: size * _largest([values[name]]) for name, size in sizes.items()}
    return [name for name in alive if not sizes.get(name, 0.0) > limit or effects[name] <= rounding]


def _largest(values: Iterable[Tensor]) -> float:
    """Return the largest magnitude of the finite numbers."""
    finite = (value[torch.isfinite(value)] for value in values if value.is_floating_point())
    return max((float(value.abs().max()) for value in finite if value.numel()), default=0.0)


def _verified(subject: Subject, alive: Sequence[str], gradient: Gradients) -> Iterator[Outcome]:
    """Yield what the gradients show: the result changes with every parameter whose gradient isn't zero."""
    others = _without_slope(subject, alive, gradient)
    known = [name for name in alive if name not in others]
    if known and not others:
        yield Verification("every parameter that is read gets a gradient, and changes the result")
    elif known and len(others) <= 3:
        read = f"every parameter that is read, except {join_words(others)},"
        yield Verification(f"{read} gets a gradient, and changes the result")
