"""From flags, as typed or as named in pyproject.toml, to a request."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from attnshape.axis import AxisExpression
from attnshape.dims import BY_LETTER, SYMBOLS
from attnshape.errors import AttnshapeError
from attnshape.settings import Settings
from attnshape.sizes import own_letters, positive
from attnshape.target.entry import FILE, Entry, shown
from attnshape.target.project import named_target
from attnshape.target.request import Request
from attnshape.target.size_sets import SizeSet, said

T = TypeVar("T")

DTYPES = ("float32", "float64", "float16", "bfloat16")
_ALSO_CALLED = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "single": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
}
_DEVICE = re.compile(r"cpu|meta|cuda(:\d+)?")


@dataclass(frozen=True)
class Flags:
    """Each flag's values as text, none where it wasn't given; switches are `true`."""

    values: Mapping[str, list[str]]

    def under(self, entry: Mapping[str, list[str]]) -> Flags:
        """Return the flags over those of a named target: what is typed wins, letter by letter in `dim`.

        Flags that this verb doesn't have are passed over.
        """
        over = {flag: values or entry.get(flag, []) for flag, values in self.values.items()}
        typed = {_letter(text) for text in self.values["dim"]}
        return Flags(
            over | {"dim": [*self.values["dim"], *(t for t in entry.get("dim", []) if _letter(t) not in typed)]}
        )

    def one(self, flag: str) -> str | None:
        """Return a flag's last value."""
        values = self.values[flag]
        return values[-1] if values else None


def combine(target: str | None, flags: Flags, command: str) -> tuple[Request, Settings]:
    """Return what is asked for. Raises AttnshapeError where a flag's value can't be."""
    entry = entry_named(target)
    if entry is None:
        return asked(target or "", flags, command)
    (sizes, given), *others = layered(entry, flags)
    if others:
        raise AttnshapeError(
            f"target {shown(entry.name)} of {FILE} lists {1 + len(others)} sets of sizes, and one is needed here",
            f"give the sizes of one of them: {' '.join(flags_of(sizes))}",
        )
    return blaming(entry, sizes, flags, given, lambda one: asked(entry.target, one, command))


def entry_named(target: str | None) -> Entry | None:
    """Return the target that pyproject.toml has under what was typed, None where it is no such name.

    Raises AttnshapeError where the name is empty, or what pyproject.toml has under it is wrong.
    """
    if target is not None and not target.strip():
        raise AttnshapeError(
            "the target's name is empty", "leave it out for multi-head, or name one: attnshape catalog"
        )
    return named_target(target) if target and ":" not in target else None


def layered(entry: Entry, typed: Flags) -> list[tuple[SizeSet, Flags]]:
    """Return for each set of sizes of a named target its flags, beneath those that are typed.

    A size that is typed takes the place of that letter in every set; sets that are the same then are one.
    """
    found: list[tuple[SizeSet, Flags]] = []
    for listed in entry.sizes or ({},):
        by_flag = {letter: BY_LETTER[letter].flag.removeprefix("--") for letter in listed if letter in BY_LETTER}
        own = [f"{letter}={size}" for letter, size in listed.items() if letter not in BY_LETTER]
        at_set = {flag: [str(listed[letter])] for letter, flag in by_flag.items()}
        kept = [text for text in entry.flags.get("dim", []) if _letter(text) not in listed]
        given = typed.under({**entry.flags, **at_set, "dim": [*own, *kept]})
        left = {_letter(text) for text in typed.values["dim"]}
        left |= {letter for letter, flag in by_flag.items() if typed.values[flag]}
        sizes = {letter: size for letter, size in listed.items() if letter not in left}
        if all(given != other for _, other in found):
            found.append((sizes, given))
    return found


def flags_of(sizes: SizeSet) -> list[str]:
    """Return the words of a command line that give these sizes."""
    words = []
    for letter, size in sizes.items():
        symbol = BY_LETTER.get(letter)
        words += [symbol.flag, str(size)] if symbol is not None else ["--dim", f"{letter}={size}"]
    return words


def blaming(entry: Entry, sizes: SizeSet, typed: Flags, given: Flags, look: Callable[[Flags], T]) -> T:
    """Return what `look` makes of the flags given, which are a named target's beneath those that are typed.

    Raises its AttnshapeError, which names the file and the target unless what is typed is wrong by itself.
    """
    try:
        return look(given)
    except AttnshapeError as error:
        look(typed)
        at = f" at {said(sizes)}" if sizes else ""
        raise AttnshapeError(f"{FILE}: target {shown(entry.name)}{at}: {error.message}", error.hint) from None


