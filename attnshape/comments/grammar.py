"""Parses comments: which of the shapes in one is a result's, which an operand's, and which a named variable's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from attnshape.comments.notation import MAX_LENGTH, ShapeText, find_shapes, is_axis_word, parse_bare_shape

Role = Literal["result", "operand", "state"]
"""What the shape belongs to: the line's result, an operand, or anything between them."""

_ARROW = re.compile(r"\s*(?:-+>|=+>|→|⟶|⇒|↦|\bto\b|\bbecomes\b)\s*")
_TOLD_ARROW = re.compile(r"\s*-*(?:>|→)?\s*(?:[\w./]+[\s-]*){0,3}(?:-+>|=+>|→|⟶|⇒|↦)\s*")
_PRODUCT = re.compile(r"\s*(?:@|[x×*·+-]|matmul|bmm)\s*", re.IGNORECASE)
_OTHERWISE = re.compile(r"\s*(?:,?\s*or\b|/|\|)\s*", re.IGNORECASE)
_BESIDE = re.compile(r"\s*(?:,|;|\+|&|and\b|,\s*and\b)\s*", re.IGNORECASE)
_JOINED_BEFORE = re.compile(r"[)\]]\s*(?:@|[x×]|-+>|=+>|→)\s*$")
_JOINED_BEHIND = re.compile(r"\s*(?:@|[x×]|-+>|=+>|→)\s*[(\[]")
_CONTINUES = re.compile(r"\s*(?:@|[x×]|-+>|=+>|→)\s*[(\[]")
"""The beginning of a line that continues the one above it: `-> (B, T)`."""
_UNFINISHED = re.compile(r"[a-z]\w*(?:\s+[\w'-]+){2,}$", re.IGNORECASE)
"""The end of a line whose sentence goes on below it."""
_ENTRY = re.compile(r"\s*[A-Za-z]\w?\s*:\s+\w+(?:[\s-]+\w+)+[,;.]?\s*")
"""A line such as `b: batch size`."""
_EQUALS = re.compile(r"\s*={1,2}\s*")
_NAMES = r"[A-Za-z_][\w.]*"
_LABEL = re.compile(
    rf"^\s*(?P<names>(?:{_NAMES}\s*(?:,|/|and\b|&)\s*)*{_NAMES})"
    r"\s*(?:\.size\(\))?\s*(?:of\s+shape|(?:has|have)\s+shape|shapes?|each|all|(?:is|are)(?:\s+now)?|now)?"
    r"\s*(?:[:=]*|-+>|→)\s*$"
)
_GENERAL = re.compile(
    r"(?:shapes?|out(?:puts?)?|res(?:ults?)?|dims?|sizes?|ret(?:urns?)?|now|tensor|gives|each|both|all|torch\.(?:size|shape)|is|of)",
    re.I,
)


_PART = re.compile(r"\w\[[^\[\]]*\]\s*(?:[:=]|is|has shape|of shape)?\s*$")
"""Text before the shape of a part of a variable: `w[b, h]: (L, L)`."""
_ELSEWHERE = re.compile(
    r"\b(?:instead of|rather than|unlike|like|to be|will be|needs?|expects?|requires?|per|without|so that|such that"
    r"|strides?|ready for|each of|below|later|next|then|if|formerly|originally)\b|\b(?:not|for)\s*[(\[]",
    re.I,
)
"""Words in prose that tell that a shape belongs to something else."""
_AFTER = re.compile(r"^\s*(?:each|both|all|now|again|as well|here)\b", re.I)


@dataclass(frozen=True)
class Label:
    """The names that a shape is documented for: `q, k: (B, T, D)`; none if it is the line's."""

    names: tuple[str, ...] = ()
    firm: bool = False
    """Whether a colon or an equals sign follows the names."""


@dataclass(frozen=True)
class CommentClaim:
    """A shape in a comment, or several of which one must hold, with what it belongs to."""

    shapes: tuple[ShapeText, ...]
    role: Role
    label: Label = Label()
    strict: bool = True
    """Whether the comment has only shapes, and no prose around them."""
    place: int | None = None
    """Its place among several results, from 0."""
    of: int = 1
    """How many results the comment lists."""
    about: tuple[str, ...] = ()
    """The names before the colon in front of a chain: `x: (B, T) -> (T, B)`."""
    chained: bool = False
    """Whether arrows or products connect it with other shapes."""
    among: bool = False
    """Whether the comment documents other tensors too, each with its label."""
    product: tuple[ShapeText, ...] = ()
    """For an operand of `(B, T, C) @ (B, C, T)`, both operands."""


