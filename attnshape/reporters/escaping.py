"""Escaping: texts from users, targets and saved files become visible text, never markup, control codes or commands."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_ACTIVE = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK_START = re.compile(r"^(\d*)(?=[#+=.)-])")
_WORD = re.compile(r"([^\s|`\\]+)")
# what GitHub makes a link, a notification or a picture of: addresses, mentions, numbers of issues, emoji by name
_LINKED = re.compile(
    r"(?:https?|ftp)://|www\.|(?:mailto|xmpp):|@(?=\w)|#(?=\d)|\bGH-(?=\d)|:(?:100|1234|(?!\d+:)[\w+-]+):",
    re.IGNORECASE,
)
# characters that Python counts as printable and nobody can see: fillers, the blank of Braille, and characters that
# change the one before them, also its width, in which terminals disagree
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_MOST_MARKS = 4
"""The most combining marks on one character that are shown; more would cover the lines above and below."""
# what services that read logs take for a command: `##[name]` or `##service[name` anywhere in a line
_LOG_COMMAND = re.compile(r"#(?=#\w*\[)")
# and `::name::` at the start of a line, which may be folded at any space
_LINE_COMMAND = re.compile(r"(?:^| )(?=::[A-Za-z])")


def visible(text: str) -> str:
    r"""Return the text on one line, with escapes for all that isn't shown as it is, and for commands to log readers.

    Escaped are control, direction and other invisible characters, more combining marks than writing needs, and one
    character of `##[name]` and `::name` where GitHub's runner would carry them out as workflow commands.

    >>> print(visible("a\x1b[31mb\n\u202ec"), visible("##[error]x"), visible("::error::x"))
    a\x1b[31mb\n\u202ec #\x23[error]x \x3a:error::x
    """
    if text.isascii() and text.isprintable() and "##" not in text and "::" not in text:
        return text
    return "".join(visible_characters(text))


def visible_characters(text: str) -> list[str]:
    r"""Return what `visible` shows for each character.

    >>> visible_characters("a\n")
    ['a', '\\n']
    """
    shown: list[str] = []
    marks = _MOST_MARKS  # none is shown where there is no character before it
    for char in text:
        is_mark = unicodedata.category(char).startswith("M")
        marks = marks + 1 if is_mark else _MOST_MARKS if char == " " else 0
        hidden = not char.isprintable() or marks > _MOST_MARKS or _INVISIBLE.match(char)
        shown.append(char.encode("unicode_escape").decode() if hidden else char)
    for match in _LOG_COMMAND.finditer(text):
        shown[match.end()] = r"\x23"
    for match in _LINE_COMMAND.finditer(text):
        shown[match.end()] = r"\x3a"
    return shown


def visible_lines(data: bytes) -> bytes:
    r"""Return lines for a terminal, with escapes as in `visible` for all but tabs and the ends of lines.

    >>> visible_lines(b"\tx\x1b[2J\r\n")
    b'\tx\\x1b[2J\r\n'
    """
    lines = data.decode(errors="backslashreplace").split("\n")
    shown = (
        "\t".join(map(visible, line.removesuffix("\r").split("\t"))) + "\r" * line.endswith("\r") for line in lines
    )
    return "\n".join(shown).encode()


def prose(text: str) -> str:
    r"""Return the text as Markdown that renders as the text itself.

    >>> prose("a|b <i> H*Dk q_len")
    'a\\|b &lt;i&gt; H\\*Dk q_len'
    """
    return _BLOCK_START.sub(r"\1\\", _inline(visible(text).strip()))


def _inline(text: str) -> str:
    # nothing in a code span is a link
    return "".join(_span(part) if _LINKED.search(part) else _plain(part) for part in _WORD.split(text))


def _plain(text: str) -> str:
    escaped = "".join(_ENTITIES.get(char, char) for char in text)
    return _ACTIVE.sub(lambda match: "\\" + match.group(), escaped)


def prose_with_code(text: str) -> str:
    r"""Return the text as Markdown prose, where text between backticks is a code span.

    >>> prose_with_code("last of `q_*` is H*Dk, and a lone ` too")
    'last of `q_*` is H\\*Dk, and a lone \\` too'
    """
    return _BLOCK_START.sub(r"\1\\", _prose_with_spans(text, code))


def prose_cell(text: str) -> str:
    r"""Return the text as Markdown prose with code spans for a table cell, in which nothing begins a block.

    >>> prose_cell("0.5 of `a | b`")
    '0.5 of `a \\| b`'
    """
    return _prose_with_spans(text, code_cell)


def _prose_with_spans(text: str, span: Callable[[str], str]) -> str:
    parts = re.split(r"`([^`\s][^`]*)`", visible(text).strip())
    return "".join(span(part) if place % 2 else _inline(part) for place, part in enumerate(parts))


def code(text: str) -> str:
    r"""Return the text as a Markdown code span, for use outside tables; blank text gives an empty string.

    >>> code("mask | causal"), code("a`b")
    ('`mask | causal`', '``a`b``')
    """
    stripped = visible(text).strip()
    return _span(stripped) if stripped else ""


def code_cell(text: str) -> str:
    r"""Return the text as a Markdown code span for a table cell; blank text gives an empty string.

    >>> code_cell("mask | causal")
    '`mask \\| causal`'
    """
    parts = re.split(r"(?<=\\)\|", visible(text).strip())
    # renderers disagree on a pipe after a backslash: put it outside the span, as an entity
    return "&#124;".join(_span(part).replace("|", "\\|") if part else "" for part in parts)


def _span(part: str) -> str:
    fence = "`" * (1 + max(map(len, re.findall(r"`+", part)), default=0))
    touching = "`" in (part[0], part[-1]) or (part[0] == part[-1] == " " and part.strip() != "")
    return f"{fence} {part} {fence}" if touching else f"{fence}{part}{fence}"
