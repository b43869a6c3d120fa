"""The behaviour of a version, as small runs show it: what can be compared beside shapes and steps."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Topic = Literal["visible keys", "scale", "weights", "heads", "tokens", "positions", "inputs", "randomness", "results"]
"""What a property is about. `results` are the numbers that the same inputs and parameters give."""


class Statement(Struct, frozen=True, omit_defaults=True):
    """One sentence about a version, such as "attends causally"."""

    text: str
    verified: bool = False
    """Whether it is what should hold in all code. That it is missing elsewhere then doesn't mean that it is wrong."""


class Property(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What small runs show about one topic."""

    topic: Topic
    statements: tuple[Statement, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why something of it could not be measured."""


class KeyPattern(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which keys each query of an attention sees."""

    attention: str
    """The line that makes it, such as `model.py:24`, with the modules that run this line; empty if it is unknown."""
    part: str = ""
    """The heads, or the windows and heads folded into one axis, that see these keys, if others see other ones."""
    first_element: bool = False
    """Whether it is that of the first batch element alone, since others see other keys."""
    queries: str
    """The symbol of the queries, one a row."""
    keys: str
    """The symbol of the keys, one a column."""
    rows: tuple[str, ...]
    """A character each: `#` where the query at the row sees the key at the column, else `.`."""


class ResultNumbers(Struct, frozen=True):
    """A summary of the numbers of one result: their size, and their sums with fixed random factors."""

    name: str
    shape: tuple[int, ...]
    size: float
    """The root of the mean square."""
    sums: tuple[float, ...]


class ResultsRun(Struct, frozen=True):
    """A run in which every parameter and floating-point input got numbers that follow from its name or its place."""

    filled_by: Literal["name", "place"]
    results: tuple[ResultNumbers, ...]


class Behaviour(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What small runs show about one version, all at the same sizes."""

    sizes: dict[str, int] = {}
    properties: tuple[Property, ...] = ()
    visible: tuple[KeyPattern, ...] = ()
    """Which keys the queries of each attention see, if that was measured."""
    parameters: dict[str, tuple[int, ...]] = {}
    """The shape of each parameter and floating-point input that got numbers of its own, in order."""
    results: tuple[ResultsRun, ...] = ()
    exact: bool = False
    """Whether all numbers are computed in float64."""
    unknown: str | None = None
    """Why nothing could be measured."""
