"""The error that a user's mistake raises, the options that it names, its exit statuses, and "did you mean"."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


class ExitStatus(enum.IntEnum):
    """What the process ends with."""

    FINE = 0
    FOUND = 1
    """The analysis found something: the code failed at a step, an expectation doesn't hold."""
    CANNOT = 2
    """The request can't be carried out, or its answer is incomplete."""
    INTERRUPTED = 130


@dataclass(frozen=True)
class Option:
    """An option that an error names, perhaps with a value: each surface writes it in its own syntax.

    `field` is a field of `TargetSpec` or `RunOptions`, or a keyword of the Python API; `key` names one entry of a field
    that is a mapping. `Option("sizes", 4, "H")` is `H=4` in Python, `--heads 4` on the command line and `heads = 4` in
    pyproject.toml.
    """

    field: str
    value: object = None
    key: str | None = None


Text = str | Sequence[str | Option]
"""A message or a hint: parts that are joined once the surface is known."""
Syntax = Callable[[Option], str]
"""Writes an option as one surface does."""


class AttnshapeError(Exception):
    """A request that can't be carried out: what is wrong in one paragraph, and the way out as a hint.

    `message` and `hint` name options as keywords of the Python API.

    >>> import attnshape
    >>> try:
    ...     attnshape.trace("multi-head", B=0)
    ... except attnshape.AttnshapeError as error:
    ...     print(error.message, "|", error.hint)
    B is 0, expected at least 1 | for example B=4
    """

    is_settled = False
    """Whether it is known that it doesn't come from a limit on time, however long it took to find out."""

    def __init__(self, message: Text, hint: Text | None = None) -> None:
        self._message = message
        self._hint = hint or None
        self.message = _joined(message, python_syntax)
        self.hint = _joined(hint, python_syntax) if hint else None
        super().__init__(self.message)
        if self.hint:
            self.add_note(f"hint: {self.hint}")

    def prefixed(self, *parts: str | Option) -> AttnshapeError:
        """Return the error with these parts in front of its message.

        >>> AttnshapeError("divides by zero").prefixed(Option("sizes", "B//0", "C"), ": ").message
        'C="B//0": divides by zero'
        """
        message = [self._message] if isinstance(self._message, str) else self._message
        return AttnshapeError([*parts, *message], self._hint)

    def written_in(self, syntax: Syntax, context: str = "") -> AttnshapeError:
        """Return the error as a surface writes it, with the context in front: `pyproject.toml: target 'a': `."""
        hint = _joined(self._hint, syntax) if self._hint else None
        return AttnshapeError(context + _joined(self._message, syntax), hint)


def exception_text(error: BaseException) -> str:
    """Return `str(error)`, also for an exception of the traced code whose `__str__` raises or returns no string."""
    try:
        return str(error)
    except BaseException as raised:  # noqa: BLE001 - it may raise anything
        return f"its message can't be read, since __str__ raises {type(raised).__name__}"


def exception_message(error: BaseException) -> str:
    """Return an exception's message on one line."""
    if isinstance(error, SyntaxError):
        return error.msg or "invalid syntax"
    if isinstance(error, KeyError):
        return repr(error.args[0]) if error.args else "missing key"
    return " ".join(exception_text(error).split()) or "no message"


def format_exception(error: BaseException) -> str:
    """Return an exception's type and message on one line."""
    if isinstance(error, SystemExit):
        return f"SystemExit: {error.code}, by sys.exit({error.code!r})"
    return f"{type(error).__name__}: {exception_message(error)}"


def python_syntax(option: Option) -> str:
    """Return an option as an argument of the Python API.

    >>> python_syntax(Option("sizes", 4, "H")), python_syntax(Option("inputs", "B L D", "x"))
    ('H=4', 'inputs={"x": "B L D"}')
    """
    field, value, key = option.field, option.value, option.key
    if field == "sizes" and isinstance(value, Mapping):
        return ", ".join(f"{symbol}={literal(size)}" for symbol, size in value.items())
    if field == "sizes" and key is not None:
        return key if value is None else f"{key}={literal(value)}"
    if value is None:
        return field if key is None else f"{field}[{literal(key)}]"
    if key is not None:
        return f"{field}={{{literal(key)}: {literal(value)}}}"
    return f"{field}=[{literal(value)}]" if field in LISTS else f"{field}={literal(value)}"


LISTS = frozenset({"claims", "select", "ignore"})
"""Options that are lists of strings; an error names one entry as the value."""


def literal(value: object) -> str:
    """Return a value as Python and TOML both write it, strings in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _joined(text: Text, syntax: Syntax) -> str:
    parts = [text] if isinstance(text, str) else text
    return "".join(part if isinstance(part, str) else syntax(part) for part in parts)


def did_you_mean(word: str, choices: Iterable[str], otherwise: str = "choose from") -> str:
    """Return the hint for a word that isn't among the choices; `otherwise` precedes the list where none is similar.

    >>> did_you_mean("lq", ["B", "Lq", "Lk"])
    'did you mean Lq?'
    >>> did_you_mean("x", ["B", "Lq", "Lk"], "the symbols are")
    'the symbols are: B, Lq, Lk'
    """
    listed = list(choices)
    if (similar := most_similar(word, listed)) is not None:
        return f"did you mean {similar}?"
    return f"{otherwise}: {', '.join(listed)}" if listed else "check its spelling"


def most_similar(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most similar to a word, in either case; None if none is similar.

    >>> most_similar("multi_head", ["multi-head", "single-head"])
    'multi-head'
    """
    import difflib  # only a mistake pays for the import

    by_lower = {choice.lower(): choice for choice in reversed(list(choices))}
    similar = difflib.get_close_matches(word.lower(), by_lower, 1)
    return by_lower[similar[0]] if similar else None
