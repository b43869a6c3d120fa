"""From what is written in a function to claims about what was measured there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnshape.written import source
from attnshape.written.comments import Claim, claims
from attnshape.written.measured import Measured, Occurrences
from attnshape.written.notation import Group, Token, groups, token
from attnshape.written.unify import Demand, demand

_PROSE, _LOOSE = 0.7, 0.9
"""What it counts that a claim is wrong: one in prose, one of which several tensors may be meant; 1 for all others."""
_LEAST_STYLE = 3


@dataclass(frozen=True)
class Written:
    """A claim at its place: what is written, what it is said of, in words, and what was measured."""

    line: int
    column: int
    text: str
    said_of: str
    written: str
    """The same, as it stands on the line."""
    demand: Demand
    annotation: source.Annotation | None = None


@dataclass(frozen=True)
class _Found:
    comment: source.Comment
    claim: Claim
    exact: Written | None
    """Of what the next statement makes, for a comment above it."""
    loose: Written


def written_in(
    file: source.File, node: source.FunctionNode, owner: ast.ClassDef | None, measured: Measured
) -> list[Written]:
    """Return what is claimed in a function's comments, docstring and annotations, where anything was measured there."""
    made = list(_annotated(node, measured))
    above: list[_Found] = []
    for comment in source.comments_in(file, node):
        for claim in claims(comment.text):
            if comment.where == "above" and claim.role == "result" and not claim.names and claim.of == 1:
                above += _above(comment, claim, measured)
            else:
                made += _commented(comment, claim, node, measured)
    made += _in_one_style(above)
    for entry in source.entries_of(node, owner):
        made += _entry(entry, measured)
    return [one for one in made if any(one.demand.measured)]


def _commented(
    comment: source.Comment, claim: Claim, node: source.FunctionNode, measured: Measured
) -> Iterator[Written]:
    known = {*source.parameters(node), *(one.name for call in measured.calls for one in call.invocation.bindings)}
    names = [name for name in claim.names if name in known]
    if claim.names and not names:
        claim = replace(claim, names=(), strict=False)
    if names:
        for name in names:
            yield _written(comment, claim, f"`{name}`", _of_variable(comment, name, measured), 1.0)
        return
    statement = comment.statement
    if comment.where == "signature":
        if comment.parameter is not None:
            yield _written(comment, claim, f"`{comment.parameter}`", measured.argument(comment.parameter), 1.0)
        return
    if statement is None:
        return
    if claim.product and claim.role == "operand":
        place = claim.product.index(claim.groups[0])
        exact = measured.products(statement, place)
        if any(exact):
            yield _written(comment, claim, f"operand {place + 1} of the product", exact, 1.0)
            return
    if claim.role != "result" or not claim.strict:
        weight = _PROSE if not claim.strict else _LOOSE
        yield _written(comment, claim, "anything on the line", measured.touched(statement), weight)
    elif comment.where == "within":
        yield _written(comment, claim, "what ends on the line", measured.ended(statement, comment.line), _LOOSE)
    elif comment.where == "trailing":
        of = claim.of if claim.place is not None else 1
        made = measured.made(statement, claim.place, of)
        if not any(made):
            made = measured.touched(statement) if isinstance(statement, ast.Expr) else made
        if statement.lineno != statement.end_lineno:
            made = _either(made, measured.ended(statement, comment.line))
        yield _written(comment, claim, _made_by(statement), made, 1.0)


def _either(made: Occurrences, others: Occurrences) -> Occurrences:
    """Return what was made, with what else will do each time."""
    return [
        [[*options, *(shape for other in more for shape in other)] for options in call]
        for call, more in zip(made, others, strict=True)
    ]


def _of_variable(comment: source.Comment, name: str, measured: Measured) -> Occurrences:
    if comment.where == "signature":
        return measured.argument(name)
    if comment.where == "above":
        return measured.next_or_last(name, comment.line, comment.statement)
    return measured.variable(name, comment.line, comment.statement)


