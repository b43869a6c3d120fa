"""The size symbols: their letters, flags, meanings and defaults. Pure data, in canonical order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbol:
    """One size symbol of the vocabulary."""

    letter: str
    flag: str
    meaning: str
    default: int | None
    """The size where none is given and none follows from the others."""


SYMBOLS: tuple[Symbol, ...] = (
    Symbol("B", "--batch", "sequences in a batch", 2),
    Symbol("H", "--heads", "query heads", 8),
    Symbol("Hkv", "--kv-heads", "key/value heads; G = H/Hkv query heads share one", 4),
    Symbol("G", "--group", "query heads that share one key/value head, H/Hkv", None),
    Symbol("Lp", "--past", "cached positions before the first query", 6),
    Symbol("L", "--length", "sequence length, where queries and keys are one sequence", 10),
    Symbol("Lq", "--queries", "number of queries (n_Q), where queries and keys are two sequences", 10),
    Symbol("Lk", "--keys", "number of keys = number of values (n_K = n_V)", 16),
    Symbol("D", "--d-model", "model width; D = H*Dk where only one of D and Dk is given", 512),
    Symbol("Dk", "--d-head", "width of one head's queries and keys", 64),
    Symbol("Dv", "--d-value", "width of one head's values", 96),
    Symbol("W", "--window", "sliding-window width", 3),
)

BY_LETTER: dict[str, Symbol] = {symbol.letter: symbol for symbol in SYMBOLS}
ORDER: dict[str, int] = {symbol.letter: place for place, symbol in enumerate(SYMBOLS)}


def flag_of(letter: str) -> str:
    """Return the flag that sets a size: its own, or `--dim` for an author's own letter.

    >>> flag_of("Lq"), flag_of("nh")
    ('--queries', '--dim nh=…')
    """
    symbol = BY_LETTER.get(letter)
    return symbol.flag if symbol else f"--dim {letter}=…"
