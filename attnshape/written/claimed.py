"""From what is written in a function to claims about what was measured there."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attnshape.written import source
from attnshape.written.annotations import Annotation, annotations_in
from attnshape.written.comments import Claim, claims, is_general
from attnshape.written.docstrings import Entry, entries_of
from attnshape.written.fitting import Demand, demand
from attnshape.written.measured import Measured, Occurrences
from attnshape.written.notation import Group, Token, groups, in_line, token

PROSE, _LOOSE = 0.7, 0.9
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
    annotation: Annotation | None = None


@dataclass(frozen=True)
class _Found:
    """A comment above a statement, as said of what this makes, and of anything around."""

    exact: Written | None
    loose: Written


def written_in(
    file: source.File, node: source.FunctionNode, owner: ast.ClassDef | None, measured: Measured
) -> list[Written]:
    """Return what is claimed in a function's comments, docstring and annotations, where anything was measured there."""
    made = list(_annotated(node, measured))
    above: list[_Found] = []
    for comment in source.comments_in(file, node):
        for claim in claims(comment.text):
            general = all(map(is_general, claim.label.names)) and not _known(claim, node, measured)
            if comment.where == "above" and not claim.chained and general and claim.of == 1:
                above += _above(comment, claim, measured) if claim.strict else ()
            else:
                made += _commented(comment, claim, node, measured)
    made += _in_one_style(above)
    by_item = itertools.groupby(entries_of(node, owner), key=lambda one: (one.item, one.of, one.parameter))
    items = [list(lines) for _, lines in by_item]
    results = [lines for lines in items if lines[0].of == "result" and lines[0].listed]
    for lines in items:
        place = next((place for place, one in enumerate(results) if one is lines), None)
        made += _entry(lines, measured, place if place is not None and len(results) == measured.returned else None)
    return [one for one in made if any(one.demand.measured)]


def _commented(
    comment: source.Comment, claim: Claim, node: source.FunctionNode, measured: Measured
) -> Iterator[Written]:
    names = _known(claim, node, measured)
    unknown = [name for name in claim.label.names if not is_general(name)]
    if names:
        for name in names:
            yield _written(comment, claim, f"`{name}`", _of_variable(comment, name, measured), 1.0)
    elif any(map(_is_attribute, unknown)) or (unknown and comment.where == "above" and not claim.label.firm):
        return  # of something that isn't a variable: `self.W_O: (H, Dk, D)`
    elif comment.where == "signature":
        if comment.parameter is not None:
            yield _written(comment, claim, f"`{comment.parameter}`", measured.argument(comment.parameter), 1.0)
    elif comment.where == "above" and (claim.chained or not unknown):
        yield from _of_chain(comment, claim, measured)
    elif comment.where == "above":
        yield from (one.loose for one in _above(comment, claim, measured))
    elif comment.statement is not None:
        yield from _of_line(comment, replace(claim, strict=claim.strict and not unknown), comment.statement, measured)


def _is_attribute(name: str) -> bool:
    """Say whether a label looks like something other than a local variable or a word: `self.mask`, `W_O`."""
    return "." in name or (len(name) > 1 and not name[1:].islower())


def _known(claim: Claim, node: source.FunctionNode, measured: Measured) -> list[str]:
    """Return which of a claim's names are variables of the function."""
    known = {*source.parameters(node), *(one.name for call in measured.calls for one in call.invocation.bindings)}
    return [name for name in claim.label.names if name in known]


def _of_line(comment: source.Comment, claim: Claim, statement: ast.stmt, measured: Measured) -> Iterator[Written]:
    """Yield what a comment on a statement's own lines says."""
    if claim.role == "operand":
        exact = _product(claim, [statement], measured)
        if exact is not None:
            yield _written(comment, claim, *exact, 1.0)
        else:
            yield _written(comment, claim, "what goes in", measured.read([statement]), _LOOSE)
    elif claim.role == "state" or not claim.strict:
        weight = _LOOSE if claim.strict else PROSE
        yield _written(comment, claim, "anything on the line", measured.touched(statement), weight)
    elif comment.where == "within":
        yield _written(comment, claim, "what ends on the line", measured.ended(statement, comment.line), _LOOSE)
    else:
        made = measured.made(statement, claim.place, claim.of if claim.place is not None else 1)
        if not any(made) and isinstance(statement, ast.Expr):
            made = measured.touched(statement)
        if statement.lineno != statement.end_lineno:
            made = _either(made, measured.ended(statement, comment.line))
        yield _written(comment, claim, _made_by(statement), made, 1.0)


