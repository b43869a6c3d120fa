"""The words that attnshape uses, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from attnshape.dims import SYMBOLS
from attnshape.model import Role
from attnshape.render.fold import fold_words, pad
from attnshape.render.text import code_cell, prose


@dataclass(frozen=True)
class Chapter:
    """A heading, the columns' names, and the rows below: words first, the last column is prose."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


ROLES: dict[str, str] = {
    "projection": "a learned map of the tokens to queries, keys or values",
    "split": "the features are divided among the heads",
    "transpose": "axes change places, so that products meet the right ones",
    "scores": "each query's products with the keys",
    "scale": "the scores are divided, usually by sqrt(Dk)",
    "mask": "scores of keys that a query may not see are put out of play",
    "softmax": "scores become weights that sum to 1",
    "dropout": "in training, some weights are set to 0 at random",
    "context": "the weighted sums of the values",
    "merge": "the heads' contexts are laid side by side (concat)",
    "output": "a learned map of the merged heads",
}

WORDS: dict[str, str] = {
    "axis expression": "a product, quotient or sum of symbols and small integers: H*Dk, Dk//2, Lp+L",
    "signature": 'the axes of a tensor in jaxtyping\'s notation: B H Lq Dk; with its type Float[Tensor, "B H Lq Dk"]',
    "step": "one operation that produces a tensor",
    "role": "what a step is for; left empty where the data flow doesn't tell",
    "trace": "the ordered steps of one run, with what was inferred and checked",
    "declared": "a signature from the source's own annotations, checked by jaxtyping as the code ran",
    "inferred": "a signature that attnshape worked out, then checked by jaxtyping against the recorded shape",
    "proved": "an axis that moved with its sizes when the code ran again at other sizes, and fits all runs",
    "matched": "an axis that only equals a size; the code did not let that size vary",
    "literal": "an axis known as a number only",
    "constant": "an axis whose expression is a number; there is nothing to prove",
    "new": "storage: the result has memory of its own",
    "view": "storage: the result reads the memory of another tensor, only shape and stride differ",
    "same": "storage: the operation returned its very input",
    "writes": "storage: the operation changed another tensor in place",
    "stride": "how many numbers to skip in memory to move by one along each axis",
    "contiguous": "the numbers lie in row-major order, without gaps; ≁ marks strides that are not so",
}


def chapters() -> tuple[Chapter, ...]:
    """Return the glossary as data."""
    sizes = tuple((one.letter, one.flag, str(one.default or ""), one.meaning) for one in SYMBOLS)
    own = ("any", "--dim NAME=EXPR", "", "your own letter: a number is a size, an expression follows from others")
    return (
        Chapter("Sizes", ("symbol", "flag", "default", "meaning"), (*sizes, own)),
        Chapter("Roles", ("role", "meaning"), tuple((role, ROLES[role]) for role in get_args(Role))),
        Chapter("Words", ("word", "meaning"), tuple(WORDS.items())),
    )


def terminal(width: int) -> str:
    """Return the glossary as text of at most `width` cells a line, for 60 cells and more."""
    return "\n".join(_terminal(chapter, max(width, 60)) for chapter in chapters())


def markdown() -> str:
    """Return the glossary as Markdown."""
    return "\n".join(_markdown(chapter) for chapter in chapters())


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _terminal(chapter: Chapter, width: int) -> str:
    widths = _widths([*chapter.rows])
    indent = 2 + sum(size + 2 for size in widths[:-1])
    lines = [chapter.title]
    for row in chapter.rows:
        start = "  " + "".join(pad(cell, size) + "  " for cell, size in zip(row[:-1], widths[:-1], strict=True))
        for text in fold_words(row[-1], width - indent, hang=0):
            lines.append((start + text).rstrip())
            start = " " * indent
    return "\n".join(lines) + "\n"


def _markdown(chapter: Chapter) -> str:
    rows = [(*map(code_cell, row[:-1]), prose(row[-1])) for row in chapter.rows]
    widths = _widths([chapter.columns, *rows])
    rule = tuple("-" * size for size in widths)
    lines = ["| " + " | ".join(map(pad, row, widths)) + " |" for row in (chapter.columns, rule, *rows)]
    return f"## {chapter.title}\n\n" + "\n".join(lines) + "\n"
