"""Is each projection used once, rather than one twice and another one never?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Set

import torch
from torch import Tensor

from attnshape.checks.attention.dead_ends import dead_ends, live_results
from attnshape.checks.attention.definitions import attribute_definition
from attnshape.checks.attention.layers import format_layers
from attnshape.checks.attention.operands import AttentionOperand, by_attention, operands, parameter_of, projection
from attnshape.checks.attention.perturbation import others_at
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.parameters.siblings import is_copied
from attnshape.checks.rules.projections.draws import check_draws
from attnshape.checks.rules.projections.names import check_names
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.model.report import Level
from attnshape.tracing.operations import ADDITIONS, GATHERS, JOINS, PRODUCTS, SELECTIONS, SPLITS

CODES: tuple[str, ...] = ("AS805", "AS806", "AS810", "AS814", "AS817")
TOPIC = "projections"


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for a parameter that two products read while another is unused, also within fused projections."""
    yield from check_draws(subject)
    yield from check_names(subject)
    users = _users(subject)
    read = {name for name in subject.base.state if name in users or subject.graph.consumers.get(name)}
    unused = _unused(subject, read)
    for name, events in users.items():
        shape = subject.base.state[name].shape
        twin = next((other for other in unused if subject.base.state[other].shape == shape), None)
        if len(events) > 1 and twin is not None and _is_called_once(subject, events):
            yield _violation(f"{name} is used twice, and {twin} never", events[1].refs[0], f"nothing reads {twin}")
            return
    found = (
        _in_two_roles,
        _fused,
        _sliced,
        _part_in_two_roles,
        _part_in_two_attentions,
        _all_the_same,
        _projected_again,
    )
    violation = next(filter(None, (find(subject) for find in found)), None)
    if violation is not None:
        yield violation
    elif users:
        yield Verification("no projection is used in place of another")
    yield from _shared_by_heads(subject)
    yield from _shared_by_layers(subject)


def _is_called_again(subject: Subject) -> bool:
    """Return whether a module attends to what an attention in the same module and line gave before."""
    by_place: dict[object, list[OutputRef]] = {}
    for core in subject.attentions:
        step = subject.step(core.context)
        place = (subject.source(core.context), step.module if step is not None else None)
        by_place.setdefault(place, []).append(core.context)
    return any(
        later in subject.graph.downstream_of(earlier)
        for contexts in by_place.values()
        for earlier, later in itertools.pairwise(contexts)
    )


def _shared_by_layers(subject: Subject) -> Iterator[Outcome]:
    """Look for a module that a list of layers has several times."""
    claims = ("shared-layers",) if subject.claims.shared_layers else ()
    repeated = subject.experiment.structure.repeated_layers
    if claims and (repeated or _is_called_again(subject)):
        yield Verification("one module is several layers", claims)
    elif claims:
        message = "every layer is a module of its own, expected one module several times"
        evidence = "compared the modules of each list"
        yield Violation("AS810", message, None, "leave out --claim shared-layers", evidence, "measured", claims=claims)
    elif repeated:
        names, owner = repeated[0].paths, repeated[0].owner
        message = f"{format_layers(names)} are one and the same module, so they share their parameters"
        hint = "make one module for each layer, or if it is meant, claim it: --claim shared-layers"
        copied = _joins_copies(subject, f"{names[0]}.")
        if copied:
            message = f"{format_layers(names)} are one and the same module, and what they give is equal"
            hint = "make one module for each of them: nn.ModuleList(Head(...) for _ in range(n))"
        uses = (event for event in subject.base.events if _reads(event, f"{names[0]}."))
        at = next((event.refs[0] for event in uses), None)
        made = attribute_definition(owner, repeated[0].attribute) if owner is not None else None
        evidence = "compared the modules of each list"
        level: Level = "error" if copied else "notice"
        yield Violation("AS810", message, at, hint, evidence, "measured", made=made, level=level)


def _joins_copies(subject: Subject, prefix: str) -> bool:
    """Return whether a call joins or adds up equal results of several calls of one module.

    Layers one after the other may share their parameters on purpose, but two heads that see the same tokens are one.
    """
    made = subject.graph.downstream({name for name in subject.base.state if name.startswith(prefix)})
    for event in subject.base.events if made else ():
        if event.name not in JOINS | ADDITIONS or not subject.graph.carries_data(tuple(event.producers)):
            continue
        pairs = zip(event.operand_values, event.sources, strict=True)
        of_module = [(value, sources[-1]) for value, sources in pairs if sources and sources[-1] in made]
        for (one, source), (other, twin) in itertools.combinations(of_module, 2):
            varies = one.numel() > 1 and bool((one != one.flatten()[0]).any())
            if source != twin and varies and torch.equal(one, other):
                return True
    return False


