"""Does the result depend on the queries, the keys, the values and the memory?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from attnshape.checks.attention.cores import Core, FusedCore, softmaxes
from attnshape.checks.attention.dead_ends import is_dropped
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.mistake_lines import helper_call
from attnshape.checks.attention.operands import AttentionOperand, operands, projection, without_iterations
from attnshape.checks.attention.perturbation import other_numbers, other_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.unused_inputs.steps import check_steps
from attnshape.errors import format_exception
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import JOINS, SHAPE_FROM_SECOND

CODES: tuple[str, ...] = ("AS801", "AS802", "AS803", "AS804")
TOPIC = "unused inputs"
_ROLES = {
    "query": ("AS801", "the query"),
    "key": ("AS802", "the keys"),
    "value": ("AS803", "the values"),
    "memory": ("AS804", "the memory"),
}
"""The code and the name of each role."""
_NAMES: tuple[tuple[str, str], ...] = (
    ("value", r"(^|_)(v|vs|values?)($|_)|value"),
    ("key", r"(^|_)(k|ks|keys?)($|_)|key"),
    ("query", r"(^|_)(q|qs|quer(y|ies))($|_)|quer|latents?$"),
    ("memory", r"memory|context|encoder|cross|(^|_)kv($|_)|source|src"),
)
_PADS = re.compile(r"mask|pad|pos|bias|cos|sin|freq|emb|rope|rotary|time|scale|weight|_w$|^w")


def check(subject: Subject) -> Iterator[Outcome]:
    """Change each input as a whole, then each operand of attention, and check whether any result changes."""
    if (path := next((path for path, value in subject.base.returned if bool(value.isnan().any())), None)) is not None:
        yield Undecided(TOPIC, f"{path} has numbers that are NaN, in which no change would show")
        return
    unused = []
    for name in filter(partial(_is_sequence, subject), subject.inputs):
        moved = subject.perturb(Intervention(inputs={name: other_numbers}))
        if moved.has_no_effect and moved.returned():
            unused.append(name)
    roles = {name: _role(subject, name) for name in unused}
    if {"query", "key"} <= set(roles.values()):
        # the scores have no effect, which is one mistake
        roles = {name: role for name, role in roles.items() if role != "key"}
    for name, role in roles.items():
        if role is None and len(subject.inputs) == 1:
            message = f"the result does not depend on {name}, the only input"
            at = _line(subject, name, "query")
            yield Violation("AS801", message, at, f"use {name} in what is returned", f"changed all of {name}")
        elif role is None:
            yield _not_used(name)
        else:
            yield _violation(role, name, _line(subject, name, role), f"changed all of {name}")
    if unused:
        return
    violation = _inside(subject)
    yield from check_steps(subject)
    if violation is not None:
        yield violation
    elif subject.unvaried:
        yield from (Undecided(TOPIC, f"{name} can't be varied: {why}") for name, why in subject.unvaried.items())
    elif subject.inputs:
        unchanged = dict(_without_effect(subject))
        for name, why in unchanged.items():
            outcome = Undecided(TOPIC, f"{name} can't be varied: {why}") if why else _not_used(name)
            yield (_used_in_place_of(subject, name) if not why else None) or outcome
        if subject.attentions and not unchanged:
            yield Verification("the result depends on every input, and attention on its queries, keys and values")
        elif subject.attentions:
            yield Verification("attention depends on its queries, keys and values")
        elif not unchanged:
            yield Verification("the result depends on every input")
    else:
        yield Undecided(TOPIC, "no input is a floating-point tensor")


def _without_effect(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield the inputs other than sequences, such as masks and positions, that change no result.

    With one that can't be varied comes why; with the others an empty text.
    """
    for name in subject.base.inputs:
        if name not in subject.inputs or not _is_sequence(subject, name):
            try:
                changes = (other_numbers, other_pattern)
                moved = (subject.perturb(Intervention(inputs={name: change})) for change in changes)
                if all(diff.has_no_effect and diff.returned() for diff in moved):
                    yield name, ""
            except RuntimeError as error:  # torch doesn't compute with its kind as with others
                yield name, format_exception(error)


def _not_used(name: str) -> Observation:
    return Observation(f"the result doesn't depend on {name}")


def _used_in_place_of(subject: Subject, name: str) -> Violation | None:
    """Return that another argument is read twice, and this one never, if one part of their names tells them apart."""
    if any(map(reads_numbers, _readers(subject, name))):
        return None
    for twin, value in subject.inputs.items():
        own = subject.base.inputs[name]
        readers = [event for event in _readers(subject, twin) if reads_numbers(event)]
        parts = zip(name.split("_"), twin.split("_"), strict=False)
        is_like = name.count("_") == twin.count("_") > 0 and sum(one != other for one, other in parts) == 1
        if is_like and len(readers) > 1 and value.shape == own.shape and value.dtype == own.dtype:
            code, _ = _ROLES[named_role(name) or "memory"]
            message = f"{twin} is used twice, and {name} never"
            evidence = f"changed all of {name}, and found the calls that read {twin}"
            at, place = readers[-1].refs[0], helper_call(subject, readers[-1].refs[0])
            return Violation(code, message, at, f"use {name} here, or remove the argument", evidence, place=place)
    return None


def _readers(subject: Subject, name: str) -> list[ReplayedCall]:
    return [event for event, _ in subject.graph.consumers.get(name, ())]


def _last_name(name: str) -> str:
    """Return an input's name as a word, without brackets and quotation marks."""
    return re.sub(r"[\[\]'\".]+", "_", name).strip("_").lower()


