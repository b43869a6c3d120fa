"""How numbers, words and the source text of a step are formatted, wherever a person reads them."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from typing import Any

_OPENING, _CLOSING = "([{", ")]}"
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_PREFIXES = ("k", "M", "G", "T", "P", "E")


def format_bytes(count: int) -> str:
    """Return a number of bytes in binary units.

    >>> format_bytes(122880), format_bytes(1_170_000), format_bytes(12)
    ('120 KiB', '1.1 MiB', '12 B')
    """
    if count < 1024:
        return f"{count} B"
    return _scaled(count, 1024, _UNITS, 9.95)


def format_count(count: int) -> str:
    """Return a number of things that are counted, such as operations, with a decimal prefix where it is large.

    >>> format_count(8000), format_count(204_800), format_count(10_485_760), format_count(3 * 10**12)
    ('8,000', '205 k', '10.5 M', '3 T')
    """
    if count < 10_000:
        return f"{count:,}"
    return _scaled(count, 1000, _PREFIXES, 99.95)


def _scaled(count: int, base: int, units: Sequence[str], whole_from: float) -> str:
    """Return a number in the largest unit that it reaches, with one decimal where it is less than `whole_from`."""
    amount, power = count / base, 0
    while amount >= base - 0.5 and power < len(units) - 1:
        amount, power = amount / base, power + 1
    number = f"{amount:.1f}".removesuffix(".0") if amount < whole_from else f"{amount:,.0f}"
    return f"{number} {units[power]}"


def format_ratio(ratio: float) -> str:
    """Return a ratio in two digits, or more where it is large.

    >>> format_ratio(0.1234), format_ratio(9.31), format_ratio(1234.5)
    ('0.12', '9.3', '1,234')
    """
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural unless the number is one.

    >>> pluralize(1, "view"), pluralize(8, "view"), pluralize(2, "property", "properties")
    ('1 view', '8 views', '2 properties')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def join_words(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> join_words(["B", "H", "L"])
    'B, H and L'
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def unfold(expression: str) -> str:
    r"""Return the text of an expression on one line, without comments and line breaks between its parts.

    >>> unfold("x.view(\n    B,  # batch\n    L,\n)")
    'x.view(B, L)'
    """
    if "\n" not in expression:
        return expression.strip().replace("\t", " ")
    # in brackets, indentation and line breaks produce no tokens that matter
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({expression}\n)").readline))
    except (tokenize.TokenError, SyntaxError, UnicodeEncodeError):  # from Python 3.12 on, of half a surrogate pair
        return " ".join(expression.split())
    ignored = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)
    kept = [token for token in tokens if token.type not in ignored][1:-1]
    text = ""
    row, column = 1, 1
    calls: list[bool] = []
    for token in kept:
        if token.string in _OPENING:
            calls.append(token.string == "(" and re.match(r"[\w)\]]", text[-1:]) is not None)
        elif token.string in _CLOSING and calls and calls.pop():
            # a trailing comma in a call only ever precedes a line break
            text = text.removesuffix(",")
        if token.start[0] == row:
            text += " " * (token.start[1] - column)
        elif text[-1:] not in _OPENING and token.string[:1] not in (*_CLOSING, "."):
            text += " "
        text += token.string
        row, column = token.end
    # a text of comments alone isn't from code, and stays as it is
    return text.strip() or " ".join(expression.split())


def strip_self(text: str) -> str:
    """Return source text without `self.`.

    >>> strip_self("self.Wq(x)")
    'Wq(x)'
    """
    return re.sub(r"(?<![\w.])self\.(?=\w)", "", text)


def find_part(text: str, part: str, start: int = 0) -> int:
    """Return where source text contains a part as whole words, from an index on; -1 if it doesn't.

    A part doesn't count after a dot. The time is linear in the text's length, while a regular expression of a long part
    is slow to compile.

    >>> find_part("max_len.len(len)", "len"), find_part("x.view(2)", "view")
    (12, -1)
    """
    at = text.find(part, start)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(part) : at + len(part) + 1]
        if not (_is_word(before) or before == "." or _is_word(after)):
            return at
        at = text.find(part, at + 1)
    return -1


_PIECE = re.compile(r"\w+|\W")


def replace_parts(text: str, parts: Iterable[str], by: str, not_after: str) -> str:
    """Return source text with another text in place of each part that it contains as whole words.

    A part doesn't count where one of the characters `not_after` precedes it. Where several parts begin, the longest is
    replaced. A tree of the parts' words finds all that begin at a place, however many parts there are.

    >>> replace_parts("f(x, x.mT, y) + self.x", ["x", "x.mT", ""], "…", not_after=".")
    'f(…, …, y) + self.x'
    """
    tree: dict[str, Any] = {}
    for part in filter(None, parts):
        branch = tree
        for piece in _PIECE.findall(part):
            branch = branch.setdefault(piece, {})
        branch[""] = part
    pieces = _PIECE.findall(text)
    replaced: list[str] = []
    start, before = 0, ""
    while start < len(pieces):
        end, place, found = start, start, tree if not (_is_word(before) or (before and before in not_after)) else {}
        while place < len(pieces) and (found := found.get(pieces[place], {})):
            place += 1
            if "" in found and not (place < len(pieces) and _is_word(pieces[place][0])):
                end = place
        replaced.append(by if end > start else pieces[start])
        start = max(end, start + 1)
        before = pieces[start - 1][-1]
    return "".join(replaced)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