def _of_chain(comment: source.Comment, claim: Claim, measured: Measured) -> Iterator[Written]:
    """Yield what an arrow or a product above a statement says: it may be done by all lines up to the next gap."""
    block = comment.block or tuple(one for one in (comment.before, comment.statement) if one is not None)
    if not block:
        return
    if claim.role == "operand":
        exact = _product(claim, block, measured)
        if exact is not None:
            yield _written(comment, claim, *exact, _LOOSE)
            return
    everything = _all(measured, block) if claim.role != "operand" else measured.read(block)
    said = "what goes in" if claim.role == "operand" else "anything on the lines around"
    if claim.strict:
        yield _written(comment, claim, said, everything, PROSE)


def _product(claim: Claim, statements: Sequence[ast.stmt], measured: Measured) -> tuple[str, Occurrences] | None:
    """Return what was measured of one of a product's two operands, of the first that the statements make."""
    if not claim.product:
        return None
    place = next(place for place, one in enumerate(claim.product) if one is claim.groups[0])
    exact = (found for one in statements if any(found := measured.products(one, place)))
    first = next(exact, None)
    return (f"operand {place + 1} of the product", first) if first is not None else None


def _all(measured: Measured, statements: Sequence[ast.stmt]) -> Occurrences:
    """Return, as options, everything that statements read, compute and bind."""
    found: Occurrences = [[] for _ in measured.calls]
    for statement in statements:
        for place, call in enumerate(measured.touched(statement)):
            found[place] += call
    return [[list(dict.fromkeys(shape for one in call for shape in one))] if call else [] for call in found]


def _either(made: Occurrences, others: Occurrences) -> Occurrences:
    """Return what was made, with what else will do each time."""
    return [
        [[*options, *(shape for other in more for shape in other)] for options in call]
        for call, more in zip(made, others, strict=True)
    ]


def _of_variable(comment: source.Comment, name: str, measured: Measured) -> Occurrences:
    if comment.where == "signature":
        return measured.argument(name)
    if comment.where != "above":
        return measured.variable(name, comment.line, comment.statement)
    following = comment.block[0] if comment.block else None
    if following is None or comment.before is None:
        return measured.variable(name, comment.line, following)
    return measured.next_or_last(name, comment.line, following)


def _above(comment: source.Comment, claim: Claim, measured: Measured) -> Iterator[_Found]:
    """Yield a comment on a line of its own: it speaks of what the next line makes, of what goes in, or of the last."""
    there = [one for one in (comment.statement, comment.before) if one is not None]
    if not there:
        return
    only = comment.statement or comment.before
    exact = measured.made(only) if only is not None else []
    if comment.before is not None and comment.statement is None:  # beneath its line, and a gap behind it
        if any(exact) and claim.strict:
            strict = _written(comment, claim, _made_by(comment.before), exact, _LOOSE)
            yield _Found(strict, strict)
        return
    loose = _written(comment, claim, "anything on the lines around", _all(measured, there), PROSE)
    sure = any(exact) and claim.strict
    yield _Found(_written(comment, claim, _made_by(comment.statement), exact, _LOOSE) if sure else None, loose)


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


def _entry(lines: Sequence[Entry], measured: Measured, result: int | None) -> Iterator[Written]:
    """Yield what one item of a docstring says, on however many lines; `result` says which of several results it is."""
    entry = lines[0]
    if entry.of == "anything":
        for claim in claims(entry.text):
            if claim.chained and claim.role != "state":
                returned = claim.role == "result"
                said = "what the function returns" if returned else "an argument"
                shapes = demand(claim.groups, measured.result() if returned else measured.arguments(), _LOOSE)
                yield Written(entry.line, 0, claim.groups[0].text, said, claim.groups[0].text, shapes)
        return
    texts = [(one.line, _without_latex(one.text)) for one in lines]
    found = [(line, group) for line, text in texts for group in (*_listed(text), *in_line(text))]
    if not found:
        return
    if entry.parameter is not None:
        occurrences, said = measured.argument(entry.parameter), f"`{entry.parameter}`"
    elif entry.of == "argument":
        occurrences, said = measured.arguments(), "an argument"
    else:
        occurrences, said = measured.result(result), "what the function returns"
    for some in [[one] for one in found] if entry.of == "argument" else [found]:
        text = " or ".join(group.text for _, group in some)
        shapes = demand([group for _, group in some], occurrences, _LOOSE)
        yield Written(some[0][0], 0, text, said, some[0][1].text, shapes)


def _without_latex(text: str) -> str:
    """Return a line of a docstring with `\\text{num\\_heads}` as `num_heads`."""
    plain = re.sub(r"\\(?:text|mathrm|mathit|textit)\{([^{}]*)\}", r"\1", text)
    return plain.replace("\\_", "_").replace("\\times", "×").replace("\\cdot", "*")


def _listed(text: str) -> list[Group]:
    """Return the shapes in brackets in a line of a docstring."""
    found = [group for group in groups(text) if len(group.tokens) > 1 or group.text.endswith(",)")]
    return [group for group in found if not all(one.kind == "number" for one in group.tokens)]


def _annotated(node: source.FunctionNode, measured: Measured) -> Iterator[Written]:
    for one in annotations_in(node):
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