def parse_comment(comment: str) -> list[CommentClaim]:
    """Return the shapes that a comment, given without its `#`, documents.

    >>> [(c.role, c.shapes[0].text) for c in parse_comment("(B,T,C) @ (B,C,T) -> (B,T,T)")]
    [('operand', '(B,T,C)'), ('operand', '(B,C,T)'), ('result', '(B,T,T)')]
    >>> [(c.label.names, c.shapes[0].text) for c in parse_comment("q: (B, T, D)")]
    [(('q',), '(B, T, D)')]
    >>> parse_comment("swap (1, 2)"), parse_comment("see (Vaswani et al., 2017)")
    ([], [])
    """
    if len(comment) > MAX_LENGTH:
        return []
    # text after another `#` is a separate comment, as it is to linters
    return [claim for part in re.split(r"(?<=\s)#(?=\s)", comment) for claim in _claims(part)]


def parse_comment_lines(lines: Sequence[str]) -> Iterator[tuple[int, CommentClaim]]:
    """Yield the claims of comments on successive lines, each with the place of its line, from 0.

    An arrow or a product may begin on one line and go on below it, and so may a sentence, whose shape is one in prose.

    >>> [(place, claim.role) for place, claim in parse_comment_lines(["(B, T)", "x (T, C)", "-> (B, C)", "(B, C)"])]
    [(0, 'operand'), (1, 'operand'), (2, 'result'), (3, 'result')]
    """
    entries = [line for line in lines if _ENTRY.fullmatch(line)]
    if sum(len(line.split()) == 3 or not parse_comment(line) for line in entries) > 2:
        # in a legend, `k: k dim` tells what k stands for, too
        lines = ["" if line in entries else line for line in lines]
    first = 0
    while first < len(lines):
        last = first
        while last + 1 < len(lines) and _CONTINUES.match(lines[last + 1]) and re.search(r"[)\]]\s*$", lines[last]):
            last += 1
        while last + 1 < len(lines) and _is_bare_chain(lines[last], lines[last + 1]):
            last += 1
        claims = parse_comment(" ".join(lines[first : last + 1]))
        if first and _UNFINISHED.search(lines[first - 1].strip()) and re.match(r"\s*[a-z]", lines[first]):
            claims = [replace(claim, strict=False) for claim in claims if not claim.chained]
        counts = (max(1, len(list(find_shapes(lines[place])))) for place in range(first, last + 1))
        places = [place for place, count in enumerate(counts, first) for _ in range(count)]
        if first == last:
            yield from ((first, claim) for claim in claims)
        elif len(places) == len(claims):
            yield from zip(places, claims, strict=True)
        first = last + 1


def _is_bare_chain(line: str, below: str) -> bool:
    """Return whether a line, a shape without brackets, goes on below with an arrow: `b, n, d` and `-> b, d, n`."""
    leading = re.match(r"\s*(?:-+>|=+>|→)", below)
    above = re.sub(r"^\s*(?:-+>|=+>|→)", "", line)
    return leading is not None and None not in (parse_bare_shape(above), parse_bare_shape(below[leading.end() :]))


def _claims(comment: str) -> list[CommentClaim]:
    text = re.sub(r"^[\s#:!>*-]+(?![>])", "", comment).strip().replace("`", "")
    text = re.sub(r"^>\s*", "", text).rstrip(".")
    if "attnshape:" in text or re.match(r"(?:type:|noqa|fmt:|pragma|pylint|mypy:)", text):
        return []
    text = re.sub(r"\b(?:torch\.)?Size\((\[[^\[\]]*\])\)", r"\1", text)
    shapes = [shape for shape in find_shapes(text) if _counts(shape, text)]
    return _without_brackets(text) or (_around(text, shapes) if shapes else [])


def _counts(shape: ShapeText, text: str) -> bool:
    if all(axis.kind == "number" for axis in shape.axes):
        return False
    if len(shape.axes) > 1 or re.search(r",\s*[)\]]$", shape.text):
        return True
    round_ = shape.text[0] == "("
    if round_ and not (is_axis_word(shape.text[1:-1]) or re.fullmatch(r"\([A-Z]\)", shape.text)):
        return False  # an aside: (sic)
    before, behind = text[: shape.start], text[shape.end :]
    if _JOINED_BEFORE.search(before) or _JOINED_BEHIND.match(behind):
        return True
    return not behind and (not before or (not round_ and _LABEL.match(before) is not None))


def _without_brackets(text: str) -> list[CommentClaim]:
    parts = _ARROW.split(text) if re.search(r"->|=>|→", text) else [text]
    label = re.match(rf"\s*(?P<names>(?:{_NAMES}\s*,\s*)*{_NAMES})\s*[:=]\s*(?=\S)", parts[0])
    prefix = label or re.match(r"[^:()\[\]]+:\s+(?=\S+\s+[x×X]\s)", parts[0])
    parts[0] = parts[0][prefix.end() if prefix is not None else 0 :]
    stages = [_bares(part) for part in parts if part.strip()]
    if not stages or not all(stages):
        return []
    if len(stages) == 1:
        return _staged(stages, _label(label), strict=True)
    return [replace(claim, about=_label(label).names) for claim in _staged(stages, Label(), strict=True)]


