"""What a comment claims: which of the shapes in it is the result's, which an operand's, which a variable's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnshape.written.notation import LONGEST, Group, bare, groups
from attnshape.written.words import is_axis_word

Role = Literal["result", "operand", "state"]
"""What the shape is of: what the line makes, what goes into it, or anything on the way."""

_ARROW = re.compile(r"\s*(?:-+>|=+>|→|⟶|⇒|↦|\bto\b|\bbecomes\b)\s*")
_TOLD_ARROW = re.compile(r"\s*-*(?:>|→)?\s*(?:[\w./]+[\s-]*){0,3}(?:-+>|=+>|→|⟶|⇒|↦)\s*")
_PRODUCT = re.compile(r"\s*(?:@|[x×*·+-]|matmul|bmm)\s*", re.IGNORECASE)
_OTHERWISE = re.compile(r"\s*(?:,?\s*or\b|/|\|)\s*", re.IGNORECASE)
_BESIDE = re.compile(r"\s*(?:,|;|\+|&|and\b|,\s*and\b)\s*", re.IGNORECASE)
_JOINED_BEFORE = re.compile(r"[)\]]\s*(?:@|[x×]|-+>|=+>|→)\s*$")
_JOINED_BEHIND = re.compile(r"\s*(?:@|[x×]|-+>|=+>|→)\s*[(\[]")
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
"""Before a shape: it is said of a part of a variable, `w[b, h]: (L, L)`."""
_ELSEWHERE = re.compile(
    r"\b(?:instead of|rather than|unlike|like|to be|will be|needs?|expects?|requires?|per|without|so that|such that"
    r"|strides?|ready for|each of|below|later|next|then|if|formerly|originally)\b|\b(?:not|for)\s*[(\[]",
    re.I,
)
"""In prose, says that a shape is of something else than what is there."""
_AFTER = re.compile(r"^\s*(?:each|both|all|now|again|as well|here)\b", re.I)


@dataclass(frozen=True)
class Label:
    """What a shape is said of by name, `q, k: (B, T, D)`; no names where it is said of the line."""

    names: tuple[str, ...] = ()
    firm: bool = False
    """Whether a colon or an equals sign follows the names."""


@dataclass(frozen=True)
class Claim:
    """One claim: a shape, or several of which any will do, of what it is said, and whether nothing else is said."""

    groups: tuple[Group, ...]
    role: Role
    label: Label = Label()
    strict: bool = True
    """Whether the comment is nothing but shapes; else prose surrounds them."""
    place: int | None = None
    """Which of several results it is, from 0."""
    of: int = 1
    """How many results the comment lists."""
    chained: bool = False
    """Whether it is one of several with an arrow or a product between."""
    product: tuple[Group, ...] = ()
    """For an operand of `(B, T, C) @ (B, C, T)`, both."""


def claims(comment: str) -> list[Claim]:
    """Return what a comment, without its `#`, claims.

    >>> [(c.role, c.groups[0].text) for c in claims("(B,T,C) @ (B,C,T) -> (B,T,T)")]
    [('operand', '(B,T,C)'), ('operand', '(B,C,T)'), ('result', '(B,T,T)')]
    >>> [(c.label.names, c.groups[0].text) for c in claims("q: (B, T, D)")]
    [(('q',), '(B, T, D)')]
    >>> claims("swap (1, 2)"), claims("see (Vaswani et al., 2017)")
    ([], [])
    """
    if len(comment) > LONGEST:
        return []
    # what stands behind another `#` is a comment of its own, as for linters
    return [claim for part in re.split(r"(?<=\s)#(?=\s)", comment) for claim in _claims(part)]


def _claims(comment: str) -> list[Claim]:
    text = re.sub(r"^[\s#:!>*-]+(?![>])", "", comment).strip().replace("`", "")
    text = re.sub(r"^>\s*", "", text).rstrip(".")
    if "attnshape:" in text or re.match(r"(?:type:|noqa|fmt:|pragma|pylint|mypy:)", text):
        return []
    text = re.sub(r"\b(?:torch\.)?Size\((\[[^\[\]]*\])\)", r"\1", text)
    found = [group for group in groups(text) if _counts(group, text)]
    return _without_brackets(text) or (_around(text, found) if found else [])


def _counts(group: Group, text: str) -> bool:
    if all(token.kind == "number" for token in group.tokens):
        return False
    if len(group.tokens) > 1 or re.search(r",\s*[)\]]$", group.text):
        return True
    if text[group.start] == "(" and not (is_axis_word(group.text[1:-1]) or re.fullmatch(r"\([A-Z]\)", group.text)):
        return False  # an aside: (sic)
    if _JOINED_BEFORE.search(text[: group.start]) or _JOINED_BEHIND.match(text[group.end :]):
        return True
    label = _LABEL.match(text[: group.start])
    return group.end == len(text) and (not text[: group.start] or (label is not None and text[group.start] == "["))


def _without_brackets(text: str) -> list[Claim]:
    parts = _ARROW.split(text) if re.search(r"->|=>|→", text) else [text]
    label = re.match(rf"\s*(?P<names>(?:{_NAMES}\s*,\s*)*{_NAMES})\s*[:=]\s*(?=\S)", parts[0])
    told = re.match(r"[^:()\[\]]+:\s+(?=\S+\s+[x×X]\s)", parts[0]) if label is None else None
    if label is not None:
        parts[0] = parts[0][label.end() :]
    elif told is not None:
        parts[0] = parts[0][told.end() :]
    there = [part for part in parts if part.strip()]
    stages = [_bares(part) for part in (there if len(there) > 1 else there[:1])]
    if not stages or not all(stages):
        return []
    return _staged(stages, _label(label) if len(stages) == 1 else Label(), strict=True)


def _bares(text: str) -> list[Group]:
    """Return a text as one shape, or as two with a comma or a product between: `B H T m, B H m e`."""
    whole = bare(text)
    if whole is not None:
        return [whole]
    halves = [bare(part) for part in re.split(r"\s*[,@]\s*", text)]
    return [half for half in halves if half is not None] if len(halves) == 2 and all(halves) else []


def _around(text: str, found: Sequence[Group]) -> list[Claim]:
    """Return the claims of bracketed shapes, by what stands before, between and behind them."""
    between = [text[one.end : other.start] for one, other in itertools.pairwise(found)]
    before, behind = text[: found[0].start], text[found[-1].end :]
    if _PART.search(before) or _ELSEWHERE.search(text):
        return []
    label = _LABEL.match(before) if before.strip() else None
    said = _label(label)
    announced = before.rstrip().endswith((":", "->", "→"))
    clean = (not _prose(before) or label is not None or announced) and not _prose(_AFTER.sub("", behind))
    made: list[Claim] = []
    run: list[Group] = [found[0]]
    joints: list[str] = []
    listed: list[tuple[list[Group], list[str], Label]] = []
    for joint, group in zip(between, found[1:], strict=True):
        beside = _BESIDE.match(joint)
        if any(one.fullmatch(joint) for one in (_ARROW, _TOLD_ARROW, _PRODUCT, _OTHERWISE, _EQUALS)):
            run.append(group)
            joints.append(joint)
            continue
        listed.append((run, joints, said))
        rest = joint[beside.end() :] if beside is not None else joint
        again = _LABEL.match(rest) if rest.strip() else None
        said = _label(again)
        clean = clean and (beside is not None or again is not None) and not (rest.strip() and again is None)
        run, joints = [group], []
    listed.append((run, joints, said))
    listed = _paired(listed)
    arrows = any(_is_arrow(joint) for _, joints, _ in listed for joint in joints)
    named = any(not is_general(name) for _, _, said in listed for name in said.names)
    for place, (shapes, joints, said) in enumerate(listed):
        several = len(listed) if len(listed) > 1 and not named and not arrows else 1
        made += _joined(shapes, joints, said, clean or arrows, place if several > 1 else None, several)
    return made


def _paired(
    listed: Sequence[tuple[list[Group], list[str], Label]],
) -> list[tuple[list[Group], list[str], Label]]:
    """Return listed shapes each with its own name, where as many names stand before them all: `q, k: (…), (…)`."""
    names, firm = listed[0][2].names, listed[0][2].firm
    alone = all(len(shapes) == 1 for shapes, _, _ in listed) and not any(said.names for _, _, said in listed[1:])
    if len(listed) == 1 or len(names) != len(listed) or not alone:
        return list(listed)
    return [(shapes, joints, Label((name,), firm)) for (shapes, joints, _), name in zip(listed, names, strict=True)]


def _joined(
    shapes: Sequence[Group],
    joints: Sequence[str],
    label: Label,
    strict: bool,
    place: int | None,
    of: int,
) -> list[Claim]:
    """Return the claims of shapes with arrows, products and alternatives between them."""
    if joints and all(_OTHERWISE.fullmatch(joint) for joint in joints):
        return [Claim(tuple(shapes), "result", label, strict, place, of)]
    stages: list[list[Group]] = [[shapes[0]]]
    for joint, shape in zip(joints, shapes[1:], strict=True):
        if _is_arrow(joint) or (_EQUALS.fullmatch(joint) and len(stages[-1]) > 1):
            stages.append([shape])
        else:
            stages[-1].append(shape)
    if len(stages) == 1 and len(stages[0]) == 1:
        return [Claim((shapes[0],), "result", label, strict, place, of)]
    return _staged(stages, Label(), strict)


def _staged(stages: Sequence[Sequence[Group]], label: Label, strict: bool) -> list[Claim]:
    """Return the claims of a chain: what goes in, what there is on the way, what comes out."""
    if len(stages) == 1 and len(stages[0]) == 1:
        return [Claim((stages[0][0],), "result", label, strict)]
    made: list[Claim] = []
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1 and len(stages) > 1
        role: Role = "result" if last else "operand" if number == 0 else "state"
        product = tuple(stage) if len(stage) == 2 else ()
        made += [Claim((one,), role, label, strict, chained=True, product=product if not last else ()) for one in stage]
    return made


def _label(match: re.Match[str] | None) -> Label:
    """Return the names that a label gives, `q.shape` as `q`."""
    if match is None:
        return Label()
    names = re.split(r"\s*(?:,|/|and\b|&)\s*", match["names"])
    plain = tuple(re.sub(r"\.(?:shape|size)$", "", name) for name in names)
    return Label(plain, match.group().rstrip().endswith((":", "=")))


def is_general(name: str) -> bool:
    """Say whether a label, where it is no variable, speaks of the line: `shape:`, `output:`, `each`."""
    return _GENERAL.fullmatch(name) is not None


def is_input(name: str) -> bool:
    """Say whether a label, where it is no variable, speaks of what goes in: `input:`."""
    return name.lower() in ("input", "inputs")


def _is_arrow(joint: str) -> bool:
    return bool(_ARROW.fullmatch(joint) or _TOLD_ARROW.fullmatch(joint))


def _prose(text: str) -> bool:
    return bool(re.search(r"\w", _ARROW.sub("", text)))
