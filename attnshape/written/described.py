"""What docstrings and annotations claim of arguments, results and variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnshape.written import source
from attnshape.written.annotations import annotations_in
from attnshape.written.claim import LOOSE, Written
from attnshape.written.comments import claims
from attnshape.written.docstrings import Entry
from attnshape.written.fitting import demand
from attnshape.written.measured import Measured
from attnshape.written.notation import Group, Token, groups, in_line, token


def of_entry(lines: Sequence[Entry], measured: Measured, result: int | None) -> Iterator[Written]:
    """Yield what one item of a docstring says, on however many lines; `result` says which of several results it is."""
    entry = lines[0]
    if entry.of == "anything":
        for claim in claims(entry.text):
            if claim.chained and claim.role != "state":
                returned = claim.role == "result"
                said = "what the function returns" if returned else "an argument"
                shapes = demand(claim.groups, measured.result() if returned else measured.arguments(), LOOSE)
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
        shapes = demand([group for _, group in some], occurrences, LOOSE)
        yield Written(some[0][0], 0, text, said, some[0][1].text, shapes)


def _without_latex(text: str) -> str:
    """Return a line of a docstring with `\\text{num\\_heads}` as `num_heads`."""
    plain = re.sub(r"\\(?:text|mathrm|mathit|textit)\{([^{}]*)\}", r"\1", text)
    return plain.replace("\\_", "_").replace("\\times", "×").replace("\\cdot", "*")


def _listed(text: str) -> list[Group]:
    """Return the shapes in brackets in a line of a docstring."""
    found = [group for group in groups(text) if len(group.tokens) > 1 or group.text.endswith(",)")]
    return [group for group in found if not all(one.kind == "number" for one in group.tokens)]


def of_annotations(node: source.FunctionNode, measured: Measured) -> Iterator[Written]:
    """Yield what the annotations of a function say."""
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
