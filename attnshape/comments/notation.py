"""Parses the notations of shapes in comments: `(B, nh, T, hs)`, `[n_batch, n_Q]`, `B x H x L`, `b n (h d)`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attnshape.dims.arithmetic import AXIS, Node, Symbol, parse, symbols
from attnshape.errors import AttnshapeError

Meaning = Literal["batch", "heads", "length", "head width", "width"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MEANINGS: dict[Meaning, tuple[str, ...]] = {
    "batch": _words("B b bs bsz bz batch batch_size n_batch nbatch num_batch batches"),
    "heads": _words("nh nH n_h n_head n_heads nhead nheads num_heads num_head heads head H h"),
    "length": _words(
        """T t L seq seqlen seq_len seq_length sequence sequence_length len length tokens n_tokens num_tokens time
        timesteps n_ctx ctx q_len query_len n_q T_q Tq L_q Lq tgt_len target_len queries n_queries num_queries k_len
        kv_len n_k key_len T_k Tk L_k Lk src_len source_len keys n_keys num_keys n_Q n_K"""
    ),
    "head width": _words(
        """hs hd dh d_h d_k D_k dk Dk d_head d_heads dim_head head_dim head_size head_dims Dh D_h d_v D_v Dv dv"""
    ),
    "width": _words(
        """C D d_model D_model dim dims embed embed_dim emb_dim embedding n_embd n_embed embd hidden hidden_size
        hidden_dim hid_dim channels features feat model dmodel"""
    ),
}
"""Names of axes by their usual meaning; no name has two meanings."""

_OTHER_AXIS_NAMES = _words(
    """window window_size n_windows num_windows groups group n_group n_groups classes vocab vocab_size patches n_patches
    num_patches layers n_layers chunks n_chunks chunk rank past past_len total_len memory context experts height depth
    blocks block block_size query key value target source words frames inner_dim mem_len size"""
)

_BY_WORD: dict[str, Meaning] = {word: meaning for meaning, words in MEANINGS.items() for word in words}

_TYPES = _words(
    """tensor tensors float int bool str none optional default list tuple dict any callable true false module array
    floattensor longtensor booltensor byte long double half ndarray union self return returns"""
)


_ENGLISH = _words("of in to is at on by or as if it we be no so an do up us my vs eg ie the and for not all are")
"""Short English words that aren't dimension names, as in `(of T)`."""


def usual_meaning(name: str) -> Meaning | None:
    """Return the usual meaning of an axis with this name, or None.

    >>> usual_meaning("nh"), usual_meaning("batch size"), usual_meaning("N")
    ('heads', 'batch', None)
    """
    plain = normalize_name(name)
    return _BY_WORD.get(plain) or _BY_WORD.get(plain.lower() if len(plain) > 2 else plain)


def is_axis_word(name: str) -> bool:
    """Return whether this is a common name of an axis: `batch`, `seq_len`, `n_windows`.

    >>> is_axis_word("seq len"), is_axis_word("faster")
    (True, False)
    """
    return usual_meaning(name) is not None or normalize_name(name).lower() in _OTHER_AXIS_NAMES


def is_type(name: str) -> bool:
    """Return whether a word is a type or a keyword and not an axis, as in `(Tensor, optional)`."""
    return name.lower().rpartition(".")[2] in _TYPES


def normalize_name(name: str) -> str:
    """Replace the spaces and hyphens of a name with underscores: `batch size` becomes `batch_size`."""
    return re.sub(r"[\s-]+", "_", name.strip())


