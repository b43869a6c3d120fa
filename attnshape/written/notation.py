"""Shapes as people write them in comments: `(B, nh, T, hs)`, `[n_batch, n_Q]`, `B x H x L`, `b n (h d) -> b h n d`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attnshape.written.words import is_axis_word, is_english, is_type, normal

_NAME = r"[^\W\d][\w']*"
_WORDS = re.compile(rf"{_NAME}(?:[ -]{_NAME}){{0,2}}")
_DIFFERENCE = re.compile(r"\w{1,2}-\w{1,2}")
_IMPLICIT = re.compile(rf"(?<![\w'])(\d+)({_NAME})")
_RUN_TOGETHER = re.compile(r"[A-Z][a-z]?(?:x[A-Z][a-z]?){2,}")
"""`BxHxLxD`."""
_ALLOWED = (
    *(ast.BinOp, ast.UnaryOp, ast.USub, ast.Name, ast.Load, ast.Constant),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv),
)
_MOST_DIGITS = 16
LONGEST = 1000
"""Characters that a comment or a line may have: what is longer is data, and would take long."""
PRIME = "ʹ"
"""Stands for the apostrophe of `H'` in formulas, since Python's names can have none."""
_ANY_AXES = ("...", "…", "*", "..")
_ANY_SIZE = ("?", "_", "-1", ":")
_EITHER = re.compile(r"[QKVST]/[QKVST]")
"""The length of one or of the other: of queries and keys, of source and target."""


@dataclass(frozen=True)
class Token:
    """One written axis: an expression over letters, a number, any one size, or any number of axes."""

    text: str
    kind: Literal["letter", "number", "expression", "any", "variadic"]
    tree: ast.expr | None = None
    broadcast: bool = False
    """Whether 1 will do too, as jaxtyping's `#L`."""

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters in it, each once."""
        if self.kind == "letter":
            return (self.text,)
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name)] if self.tree is not None else []
        nodes.sort(key=lambda node: node.col_offset)
        return tuple(dict.fromkeys(node.id.replace(PRIME, "'") for node in nodes))


@dataclass(frozen=True)
class Group:
    """One written shape, and where it stands in its text."""

    tokens: tuple[Token, ...]
    text: str
    start: int
    end: int
    bracketed: bool

    @property
    def letters(self) -> tuple[str, ...]:
        """Every letter in it, each once."""
        return tuple(dict.fromkeys(name for token in self.tokens for name in token.letters))


def token(text: str) -> Token | None:
    """Return what an axis is written as, None where it can't be one.

    >>> token("nh").kind, token("3*C").letters, token("(h d)").text, token("e.g."), token("...").kind
    ('letter', ('C',), 'h*d', None, 'variadic')
    """
    plain = text.strip().strip("`$")
    plain = plain[1:-1].strip() if re.fullmatch(rf"\(\s*{_NAME}\s*\)", plain) else plain
    if plain in _ANY_AXES or re.fullmatch(r"\*\w+", plain):
        return Token(plain, "variadic")
    if plain in _ANY_SIZE or _EITHER.fullmatch(plain):
        return Token(plain, "any")
    if plain.isdecimal() and len(plain) < _MOST_DIGITS:
        return Token(str(int(plain)), "number") if int(plain) else None  # an interval: [0, T)
    if is_type(plain):
        return None
    if _WORDS.fullmatch(plain) and not _DIFFERENCE.fullmatch(plain):
        return Token(normal(plain), "letter") if " " not in plain or is_axis_word(plain) else _spaced(plain)
    return _expression(plain)


def _spaced(plain: str) -> Token | None:
    """Return several words as one axis's name, as in `[src len, hid dim]`."""
    words = plain.split()
    return Token(normal(plain), "letter") if any(len(word) > 2 and is_axis_word(word) for word in words) else None