def _reads(event: ReplayedCall, prefix: str) -> bool:
    return any(isinstance(source, str) and source.startswith(prefix) for source in event.producers)


def _shared_by_heads(subject: Subject) -> Iterator[Outcome]:
    """Look for a projection of a tensor that already has an axis of heads: its parameter serves every head."""
    claims = ("shared-projection",) if subject.claims.shared_projection else ()
    found: list[tuple[AttentionOperand, OutputRef]] = []
    own = False
    for operand in operands(subject):
        ref = projection(subject, operand.sources)
        weight = _weight(subject, ref) if ref is not None else None
        if ref is None or weight is None:
            continue
        shape = subject.base.value(ref).shape
        # a parameter with an axis of heads has a projection for each
        has_heads = subject.numbers.get("H", 0) > 1 and subject.numbers["H"] in shape[1:-1]
        is_of_one_head = shape[-1] in (operand.width, 2 * operand.width, 3 * operand.width)
        if is_of_one_head and has_heads and weight[1].ndim <= 2:
            found.append((operand, ref))
        else:
            own = True
    if found and not claims:
        operand, ref = found[0]
        roles = join_words(list(dict.fromkeys(operand.role for operand, _ in found)))
        message = f"one projection serves every head: heads are split before the projection of {roles}"
        hint = "project first and then split, or if it is meant, claim it: --claim shared-projection"
        evidence = "found the axis of heads in the input of the projection"
        yield Violation("AS806", message, ref, hint, evidence, "measured", level="notice")
    elif found and not own:
        yield Verification("one projection serves every head", claims)
    elif claims and own:
        message = "heads have projections of their own, expected one for all heads"
        at = next(ref for operand in operands(subject) if (ref := projection(subject, operand.sources)) is not None)
        hint = "leave out --claim shared-projection, or split the heads before the projection"
        yield Violation("AS806", message, at, hint, "found no axis of heads before the projection", claims=claims)


@once
def _users(subject: Subject) -> dict[str, list[ReplayedCall]]:
    """Return the products that read each parameter, as it is or through layout operations."""
    users: dict[str, list[ReplayedCall]] = {}
    for event in subject.base.events:
        for sources in event.sources if event.name in PRODUCTS else ():
            if (name := parameter_of(subject, sources)) is not None:
                users.setdefault(name, []).append(event)
    return users


def _unused(subject: Subject, read: Set[str]) -> list[str]:
    """Return the parameters with two axes or more that aren't read, in modules that are used."""
    return [
        name
        for name, value in subject.base.state.items()
        if value.ndim >= 2
        and name not in read
        and not is_copied(name, _users(subject), subject.base.state)
        and not _is_of_uncalled(name, read, subject)
    ]


def _is_of_uncalled(name: str, read: Set[str], subject: Subject) -> bool:
    """Return whether a parameter's projection is in a module with several like it, and none of the module is read.

    It isn't called, as cross-attention isn't where no context is given.
    """
    state = subject.base.state
    module = name.rpartition(".")[0].rpartition(".")[0]
    of_module = [other for other in state if other.startswith(f"{module}.")]
    alike = [other for other in of_module if state[other].shape == state[name].shape]
    return len(alike) > 1 and read.isdisjoint(of_module)


def _is_called_once(subject: Subject, events: list[ReplayedCall]) -> bool:
    """Return whether the uses are on different lines or of different inputs: a loop over layers is not a mistake."""
    lines = {subject.source(event.refs[0]) for event in events}
    return len(lines) > 1 or len({event.sources[0] for event in events}) > 1


def _in_two_roles(subject: Subject) -> Violation | None:
    """Find one projection that gives two of queries, keys and values, while another of its shape has no effect."""
    live = live_results(subject)
    unused = _unused(subject, {name for name in subject.base.state if name in live})
    for attention in by_attention(subject):
        for first, second in itertools.combinations(attention, 2):
            ref = projection(subject, second.sources)
            if ref is None or projection(subject, first.sources) != ref or not _equal(first.value, second.value):
                continue
            weight = _weight(subject, ref)
            shapes = [weight[1].shape] if weight is not None else _shapes_of_parts(subject, ref)
            alike = (other for other in unused if subject.base.state[other].shape in shapes)
            twin = next((other for other in alike if _reads_the_same(subject, other, ref)), None)
            if twin is not None:
                what = weight[0] if weight is not None else "one part of the joined weights"
                message = f"{what} projects {first.role} and {second.role} alike, and {twin} is never used"
                at = OutputRef(second.event.order) if weight is not None else ref
                return _violation(message, at, f"no result depends on {twin}")
    return None


