"""Says in Python's words what an error says in the command line's: `--heads 4` is `H=4` there."""

from __future__ import annotations

import re

from attnshape.dims import SYMBOLS
from attnshape.errors import AttnshapeError

_SIZES = {symbol.flag: symbol.letter for symbol in SYMBOLS}
_NAMED = {"--input": "inputs", "--with": "arguments", "--expect": "expect", "--dim": "sizes"}
_OPTIONS = ("--causal", "--padding", "--mask-value", "--dropout", "--no-bias")
_FLAG = re.compile(
    r"""
    (?P<flag>--[a-z][a-z-]*)
    (?:[ ](?:
        (?P<own>[A-Za-z_]\w*(?:=[\w*/+…-]+|(?=[ ]is[ ])))
        |(?P<quote>["'])(?P<text>.*?)(?P=quote)
        |(?P<number>-?\d[\w.+-]*)
        |(?P<device>(?:cpu|meta|cuda:\d+)\b)
    ))?
    """,
    re.VERBOSE,
)


def in_python(error: AttnshapeError) -> AttnshapeError:
    """Return the error in the words of a call of `attnshape.trace`."""
    return AttnshapeError(python_words(error.message), python_words(error.hint) if error.hint else None)


def python_words(text: str) -> str:
    """Return a text about flags as one about keyword arguments.

    >>> python_words('for example --heads 4, --dim nh=4 or --input "query: B Lq D"')
    'for example H=4, nh=4 or inputs={"query": "B Lq D"}'
    """
    return _FLAG.sub(_keyword, text)


def _keyword(match: re.Match[str]) -> str:
    flag, own, text = match["flag"], match["own"], match["text"]
    value = text if text is not None else match["number"] or match["device"] or own
    rest = "" if value is None else f" {value}"
    if flag in _SIZES:
        return _SIZES[flag] + (f"={value}" if value is not None else "")
    if flag == "--dim" and own is not None:
        name, _, expression = own.partition("=")
        return own if expression.isdecimal() or expression in ("", "…") else f'{name}="{expression}"'
    if flag in _NAMED:
        name, separator, described = (text or "").partition("=" if flag == "--with" else ":")
        return _NAMED[flag] + (f'={{"{name.strip()}": "{described.strip()}"}}' if separator else rest)
    if flag in _OPTIONS:
        option = flag.removeprefix("--").replace("-", "_")
        if option in ("mask_value", "dropout") and value is None:
            return f"the option {option}"
        shown = '"bias": False' if option == "no_bias" else f'"{option}": {value or True}'
        return f"options={{{shown}}}"
    if value is None:
        return flag.removeprefix("--")
    return f"{flag.removeprefix('--')}=" + (value if match["number"] else f'"{value}"')