def _bares(text: str) -> list[ShapeText]:
    """Parse a text as one shape, or as two with a comma or a product between them: `B H T m, B H m e`."""
    whole = parse_bare_shape(text)
    if whole is not None:
        return [whole]
    halves = [parse_bare_shape(part) for part in re.split(r"\s*[,@]\s*", text)]
    return [half for half in halves if half is not None] if len(halves) == 2 and all(halves) else []


def _around(text: str, shapes: Sequence[ShapeText]) -> list[CommentClaim]:
    """Return the claims of bracketed shapes, from the text before, between and after them."""
    before, behind = text[: shapes[0].start], text[shapes[-1].end :]
    if _PART.search(before) or _ELSEWHERE.search(text):
        return []
    match = _LABEL.match(before) if before.strip() else None
    announced = before.rstrip().endswith((":", "->", "→"))
    clean = (not _prose(before) or match is not None or announced) and not _prose(_AFTER.sub("", behind))
    runs = [_Run(_label(match), [shapes[0]], [])]
    for left, right in itertools.pairwise(shapes):
        joint = text[left.end : right.start]
        if any(joining.fullmatch(joint) for joining in (_ARROW, _TOLD_ARROW, _PRODUCT, _OTHERWISE, _EQUALS)):
            runs[-1].shapes.append(right)
            runs[-1].joints.append(joint)
            continue
        beside = _BESIDE.match(joint)
        rest = joint[beside.end() :] if beside is not None else joint
        match = _LABEL.match(rest) if rest.strip() else None
        clean = clean and (match if rest.strip() else beside) is not None
        runs.append(_Run(_label(match), [right], []))
    first = runs[0].label
    alone = all(len(run.shapes) == 1 for run in runs) and not any(run.label.names for run in runs[1:])
    if alone and len(first.names) == len(runs) > 1:  # each shape has its own name: `q, k: (…), (…)`
        runs = [_Run(Label((name,), first.firm), run.shapes, []) for run, name in zip(runs, first.names, strict=True)]
    arrows = any(_is_arrow(joint) for run in runs for joint in run.joints)
    named = any(not means_the_line(name) for run in runs for name in run.label.names)
    several = len(runs) > 1 and not named and not arrows
    claims: list[CommentClaim] = []
    for place, run in enumerate(runs):
        claims += _joined(run, clean or arrows, place if several else None, len(runs) if several else 1)
    return [replace(claim, among=True) for claim in claims] if named and len(runs) > 1 else claims


class _Run(NamedTuple):
    """Shapes in a row with arrows, products or alternatives between them."""

    label: Label
    shapes: list[ShapeText]
    joints: list[str]


def _joined(run: _Run, strict: bool, place: int | None, of: int) -> list[CommentClaim]:
    """Return the claims of shapes with arrows, products and alternatives between them."""
    label, shapes, joints = run
    if all(_OTHERWISE.fullmatch(joint) for joint in joints):
        return [CommentClaim(tuple(shapes), "result", label, strict, place, of)]
    stages: list[list[ShapeText]] = [[shapes[0]]]
    for joint, shape in zip(joints, shapes[1:], strict=True):
        if _is_arrow(joint) or (_EQUALS.fullmatch(joint) and len(stages[-1]) > 1):
            stages.append([shape])
        else:
            stages[-1].append(shape)
    return [replace(claim, about=label.names if label.firm else ()) for claim in _staged(stages, Label(), strict)]


def _staged(stages: Sequence[Sequence[ShapeText]], label: Label, strict: bool) -> list[CommentClaim]:
    """Return the claims of a chain: operands, then what is between, then the result."""
    if len(stages) == 1 and len(stages[0]) == 1:
        return [CommentClaim((stages[0][0],), "result", label, strict)]
    claims: list[CommentClaim] = []
    for number, stage in enumerate(stages):
        last = 0 < number == len(stages) - 1
        role: Role = "result" if last else "operand" if number == 0 else "state"
        product = tuple(stage) if len(stage) == 2 and not last else ()
        claims += [CommentClaim((shape,), role, label, strict, chained=True, product=product) for shape in stage]
    return claims


def _label(match: re.Match[str] | None) -> Label:
    """Return the names in a label, with `q.shape` as `q`."""
    if match is None:
        return Label()
    names = re.split(r"\s*(?:,|/|and\b|&)\s*", match["names"])
    plain = tuple(re.sub(r"\.(?:shape|size)$", "", name) for name in names)
    return Label(plain, match.group().rstrip().endswith((":", "=")))


def means_the_line(name: str) -> bool:
    """Return whether a label that isn't a variable refers to the line: `shape:`, `output:`, `each`."""
    return _GENERAL.fullmatch(name) is not None


def means_the_input(name: str) -> bool:
    """Return whether a label that isn't a variable refers to the input: `input:`."""
    return name.lower() in ("input", "inputs")


def _is_arrow(joint: str) -> bool:
    return bool(_ARROW.fullmatch(joint) or _TOLD_ARROW.fullmatch(joint))


def _prose(text: str) -> bool:
    return bool(re.search(r"\w", _ARROW.sub("", text)))
