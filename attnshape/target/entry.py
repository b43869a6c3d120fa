"""One target of pyproject.toml: its keys, which are the command line's flags, as texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnshape.dims import SYMBOLS
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.target.size_sets import SizeSet, size_sets

FILE = "pyproject.toml"

_SEPARATORS = {"input": ": ", "expect": ": ", "with": "=", "dim": "=", "claim": "="}
"""Flags that may be repeated, and what stands between the name and the value of each."""
_PLURALS = {"inputs": "input", "claims": "claim"}
SWITCHES = ("causal", "padding", "no-bias", "train", "grad")
_SIZES = tuple(symbol.flag.removeprefix("--") for symbol in SYMBOLS)
_TEXTS = ("target", "init", *_SIZES, "mask-value", "dropout", "device", "dtype", "seed")
KEYS = ("target", "init", "inputs", "with", "sizes", "claims", "expect", "dim", *_TEXTS[2:], *SWITCHES)
"""The keys of a target, as they are documented; `input` and `claim` are read too."""
_EXAMPLES = {
    "input": '["x: B L D"]',
    "expect": '["scores: B H L L"]',
    "claim": '["causal"]',
    "dim": "{ nh = 4 }",
    "with": '{ scale = "Dk**-0.5" }',
    "init": '"D, H"',
    "mask-value": "-1e9",
    "dropout": "0.1",
    "device": '"cpu"',
    "dtype": '"float64"',
}
_KINDS = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}


@dataclass(frozen=True)
class Entry:
    """What pyproject.toml has under a target's name."""

    name: str
    flags: Mapping[str, list[str]]
    """Each flag's values as text; `target` among them."""
    sizes: tuple[SizeSet, ...] = ()
    """The sets of sizes that are listed; none where the key isn't there."""

    @property
    def target(self) -> str:
        """The target itself, `model.py:Name`."""
        return self.flags["target"][0]


def entry_of(name: str, value: Any) -> Entry:
    """Return a target of pyproject.toml.

    Raises AttnshapeError, which names the file, the target and the key, where something in it can't be.
    """
    if not name.strip() or ":" in name:
        what = "has a colon, as file.py:Name has" if name.strip() else "is empty"
        raise AttnshapeError(f"{FILE}: the name of target {shown(name)} {what}", "give it another name")
    if not isinstance(value, dict):
        raise AttnshapeError(
            f"{FILE}: target {shown(name)} is {kind(value)}, expected a table",
            'write [tool.attnshape.targets.NAME] with target = "model.py:Name"',
        )
    flags: dict[str, list[str]] = {}
    for key, one in value.items():
        flag = _PLURALS.get(key) or str(key)
        if flag in flags:
            raise wrong(name, key, f"is given twice, as {flag} and as {flag}s", "keep one of them")
        if flag != "sizes":
            flags[flag] = _texts(name, key, flag, one)
    if not flags.get("target", [""])[0].strip():
        what = "is empty" if "target" in flags else "is missing"
        raise wrong(name, "target", what, 'write target = "model.py:Name"')
    if "sizes" not in value:
        return Entry(name, flags)
    return Entry(name, flags, size_sets(value["sizes"], flags, lambda what, hint: wrong(name, "sizes", what, hint)))


def wrong(name: str, key: str, what: str, hint: str) -> AttnshapeError:
    """Return the error of a key of a target."""
    return AttnshapeError(f"{FILE}: target {shown(name)}: the key {key[:60]} {what}", hint)


def shown(name: str) -> str:
    """Return a target's name as errors have it."""
    return repr(name if len(name) <= 60 else f"{name[:60]}…")


def kind(value: Any) -> str:
    """Return what a value of TOML is, in a word."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def _texts(name: str, key: str, flag: str, value: Any) -> list[str]:
    if flag in SWITCHES:
        if not isinstance(value, bool):
            raise wrong(name, key, f"is {kind(value)}, expected true or false", f"write {key} = true")
        return ["true"] if value else []
    if flag in _TEXTS:
        return [_text(name, key, value)]
    if flag not in _SEPARATORS:
        raise wrong(name, key, "isn't one that a target has", nearest(key, KEYS, "the keys are"))
    if isinstance(value, dict):
        return [
            _pair(name, key, flag, inner, one) for inner, one in value.items() if one is not False or flag != "claim"
        ]
    if isinstance(value, list):
        if not value:
            raise wrong(name, key, "is an empty list", f"leave it out, or write for example {key} = {_example(flag)}")
        return [_item(name, key, flag, one) for one in value]
    return [_item(name, key, flag, value)]


def _text(name: str, key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if key == "target":
        raise wrong(name, key, f"is {kind(value)}, expected a text", 'write target = "model.py:Name"')
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong(name, key, f"is {kind(value)}, expected a text or a number", f"write {key} = {_example(key)}")
    return _number(name, key, value)


def _number(name: str, key: str, value: float) -> str:
    try:
        return str(value)
    except ValueError:  # Python writes no number of several thousand digits
        raise wrong(name, key, "is far too large", "give a smaller number") from None


def _item(name: str, key: str, flag: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, key, f"has {kind(value)}, expected a text", f"for example {key} = {_example(flag)}")
    return value


def _pair(name: str, key: str, flag: str, inner: str, value: Any) -> str:
    if flag == "claim" and value is True:
        return inner
    if isinstance(value, (str, int, float)) and (flag == "with" or not isinstance(value, bool)):
        text = value if isinstance(value, str) else _number(name, key, value)
        return f"{inner}{_SEPARATORS[flag]}{text}"
    raise wrong(name, f"{key}.{inner}", f"is {kind(value)}, expected a text", f"for example {key} = {_example(flag)}")


def _example(flag: str) -> str:
    return _EXAMPLES.get(flag, "4")
