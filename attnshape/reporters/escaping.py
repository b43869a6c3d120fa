"""Escaping: names, expressions and errors from a trace become visible text, never markup or control codes."""

from __future__ import annotations

import re

_ACTIVE = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
# these change the width of the character before them, and terminals disagree on how
_VARIANTS = re.compile(r"[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK_START = re.compile(r"^(\d*)(?=[#+=.)-])")


def visible(text: str) -> str:
    r"""Return the text on one line, with escapes for control, direction and other invisible characters.

    >>> visible("a\x1b[31mb\n\u202ec")
    'a\\x1b[31mb\\n\\u202ec'
    """
    if text.isprintable() and not _VARIANTS.search(text):
        return text
    return "".join(
        char if char.isprintable() and not _VARIANTS.match(char) else char.encode("unicode_escape").decode()
        for char in text
    )


def prose(text: str) -> str:
    r"""Return the text as Markdown that renders as the text itself.

    >>> prose("a|b <i> H*Dk q_len")
    'a\\|b &lt;i&gt; H\\*Dk q_len'
    """
    return _BLOCK_START.sub(r"\1\\", _inline(visible(text).strip()))


def _inline(text: str) -> str:
    escaped = "".join(_ENTITIES.get(char, char) for char in text)
    return _ACTIVE.sub(lambda match: "\\" + match.group(), escaped)


def prose_with_code(text: str) -> str:
    r"""Return the text as Markdown prose, where text between backticks is a code span.

    >>> prose_with_code("last of `q_*` is H*Dk, and a lone ` too")
    'last of `q_*` is H\\*Dk, and a lone \\` too'
    """
    parts = re.split(r"`([^`\s][^`]*)`", visible(text).strip())
    return _BLOCK_START.sub(
        r"\1\\", "".join(code(part) if place % 2 else _inline(part) for place, part in enumerate(parts))
    )


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
