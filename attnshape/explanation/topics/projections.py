"""The projections: which learned matrices make queries, keys and values, how many parameters they have, and why."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from attnshape.checks.attention.operands import OperandRole
from attnshape.explanation.attention import Attention, code_of, data_place, given_records
from attnshape.explanation.sentences import AxisSize, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter, quoted
from attnshape.model.explanation import Section
from attnshape.model.formatting import join_words
from attnshape.model.trace import Step, TensorRecord

_PLURALS: dict[OperandRole, str] = {"query": "queries", "key": "keys", "value": "values"}
_USES = {
    "queries": "a query says what its token looks for",
    "keys": "a key says what its token is found by",
    "values": "a value is what a token hands over when it is found",
}


def projections(attention: Attention) -> Section | None:
    """Explain what makes queries, keys and values out of the inputs."""
    steps = attention.of("projections")
    if not steps:
        return None
    text = SectionWriter("projections", "Project queries, keys and values", steps)
    made = _made_by(attention)
    _what(attention, text, made)
    uses = [use for plural, use in _USES.items() if any(plural in roles for roles in made.values())]
    if uses:
        together = join_words(uses)
        text.why(
            f"{together[0].upper()}{together[1:]}. The matrices are learned, so that the same vector can ask for one "
            "thing and offer another."
        )
    _without(attention, text)
    rows = _rows(attention, text, made)
    if made:
        text.table(("step", "makes", "maps", "parameters"), rows)
    else:
        text.table(("step", "maps", "parameters"), [(step, maps, count) for step, _, maps, count in rows])
    return text.section()


def _made_by(attention: Attention) -> dict[int, list[str]]:
    """Return what each projection makes, by the index of its step."""
    made: dict[int, list[str]] = {}
    for role, plural in _PLURALS.items():
        if (step := attention.projected_by(role)) is not None:
            made.setdefault(step.index, []).append(plural)
    return made


def _what(attention: Attention, text: SectionWriter, made: dict[int, list[str]]) -> None:
    for step in attention.of("projections"):
        given = next((one for one in given_records(attention.trace, step) if one is not None), None)
        if given is None or not given.tensor.shape or not step.outputs[0].tensor.shape:
            continue
        vectors = tensor_axes(given.tensor)[:-1]
        before = axis_label(tensor_axes(given.tensor)[-1])
        after = " × ".join(map(axis_label, _made_features(given.tensor, step.outputs[0].tensor)))
        count = text.counted(
            f"vectors of step {step.index}", prod(size for _, size in vectors), "×".join(map(axis_label, vectors))
        )
        each = f"each of {count} vectors ({' × '.join(map(axis_label, vectors))})" if vectors else "one vector"
        together = ", side by side in one product" if len(made.get(step.index, ())) > 1 else ""
        makes = f": the {join_words(made[step.index])}{together}" if step.index in made else ""
        name = f" of {quoted(given.name)}" if given.name else ""
        text.what(
            f"{code_of(step)} multiplies {each}{name} by a learned matrix, from {before} to {after} features{makes}."
        )
        if len(made.get(step.index, ())) < 2 and len(attention.of("projections")) > 1:
            others = [other for other in attention.of("projections") if other is not step]
            if all(_is_alike(attention, step, other) for other in others):
                roles = [plural for one in attention.of("projections") for plural in made.get(one.index, [])]
                are_own = len({_weight(one) for one in attention.of("projections")}) == len(roles) > 1
                rest = f" The {join_words(roles)} each have a matrix of their own." if are_own else ""
                to = _names(attention, others, given.name)
                text.what(f"The other projections do the same{to}.{rest}")
                return


def _names(attention: Attention, steps: Sequence[Step], first: str | None) -> str:
    """Return to what else projections are applied, in words; empty if it is the same tensor, or has no name."""
    given = [next((one for one in given_records(attention.trace, step) if one is not None), None) for step in steps]
    names = [one.name for one in given if one is not None and one.name is not None]
    if len(names) < len(steps) or set(names) == {first}:
        return ""
    return f" to {join_words(list(map(quoted, dict.fromkeys(names))))}"


def _weight(step: Step) -> str | None:
    """Return the name of the first parameter that a step reads."""
    return next((operand.parameter for operand in step.operands if operand.parameter is not None), None)


def _is_alike(attention: Attention, step: Step, other: Step) -> bool:
    """Return whether two projections map as many features to as many."""
    pairs = []
    for one in (step, other):
        given = next((tensor for tensor in given_records(attention.trace, one) if tensor is not None), None)
        pairs.append((given.tensor.shape[-1:] if given is not None else (), one.outputs[0].tensor.shape[-1:]))
    return pairs[0] == pairs[1]


def _rows(attention: Attention, text: SectionWriter, made: dict[int, list[str]]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for step in attention.of("projections"):
        given = next((one for one in given_records(attention.trace, step) if one is not None), None)
        parameters = _parameters(attention, step)
        if given is None or not given.tensor.shape or not parameters:
            continue
        inner, rows_of = tensor_axes(given.tensor)[-1]
        features = _made_features(given.tensor, step.outputs[0].tensor)
        outer, columns = "*".join(_factor(axis) for axis, _ in features), prod(size for _, size in features)
        bias = len(parameters) > 1
        formula = f"{inner}*{outer}{f'+{outer}' if bias else ''}"
        number = rows_of * columns + (columns if bias else 0)
        counted = sum(value.numel() for value in parameters)
        is_own_size = attention.values is not None and _is_at_own_sizes(attention)
        if is_own_size and counted != number:
            continue
        shown = text.computed(f"parameters of step {step.index}", number, formula)
        around = attention.iterations
        times = f", in each of {axis_label(around)} iterations" if around is not None else ""
        rows.append(
            (
                f"{step.index} {code_of(step)}",
                join_words(made.get(step.index, [""])),
                f"`{inner}` → `{outer}`",
                f"{shown} = `{formula}`{times}",
            )
        )
    return rows


def _made_features(before: TensorRecord, after: TensorRecord) -> list[AxisSize]:
    """Return the axes of a projection's result that don't stand for its vectors."""
    vectors = tensor_axes(before)[:-1]
    features = []
    for axis in tensor_axes(after):
        if axis in vectors:
            vectors.remove(axis)
        else:
            features.append(axis)
    return features or tensor_axes(after)[-1:]


def _factor(expression: str) -> str:
    return f"({expression})" if "+" in expression or "-" in expression else expression


def _is_at_own_sizes(attention: Attention) -> bool:
    assert attention.values is not None
    numbers = attention.values.subject.experiment.numbers
    return all(numbers.get(symbol, size.size) == size.size for symbol, size in attention.trace.sizes.items())


def _parameters(attention: Attention, step: Step) -> list[Tensor]:
    state = attention.values.subject.base.state if attention.values is not None else {}
    return [state[one.parameter] for one in step.operands if one.parameter is not None and one.parameter in state]


def _without(attention: Attention, text: SectionWriter) -> None:
    """Say what the scores would be if queries and keys were the projected vectors themselves."""
    query, key, scores, values = (
        attention.projected_by("query"),
        attention.projected_by("key"),
        attention.scores,
        attention.values,
    )
    if query is None or key is None or values is None:
        return
    tokens, others = (values.operand(step, data_place(attention.trace, step)) for step in (query, key))
    same = tokens is not None and others is not None and tokens.ndim == 3 and torch.equal(tokens, others)
    length = tokens.shape[1] if tokens is not None and same else 0
    if tokens is None or scores is None or scores.queries is None or length < 2:
        text.without(
            "Queries and keys would be the vectors as they come: nothing could be learned about what to compare."
        )
        return
    products = scores.products.movedim((scores.queries, scores.keys), (-2, -1))
    if products.shape[-2:] != (length, length):
        return
    own = torch.arange(length)
    bare = text.observed_share(
        "tokens that score themselves highest without projections",
        float(((tokens.double() @ tokens.double().mT).argmax(-1) == own).double().mean()),
        "share of tokens whose product with themselves is the largest of their products with all tokens",
    )
    projected = text.observed_share(
        "queries that score their own key highest",
        float((products.argmax(-1) == own).double().mean()),
        "share of queries whose product with the key of their own token is the largest, before any mask",
    )
    text.without(
        "The score of token i for token j would be the product of their vectors, and so the same as that of j for i. "
        f"And tokens would attend to themselves first: in this run {bare} of them would get their largest score from "
        f"themselves. With the projections it is {projected} of the queries.",
    )