_NAME = r"[^\W\d][\w']*"
_WORDS = re.compile(rf"{_NAME}(?:[ -]{_NAME}){{0,2}}")
_DIFFERENCE = re.compile(r"\w{1,2}-\w{1,2}")
_IMPLICIT = re.compile(rf"(?<![\w'])(\d+)({_NAME})")
_JOINED_BY_X = re.compile(r"[A-Z][a-z]?(?:x[A-Z][a-z]?){2,}")
"""`BxHxLxD`."""
_MAX_DIGITS = 16
MAX_LENGTH = 1000
"""Longer comments and lines aren't parsed: they contain data, and parsing them would be slow."""
PRIME = "ʹ"
"""Replaces the apostrophe of `H'` in expressions, since names can't contain one."""
_ELLIPSES = ("...", "…", "..")
_ANY_AXES = (*_ELLIPSES, "*")
_ANY_SIZE = ("?", "_", "-1", ":")
_EITHER = re.compile(r"(?P<one>\w+)\s*/\s*(?P<other>\w+)")
_WORD_OF_NAME = re.compile(r"[A-Z](?=(?:[qkvst]|kv)$)|[A-Z]?[a-z]+|[A-Z]|\d+")
_SIDES = frozenset(
    _words("q k v kv s t src tgt source target query queries key keys value values enc dec encoder decoder")
)
"""Words that tell whose axis it is: the lengths `T/S` and `P_q/P_v` are the one or the other, and no quotients."""


@dataclass(frozen=True)
class AxisToken:
    """One axis of a documented shape: a name, a number, an expression, an arbitrary size, or any number of axes."""

    text: str
    kind: Literal["name", "number", "expression", "any", "variadic"]
    tree: Node | None = None
    broadcast: bool = False
    """Whether the axis may also have size 1, as with jaxtyping's `#L`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct dimension names."""
        if self.kind == "name":
            return (self.text,)
        names = symbols(self.tree) if self.tree is not None else ()
        return tuple(name.replace(PRIME, "'") for name in names)


@dataclass(frozen=True)
class ShapeText:
    """One documented shape, and its position in the text."""

    axes: tuple[AxisToken, ...]
    text: str
    start: int
    end: int
    bracketed: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct dimension names."""
        return tuple(dict.fromkeys(name for axis in self.axes for name in axis.names))


def parse_axis(text: str) -> AxisToken | None:
    """Parse one axis of a shape; return None if the text can't be one.

    >>> parse_axis("nh").kind, parse_axis("3*C").names, parse_axis("(h d)").text, parse_axis("...").kind
    ('name', ('C',), 'h*d', 'variadic')
    """
    plain = text.strip().strip("`$")
    plain = plain[1:-1].strip() if re.fullmatch(rf"\(\s*{_NAME}\s*\)", plain) else plain
    if plain in _ANY_AXES or re.fullmatch(r"\*\w+", plain):
        return AxisToken(plain, "variadic")
    if plain in _ANY_SIZE or _is_either(plain):
        return AxisToken(plain, "any")
    if plain.isdecimal() and len(plain) < _MAX_DIGITS:
        return AxisToken(str(int(plain)), "number") if int(plain) else None  # an interval: [0, T)
    if is_type(plain):
        return None
    if _WORDS.fullmatch(plain) and not _DIFFERENCE.fullmatch(plain):
        # several words are one name if one of them, or all together, are a common name: `[src len, hid dim]`
        axis_words = [word for word in (plain, *plain.split()) if len(word) > 2 and is_axis_word(word)]
        return AxisToken(normalize_name(plain), "name") if " " not in plain or axis_words else None
    return _expression(plain)


def _is_either(text: str) -> bool:
    """Return whether a text names two lengths that differ in whose they are: `T/S`, `P_q/P_v`, `src_len/tgt_len`."""
    both = _EITHER.fullmatch(text)
    if both is None:
        return False
    words = [_WORD_OF_NAME.findall(name) for name in both.groups()]
    differing = [{one.lower(), other.lower()} for one, other in zip(*words, strict=False) if one != other]
    # the quotient of two numbers of heads is the size of a group
    of_heads = any(usual_meaning(word) == "heads" for word in (*both.groups(), *itertools.chain(*words)))
    return len(words[0]) == len(words[1]) and len(differing) == 1 and differing[0] <= _SIDES and not of_heads


def _expression(plain: str) -> AxisToken | None:
    code = plain.replace("self.", "").replace("×", "*").replace("·", "*").replace("^", "**")
    grouped = re.fullmatch(rf"\(\s*({_NAME}(?:\s+{_NAME})+)\s*\)", code)
    if grouped:
        code = "*".join(grouped[1].split())
    code = _IMPLICIT.sub(r"\1*\2", code)
    code = re.sub(r"(?<!/)/(?!/)", "//", code).replace("'", PRIME)
    code = re.sub(r"(?<=[\w)])\s+x\s+(?=[\w(])", "*", code)
    if len(code) > 80:
        return None
    try:
        tree = parse(" ".join(code.split()), AXIS)
    except AttnshapeError:
        return None
    names = symbols(tree)
    if not names or any(map(is_type, names)) or code.startswith("-"):
        return None
    if isinstance(tree, Symbol):
        return AxisToken(tree.name, "name")
    return AxisToken(code.replace(" ", ""), "expression", tree)


def find_shapes(text: str) -> Iterator[ShapeText]:
    """Yield the bracketed shapes in a text, except in calls and subscripts such as `view(B, T)` and `x[B, T]`.

    >>> [documented.text for documented in find_shapes("(B, T) @ [T, C] -> view(B, C), (see above)")]
    ['(B, T)', '[T, C]']
    """
    position = 0
    while position < len(text) <= MAX_LENGTH:
        end = _after_closing_bracket(text, position) if text[position] in "([" else None
        if end is None:
            position += 1
            continue
        before = text[:position]
        called = re.search(r"[\w\])}]$", before) and not re.search(r"(?:\bSize|\bshape|\bsize)$", before)
        axes = None if called else _bracketed(text[position + 1 : end - 1])
        if axes is not None:
            yield ShapeText(axes, text[position:end], position, end, bracketed=True)
        # the inner brackets of `torch.Size([B, T])` may contain a shape
        skipped = axes is not None or (called and not before.endswith("Size"))
        position = end if skipped else position + 1


def _after_closing_bracket(text: str, start: int) -> int | None:
    """Return the position after the closing bracket of the one at `start`; None if there is none."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in "([") - (text[position] in ")]")
        if depth == 0:
            return position + 1 if text[position] == {"(": ")", "[": "]"}[text[start]] else None
    return None


