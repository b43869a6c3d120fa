"""From what is written in a function to claims about what was measured there."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attnshape.written import source
from attnshape.written.claim import LOOSE, PROSE, Written
from attnshape.written.comments import Claim, claims, is_general, is_input
from attnshape.written.described import of_annotations, of_entry
from attnshape.written.docstrings import entries_of
from attnshape.written.fitting import Demand, demand
from attnshape.written.measured import Measured, Occurrences

_LEAST_STYLE = 3
_SHORT = 5
"""Letters up to which a label is rather another function's variable: `mask`, `value`."""


@dataclass(frozen=True)
class _Found:
    """A comment above a statement, as said of what this makes, and of anything around."""

    exact: Written | None
    loose: Written


def written_in(
    file: source.File, node: source.FunctionNode, owner: ast.ClassDef | None, measured: Measured
) -> list[Written]:
    """Return what is claimed in a function's comments, docstring and annotations, where anything was measured there."""
    made = list(of_annotations(node, measured))
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
        made += of_entry(lines, measured, place if place is not None and len(results) == measured.returned else None)
    return [one for one in made if any(one.demand.measured)]


def _commented(
    comment: source.Comment, claim: Claim, node: source.FunctionNode, measured: Measured
) -> Iterator[Written]:
    names = _known(claim, node, measured)
    unknown = [name for name in claim.label.names if not is_general(name)]
    if names:
        for name in names:
            yield _written(comment, claim, f"`{name}`", _of_variable(comment, name, measured), 1.0)
    elif comment.where == "above" and unknown and all(map(is_input, unknown)):
        there = [one for one in (comment.before, comment.statement) if one is not None]
        around = _together(_all(measured, there), measured.arguments())
        yield _written(comment, claim, "what goes in", around, PROSE)
    elif comment.where == "above" and unknown and all(_is_word(name, node, measured) for name in unknown):
        yield from (one.loose for one in _above(comment, claim, measured)) if claim.label.firm else ()
    elif any(map(_is_attribute, unknown)) or (unknown and (comment.where == "above" or not claim.strict)):
        return  # of something that isn't a variable here: `self.W_O: (H, Dk, D)`, `mask: (B, 1, L, L) broadcasts`
    elif comment.where == "signature":
        if comment.parameter is not None:
            yield _written(comment, claim, f"`{comment.parameter}`", measured.argument(comment.parameter), 1.0)
    elif comment.where == "above":
        yield from _of_chain(comment, claim, measured)
    elif comment.statement is not None:
        yield from _of_line(comment, replace(claim, strict=claim.strict and not unknown), comment.statement, measured)


def _is_attribute(name: str) -> bool:
    """Say whether a label looks like something other than a local variable or a word: `self.mask`, `W_O`."""
    return "." in name or (len(name) > 1 and not name[1:].islower())


def _is_word(name: str, node: source.FunctionNode, measured: Measured) -> bool:
    """Say whether a label is a word for what stands there, `normalizer:`, and not part of a variable's name."""
    known = _variables(node, measured)
    return len(name) > _SHORT and name.isalpha() and name.islower() and not any(name in one.lower() for one in known)


def _known(claim: Claim, node: source.FunctionNode, measured: Measured) -> list[str]:
    """Return which of a claim's names are variables of the function."""
    known = _variables(node, measured)
    return [name for name in claim.label.names if name in known]


def _variables(node: source.FunctionNode, measured: Measured) -> set[str]:
    return {*source.parameters(node), *(one.name for call in measured.calls for one in call.invocation.bindings)}


def _of_line(comment: source.Comment, claim: Claim, statement: ast.stmt, measured: Measured) -> Iterator[Written]:
    """Yield what a comment on a statement's own lines says."""
    if claim.role == "operand":
        exact = _product(claim, [statement], measured)
        if exact is not None:
            yield _written(comment, claim, *exact, 1.0)
        else:
            yield _written(comment, claim, "what goes in", measured.read([statement]), LOOSE)
    elif claim.role == "state" or not claim.strict:
        weight = LOOSE if claim.strict else PROSE
        yield _written(comment, claim, "anything on the line", measured.touched(statement), weight)
    elif comment.where == "within":
        yield _written(comment, claim, "what ends on the line", measured.ended(statement, comment.line), LOOSE)
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
            yield _written(comment, claim, *exact, LOOSE)
            return
    if not claim.strict:
        return
    if claim.role == "operand":
        yield _written(comment, claim, "what goes in", measured.read(block), PROSE)
        return
    around = block if comment.before is None or comment.before in block else (comment.before, *block)
    computed = measured.computed(around) if claim.role == "result" else _all(measured, block)
    found = computed if any(computed) else _all(measured, block)
    yield _written(comment, claim, "anything on the lines around", found, PROSE)


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


def _together(some: Occurrences, others: Occurrences) -> Occurrences:
    """Return the options of both as those of one time."""
    joined = [[shape for one in (*first, *then) for shape in one] for first, then in zip(some, others, strict=True)]
    return [[list(dict.fromkeys(options))] if options else [] for options in joined]


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
    following = next((one for one in comment.block if _has_axes(measured.touched(one))), comment.statement)
    there = [one for one in (following, comment.before) if one is not None]
    if not there:
        return
    only = following or comment.before
    exact = measured.made(only) if only is not None else []
    if comment.before is not None and comment.statement is None:  # beneath its line, and a gap behind it
        if any(exact) and claim.strict:
            strict = _written(comment, claim, _made_by(comment.before), exact, LOOSE)
            yield _Found(strict, strict)
        return
    loose = _written(comment, claim, "anything on the lines around", _all(measured, there), PROSE)
    sure = any(exact) and claim.strict
    yield _Found(_written(comment, claim, _made_by(following), exact, LOOSE) if sure else None, loose)


def _has_axes(occurrences: Occurrences) -> bool:
    """Say whether there is more than numbers and vectors."""
    return any(len(shape) > 1 for call in occurrences for options in call for shape in options)


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


def _written(comment: source.Comment, claim: Claim, said: str, occurrences: Occurrences, weight: float) -> Written:
    text = " or ".join(group.text for group in claim.groups)
    shapes = demand(claim.groups, occurrences, weight)
    return Written(comment.line, comment.column, text, said, claim.groups[0].text, shapes)


def _made_by(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Return():
            return "what is returned"
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return f"`{ast.unparse(target).strip('()')}`"
    return "what the line makes"