def _is_sequence(subject: Subject, name: str) -> bool:
    """Return whether an input is a sequence of vectors, not a mask, a position or a weight."""
    value = subject.inputs[name]
    return value.ndim >= 3 and value.is_floating_point() and not _PADS.search(_last_name(name))


def named_role(name: str) -> str | None:
    """Return the role of an input by its name; None if that doesn't tell."""
    return next((role for role, pattern in _NAMES if re.search(pattern, _last_name(name))), None)


def _role(subject: Subject, name: str) -> str | None:
    """Return the role of an input by its name, else by its length; None if neither tells."""
    named = named_role(name)
    if named is not None:
        return named
    if len(subject.inputs) < 2:
        return None
    if name == next(iter(subject.inputs)):
        return "query"
    sizes = set(subject.inputs[name].shape)
    if subject.numbers.get("Lk") in sizes:
        return "memory"
    return "query" if subject.numbers.get("Lq") in sizes else None


def _line(subject: Subject, name: str, role: str) -> OutputRef | None:
    """Return the call to name: one that reads only the shape of the input, else the projection or product to feed."""
    readers = _readers(subject, name)
    shapes = [event for event in readers if event.name in SHAPE_FROM_SECOND | {"zeros_like"}]
    if shapes:
        return shapes[-1].refs[0]
    own = [operand for operand in operands(subject) if operand.role == ("key" if role == "memory" else role)]
    if not own:
        softmax = softmaxes(subject.graph)
        return softmax[-1].ref if softmax else None
    last = own[-1]
    if role == "memory" and isinstance(last.core, FusedCore):
        return last.core.context
    if subject.past_size in subject.inputs[name].shape:  # a cache
        joins = [event for event in subject.graph.upstream(last.sources) if event.name in JOINS]
        if joins:
            return joins[0].refs[0]
    read = OutputRef(last.event.order)
    return read if readers else projection(subject, last.sources) or read


def _inside(subject: Subject) -> Violation | None:
    """Change the queries, keys and values of each attention just before their product, and look at its result."""
    sources = [(operand, refs) for operand in operands(subject) if (refs := _sources(operand))]
    matters = [operand for role in _ROLES for operand in _that_matter(subject, sources, role)]
    judged = {own[0].core.context for own in without_iterations(subject)}
    for operand, refs in sources:
        if operand.core.context not in judged or any(operand is other for other in matters):
            continue
        moved = subject.perturb(Intervention(results=dict.fromkeys(refs, other_numbers)))
        if moved.comparable and not moved.any(operand.core.context) and _decide(subject, operand):
            evidence = f"changed the {operand.role} of this product"
            return _violation(operand.role, "", OutputRef(operand.event.order), evidence)
    for operand in operands(subject)[:1]:
        context = operand.core.context
        moved = subject.perturb(Intervention(results={context: other_numbers}))
        # a statement that drops what is computed from it has a finding of its own
        if not moved.has_no_effect or not moved.returned() or is_dropped(subject, context):
            continue
        if not _fills_cache(subject, operand.core):
            return _violation("value", "", context, "changed the context: no result changes")
    return None


def _fills_cache(subject: Subject, core: Core | FusedCore) -> bool:
    """Return whether another attention reads what this one's keys or values were projected to, as after a prompt."""
    both = [operand for operand in operands(subject) if operand.role in ("key", "value")]
    own = {projection(subject, operand.sources) for operand in both if operand.core is core} - {None}
    others = [operand for operand in both if operand.core is not core]
    return any(not own.isdisjoint(call.refs) for operand in others for call in subject.graph.upstream(operand.sources))


def _sources(operand: AttentionOperand) -> list[OutputRef]:
    """Return the calls that made an operand or wrote to it, if it can be changed and can matter."""
    refs = [producer for producer in operand.sources if isinstance(producer, OutputRef)]
    if not refs or refs[0].order >= operand.core.context.order:
        return []
    return refs if _chooses(operand) else []


def _decide(subject: Subject, operand: AttentionOperand) -> bool:
    """Return whether the scores that an operand makes can change the context.

    Of several products that make a row of scores each, the first row of causal attention has a single score.
    """
    core = operand.core
    if operand.role == "value" or isinstance(core, FusedCore) or not core.more_scores:
        return True
    moved = subject.perturb(Intervention(results={OutputRef(operand.event.order): other_numbers}))
    return not moved.comparable or moved.any(core.context)


def _that_matter(
    subject: Subject, sources: Sequence[tuple[AttentionOperand, Sequence[OutputRef]]], role: str
) -> list[AttentionOperand]:
    """Change the operands of one role in every attention together, and return those that change their contexts.

    Of an operand that several calls wrote, only what the last one wrote is changed.
    """
    own = [(operand, refs[-1]) for operand, refs in sources if operand.role == role]
    if not own:
        return []
    together = subject.perturb_each(Intervention(results={source: other_numbers for _, source in own}))
    return [operand for operand, source in own if together.is_apart(source) and together.changes(operand.core.context)]


def _chooses(operand: AttentionOperand) -> bool:
    """Return whether an operand can matter: queries and keys don't if every query attends to only one key."""
    core = operand.core
    if operand.role == "value":
        return True
    if isinstance(core, FusedCore):
        return not core.hides_its_mask and bool(((core.added > HIDES).sum(-1) > 1).any())
    return bool(core.key_axes) and bool(((core.weights.nan_to_num() > 0).sum(core.key_axes) > 1).any())


def _violation(role: str, name: str, at: OutputRef | None, evidence: str) -> Violation:
    code, what = _ROLES[role]
    message = f"the result does not depend on {what}{f', {name}' if name else ''}"
    hint = f"use {name} here, or remove the argument" if name else f"use {what} in this product"
    return Violation(code, message, at, hint, evidence)
