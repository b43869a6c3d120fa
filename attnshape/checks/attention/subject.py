"""What the rules check: a target at one set of small sizes, its attention, and the claims about it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import TypeVar, cast

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, RunGraph, cores, fused_cores, learned_cores, product
from attnshape.checks.attention.elementwise import MeasuredCore, measure_cores
from attnshape.checks.attention.packing import Packing, packing_of
from attnshape.checks.attention.perturbation import PerturbationDiff, is_pattern, others_at
from attnshape.checks.attention.simultaneous import SimultaneousRun, run_simultaneously
from attnshape.checks.interventions.experiment import UNCHANGED, Experiment, Intervention, ReplayRun, UnreadableError
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.interventions.small_sizes import LENGTHS, PAST, UNNAMED_LENGTH, involves
from attnshape.checks.interventions.uses import Gradients, gradients
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.inference.dataflow import numbers_read
from attnshape.model.trace import Source
from attnshape.options.claims import Claims
from attnshape.options.spec import DtypeName
from attnshape.runtime.files import display_path, installed_package
from attnshape.tracing.operations import (
    CHANNEL_NORMS,
    CONCATENATIONS,
    CONVOLUTIONS,
    DATA_MOVEMENT,
    EQUALITY_COMPARISONS,
    FUSED_ATTENTION,
    ORDER_COMPARISONS,
    PRODUCTS,
)
from attnshape.tracing.raw import RawStep, SourceLocation

Result = TypeVar("Result")
_PACKAGE = Path(__file__).resolve().parents[2]
_WIDTHS = ("D", "H", "Hkv", "G", "Dk", "Dv")
_COUNTS = {"H", "Hkv", "G"}
"""Widths that count heads. Of a map, H is as often its height."""


def once(function: Callable[[Subject], Result]) -> Callable[[Subject], Result]:
    """Make a function compute its result only once for each subject."""

    @wraps(function)
    def cached(subject: Subject) -> Result:
        if function not in subject.cache:
            subject.cache[function] = function(subject)
        return cast(Result, subject.cache[function])

    return cached


class Subject:
    """A target at one set of sizes, with what is known about it."""

    def __init__(
        self,
        experiment: Experiment,
        claims: Claims,
        other: Mapping[str, int] | None,
        requested_dtype: DtypeName = "float32",
        apart: Mapping[str, int] | None = None,
    ) -> None:
        """Take what is known about a target.

        `other` is a set of sizes that differs in lengths only, or None; `apart` is one in which every independent size
        differs, or None; `requested_dtype` is the user's.
        """
        self.requested_dtype = requested_dtype
        self.experiment = experiment
        self.claims = claims
        self.other = other
        self._apart = apart
        self._shapes_with: dict[str, dict[str, tuple[int, ...]]] = {}
        self.numbers = dict(experiment.numbers)
        if {"Hkv", "G"} <= self.numbers.keys():
            self.numbers["H"] = self.numbers["Hkv"] * self.numbers["G"]
        self.cache: dict[Callable[[Subject], object], object] = {}
        """The results of functions of the subject; see `once`."""
        if "H" not in self.numbers:
            with contextlib.suppress(UnreadableError):  # each rule that needs the products then reports it
                self._take_heads_from_products()

    def _take_heads_from_products(self) -> None:
        """Take the number of heads from the axes that queries and keys share, if no symbol gives it."""
        batch = self.batch_size
        sizes = {core.scores.result.shape[axis] for core in self.cores for axis in core.scores.shared}
        sizes |= {core.tensor("query").shape[1] for core in self.fused if core.tensor("query").ndim == 4}
        sizes = {size // batch if batch > 1 and size % batch == 0 else size for size in sizes} - {1, batch}
        if len(sizes) == 1 and not (self._are_projected and sizes <= self._sizes_of_tokens):
            self.numbers["H"] = sizes.pop()

    @property
    def _are_projected(self) -> bool:
        """Whether queries come from projections, which make the heads out of features."""
        sources = [core.scores.sources(core.scores.left) for core in self.cores]
        sources += [core.sources("query") for core in self.fused]
        projections = PRODUCTS | CONVOLUTIONS
        return all(any(call.name in projections for call in self.graph.upstream(one)) for one in sources)

    @property
    def _sizes_of_tokens(self) -> set[int]:
        """The sizes of the inputs' axes other than batch and features, such as those of frames, and their products."""
        named = self.experiment.target.sizes.inputs.values()
        symbols = {axis.text for axes in named for axis in axes if not any(map(self._is_width, axis.symbols))}
        sizes = [self.numbers[symbol] for symbol in symbols & self.numbers.keys() - {self.batch or ""}]
        if not sizes and self.is_channels_first:
            # the axes of the inputs have no names
            sizes = [size for value in self.inputs.values() if value.ndim > 3 for size in value.shape[2:]]
        return {
            math.prod(chosen) for count in range(1, len(sizes) + 1) for chosen in itertools.combinations(sizes, count)
        }

    @property
    def base(self) -> ReplayRun:
        """The unchanged run."""
        return self.experiment.base

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether a second unchanged run gives the same numbers."""
        return self.perturb(UNCHANGED).has_no_effect

    @cached_property
    def graph(self) -> RunGraph:
        """The data flow of the unchanged run."""
        return RunGraph(self.base, set(self.inputs))

    @cached_property
    def cores(self) -> list[Core]:
        """Its attentions whose scores are visible."""
        return cores(self.graph)

    @cached_property
    def fused(self) -> list[FusedCore]:
        """Its fused attentions."""
        return fused_cores(self.graph)

    @property
    def attentions(self) -> list[Core | FusedCore]:
        """All of its attentions."""
        return [*self.cores, *self.fused]

    @property
    def head_sizes(self) -> set[int]:
        """The sizes of axes that hold heads: alone, or folded with the batch."""
        heads = {self.numbers.get("H", 0), self.numbers.get("Hkv", 0)} - {0, 1}
        return heads | {number * self.batch_size for number in heads}

    @cached_property
    def measured(self) -> list[MeasuredCore]:
        """Its attentions with their measured maps."""
        return measure_cores(self.experiment, self.graph, self.cores)

    @cached_property
    def measured_learned(self) -> list[MeasuredCore]:
        """Its attentions to learned tokens alone, with their measured maps."""
        return measure_cores(self.experiment, self.graph, learned_cores(self.graph))

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that carry data: floating-point tensors, else integer ones."""
        every = {
            name: value
            for name, value in self.base.inputs.items()
            if name not in self.claims.arguments and name not in self.unvaried and not is_pattern(value)
            if self.packing is None or name != self.packing.name
        }
        floating = {name: value for name, value in every.items() if value.is_floating_point() or value.is_complex()}
        if all(self.past_size in value.shape for value in floating.values()):  # beside caches, integers are the tokens
            tokens = {
                name: value for name, value in every.items() if name in floating or not self._is_only_compared(name)
            }
            return tokens or every
        # if some tensors have a batch axis, those without one are weights
        batched = {
            name: value
            for name, value in floating.items()
            if any(involves(value.shape[axis], "B", self.numbers) for axis in self.axes_that_vary("B", name, value))
        }
        return batched or floating

    @cached_property
    def past(self) -> str:
        """The symbol of the cached keys: `Lp`, or the user's own; empty if no cache is an argument.

        Attention multiplies cached keys or values as they are, after new ones, which are projected, are joined to them.
        """
        if PAST in self.numbers:
            return PAST
        symbols = self.distinct_symbols
        for name, value in self.base.inputs.items():
            found = _joined_axis(self.base, name) if value.is_floating_point() and value.ndim > 2 else None
            symbol = symbols.get(value.shape[found]) if found is not None else None
            if symbol is not None and symbol not in SYMBOLS_BY_NAME and symbol in self.experiment.target.sizes.numbers:
                return symbol
        return ""

    @property
    def past_size(self) -> int:
        """The number of cached keys; 0 if no cache is an argument."""
        return self.numbers.get(self.past, 0)

    def _is_only_compared(self, name: str) -> bool:
        """Return whether the code only compares an input's numbers, such as those of the documents of packed tokens."""
        reached: set[Producer] = {name}
        compared = False
        for event in self.base.events:
            if not any(reached.intersection(producers) for producers in numbers_read(event)):
                continue
            if event.name in DATA_MOVEMENT:
                reached.update(event.refs)
            elif event.name in EQUALITY_COMPARISONS | ORDER_COMPARISONS:
                compared = True
            else:
                return False
        return compared

    @cached_property
    def _shapes_apart(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs at sizes that all differ; none if that isn't known."""
        return self.experiment.input_shapes_at(self._apart) if self._apart is not None else {}

    def _shapes_with_other(self, symbol: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs where a symbol has another size, and no other one if that is possible."""
        sizes, numbers = self.experiment.target.sizes, self.experiment.numbers
        if self._apart is None or symbol not in sizes.independent or not numbers.keys() >= set(sizes.independent):
            return self._shapes_apart
        if symbol not in self._shapes_with:
            chosen = {one: numbers[one] for one in sizes.independent} | {symbol: self._apart[symbol]}
            self._shapes_with[symbol] = self.experiment.input_shapes_at(sizes.at(chosen)) or self._shapes_apart
        return self._shapes_with[symbol]

    @cached_property
    def apart_with_these_heads(self) -> Mapping[str, int] | None:
        """Sizes with as many heads, at which every other independent size differs; None if that isn't known."""
        sizes = self.experiment.target.sizes
        if self._apart is None or any(symbol not in self.experiment.numbers for symbol in sizes.independent):
            return None
        heads = {symbol: self.experiment.numbers[symbol] for symbol in sizes.independent if symbol in _COUNTS}
        return sizes.at({symbol: self._apart[symbol] for symbol in sizes.independent} | heads)

    def axes_that_vary(self, symbol: str, name: str, value: Tensor) -> list[int]:
        """Return the axes of an input, without those whose size stays the same where a symbol has another one.

        The 77 rows of a table are a multiple of a batch of 11, and have nothing to do with it.
        """
        changes = self._apart is not None and self._apart.get(symbol) != self.numbers.get(symbol)
        shapes = self._shapes_with_other(symbol) if changes and len(self.base.inputs) > 1 else {}
        apart = shapes.get(name, ())
        return [axis for axis, size in enumerate(value.shape) if len(apart) != value.ndim or apart[axis] != size]

    def axes_that_stay(self, name: str) -> list[int]:
        """Return the axes of an input whose size stays the same where every independent size is another one."""
        sizes, apart = self.base.inputs[name].shape, self._shapes_apart.get(name, ())
        return [axis for axis, size in enumerate(sizes) if len(apart) == len(sizes) and apart[axis] == size]

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters whose numbers can be read: none on the meta device, nor what isn't initialized."""
        return {name: value for name, value in self.base.state.items() if name in self.experiment.parameters}

    @cached_property
    def unvaried(self) -> dict[str, str]:
        """Why an input can't be varied: torch doesn't compute with its kind as with others, or it has no elements."""
        fixed = {name: self.base.unread.get(name, f"it is {kind}") for name, kind in self.base.fixed.items()}
        return fixed | {
            name: "it has no elements, so nothing can be observed"
            for name, value in self.base.inputs.items()
            if not value.numel()
        }

    @cached_property
    def packing(self) -> Packing | None:
        """Which sequences the tokens belong to, if one axis holds several, and an argument says where each one lies."""
        unclaimed = {name: value for name, value in self.base.inputs.items() if name not in self.claims.arguments}
        return packing_of(unclaimed)

    @cached_property
    def _packed_length(self) -> str | None:
        """The symbol of the packed tokens; without one of the user's they get a symbol of their own.

        How many there are follows from the lengths that the target gives its sequences, so it may equal a width.
        """
        if self.packing is None:
            return None
        own = next((name for name in LENGTHS if self.numbers.get(name) == self.packing.count), UNNAMED_LENGTH)
        if own == UNNAMED_LENGTH and self.packing.count in _widths_of(self.numbers, len(self.packing.sequences)):
            return None
        self.numbers[own] = self.packing.count
        return own

    @cached_property
    def batch(self) -> str | None:
        """The symbol of the batch."""
        if self.packing is not None:
            return None
        if self.claims.seq_first:
            return self._symbol(1)
        if "B" in self.numbers:
            return "B"
        first = next((value for value in self.inputs.values() if value.ndim >= 3), None)
        heads = {self.numbers.get("H"), self.numbers.get("Hkv")}
        # sequences that are packed one after the other have no axis of the batch: tokens, heads, features
        return None if first is not None and first.ndim == 3 and first.shape[1] in heads else self._symbol(0)

    @property
    def batch_size(self) -> int:
        """The size of the batch; 0 if it has no symbol."""
        return self.numbers.get(self.batch or "", 0)

    def is_distinct(self, symbol: str) -> bool:
        """Return whether no other symbol has the same size, so that the size tells its axes."""
        return list(self.numbers.values()).count(self.numbers.get(symbol, 0)) == 1

    @property
    def distinct_symbols(self) -> dict[int, str]:
        """The symbols by their sizes, those left out that share a size."""
        return {size: symbol for symbol, size in self.numbers.items() if self.is_distinct(symbol)}

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """The symbols of the lengths that inputs have."""
        values = list(self.inputs.values())
        if self._packed_length is not None:
            symbols: list[str | None] = [self._packed_length]
        elif self.claims.seq_first:
            symbols = [self._symbol(0)]
        else:
            known = [symbol for symbol in LENGTHS if symbol in self.numbers]
            known += [self.past] if self.past and self.past not in known else []
            symbols = [*known] or [self._symbol(self._token_axis) or self._unnamed_length() or self._length_alone]
            if known and not any(self.numbers[symbol] in value.shape for symbol in known for value in values):
                symbols = [own] if (own := self._unnamed_length()) is not None else symbols
            symbols += self._further_lengths()
        return tuple(dict.fromkeys(symbol for symbol in symbols if symbol is not None and symbol != self.batch))

    def _further_lengths(self) -> Iterator[str]:
        """Yield the user's own symbols of tokens that inputs have beside the first one, such as a decoder's memory."""
        symbols = self.distinct_symbols
        for value in self.inputs.values():
            if value.ndim == 3 and value.is_floating_point() and len(value) == self.batch_size:
                symbol = symbols.get(value.shape[1])
                if symbol is not None and symbol not in SYMBOLS_BY_NAME and not self._is_width(symbol):
                    yield symbol

    @cached_property
    def _length_alone(self) -> str | None:
        """The symbol of the tokens if inputs have tokens and features only, and no batch."""
        if any(value.ndim > 2 for value in self.inputs.values()):
            return None
        symbols = self.distinct_symbols
        firsts = (symbols.get(value.shape[0]) for value in self.inputs.values() if value.ndim == 2)
        return next((symbol for symbol in firsts if symbol is not None and symbol not in _WIDTHS), None)

    @cached_property
    def _token_axis(self) -> int:
        """The axis of tokens of the first input with three axes or more: the one after batch, heads and channels."""
        first = next((value for value in self.inputs.values() if value.ndim >= 3), None)
        heads = {self.numbers.get("H"), self.numbers.get("Hkv")}
        has_heads = first is not None and first.ndim > 3 and first.shape[1] in heads
        return 2 if has_heads or self.is_channels_first else 1

    @cached_property
    def is_channels_first(self) -> bool:
        """Whether axis 1 of the first map holds the channels.

        The user named it by a width, the first call that reads an input takes it so, or the first projection sums over
        it.
        """
        maps = (axes for axes in self.experiment.target.sizes.inputs.values() if len(axes) > 3)
        for axes in maps:
            named = [all(map(self._is_width, axis.symbols)) and not _COUNTS.issuperset(axis.symbols) for axis in axes]
            if any(named):
                return named.index(True) == 1
        first = next((event for event in self.base.events if not set(self.inputs).isdisjoint(event.producers)), None)
        return first is not None and (first.name in CONVOLUTIONS | CHANNEL_NORMS or self._is_summed_over_axis_1)

    @property
    def _is_summed_over_axis_1(self) -> bool:
        """Whether the first product of data with parameters sums over as many numbers as axis 1 of a map has alone."""
        shape = next((value.shape for value in self.inputs.values() if value.ndim > 3), ())
        found = (product(event, self.graph) for event in self.base.events if event.name in PRODUCTS)
        for one in found:
            data = [place for place in one.places if self.graph.carries_data(one.sources(place))] if one else []
            if one is not None and len(data) == 1 and shape:
                summed = [one.operand(data[0]).shape[axis] for axis in one.contracted(data[0])]
                return summed == [shape[1]] and list(shape).count(shape[1]) == 1
        return False

    def _unnamed_length(self) -> str | None:
        """Give the axis of tokens a symbol if it has none, as where it is a product.

        It is that of vectors, of heads, of ids, or of vectors whose sequences are one after the other, as in `B*L D`.
        """
        values = list(self.inputs.values())
        vectors = (v for v in values if v.ndim == 3 or (v.ndim == 4 and v.shape[1] in self.head_sizes))
        ids = (v for v in values if v.ndim == 2 and len(v) == self.batch_size and not v.is_floating_point())
        batch = self.batch or ""
        joined = (
            v for v in values if v.ndim == 2 and len(v) > self.batch_size and involves(len(v), batch, self.numbers)
        )
        sizes = (*(v.shape[-2] for v in vectors), *(v.shape[1] for v in ids), *map(len, joined))
        symbol = UNNAMED_LENGTH if "L" in self.numbers else "L"
        # a product may equal another size, of which an axis of tokens couldn't be told
        if not sizes or (symbol == UNNAMED_LENGTH and sizes[0] in self.numbers.values()):
            return None
        self.numbers[symbol] = sizes[0]
        return symbol

    def _symbol(self, axis: int) -> str | None:
        """Return the symbol of an axis of the first input with three axes or more."""
        size = next((value.shape[axis] for value in self.inputs.values() if value.ndim >= 3), None)
        return next(
            (name for name, number in self.numbers.items() if number == size and not self._is_width(name)), None
        )

    def _is_width(self, symbol: str) -> bool:
        """Return whether a symbol is a width or a number of heads, or follows from these alone, as in `C=2*D`."""
        follows = self.experiment.target.sizes.follows.get(symbol)
        if symbol in _WIDTHS or follows is None:
            return symbol in _WIDTHS
        return bool(follows.symbols) and all(map(self._is_width, follows.symbols))

    def at_index(self, symbol: str, index: int, outside: bool = False) -> dict[str, Replace]:
        """Return replacements of all inputs that have a symbol's axis.

        They change one index of the axis; with `outside`, all but this one.
        """
        replacements: dict[str, Replace] = {}
        number = self.numbers[symbol]
        for name, value in self.inputs.items():
            is_batch, sizes = symbol == self.batch, value.shape
            axes = self.axes_that_vary(symbol, name, value) if is_batch else range(value.ndim)
            exact = next((axis for axis in axes if sizes[axis] == number), None)
            if exact is not None:
                replacements[name] = others_at(exact, index, 1, outside)
            elif is_batch:  # in which order tokens were folded with something else can't be known
                axis = next((axis for axis in axes if involves(sizes[axis], symbol, self.numbers)), None)
                if axis is not None:
                    fold = sizes[axis] // number
                    replacements[name] = others_at(axis, index * fold, fold, outside)
        return replacements

    @cached_property
    def gradients(self) -> Gradients:
        """The gradients of the target's inputs and parameters; of the parameters alone where inputs can't have any."""
        inputs = [name for name, value in self.inputs.items() if value.is_floating_point()]
        found = gradients(self.experiment, inputs)
        return gradients(self.experiment, ()) if found.failure and inputs else found

    def perturb(self, change: Intervention) -> PerturbationDiff:
        """Run with an intervention, and return which elements of the results differ."""
        return PerturbationDiff(self.base, self.experiment.run(change), self.experiment.tolerance)

    def perturb_each(self, change: Intervention) -> SimultaneousRun:
        """Run with an intervention in several attentions, none of which reaches another one."""
        return run_simultaneously(self.experiment, (core.context for core in self.attentions), change)

    def step(self, ref: OutputRef | None) -> RawStep | None:
        """Return the recorded step of a call, or the traced code's step around it where a library makes the call."""
        step = self.experiment.steps.get(ref.order) if ref is not None else None
        while step is not None and step.library and step.parent is not None:
            step = self.experiment.raw.steps[step.parent]
        return step

    def place(self, ref: OutputRef | None) -> SourceLocation | None:
        """Return a call's location in the source."""
        return step.location if (step := self.step(ref)) is not None else None

    def source(self, ref: OutputRef | None) -> Source | None:
        """Return a call's location in the source, as it is reported."""
        return displayed_source(self.place(ref))


def _joined_axis(run: ReplayRun, name: str) -> int | None:
    """Return the axis of an input along which projected vectors are joined to it before attention multiplies both."""
    moved: set[Producer] = {name}  # the input as it is, moved at most
    joined: dict[Producer, int] = {}
    computed: set[Producer] = set()
    for event in run.events:
        is_join = event.name in CONCATENATIONS
        if is_join and (axis := _axis_of_join(event, run.inputs[name].shape, moved, computed)) is not None:
            joined |= dict.fromkeys(event.refs, axis)
        elif event.name in DATA_MOVEMENT and event.producers <= moved:
            moved.update(event.refs)
        elif event.name in PRODUCTS | FUSED_ATTENTION and event.producers & joined.keys():
            if not event.producers & run.state.keys():
                return joined[next(iter(event.producers & joined.keys()))]
        elif event.name in PRODUCTS or event.producers & computed:
            computed.update(event.refs)
        if event.name in DATA_MOVEMENT and len(before := event.producers & joined.keys()) == 1:
            joined |= dict.fromkeys(event.refs, joined[next(iter(before))])
    return None


def _axis_of_join(
    event: ReplayedCall, shape: Sequence[int], moved: set[Producer], computed: set[Producer]
) -> int | None:
    """Return the input's axis that a join makes longer by computed vectors."""
    places = [place for place, sources in enumerate(event.sources) if moved.intersection(sources)]
    others = [sources for place, sources in enumerate(event.sources) if place not in places]
    if len(places) != 1 or not others or not all(computed.intersection(sources) for sources in others):
        return None
    own, total = event.operand_values[places[0]].shape, event.values[0].shape
    longer = [size for size, whole in zip(own, total, strict=True) if size != whole]
    return list(shape).index(longer[0]) if len(longer) == 1 and list(shape).count(longer[0]) == 1 else None


def _widths_of(numbers: Mapping[str, int], sequences: int) -> set[int]:
    """Return the sizes that axes of features may have: small multiples and products of sizes.

    Products with the number of packed sequences are left out, since there may be as many tokens.
    """
    multiples = {size * factor for size in numbers.values() for factor in (1, 2, 3, 4)}
    pairs = itertools.combinations((size for size in numbers.values() if size != sequences), 2)
    return multiples | {one * other for one, other in pairs}


def displayed_source(place: SourceLocation | None) -> Source | None:
    """Return a location as it is reported: with a path that can be read from the current directory."""
    if place is None:
        return None
    name = display_path(place.file)
    own = installed_package(place.file) is None and str(_PACKAGE) not in place.file
    if own and not Path(name).exists():
        name = place.file
    return Source(name, place.line, place.column, place.function)
