"""Whether the result depends on the queries, the keys, the values and the memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnshape.attention.core import FusedCore
from attnshape.attention.kinds import JOINS
from attnshape.attention.measured import HIDES
from attnshape.attention.numbers import other_numbers
from attnshape.attention.operands import Operand, Role, operands, projection
from attnshape.attention.outcome import Measured, Mistake, NotExamined, Outcome, Proved
from attnshape.attention.softmax import softmaxes
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address

CODES = ("AS801", "AS802", "AS803", "AS804")
WHAT = "inputs that matter"
_CODES: dict[str, str] = {"query": "AS801", "key": "AS802", "value": "AS803", "memory": "AS804"}
_NAMES: tuple[tuple[str, str], ...] = (
    ("value", r"(^|_)(v|vs|values?)($|_)|value"),
    ("key", r"(^|_)(k|ks|keys?)($|_)|key"),
    ("query", r"(^|_)(q|qs|quer(y|ies))($|_)|quer|latents?$"),
    ("memory", r"memory|context|encoder|cross|(^|_)kv($|_)|source|src"),
)
_PADS = re.compile(r"mask|pad|pos|bias|cos|sin|freq|emb|rope|rotary|time|scale|weight|_w$|^w")


def examine(subject: Subject) -> Iterator[Outcome]:
    """Change each input as a whole, then what goes into each product, and see whether anything moves."""
    dead = [name for name in subject.inputs if _is_sequence(subject, name) and not _matters(subject, name)]
    roles = {name: _role(subject, name) for name in dead}
    if {"query", "key"} <= set(roles.values()):
        # nothing of the scores matters: one mistake
        roles = {name: role for name, role in roles.items() if role != "key"}
    for name, role in roles.items():
        if role is None:
            yield Measured(f"the result doesn't depend on {name}")
        else:
            yield _mistake(role, name, _line(subject, name, role), f"changed all of {name}")
    if dead:
        return
    inner = list(_inside(subject))
    yield from inner
    if not inner:
        if subject.inputs:
            yield Proved("the result depends on every input, and attention on its queries, keys and values")
        else:
            yield NotExamined(WHAT, "no input carries numbers")


def _is_sequence(subject: Subject, name: str) -> bool:
    """Say whether an input is a sequence of vectors, not a mask, a position or a weight."""
    value = subject.inputs[name]
    last = re.sub(r"[\[\]'\".]+", "_", name).strip("_").lower()
    return value.ndim >= 3 and value.is_floating_point() and not _PADS.search(last)


def _matters(subject: Subject, name: str) -> bool:
    moved = subject.moved(Change(inputs={name: other_numbers}))
    if not moved.comparable:
        return True
    results = moved.returned()
    return any(bool(mask.any()) for _, mask in results) or not results


def _role(subject: Subject, name: str) -> str | None:
    """Return what an input is by its name, else by its length."""
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


def _line(subject: Subject, name: str, role: str) -> Address | None:
    """Return the call that should read an input: one that reads its shape only, else the projection or the product."""
    readers = [event for event, _ in subject.flow.consumers.get(name, [])]
    shapes = [
        event for event in readers if event.name in ("expand_as", "view_as", "reshape_as", "type_as", "zeros_like")
    ]
    if shapes:
        return shapes[-1].addresses[0]
    every = operands(subject)
    own = [one for one in every if one.role == ("key" if role == "memory" else role)]
    if not own:
        softmax = softmaxes(subject.flow)
        return softmax[-1].address if softmax else None
    last = own[-1]
    if role == "memory" and isinstance(last.core, FusedCore):
        return last.core.context
    made = projection(subject, last.sources)
    if _holds_past(subject, name):
        joins = [event for event in subject.flow.upstream(last.sources) if event.name in JOINS]
        if joins:
            return joins[0].addresses[0]
    if readers or made is None:
        return Address(last.event.order)
    return made


def _holds_past(subject: Subject, name: str) -> bool:
    """Say whether an input is a cache."""
    return subject.numbers.get("Lp") in subject.inputs[name].shape


def _inside(subject: Subject) -> Iterator[Mistake]:
    """Change the queries, keys and values of each attention where they go into it, and look at its result."""
    for operand in operands(subject):
        source = next((one for one in operand.sources if isinstance(one, Address)), None)
        if source is None or source.order >= operand.core.context.order or not _chooses(operand):
            continue
        moved = subject.moved(Change(results={source: other_numbers}))
        if moved.comparable and not moved.any(operand.core.context):
            yield _inner_mistake(operand)
            return
    for operand in operands(subject):
        context = operand.core.context
        moved = subject.moved(Change(results={context: other_numbers}))
        results = moved.returned()
        if moved.comparable and results and not any(bool(mask.any()) for _, mask in results):
            yield _mistake("value", "", context, "changed the weighted values: no result moves")
        return


def _chooses(operand: Operand) -> bool:
    """Say whether some query sees more than one key: else neither queries nor keys can matter."""
    core = operand.core
    if operand.role == "value":
        return True
    if isinstance(core, FusedCore):
        if core.hides_its_mask:
            return False
        return bool(((core.added > HIDES).sum(-1) > 1).any())
    return bool(((core.weights.nan_to_num() > 0).sum(core.key_axes) > 1).any()) if core.key_axes else False


def _inner_mistake(operand: Operand) -> Mistake:
    return _mistake(operand.role, "", Address(operand.event.order), f"changed the {operand.role} of this product")


def _mistake(role: str | Role, name: str, at: Address | None, evidence: str) -> Mistake:
    what = {"query": "the query", "key": "the keys", "value": "the values", "memory": "the memory"}[role]
    given = f", {name}" if name else ""
    return Mistake(
        code=_CODES[role],
        message=f"the result does not depend on {what}{given}",
        at=at,
        hint=f"use {name or what} here, or don't take it as an argument" if name else f"use {what} in this product",
        evidence=evidence,
    )
