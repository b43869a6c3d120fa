"""Does the result depend on the queries, the keys, the values and the memory?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnshape.checks.attention.cores import FusedCore, softmaxes
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.operands import AttentionOperand, OperandRole, operands, projection
from attnshape.checks.attention.perturbation import PerturbationDiff, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import JOINS, SHAPE_FROM_SECOND

CODES: tuple[str, ...] = ("AS801", "AS802", "AS803", "AS804")
TOPIC = "unused inputs"
_CODES: dict[str, str] = {"query": "AS801", "key": "AS802", "value": "AS803", "memory": "AS804"}
_NAMES: tuple[tuple[str, str], ...] = (
    ("value", r"(^|_)(v|vs|values?)($|_)|value"),
    ("key", r"(^|_)(k|ks|keys?)($|_)|key"),
    ("query", r"(^|_)(q|qs|quer(y|ies))($|_)|quer|latents?$"),
    ("memory", r"memory|context|encoder|cross|(^|_)kv($|_)|source|src"),
)
_PADS = re.compile(r"mask|pad|pos|bias|cos|sin|freq|emb|rope|rotary|time|scale|weight|_w$|^w")


def check(subject: Subject) -> Iterator[Outcome]:
    """Change each input as a whole, then each operand of attention, and check whether any result changes."""
    unused = [name for name in subject.inputs if _is_sequence(subject, name) and not _matters(subject, name)]
    roles = {name: _role(subject, name) for name in unused}
    if {"query", "key"} <= set(roles.values()):
        # the scores have no effect, which is one mistake
        roles = {name: role for name, role in roles.items() if role != "key"}
    for name, role in roles.items():
        if role is None:
            yield Observation(f"the result doesn't depend on {name}")
        else:
            yield _violation(role, name, _line(subject, name, role), f"changed all of {name}")
    if unused:
        return
    inner = list(_inside(subject))
    yield from inner
    if not inner:
        if subject.inputs:
            yield Verification("the result depends on every input, and attention on its queries, keys and values")
        else:
            yield Undecided(TOPIC, "no input is a floating-point tensor")


def _is_sequence(subject: Subject, name: str) -> bool:
    """Return whether an input is a sequence of vectors, not a mask, a position or a weight."""
    value = subject.inputs[name]
    last = re.sub(r"[\[\]'\".]+", "_", name).strip("_").lower()
    return value.ndim >= 3 and value.is_floating_point() and not _PADS.search(last)


def _matters(subject: Subject, name: str) -> bool:
    moved = subject.perturb(Intervention(inputs={name: other_numbers}))
    return not has_no_effect(moved) or not moved.returned()


def has_no_effect(moved: PerturbationDiff) -> bool:
    """Return whether a change leaves the steps and all results of the target as they were."""
    return moved.comparable and not any(bool(mask.any()) for _, mask in moved.returned())


def _role(subject: Subject, name: str) -> str | None:
    """Return the role of an input by its name, else by its length; None if neither tells."""
    last = re.sub(r"[\[\]'\".]+", "_", name).strip("_").lower()
    for role, pattern in _NAMES:
        if re.search(pattern, last):
            return role
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
    readers = [event for event, _ in subject.graph.consumers.get(name, [])]
    shapes = [event for event in readers if event.name in SHAPE_FROM_SECOND | {"zeros_like"}]
    if shapes:
        return shapes[-1].refs[0]
    every = operands(subject)
    own = [one for one in every if one.role == ("key" if role == "memory" else role)]
    if not own:
        softmax = softmaxes(subject.graph)
        return softmax[-1].ref if softmax else None
    last = own[-1]
    if role == "memory" and isinstance(last.core, FusedCore):
        return last.core.context
    made = projection(subject, last.sources)
    if _holds_past(subject, name):
        joins = [event for event in subject.graph.upstream(last.sources) if event.name in JOINS]
        if joins:
            return joins[0].refs[0]
    if readers or made is None:
        return OutputRef(last.event.order)
    return made


def _holds_past(subject: Subject, name: str) -> bool:
    """Return whether an input is a cache."""
    return subject.numbers.get("Lp") in subject.inputs[name].shape


def _inside(subject: Subject) -> Iterator[Violation]:
    """Change the queries, keys and values of each attention just before their product, and look at its result."""
    for operand in operands(subject):
        source = next((one for one in operand.sources if isinstance(one, OutputRef)), None)
        if source is None or source.order >= operand.core.context.order or not _chooses(operand):
            continue
        moved = subject.perturb(Intervention(results={source: other_numbers}))
        if moved.comparable and not moved.any(operand.core.context):
            yield _inner_violation(operand)
            return
    for operand in operands(subject):
        context = operand.core.context
        moved = subject.perturb(Intervention(results={context: other_numbers}))
        if has_no_effect(moved) and moved.returned():
            yield _violation("value", "", context, "changed the context: no result changes")
        return


def _chooses(operand: AttentionOperand) -> bool:
    """Return whether an operand can matter: queries and keys don't if every query attends to only one key."""
    core = operand.core
    if operand.role == "value":
        return True
    if isinstance(core, FusedCore):
        if core.hides_its_mask:
            return False
        return bool(((core.added > HIDES).sum(-1) > 1).any())
    return bool(((core.weights.nan_to_num() > 0).sum(core.key_axes) > 1).any()) if core.key_axes else False


def _inner_violation(operand: AttentionOperand) -> Violation:
    return _violation(operand.role, "", OutputRef(operand.event.order), f"changed the {operand.role} of this product")


def _violation(role: str | OperandRole, name: str, at: OutputRef | None, evidence: str) -> Violation:
    what = {"query": "the query", "key": "the keys", "value": "the values", "memory": "the memory"}[role]
    given = f", {name}" if name else ""
    return Violation(
        code=_CODES[role],
        message=f"the result does not depend on {what}{given}",
        at=at,
        hint=f"use {name} here, or remove the argument" if name else f"use {what} in this product",
        evidence=evidence,
    )