def _expression(plain: str) -> Token | None:
    written = plain.replace("self.", "").replace("×", "*").replace("·", "*").replace("^", "**")
    grouped = re.fullmatch(rf"\(\s*({_NAME}(?:\s+{_NAME})+)\s*\)", written)
    if grouped:
        written = "*".join(grouped[1].split())
    written = _IMPLICIT.sub(r"\1*\2", written)
    written = re.sub(r"(?<!/)/(?!/)", "//", written).replace("'", PRIME)
    written = re.sub(r"(?<=[\w)])\s+x\s+(?=[\w(])", "*", written)
    if len(written) > 80:
        return None
    try:
        tree = ast.parse(written.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    allowed = all(isinstance(node, _ALLOWED) for node in ast.walk(tree))
    whole = all(type(node.value) is int for node in ast.walk(tree) if isinstance(node, ast.Constant))
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    if not (allowed and whole and names) or any(map(is_type, names)):
        return None
    if isinstance(tree, ast.Name):
        return Token(tree.id, "letter")
    return Token(written.replace(" ", ""), "expression", tree)


def groups(text: str) -> Iterator[Group]:
    """Yield the bracketed shapes in a text; calls and subscripts, `view(B, T)` and `x[B, T]`, are none.

    >>> [group.text for group in groups("(B, T) @ [T, C] -> view(B, C), (see above)")]
    ['(B, T)', '[T, C]']
    """
    place = 0 if len(text) <= LONGEST else len(text)
    while place < len(text):
        if text[place] not in "([":
            place += 1
            continue
        end = _closing(text, place)
        if end is None:
            place += 1
            continue
        before = text[:place]
        called = re.search(r"[\w\])}]$", before) and not re.search(r"(?:\bSize|\bshape|\bsize)$", before)
        found = None if called else _bracketed(text[place + 1 : end - 1])
        if found is not None:
            yield Group(found, text[place:end], place, end, bracketed=True)
            place = end
        else:
            # what stands in the brackets of `torch.Size([B, T])`
            place = place + 1 if re.search(r"Size$", before) or not called else end
    return


def _closing(text: str, start: int) -> int | None:
    """Return the place behind the bracket that closes the one at `start`; None where none does."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "([") - (text[place] in ")]")
        if depth == 0:
            return place + 1 if text[place] == {"(": ")", "[": "]"}[text[start]] else None
    return None


def _bracketed(inner: str) -> tuple[Token, ...] | None:
    if not inner.strip():
        return None
    for separator in (r",", r";", r"\s+[x×X]\s+|×", r"\s*\|\s*"):
        parts = _split(inner, separator)
        if len(parts) > 1 or (separator == "," and inner.rstrip().endswith(",")):
            return _tokens([part for part in parts if part.strip()])
    if _RUN_TOGETHER.fullmatch(inner.strip()):
        return _tokens(inner.strip().split("x"))
    single = token(inner)
    if single is not None and single.kind != "expression":
        return (single,)
    spaced = _einops(inner)
    return spaced if spaced is not None and all(_plausible(one) for one in spaced) else None


def _split(text: str, separator: str) -> list[str]:
    """Split a text at a separator that stands in no brackets."""
    parts, depth, last = [], 0, 0
    for match in re.finditer(rf"[(\[]|[)\]]|{separator}", text):
        if match.group() in "([":
            depth += 1
        elif match.group() in ")]":
            depth -= 1
        elif depth == 0:
            parts.append(text[last : match.start()])
            last = match.end()
    return [*parts, text[last:]]


def _tokens(parts: Sequence[str]) -> tuple[Token, ...] | None:
    found = [token(part) for part in parts]
    return tuple(one for one in found if one is not None) if all(found) and 0 < len(found) < 10 else None


def _einops(text: str) -> tuple[Token, ...] | None:
    parts = [part for part in _split(text, r"\s+") if part.strip()]
    return _tokens(parts) if len(parts) > 1 else None


def bare(text: str) -> Group | None:
    """Return a text that as a whole is one shape without brackets: `B x H x L`, `B,T,C`, `batch, seq, dim`, `b h n d`.

    >>> [token.text for token in bare("B x H x L").tokens], bare("split the heads")
    (['B', 'H', 'L'], None)
    """
    plain = re.sub(r"^(?:of )?(?:shapes?|size)\s+(?=\S+\s+[x×X]\s)", "", text.strip(), flags=re.I).rstrip(".;")
    found: tuple[Token, ...] | None = None
    if re.search(r"\s[x×]\s|×", plain) or re.fullmatch(r"\S+(?:\sX\s\S+)+", plain):
        found = _tokens(re.split(r"\s+[x×X]\s+|×", plain))
    elif _RUN_TOGETHER.fullmatch(plain):
        found = _tokens(plain.split("x"))
    elif "," in plain:
        parts = _split(plain, r",")
        known = all(is_axis_word(part) for part in parts if " " in part.strip() and part.strip()[0].isalpha())
        found = _tokens(parts) if known else None
        if found is not None and not all(_plausible(one) for one in found):
            found = None
    elif plain and not re.search(r"[=:]|[\w)]\s+\*\s+[\w(]", plain):  # one product isn't a shape: C = nh * hs
        found = _einops(plain)
        if found is not None and not all(_plausible(one) for one in found):
            found = None
    if found is None or len(found) < 2 or all(one.kind == "number" for one in found):
        return None
    start = text.index(plain)
    return Group(found, plain, start, start + len(plain), bracketed=False)


def in_line(text: str) -> list[Group]:
    """Return the shapes without brackets that stand in a sentence: `the mask, bsz x qlen x klen`.

    >>> [group.text for group in in_line("of the current segment, qlen x bsz x d_model")]
    ['qlen x bsz x d_model']
    """
    if len(text) > LONGEST:
        return []
    found = []
    for match in re.finditer(rf"(?<![\w(\[]){_NAME}(?:\s+[x×]\s+[\w*/+-]+)+", text):
        group = bare(match.group())
        if group is not None:
            found.append(Group(group.tokens, match.group(), match.start(), match.end(), bracketed=False))
    return found


def _plausible(one: Token) -> bool:
    """Say whether a word without brackets around its list is likely an axis's name."""
    return all((len(name) <= 2 or is_axis_word(name) or "_" in name) and not is_english(name) for name in one.letters)
