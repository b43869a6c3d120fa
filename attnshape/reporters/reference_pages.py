"""The pages of `attnshape glossary` and `attnshape rule`: size symbols, roles, terms, and the rules' pages and list."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import get_args

from attnshape.checks.rules.pages import FAMILIES, Page, family
from attnshape.dims.symbols import SYMBOLS
from attnshape.model.trace import Role
from attnshape.reporters.escaping import code_cell, prose
from attnshape.reporters.markdown_blocks import markdown_table
from attnshape.reporters.terminal import StyledLine, fold_words, pad, render_lines, styled

Chapter = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""A heading, the names of the columns, and the rows: terms first, then the meaning."""

ROLES: dict[str, str] = {
    "projection": "a learned linear map from tokens to queries, keys or values",
    "split": "divides the features among the heads",
    "transpose": "swaps axes so that the next product contracts the right ones",
    "scores": "the dot products of each query with the keys",
    "scale": "divides the scores, usually by sqrt(Dk)",
    "mask": "excludes the keys that a query must not attend to",
    "softmax": "turns scores into weights that sum to 1",
    "dropout": "in training, sets some weights to 0 at random",
    "context": "the weighted sums of the values",
    "merge": "places the contexts of the heads side by side (concat)",
    "output": "a learned linear map of the merged heads",
}

WORDS: dict[str, str] = {
    "axis expression": "a product, quotient or sum of symbols and small integers: H*Dk, Dk//2, Lp+L",
    "signature": 'the axes of a tensor in jaxtyping\'s notation: B H Lq Dk; with its type Float[Tensor, "B H Lq Dk"]',
    "step": "one operation that produces a tensor",
    "role": "the purpose of a step in attention; empty where the data flow doesn't show it",
    "trace": "the ordered steps of one run, with what was inferred and checked",
    "declared": "a signature from the annotations in the source, checked by jaxtyping as the code ran",
    "inferred": "a signature that attnshape inferred, then checked with jaxtyping",
    "held out": "sizes at which the target runs once more, and from which no formula is inferred: they only check",
    "verified": "an axis that changed with its sizes when the code ran again at other sizes, and fits all runs",
    "matched": "an axis that only equals a size; the code did not let that size vary",
    "literal": "an axis known as a number only",
    "constant": "an axis whose expression is a number; there is nothing to verify",
    "new": "storage: the result has memory of its own",
    "view": "storage: the result shares the memory of another tensor; only shape and stride differ",
    "same": "storage: the operation returned its input itself",
    "writes": "storage: the operation changed another tensor in place",
    "unknown": "storage: the tensor is sparse or nested, or wraps others, and has no storage of its own to compare",
    "layout": "how a tensor without strides lies in memory, such as sparse_csr or jagged; the column stride has it",
    "ragged": "an axis without a single size, as in a nested tensor; it has torch's symbol, such as j1, or ?",
    "stride": "how many elements to skip in memory to advance by one along each axis",
    "contiguous": "the elements are in row-major order without gaps; ≁ marks strides that are not contiguous",
}


def chapters() -> tuple[Chapter, ...]:
    """Return the glossary as data."""
    sizes = [(symbol.name, symbol.flag, str(symbol.default or ""), symbol.meaning) for symbol in SYMBOLS]
    meaning = "a symbol of your own: a number is its size, an expression derives it from others"
    return (
        ("Sizes", ("symbol", "flag", "default", "meaning"), [*sizes, ("any", "--dim NAME=EXPR", "", meaning)]),
        ("Roles", ("role", "meaning"), [(role, ROLES[role]) for role in get_args(Role)]),
        ("Words", ("word", "meaning"), list(WORDS.items())),
    )


def glossary_text(width: int) -> str:
    """Return the glossary as text of at most `width` cells a line, and at least 60."""
    return "\n".join(_terminal(title, rows, max(width, 60)) for title, _, rows in chapters())


def glossary_markdown() -> str:
    """Return the glossary as Markdown."""
    parts = []
    for title, columns, rows in chapters():
        cells = [(*map(code_cell, row[:-1]), prose(row[-1])) for row in rows]
        parts.append(f"## {title}\n\n{markdown_table([columns, *cells])}\n")
    return "\n".join(parts)


def _terminal(title: str, rows: list[tuple[str, ...]], width: int) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = 2 + sum(size + 2 for size in widths[:-1])
    lines = [title]
    for row in rows:
        start = "  " + "".join(pad(cell, size) + "  " for cell, size in zip(row[:-1], widths[:-1], strict=True))
        for text in fold_words(row[-1], width - indent, hang=0):
            lines.append((start + text).rstrip())
            start = " " * indent
    return "\n".join(lines) + "\n"


_WIDEST = 100
"""The width up to which prose is easy to read."""


def rule_list(pages: Iterable[Page], width: int) -> str:
    """Return the codes and titles of rules below their families, at most `width` cells a line."""
    codes = {title: code for code, title in FAMILIES.items()}
    blocks = []
    for title, members in groupby(pages, lambda page: family(page.code)):
        lines = [f"{codes[title]}  {title}"]
        for page in members:
            first, *others = fold_words(page.title, width - len("  AS000  "), hang=0)
            lines += [f"  {page.code}  {first}", *(" " * len("  AS000  ") + line for line in others)]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def rule_page(page: Page, width: int, color: bool) -> str:
    """Return the page of a rule, at most `width` cells a line except for code; colour only decorates."""
    width = min(width, _WIDEST)
    lines = styled(f"{page.code}: {page.title}", width, "bold")
    for name, body in page.sections.items():
        lines += [StyledLine(""), StyledLine(name, "bold cyan")]
        if body.startswith("```"):
            lines += [StyledLine(f"  {line}".rstrip(), "green") for line in body.splitlines()[1:-1]]
        else:
            paragraphs = [" ".join(paragraph.split()) for paragraph in body.split("\n\n")]
            lines += [StyledLine(f"  {line}") for text in paragraphs for line in fold_words(text, width - 2, hang=0)]
    return render_lines(lines, color)