def _bracketed(inner: str) -> tuple[AxisToken, ...] | None:
    if not inner.strip():
        return None
    for separator in (r",", r";", r"\s+[x×X]\s+|×", r"\s*\|\s*"):
        parts = _split(inner, separator)
        if len(parts) > 1 or (separator == "," and inner.rstrip().endswith(",")):
            return _parse_axes([part for part in parts if part.strip()])
    if _JOINED_BY_X.fullmatch(inner.strip()):
        return _parse_axes(inner.strip().split("x"))
    single = parse_axis(inner)
    return (single,) if single is not None and single.kind != "expression" else _if_plausible(_einops(inner))


def _split(text: str, separator: str) -> list[str]:
    """Split a text at a separator outside of brackets."""
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


def _parse_axes(parts: Sequence[str]) -> tuple[AxisToken, ...] | None:
    if _lists_values(parts):
        return None
    parts = _without_ends_of_runs(parts)
    axes = tuple(axis for axis in map(parse_axis, parts) if axis is not None)
    return axes if len(axes) == len(parts) and 0 < len(axes) < 10 else None


def _without_ends_of_runs(parts: Sequence[str]) -> Sequence[str]:
    """Return the parts with the run of axes `d1, d2, ..., dn` as `...` alone.

    In a call with one such axis the first is the last one. Its name may say more: `q_dn`.
    """
    plain = [part.strip() for part in parts]
    dots = next((place for place, part in enumerate(plain) if part in _ELLIPSES), 0)
    if not 0 < dots < len(plain) - 1:
        return parts
    numbered = re.fullmatch(r"(?P<stem>[^\W\d]+)_?\d+'?", plain[dots - 1])
    if numbered is None or not re.fullmatch(rf"(?:\w+_)?{numbered['stem']}_?[^\W\d]'?", plain[dots + 1]):
        return parts
    of_run = re.compile(rf"{numbered['stem']}_?\d+'?")
    first = dots - len(list(itertools.takewhile(of_run.fullmatch, reversed(plain[:dots]))))
    return [*parts[:first], parts[dots], *parts[dots + 2 :]]


