"""The attention of a program that ran: what was captured as it ran, and the summary at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field


class Plain(Struct, frozen=True, tag="plain"):
    """A value that Python writes as a text: `None`, `True`, `0.1`, `"relu"`, `torch.float32`."""

    text: str


class Integer(Struct, frozen=True, tag="number"):
    """An integer, which may be a size."""

    value: int


class Items(Struct, frozen=True, tag="items"):
    """A list or a tuple."""

    kind: Literal["list", "tuple"]
    values: tuple[Value, ...]


class Table(Struct, frozen=True, tag="table"):
    """A dictionary whose keys are strings."""

    values: Mapping[str, Value]


class Instance(Struct, frozen=True, tag="instance"):
    """An object that has fields, such as a configuration."""

    name: str
    """Its class, by the name that the module of the attention has for it; empty if the module has none."""
    fields: Mapping[str, Value]
    """The fields with which its class constructs it again, or all that it has where the class has no such name."""


class CapturedTensor(Struct, frozen=True, tag="tensor"):
    """A tensor that attention was called with; its numbers aren't kept."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    axes: tuple[str, ...] = ()
    """The symbols of its axes, where the code names them: `B, T, C = x.shape`."""
    same_as: str = ""
    """An argument before it that is the same tensor."""
    pattern: Literal["", "causal", "later", "ones", "zeros", "positions"] = ""
    """What its numbers are: nonzero up to the diagonal, or above it; ones, zeros; 0, 1, 2 … along the last axis."""
    fill: str = ""
    """The one number other than 0 of a causal pattern, as Python writes it."""
    largest: int | None = None
    """The largest number of a tensor of integers."""


class Unknown(Struct, frozen=True, tag="unknown"):
    """A value that can't be written as Python."""

    kind: str


Value = Plain | Integer | Items | Table | Instance | CapturedTensor | Unknown


class SizesSeen(Struct):
    """The shapes of the arguments in some calls, and the number of these."""

    shapes: dict[str, tuple[int, ...]]
    calls: int = 0


class CapturedAttention(Struct, kw_only=True):
    """One attention: the same code, constructor arguments and kinds of arguments."""

    file: str
    """Where the class is defined."""
    line: int
    module: str
    name: str
    is_main: bool = False
    """Whether it is defined in the script that runs."""
    is_library: bool = False
    """Whether it is defined in an installed package."""
    constructor: dict[str, Value] | None = None
    """The arguments that it was constructed with, without those that have their default; None if they aren't known."""
    positional: tuple[str, ...] = ()
    """Those of them that are passed by position."""
    attributes: dict[str, int] = field(default_factory=dict)
    """The integers that the module has as attributes, where the arguments of its constructor aren't known."""
    arguments: dict[str, Value] = field(default_factory=dict)
    """The arguments of its first call, by parameter of `forward`."""
    sizes: list[SizesSeen] = field(default_factory=list)
    """The first few sets of shapes."""
    more_sizes: int = 0
    """How many further sets of shapes there were."""
    modules: int = 0
    """How many modules were called."""
    calls: int = 0
    recomputed: int = 0
    """How many further calls were made during a backward pass, as checkpointing does."""
    is_sequence_first: bool = False
    """Whether the module says that sequences are its first axis."""
    is_training: bool = False
    autocast: str = ""
    """The dtype of autocast, where it was on."""


class UncalledAttention(Struct, frozen=True):
    """A class with attention that was constructed, and of which no call was seen."""

    file: str
    line: int
    name: str
    modules: int


class ProcessCaptures(Struct, kw_only=True):
    """What one process of a program captured."""

    process: int
    rank: int | None = None
    """Its rank, where it is one of several that train together."""
    world: int | None = None
    attentions: list[CapturedAttention] = field(default_factory=list)
    uncalled: list[UncalledAttention] = field(default_factory=list)
    is_final: bool = False
    """Whether the process came to its end; else it was killed, and the numbers of calls are those of shortly before."""
    is_compiled: bool = False
    """Whether torch.compile was used."""
    problems: list[str] = field(default_factory=list)
    """What went wrong inside attnshape, which the program doesn't notice."""


class AttentionSummary(Struct, kw_only=True, frozen=True):
    """An attention in the summary of a program."""

    captured: CapturedAttention
    command: str = ""
    """The command that opens it as a trace, also of where it fails; empty if there is none."""
    target: Mapping[str, object] | None = None
    """The same as a table for pyproject.toml."""
    sizes: Mapping[str, int] = {}
    """The sizes of the first call."""
    scores_bytes: int | None = None
    """The bytes of the scores at the sizes of the first call; None if that isn't known."""
    are_scores_kept: bool = True
    """Whether the scores exist as a tensor; fused attention has none."""
    verified_at: int = 0
    """The number of sets of sizes at which a clean process ran it; 0 if it didn't."""
    why_not: str = ""
    """Why it isn't verified."""


class ProgramSummary(Struct, kw_only=True, frozen=True):
    """What the attention of a program did, at its end."""

    attentions: tuple[AttentionSummary, ...] = ()
    uncalled: tuple[UncalledAttention, ...] = ()
    notes: tuple[str, ...] = ()
