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
    is_general: bool = True
    """Whether it means the same in all code; the others are of mechanisms in the catalog, and users have their own."""


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
    SizeSymbol("W", "--window", "sliding-window width, or side of a square window", 3),
    SizeSymbol("Nh", "--window-rows", "windows along the height of a feature map", 7, is_general=False),
    SizeSymbol("Nw", "--window-columns", "windows along the width of a feature map", 11, is_general=False),
    SizeSymbol("Lz", "--latents", "latent queries (N of the Perceiver)", 14, is_general=False),
    SizeSymbol("Ls", "--selected", "keys that each query selects (top-k of DeepSeek-V3.2)", 9, is_general=False),
    SizeSymbol("Hi", "--index-heads", "heads of the indexer (H^I of DeepSeek-V3.2)", 12, is_general=False),
    SizeSymbol("Di", "--d-index", "width of one indexer head (d^I of DeepSeek-V3.2)", 24, is_general=False),
    SizeSymbol(
        "Din", "--d-in", "width of the input, where it has one of its own (C of the Perceiver)", 80, is_general=False
    ),
    SizeSymbol("Dout", "--d-out", "width of the output, where it has one of its own", 112, is_general=False),
    SizeSymbol("Dr", "--d-rope", "features of one head that are rotated (d_h^R of DeepSeek-V2)", 32, is_general=False),
    SizeSymbol("Dc", "--kv-rank", "rank of compressed keys and values (d_c of DeepSeek-V2)", 128, is_general=False),
    SizeSymbol("Dcq", "--query-rank", "rank of compressed queries (d_c' of DeepSeek-V2)", 192, is_general=False),
    SizeSymbol("Ns", "--packed", "sequences that are packed on one axis", 5, is_general=False),
    SizeSymbol("Nb", "--buckets", "buckets of relative distances (T5)", 20, is_general=False),
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
    known = [name for name in known if name not in SYMBOLS_BY_NAME or SYMBOLS_BY_NAME[name].is_general]
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
