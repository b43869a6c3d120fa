"""The two sets of small sizes at which proposals are tried."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection
from types import ModuleType

from attnshape.proposals.source import syntax_tree

_FIXED = (
    {"H": 4, "Hkv": 2, "G": 2, "D": 32, "Dk": 8, "Dv": 20, "W": 3, "V": 23, "N": 2},
    {"H": 6, "Hkv": 3, "G": 2, "D": 96, "Dk": 16, "Dv": 28, "W": 4, "V": 29, "N": 1},
)
"""Widths are multiples of 32, since some norms have so many groups.

There are few heads, because attention on feature maps takes long otherwise.
"""
_FREE = (
    {"B": (5, 7, 13, 17), "L": (12, 15, 18), "Lq": (6, 9), "Lk": (11, 14, 17), "Lp": (7, 9, 13)},
    {"B": (4, 7, 11, 13, 19), "L": (10, 11, 14), "Lq": (9, 5, 8, 13), "Lk": (14, 16, 19), "Lp": (6, 11, 13)},
)
"""The sizes that the code may have as literals, the likeliest first.

A sequence is longer than a window of W*W tokens once, and divisible by W once.
"""


def trial_sizes(module: ModuleType | None = None) -> tuple[dict[str, int], dict[str, int]]:
    """Return two sets of sizes in which what code runs with by coincidence doesn't fit.

    No batch and no length is 1 or 2, as a rotation's two parts are, nor a literal of the module's code, if there is
    another. In a set each differs from the other sizes, and from its own in the other set.
    """
    literals = literals_of(module)
    first = _chosen(0, literals, {})
    return first, _chosen(1, literals, first)


def literals_of(module: ModuleType | None) -> set[int]:
    """Return the whole numbers in a module's code."""
    tree = syntax_tree(module) if module is not None else None
    nodes = ast.walk(tree) if tree is not None else ()
    return {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int}


def _chosen(place: int, literals: Collection[int], other: dict[str, int]) -> dict[str, int]:
    sizes = dict(_FIXED[place])
    for symbol, choices in _FREE[place].items():
        free = [size for size in choices if size not in sizes.values() and size != other.get(symbol)]
        apart = [size for size in free if size not in literals]
        sizes[symbol] = next(itertools.chain(apart, free, choices))
    return sizes