def _above(comment: source.Comment, claim: Claim, measured: Measured) -> Iterator[_Found]:
    """Yield a comment above a statement: it may speak of what this makes, of what goes in, or of the line before."""
    if comment.statement is None and comment.before is None:
        return
    there = [one for one in (comment.statement, comment.before) if one is not None]
    options: Occurrences = [[] for _ in measured.calls]
    for statement in there:
        for place, call in enumerate(measured.touched(statement)):
            options[place] += call
    loose = [[[shape for one in call for shape in one]] if call else [] for call in options]
    exact = measured.made(comment.statement) if comment.statement is not None else []
    yield _Found(
        comment,
        claim,
        _written(comment, claim, _made_by(comment.statement), exact, _LOOSE)
        if comment.statement is not None and any(exact) and claim.strict
        else None,
        _written(comment, claim, "anything on the lines around", loose, _PROSE),
    )


def _in_one_style(above: list[_Found]) -> Iterator[Written]:
    """Yield the comments above statements, as of what these make where the author writes them so throughout."""
    ranks = [_right_rank(one.exact.demand) for one in above if one.exact is not None]
    of_results = len(ranks) >= _LEAST_STYLE and sum(ranks) >= 0.7 * len(ranks)
    for one in above:
        yield one.exact if of_results and one.exact is not None else one.loose


def _right_rank(one: Demand) -> bool:
    return all(
        any(len(shape) == len(one.groups[0].tokens) for shape in options) for call in one.measured for options in call
    )


def _entry(entry: source.Entry, measured: Measured) -> Iterator[Written]:
    found = [group for group in groups(entry.text) if len(group.tokens) > 1 or group.text.endswith(",)")]
    found = [group for group in found if not all(one.kind == "number" for one in group.tokens)]
    if not found:
        return
    if entry.parameter is not None:
        occurrences, said = measured.argument(entry.parameter), f"`{entry.parameter}`"
    else:
        occurrences, said = measured.result(), "what the function returns"
    text = ", ".join(group.text for group in found)
    yield Written(entry.line, 0, text, said, found[0].text, demand(found, occurrences, _LOOSE))


def _annotated(node: source.FunctionNode, measured: Measured) -> Iterator[Written]:
    for one in source.annotations_in(node):
        tokens = _dims(one.dims)
        if tokens is None:
            continue
        if one.parameter is not None:
            occurrences, said = measured.argument(one.parameter), f"`{one.parameter}`"
        elif one.statement is not None and isinstance(one.statement.target, ast.Name):
            occurrences, said = measured.made(one.statement), f"`{one.statement.target.id}`"
        else:
            occurrences = measured.result(one.item)
            said = "what the function returns"
        group = Group(tokens, one.dims, 0, len(one.dims), bracketed=True)
        text = f'{one.kind}[…, "{one.dims}"]'
        yield Written(one.line, one.column, text, said, one.dims, demand([group], occurrences), one)


def _dims(text: str) -> tuple[Token, ...] | None:
    """Return the axes of a jaxtyping dims string, None where it has some that can't be read."""
    found = []
    for word in text.split():
        plain = word.rpartition("=")[2].replace("?", "")
        broadcast = "#" in plain
        plain = plain.replace("#", "")
        if plain.startswith("_") or not plain:
            found.append(Token(word, "any"))
            continue
        one = token(plain) if not re.fullmatch(r"[^\W\d]\w*", plain) else Token(plain, "letter")
        if one is None:
            return None
        found.append(replace(one, broadcast=broadcast))
    return tuple(found)


def _written(comment: source.Comment, claim: Claim, said: str, occurrences: Occurrences, weight: float) -> Written:
    text = " or ".join(group.text for group in claim.groups)
    shapes = demand(claim.groups, occurrences, weight)
    return Written(comment.line, comment.column, text, said, claim.groups[0].text, shapes)


def _made_by(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Return():
            return "what is returned"
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return f"`{ast.unparse(target)}`"
    return "what the line makes"