def _shapes_of_parts(subject: Subject, ref: OutputRef) -> list[torch.Size]:
    """Return the shapes of the parameters of which a projection's weights are made, such as by `cat`."""
    names = {name for sources in subject.base.event(ref).sources for name in subject.graph.origins(sources)}
    return [subject.base.state[name].shape for name in sorted(names & subject.base.state.keys())]


def _reads_the_same(subject: Subject, name: str, ref: OutputRef | None) -> bool:
    """Return whether no product reads a parameter, or one that projects the same tensor as another projection does."""
    users = _users(subject).get(name, [])
    projected = set(subject.base.event(ref).producers) if ref is not None else set()
    return not users or any(projected & event.producers for event in users)


def _fused(subject: Subject) -> Violation | None:
    """Find a third of a fused projection that no result depends on, while another is used twice."""
    for query, key, value in by_attention(subject):
        start, *others = {projection(subject, operand.sources) for operand in (query, key, value)}
        if others or start is None:
            continue
        same = next(((a, b) for a, b in ((query, key), (key, value), (query, value)) if _equal(a.value, b.value)), None)
        width = subject.base.value(start).shape[-1]
        if same is None or width % 3:
            continue
        for third in range(3):
            moved = subject.perturb(Intervention(results={start: others_at(-1, third * (width // 3), width // 3)}))
            if moved.has_no_effect:
                at = next((source for source in same[1].sources if isinstance(source, OutputRef)), start)
                later = (event for event in subject.graph.upstream((at,)) if event.order > start.order)
                part = next((event.refs[0] for event in later if event.name in SELECTIONS | SPLITS), at)
                message = f"{same[0].role} and {same[1].role} are the same third of the fused projection"
                evidence = "changed each third of the projection"
                return _violation(f"{message}, and another third is never used", part, evidence)
    return None


def _sliced(subject: Subject) -> Violation | None:
    """Find two projections by the same third of one fused parameter, while another third is unused."""
    users: dict[str, list[tuple[ReplayedCall, Tensor]]] = {}
    for event in subject.base.events:
        if event.name in PRODUCTS and len(event.operand_values) > 1:
            for sources, weight in zip(event.sources[:2], event.operand_values, strict=False):
                if (name := parameter_of(subject, sources)) is not None:
                    users.setdefault(name, []).append((event, weight))
    for name, uses in users.items():
        rows = subject.base.state[name].shape[0]
        pairs = itertools.combinations(uses, 2)
        second = next((event for (_, a), (event, b) in pairs if _equal(a, b) and a.shape[0] * 3 == rows), None)
        for part in range(3) if second is not None else ():
            moved = subject.perturb(Intervention(parameters={name: others_at(0, part * (rows // 3), rows // 3)}))
            if moved.has_no_effect and second is not None:
                message = f"one third of {name} is used twice, and another never"
                return _violation(message, second.refs[0], f"changed each third of {name}")
    return None


def _part_in_two_roles(subject: Subject) -> Violation | None:
    """Find a part of what is projected that two of queries, keys and values have, and a part like it that none has.

    A rotation that leaves some features as they are splits queries and keys, and joins the parts again.
    """
    graph, live = subject.graph, live_results(subject)
    parts = [(ref, event.values[ref.output]) for event in subject.base.events for ref in event.refs
             if event.name in SELECTIONS | SPLITS and event.values[ref.output].is_floating_point()]  # fmt: skip
    ends = {ref: _variable_of_end(subject, ref) for ref, _ in parts if ref not in live}
    unused = [(ref, value.shape) for ref, value in parts if ends.get(ref) and projection(subject, (ref,))]
    for ref, value in parts if unused else ():
        twin = next((other for other, shape in unused if shape == value.shape), None)
        if twin is None or ref not in live or projection(subject, (ref,)) is None:
            continue
        after = graph.downstream_of(ref)
        for attention in by_attention(subject):
            of_part = [operand for operand in attention if not after.isdisjoint(operand.sources)]
            if len(of_part) < 2 or any(projection(subject, operand.sources) in after for operand in of_part):
                continue
            first, second = of_part[:2]
            own = {event.order for event in graph.upstream(first.sources)}
            joined = [event for event in graph.upstream(second.sources) if event.order not in own]
            readers = [event for event in joined if not after.isdisjoint(event.producers)]
            if readers:
                message = f"{first.role} and {second.role} have one part in common, and {ends[twin]} is never used"
                hint = f"join the parts of the {second.role}, {ends[twin]} among them"
                evidence = f"no result depends on {ends[twin]}"
                return Violation("AS805", message, readers[-1].refs[0], hint, evidence)
    return None


def _variable_of_end(subject: Subject, ref: OutputRef) -> str:
    """Return the variable in which everything ends that is computed from a result on which nothing depends."""
    after = subject.graph.downstream_of(ref)
    return next((end.variable for end in dead_ends(subject) if end.variable and end.ref in after), "")


def _part_in_two_attentions(subject: Subject) -> Violation | None:
    """Find a part of a split by which two attentions have the same keys, for example, while another part is unused.

    Differential attention splits queries and keys, one part for each of two softmaxes.
    """
    graph = subject.graph
    ends = {end.ref: end.variable for end in dead_ends(subject) if end.variable}
    splits = [event for event in subject.base.events if event.name in SPLITS and not ends.keys().isdisjoint(event.refs)]
    for split, (one, other) in itertools.product(splits, itertools.combinations(by_attention(subject), 2)):
        unused = next(ref for ref in split.refs if ref in ends)
        alike = [_equal(a.value, b.value) for a, b in zip(one, other, strict=True)]
        for place in (0, 1):
            if not alike[place] or alike[1 - place]:
                continue
            shared = [
                ref
                for ref in split.refs
                if subject.base.value(ref).shape == subject.base.value(unused).shape
                and all(not graph.downstream_of(ref).isdisjoint(own[place].sources) for own in (one, other))
            ]
            if shared and unused not in shared:
                role = one[place].role
                message = f"two attentions have the same {role}, and {ends[unused]} is never used"
                at = OutputRef(other[place].event.order)
                hint = f"use {ends[unused]} in one of them"
                evidence = f"compared the {role} of both, and found that no result depends on {ends[unused]}"
                return Violation("AS805", message, at, hint, evidence, "measured")
    return None


def _all_the_same(subject: Subject) -> Violation | None:
    """Find one parameter that projects queries, keys and values alike."""
    for attention in by_attention(subject):
        refs = [ref for operand in attention if (ref := projection(subject, operand.sources)) is not None]
        weights = [weight for ref in refs if (weight := _weight(subject, ref)) is not None]
        if len(set(refs)) < 3 or len(weights) < 3:
            continue
        name, first = weights[0]
        # keys and values of different inputs, such as those of a memory, may well be embedded alike
        inputs = [subject.graph.origins((ref,)) & set(subject.inputs) for ref in refs[-2:]]
        # deep copies of one module start with equal numbers, and are trained apart
        if inputs[0] & inputs[1] and all(other == name and _equal(first, part) for other, part in weights):
            return _violation(f"{name} projects query, key and value alike", refs[-1], "found no other projection")
    return None


def _projected_again(subject: Subject) -> Violation | None:
    """Find two calls that project one tensor by one parameter, or look it up in one table, for two roles."""
    for attention in by_attention(subject):
        for first, second in itertools.combinations(attention, 2):
            refs = [_projection_or_lookup(subject, operand) for operand in (first, second)]
            if None in refs or refs[0] == refs[1] or not _equal(first.value, second.value):
                continue
            events = [subject.base.event(ref) for ref in refs if ref is not None]
            weight = _weight(subject, events[1].refs[0])
            if weight is not None and events[0].sources == events[1].sources:
                message = f"{weight[0]} makes {first.role} and {second.role} alike, in two calls"
                hint = "use a projection of its own for each, or if it is meant, call it once"
                evidence = f"{first.role} and {second.role} have the same numbers"
                return Violation("AS805", message, events[1].refs[0], hint, evidence, "measured", level="notice")
    return None


def _projection_or_lookup(subject: Subject, operand: AttentionOperand) -> OutputRef | None:
    """Return the last product with parameters from which an operand comes, or the last call that reads a table."""
    ref = projection(subject, operand.sources)
    calls = () if ref is not None else subject.graph.upstream(operand.sources)
    return next((call.refs[0] for call in calls if call.name in GATHERS), ref)


def _weight(subject: Subject, ref: OutputRef) -> tuple[str, Tensor] | None:
    """Return the name of a projection's parameter, and the part of it that the projection uses."""
    event = subject.base.event(ref)
    named = (
        (parameter_of(subject, sources), part)
        for sources, part in zip(event.sources, event.operand_values, strict=True)
    )
    return next(((name, part) for name, part in named if name is not None), None)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two operands are equal up to rounding, also that of a cast, possibly after a transpose."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    one, two = a.to(dtype), b.to(dtype)
    return any(
        one.shape == other.shape and torch.allclose(one, other) for other in (two, two.mT if two.ndim > 1 else two)
    )


def _violation(message: str, at: OutputRef, evidence: str) -> Violation:
    hint = "use each projection once: one each for query, key, value and output"
    return Violation("AS805", message, at, hint, evidence)