def _lists_values(parts: Sequence[str]) -> bool:
    """Return whether these are the first and last values of a sequence: `x1, x2, ..., xn` or `L, L-1, ..., 1`."""
    plain = [part.strip() for part in parts]
    dots = next((place for place, part in enumerate(plain) if part in _ELLIPSES), 0)
    if not 0 < dots < len(plain) - 1:
        return False
    first, last = plain[0], plain[-1]
    pattern = rf"{re.escape(first)}\s*[+-]\s*\d+"
    follows = dots > 1 and (all(part.isdecimal() for part in plain[:dots]) or re.fullmatch(pattern, plain[1]))
    stem = re.fullmatch(r"(?P<stem>[^\W\d]+)\d+", first)
    return bool(follows or (stem is not None and re.fullmatch(rf"{stem['stem']}\w+", last)))


def _einops(text: str) -> tuple[AxisToken, ...] | None:
    # a star between two names multiplies them: `[b * t, d]`, `[b h * d]`
    text = re.sub(r"(?<=[\w)])\s+\*\s+(?=[\w(])", "*", text)
    parts = [part for part in _split(text, r"\s+") if part.strip()]
    return _parse_axes(parts) if len(parts) > 1 else None


def parse_bare_shape(text: str) -> ShapeText | None:
    """Parse a shape without brackets: `B x H x L`, `B,T,C`, `batch, seq, dim`, `b h n d`.

    >>> [axis.text for axis in parse_bare_shape("B x H x L").axes], parse_bare_shape("split the heads")
    (['B', 'H', 'L'], None)
    """
    plain = re.sub(r"^(?:of )?(?:shapes?|size)\s+(?=\S+\s+[x×X]\s)", "", text.strip(), flags=re.I).rstrip(".;")
    axes: tuple[AxisToken, ...] | None = None
    if re.search(r"\s[x×]\s|×", plain) or re.fullmatch(r"\S+(?:\sX\s\S+)+", plain):
        axes = _parse_axes(re.split(r"\s+[x×X]\s+|×", plain))
    elif _JOINED_BY_X.fullmatch(plain):
        axes = _parse_axes(plain.split("x"))
    elif "," in plain:
        parts = _split(plain, r",")
        if all(is_axis_word(part) for part in parts if " " in part.strip() and part.strip()[0].isalpha()):
            axes = _if_plausible(_parse_axes(parts))
    elif plain and not re.search(r"[=:]|[\w)]\s+\*\s+[\w(]", plain):  # one product isn't a shape: C = nh * hs
        axes = _if_plausible(_einops(plain))
    if axes is None or len(axes) < 2 or all(axis.kind == "number" for axis in axes):
        return None
    start = text.index(plain)
    return ShapeText(axes, plain, start, start + len(plain), bracketed=False)


def find_bare_shapes(text: str) -> list[ShapeText]:
    """Return the shapes without brackets within a sentence: `the mask, bsz x qlen x klen`.

    >>> [documented.text for documented in find_bare_shapes("of the current segment, qlen x bsz x d_model")]
    ['qlen x bsz x d_model']
    """
    if len(text) > MAX_LENGTH:
        return []
    matches = re.finditer(rf"(?<![\w(\[]){_NAME}(?:\s+[x×]\s+[\w*/+-]+)+", text)
    return [
        ShapeText(shape.axes, match.group(), match.start(), match.end(), bracketed=False)
        for match in matches
        if (shape := parse_bare_shape(match.group())) is not None
    ]


def _if_plausible(axes: tuple[AxisToken, ...] | None) -> tuple[AxisToken, ...] | None:
    """Return the axes if all their names are likely names of axes, else None."""
    names = [name for axis in axes or () for name in axis.names]
    likely = all((len(name) <= 2 or is_axis_word(name) or "_" in name) and name not in _ENGLISH for name in names)
    return axes if likely else None
