"""Hostile texts, and values in which they replace every text that comes from a user, a target or a saved file."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct, UnsetType
from msgspec.structs import replace

from attnshape.errors import AttnshapeError

HARMLESS = "harmless"
"""The text that hostile ones are compared with."""

PAYLOADS: dict[str, str] = {
    # terminals
    "ansi colour": "\x1b[31mred\x1b[0m",
    "ansi cursor": "\x1b[2J\x1b[H\x1b[1A\x1b[2K",
    "osc title": "\x1b]0;owned\x07",
    "osc link": "\x1b]8;;http://example.com\x1b\\click\x1b]8;;\x1b\\",
    "c1 csi": "\x9b31mred\x9b0m",
    "c1 osc": "\x9d0;owned\x9c",
    "bell and backspace": "abc\x07\x08\x08\x08xyz\x7f",
    "nul": "a\x00b",
    "carriage return": "failed\rfine  ",
    "rich markup": "[bold red]x[/] [/]",
    # lines
    "newline": "one\ntwo",
    "blank lines": "one\n\n\n| x | y |\n| - | - |\n",
    "crlf": "one\r\ntwo\r\n",
    "vertical tab and form feed": "one\vtwo\fthree",
    "next line": "one\x85two",
    "line separators": "one\u2028two\u2029three",
    "file separators": "one\x1ctwo\x1dthree\x1efour\x1ffive",
    "tab": "one\ttwo",
    # characters that can't be seen, or change what is around them
    "bidi override": "\u202eabc\u202c \u2066x\u2069 \u200f\u061c",
    "zero width": "a\u200bb\u200cc\u2060d\ufeffe\u00adf",
    "tag characters": "a\U000e0001\U000e0061\U000e0062\U000e007f",
    "blank letters": "a\u3164b\u115f\u1160c\uffa0d\u2800e",
    "variation selectors": "a\ufe0fb\U000e0100c\u180b\u034f",
    "no-break spaces": "a\u00a0b\u2007c\u202fd\u3000e",
    "combining stack": "a" + "\u0300\u0316\u0334" * 20,
    "leading combining mark": "\u0301\u0489x \u0336y",
    "right to left": "שלום עולם مرحبا",
    "wide": "注意力机制 ｆｕｌｌ",
    "emoji": "👩‍👩‍👧 🏳️‍🌈 1️⃣",
    "private use": "\ue000\U000f0000\uffff\U0010ffff",
    "lone surrogate": "a\ud800b",
    "undecodable byte": "model\udcff.py",
    "reversed surrogates": "\udc00\ud800",
    # Markdown
    "pipe": "a|b",
    "escaped pipe": "a\\|b \\\\|",
    "backtick": "a`b",
    "backticks": "``a`|`b``",
    "escaped backtick": "\\`",
    "fence": "```",
    "tildes": "~~~ x",
    "emphasis": "**b** __c__ *d* _e_ ~~f~~ ~g~",
    "link": "[l](http://example.com)",
    "reference link": "[l]: http://example.com 'x'",
    "image": "![i](http://example.com/x.png)",
    "autolink": "<http://example.com> <me@example.com>",
    "bare link": "see http://example.com, https://example.com/x?y and ftp://example.com",
    "bare domain": "www.example.com/x",
    "bare address": "me@example.com mailto:me@example.com xmpp:me@example.com",
    "mention": "@torvalds (@github/security)",
    "issue": "#1 GH-1 pytorch/pytorch#1",
    "shortcode": ":tada: a:b:c",
    "line 100": "model.py:100:5",
    "formula": "$x$ $$y$$",
    "heading": "# h",
    "closed heading": "h ##",
    "setext": "===",
    "rule": "---",
    "bullet": "- x",
    "plus": "+ x",
    "star": "* x",
    "numbered": "1. x",
    "parenthesis": "1) x",
    "task": "- [x] done",
    "quote": "> [!WARNING]\n> x",
    "footnote": "x[^1]\n\n[^1]: y",
    "indented": "    code",
    "hard break": "a\\",
    "two spaces": "a  ",
    # HTML
    "script": "<script>alert(1)</script>",
    "end of script": "</script><script>alert(1)</script>",
    "handler": "<img src=x onerror=alert(1)>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "entities": "&amp; &#124; &lt;b&gt; &copy",
    "comment": "<!-- x --> --> <!--",
    "details": "</details></td></tr></table></div>",
    "cdata": "]]> <![CDATA[x]]> <?php x ?>",
    "title": "</title></head><body>",
    "script url": "javascript:alert(1)",
    # workflow commands
    "command": "::error::x",
    "command with properties": "::error file=a.py,line=1,title=t::x",
    "indented command": "   ::warning::x",
    "command on the next line": "x\n::error::y",
    "command after text": f"{'word ' * 9}::error::x {'word ' * 9}::error::x",
    "command after a long word": f"{'x' * 37}::error::x{'x' * 90}::error::x",
    "command after a bracket": f"f({'x' * 30}[::error::x], a.b, c.d, {'y' * 40})",
    "set-output": "::set-output name=x::y",
    "stop-commands": "::stop-commands::token",
    "add-mask": "::add-mask::e",
    "half a command": "::error",
    "other half": "x ::y",
    "old command": "##[error]x",
    "old group": "a ##[group]b",
    "old command with properties": "##[set-output name=x;]y",
    "hash signs": "##",
    "bracket": "[error]",
    "azure command": "##vso[task.setvariable variable=x]y",
    "encoded": "x%0A::debug::y%0D%25",
    "property separators": "a,b:c%d;e=f",
    # JSON, SARIF, diffs and file names
    "json": '", "x": {"y": [',
    "json escapes": '\\u0022 \\" \\',
    "sarif link": "[x](0) \\[y](1) [z](http://example.com)",
    "diff": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y",
    "csv": "=1+1,\"a\";'b'",
    "format": "%s %(x)s {} {0.__class__}",
    "parent folder": "../../nosuch/x.py",
    "absolute": "/nosuch/x.py",
    "host": "//example.com/x",
    "drive": "C:\\x\\y.py",
    "leading dash": "-rf",
    "shell": "$(reboot) `reboot` ; reboot '",
    # lengths
    "long word": "x" * 3000,
    "long text": "word " * 600,
    "brackets": "(" * 90,
    "quotes": "'\"" * 40,
}

BLANK = ("", " ", "\u3000")
TEXT = st.one_of(
    st.sampled_from([*PAYLOADS.values(), *BLANK]),
    st.text(max_size=40),
    st.text(alphabet="`|\\<>[]*_&#:@ \n~ab.(", max_size=24),
    st.lists(st.sampled_from(list(PAYLOADS.values())), max_size=3).map("".join),
)


def replace_texts(value: Any, change: Callable[[str, str], str], hint: Any = None, field: str = "") -> Any:
    """Return a value with each of its texts replaced; `change` gets the field, such as `Step.expression`, and the text.

    Struct types, dataclasses and errors are entered; a field that takes only certain words is left as it is.
    """
    if isinstance(value, str):
        return change(field, value) if _takes_text(hint) else value
    if isinstance(value, AttnshapeError):
        named = (("message", value.message), ("hint", value.hint))
        return AttnshapeError(*(text and change(f"AttnshapeError.{name}", text) for name, text in named))
    if isinstance(value, Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        hints = get_type_hints(type(value))
        names = (
            value.__struct_fields__ if isinstance(value, Struct) else [one.name for one in dataclasses.fields(value)]
        )
        fields = {
            name: replace_texts(getattr(value, name), change, hints[name], f"{type(value).__name__}.{name}")
            for name in names
        }
        return replace(value, **fields) if isinstance(value, Struct) else dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        keys, values = _arguments(hint, Mapping) or (None, None)
        return {
            replace_texts(key, change, keys, f"{field} key"): replace_texts(one, change, values, field)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        items = (_arguments(hint, Sequence) or (None,))[0]
        return type(value)(replace_texts(one, change, items, field) for one in value)
    return value


def text_fields(value: Any) -> list[str]:
    """Return the fields of a value that hold texts."""
    found: dict[str, None] = {}

    def note(field: str, text: str) -> str:
        found[field] = None
        return text

    replace_texts(value, note)
    return list(found)


def with_text(value: Any, text: str, only: str | None = None) -> Any:
    """Return a value with a text in every field, or only in the fields of one name; elsewhere are harmless texts."""
    return replace_texts(value, lambda field, _: text if only in (None, field) else HARMLESS)


def declared_fields(kind: Any, field: str = "", seen: frozenset[Any] = frozenset()) -> Iterator[str]:
    """Yield the fields of a type that can hold a text, those of the types that it contains included."""
    if kind is str:
        yield field
    elif isinstance(kind, type) and (issubclass(kind, Struct) or dataclasses.is_dataclass(kind)):
        for name, hint in get_type_hints(kind).items() if kind not in seen else ():
            if name in _field_names(kind):
                yield from declared_fields(hint, f"{kind.__name__}.{name}", seen | {kind})
    elif kind is AttnshapeError:
        yield from ("AttnshapeError.message", "AttnshapeError.hint")
    elif get_origin(kind) is not Literal:
        mapping = isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping)
        for place, argument in enumerate(get_args(kind)):
            yield from declared_fields(argument, f"{field} key" if mapping and not place else field, seen)


def _field_names(kind: Any) -> Sequence[str]:
    return kind.__struct_fields__ if issubclass(kind, Struct) else [one.name for one in dataclasses.fields(kind)]


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _takes_text(hint: Any) -> bool:
    return any(member is str for member in _members(hint))


def _arguments(hint: Any, kind: type) -> tuple[Any, ...]:
    origins = (
        (member, get_origin(member))
        for member in _members(hint)
        if member is not UnsetType and not isinstance(member, TypeVar)
    )
    return next((get_args(one) for one, origin in origins if isinstance(origin, type) and issubclass(origin, kind)), ())
