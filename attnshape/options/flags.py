"""Options as the command line has them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.errors import Option


def flag_words(option: Option) -> list[str]:
    """Return the words of a command line that give an option; without a value only the flag.

    >>> flag_words(Option("sizes", 4, "H")), flag_words(Option("inputs", "B L D", "x"))
    (['--heads', '4'], ['--input', 'x: B L D'])
    """
    field, value, key = option.field, option.value, option.key
    if field == "sizes":
        sizes = value if isinstance(value, Mapping) else {key: value}
        return [word for symbol, size in sizes.items() for word in _size_words(symbol, size)]
    if field == "options" and key is not None:
        field, key, value = ("no_bias", None, True) if key == "bias" else (key, None, value)
    flag = {"inputs": "--input", "arguments": "--with", "claims": "--claim"}.get(field, f"--{field.replace('_', '-')}")
    if value is None or value is True:
        return [flag]
    if key is not None:
        return [flag, f"{key}={value}" if field == "arguments" else f"{key}: {value}"]
    return [flag, str(value)]


def flag_syntax(option: Option) -> str:
    """Return an option as it is typed in a shell.

    >>> flag_syntax(Option("inputs", "B L D", "x"))
    '--input "x: B L D"'
    """
    return " ".join(_quoted(word) for word in flag_words(option))


def _size_words(name: Any, size: object) -> list[str]:
    if name in SYMBOLS_BY_NAME:
        flag = SYMBOLS_BY_NAME[name].flag
        return [flag] if size is None else [flag, str(size)]
    return ["--dim", name if size is None else f"{name}={size}"]


def command_line(words: Sequence[str]) -> str:
    """Return a command as it is typed in a shell, with quotes that are easy to read.

    >>> print(command_line(["attnshape", "trace", "a.py:A", "--init", "D, H"]))
    attnshape trace a.py:A --init 'D, H'
    >>> print(command_line(["--init", "{'heads': H}"]))
    --init "{'heads': H}"
    """
    return " ".join(_quoted(word) if "'" in word else shlex.quote(word) for word in words)


def _quoted(word: str) -> str:
    quoted = shlex.quote(word)
    return f'"{word}"' if quoted != word and not set(word) & set('"$`\\!') else quoted
