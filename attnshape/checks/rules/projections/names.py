"""Does a projection make queries, keys or values as its name says?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnshape.checks.attention.operands import AttentionOperand, OperandRole, by_attention, parameter_of, projections
from attnshape.checks.attention.perturbation import differs, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer
from attnshape.checks.rules.protocol import Violation

_ROLES: dict[str, OperandRole] = {
    "q": "query",
    "wq": "query",
    "query": "query",
    "queries": "query",
    "k": "key",
    "wk": "key",
    "key": "key",
    "keys": "key",
    "v": "value",
    "wv": "value",
    "value": "value",
    "values": "value",
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBERED = re.compile(r"(?<![A-Za-z])[A-Za-z]\d+")
"""Vectors of any kind are called `v1` and `v2`."""
_PLURALS = {"query": "queries", "key": "keys", "value": "values"}


def named_role(path: str) -> OperandRole | None:
    """Return what a parameter's path says that it makes: the last name in it that says so, if it names one role only.

    >>> named_role("layers.0.attn.k_proj.weight"), named_role("lora_v.B"), named_role("attn.Wq")
    ('key', 'value', 'query')
    >>> named_role("qkv.weight"), named_role("to_kv"), named_role("key_value.weight")
    (None, None, None)
    >>> named_role("v2_proj.weight")
    """
    for name in reversed(path.split(".")):
        roles = {_ROLES[word.lower()] for word in _WORD.findall(_NUMBERED.sub("", name)) if word.lower() in _ROLES}
        if roles:
            return roles.pop() if len(roles) == 1 else None
    return None


def check_names(subject: Subject) -> Iterator[Violation]:
    """Change each parameter that may make something else than its name says, and see which operands differ."""
    readers: dict[str, list[AttentionOperand]] = {}
    for own in by_attention(subject):
        # else the product isn't one of a query and a key, as in additive attention
        for operand in own if all(subject.graph.carries_data(one.sources) for one in own[:2]) else ():
            for name in dict.fromkeys(name for name, _ in _parameters(subject, operand)):
                readers.setdefault(name, []).append(operand)
    for name, reading in readers.items():
        role = named_role(name)
        if role is None or {operand.role for operand in reading} == {role}:
            continue
        moved = subject.perturb(Intervention(parameters={name: other_numbers}))
        made = [one for one in reading if moved.comparable and _differs(subject, one, moved.changed)]
        if len({one.role for one in made}) == 1 and made[0].role != role:
            at = max(ref for other, ref in _parameters(subject, made[0]) if other == name)
            if _is_absorbed(subject, made[0], at, name):
                continue
            yield Violation(
                "AS817",
                f"{name} makes {_PLURALS[made[0].role]}, and its name says {role}",
                at if len(made) == len(reading) else _first_joined(subject, at),
                f"let it make {_PLURALS[role]}, or rename it",
                f"changed {name}: the {made[0].role} changes, and the {role} doesn't",
            )
            return


def _parameters(subject: Subject, operand: AttentionOperand) -> Iterator[tuple[str, OutputRef]]:
    """Yield the parameters of the projections that make an operand, each with the call that reads it."""
    for ref in projections(subject, operand.sources):
        for sources in subject.base.event(ref).sources:
            if (name := parameter_of(subject, sources)) is not None:
                yield name, ref


def _is_absorbed(subject: Subject, operand: AttentionOperand, ref: OutputRef, name: str) -> bool:
    """Return whether a projection is applied to what a sibling of the operand's own name made.

    So queries are multiplied by what would have made the keys of a latent: `(x Wq) (c Wk)^T = (x Wq Wk^T) c^T`
    (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1).
    """
    origins = subject.graph.origins((ref,)) - {name}
    return any(_owner(other) == _owner(name) and named_role(other) == operand.role for other in origins)


def _owner(name: str) -> str:
    """Return the path of the module whose attribute a parameter is, or the module of which it is the weight.

    >>> _owner("layers.0.attn.q_proj.weight"), _owner("layers.0.attn.k_up")
    ('layers.0.attn', 'layers.0.attn')
    """
    return name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[0]


def _first_joined(subject: Subject, ref: OutputRef) -> OutputRef:
    """Return the first call that puts a result together with another tensor."""
    reached: set[Producer] = {ref}
    for event in subject.base.events:
        if not reached.isdisjoint(event.producers):
            if len(event.sources) > 1:
                return event.refs[0]
            reached.update(event.refs)
    return ref


def _differs(subject: Subject, operand: AttentionOperand, run: ReplayRun) -> bool:
    return bool(differs(operand.value, operand.of(run), subject.experiment.tolerance).any())