def asked(target: str, flags: Flags, command: str) -> tuple[Request, Settings]:
    """Return what is asked for, by flags that have those of a named target beneath them.

    Raises AttnshapeError where a flag's value can't be.
    """
    given = {
        symbol.letter: positive(text, symbol.flag)
        for symbol in SYMBOLS
        if (text := flags.one(symbol.flag.removeprefix("--"))) is not None
    }
    request = Request(
        target=target,
        init=flags.one("init"),
        inputs=tuple(_once("--input", ":", flags.values["input"])),
        arguments=_arguments(flags.values["with"]),
        given=given,
        own=_own(flags.values["dim"]),
        options=_options(flags),
    )
    settings = Settings(
        device=_device(flags.one("device") or "cpu"),
        dtype=_dtype(flags.one("dtype") or "float32"),
        seed=_seed(flags.one("seed") or "0"),
        train=flags.one("train") is not None,
        grad=flags.one("grad") is not None,
        expect=tuple(flags.values.get("expect", [])),
        command=command,
    )
    return request, settings


def _letter(text: str) -> str:
    return text.partition("=")[0].strip()


def _once(flag: str, separator: str, texts: list[str]) -> list[str]:
    names = [text.partition(separator)[0].strip() for text in texts]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise AttnshapeError(f"{flag} gives {twice} twice", "give it once")
    return texts


def _own(texts: list[str]) -> dict[str, AxisExpression]:
    own = own_letters(_once("--dim", "=", texts))
    for name, expression in own.items():
        for symbol in expression.symbols:
            if symbol not in own and symbol not in BY_LETTER:
                raise AttnshapeError(
                    f"--dim {name}={expression.text}: {symbol} isn't a size symbol", f"define it too: --dim {symbol}=4"
                )
    return own


def _arguments(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in _once("--with", "=", texts):
        name, equals, expression = text.partition("=")
        if not equals or not name.strip().isidentifier() or not expression.strip():
            raise AttnshapeError(
                f"--with {text!r} isn't NAME=PYTHON", 'for example --with "mask=torch.ones(L, L).tril().bool()"'
            )
        found[name.strip()] = expression.strip()
    return found


def _options(flags: Flags) -> dict[str, Any]:
    options: dict[str, Any] = {name: True for name in ("causal", "padding") if flags.one(name)}
    if (mask_value := flags.one("mask-value")) is not None:
        options["mask_value"] = _number("--mask-value", mask_value, "-inf or a large negative number", "-1e9")
        if math.isnan(options["mask_value"]) or options["mask_value"] >= 0:
            raise AttnshapeError(
                f"--mask-value is {mask_value}, expected a negative number", "for example --mask-value -1e9"
            )
    if (dropout := flags.one("dropout")) is not None:
        options["dropout"] = _number("--dropout", dropout, "a probability from 0 up to 1", "0.1")
        if not 0 <= options["dropout"] < 1:
            raise AttnshapeError(
                f"--dropout is {dropout}, expected a probability from 0 up to 1", "for example --dropout 0.1"
            )
    if flags.one("no-bias"):
        options["bias"] = False
    return options


def _number(flag: str, text: str, expected: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AttnshapeError(f"{flag} is {text[:40]!r}, expected {expected}", f"for example {flag} {example}") from None


def _device(name: str) -> str:
    if not _DEVICE.fullmatch(name):
        raise AttnshapeError(
            f"there is no device {name[:40]!r}", "the devices are cpu, cuda, cuda:0, cuda:1, … and meta"
        )
    return name


def _dtype(name: str) -> str:
    if name not in DTYPES:
        plain = name.removeprefix("torch.").lower()
        meant = _ALSO_CALLED.get(plain) or next(iter(difflib.get_close_matches(plain, DTYPES, 1)), None)
        raise AttnshapeError(
            f"there is no dtype {name[:40]!r} to run in",
            f"did you mean {meant}?" if meant else f"parameters and inputs can be {', '.join(DTYPES)}",
        )
    return name


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed < 2**63:
        raise AttnshapeError(f"--seed is {text[:40]!r}, expected a whole number from 0 up", "for example --seed 1")
    return seed
