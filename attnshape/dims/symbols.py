"""The size symbols in canonical order: their names, command-line flags, meanings and defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from attnshape.errors import AttnshapeError, Option, did_you_mean, most_similar
from attnshape.model.formatting import join_words


@dataclass(frozen=True)
class SizeSymbol:
    """A size symbol, such as `B` or `Lq`."""

    name: str
    flag: str
    meaning: str
    default: int | None
    """The size used where none is given and none follows from the others."""


SYMBOLS: tuple[SizeSymbol, ...] = (
    SizeSymbol("B", "--batch", "sequences in a batch", 2),
    SizeSymbol("H", "--heads", "query heads", 8),
    SizeSymbol("Hkv", "--kv-heads", "key/value heads; G = H/Hkv query heads share one", 4),
    SizeSymbol("G", "--group", "query heads that share one key/value head, H/Hkv", None),
    SizeSymbol("Lp", "--past", "cached positions before the first query", 6),
    SizeSymbol("L", "--length", "sequence length, where queries and keys are one sequence", 10),
    SizeSymbol("Lq", "--queries", "number of queries (n_Q), where queries and keys are two sequences", 10),
    SizeSymbol("Lk", "--keys", "number of keys = number of values (n_K = n_V)", 16),
    SizeSymbol("D", "--d-model", "model width; D = H*Dk where only one of D and Dk is given", 512),
    SizeSymbol("Dk", "--d-head", "width of one head's queries and keys", 64),
    SizeSymbol("Dv", "--d-value", "width of one head's values", 96),
    SizeSymbol("W", "--window", "sliding-window width", 3),
)

SYMBOLS_BY_NAME: dict[str, SizeSymbol] = {symbol.name: symbol for symbol in SYMBOLS}
ORDER: dict[str, int] = {symbol.name: place for place, symbol in enumerate(SYMBOLS)}
SIZE_KEYS: dict[str, str] = {symbol.flag.removeprefix("--").replace("-", "_"): symbol.name for symbol in SYMBOLS}
"""The symbol's name by the name of its parameter, such as `d_model`."""

VOCABULARY_SIZE = 50
"""The default of a symbol of the user's own that bounds the integers of an input, as in `int[V]`, and is no axis."""
NUMBER_OF_LAYERS = 3
"""The default of a symbol of the user's own that is a number of layers."""


def size_option(symbol: str, value: object = None) -> Option:
    """Return the option that sets a size, as errors name it: `--heads 4` on the command line, `H=4` in Python.

    >>> size_option("H", 4)
    Option(field='sizes', value=4, key='H')
    """
    return Option("sizes", value, symbol)


def size_options(symbols: Iterable[str]) -> Option:
    """Return the options that define symbols as sizes, for a hint: `--dim nh=4 --dim hs=4`."""
    return Option("sizes", dict.fromkeys(symbols, 4))


def require_known(names: Iterable[str], known: Collection[str], *source: str | Option) -> None:
    """Raise AttnshapeError, with the nearest symbols, if one of the names isn't a known size symbol.

    `source` is where the names are from, as errors name it.

    >>> require_known(["Dq"], SYMBOLS_BY_NAME, "scale=1/sqrt(Dq)")
    Traceback (most recent call last):
        ...
    attnshape.errors.AttnshapeError: scale=1/sqrt(Dq): Dq isn't a size symbol
    hint: did you mean Dk or Dv? (or define your own: Dq=4)
    """
    unknown = list(dict.fromkeys(name for name in names if name not in known))
    if len(unknown) > 1:
        problem = f": {join_words(unknown)} aren't size symbols"
        meant = [known_name for name in unknown if (known_name := most_similar(name, known)) is not None]
        if len(meant) < len(unknown):
            raise AttnshapeError((*source, problem), ("define them: ", size_options(unknown)))
        hint = f"did you mean {join_words(meant)}? (or define your own: ", size_options(unknown), ")"
        raise AttnshapeError((*source, problem), hint)
    for name in unknown:
        # most symbols are a letter and its index
        near = [symbol for symbol in known if len(symbol) == len(name) > 1 and symbol[:-1] == name[:-1]]
        listed = " or ".join(filter(None, (", ".join(near[:-1]), near[-1]))) if near else ""
        similar = f"did you mean {listed}?" if near else did_you_mean(name, known, "the symbols are")
        own = "(or define your own: ", size_option(name, 4), ")"
        raise AttnshapeError((*source, f": {name} isn't a size symbol"), (f"{similar} ", *own))
