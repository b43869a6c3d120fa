"""Watches what the variables of running functions hold, store by store, in runs of a target at several sizes."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import gc
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import executing
import torch
from executing import Source
from msgspec.structs import replace
from torch import Tensor

from attnshape.inference.small_runs import Samples
from attnshape.model.trace import NO_SIZE
from attnshape.observation.forms import FunctionId
from attnshape.options.spec import RunOptions
from attnshape.runtime.files import installed_package
from attnshape.runtime.isolation import one_thread, unattended
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import TimeLimit, TooLong
from attnshape.runtime.variables import COPIES_ALL, read_variable
from attnshape.targets.target import Target
from attnshape.tracing.containers import source_file
from attnshape.tracing.frames import Frames
from attnshape.tracing.raw import RawTrace
from attnshape.tracing.runner import Runnable, build_and_record, parameters_within
from attnshape.tracing.syntax_nodes import SourceFile
from attnshape.tracing.tensor_access import UNINITIALIZED, layout_of, shape_of

_MOST_ITEMS = 64
"""Longer tuples and lists are data."""
_MOST_COPIES = 1 << 22
"""Where reading one variable copies all, the stores of one straight run through a function copy no more than these."""


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor: its shape, and its dtype without `torch.`."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ItemsValue:
    """The items of a tuple or a list."""

    kind: str
    """`tuple`, `list`, or the name of the subclass."""
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class OtherValue:
    """Any other value, by the name of its type."""

    type: str
    is_shapeless: bool = False
    """Whether it is a tensor that has no single shape: nested, or not initialized yet."""


Value = TensorValue | ItemsValue | OtherValue | int | None


def summarize(value: object, depth: int = 2) -> Value:
    """Return a summary of a value; items of tuples and lists are summarized `depth` levels deep.

    >>> summarize((torch.ones(2, 3), 4, None))
    ItemsValue(kind='tuple', items=(TensorValue(shape=(2, 3), dtype='float32'), 4, None))
    >>> summarize("a")
    OtherValue(type='str', is_shapeless=False)
    """
    kind = type(value)
    if value is None or kind is int:
        return value  # type: ignore[return-value]  # by `kind`, which mypy doesn't follow
    if issubclass(kind, Tensor):
        with torch._C.DisableTorchFunction():
            tensor: Any = value
            shape = shape_of(tensor)
            if NO_SIZE in shape or layout_of(tensor) in (UNINITIALIZED, "nested"):  # it has no single shape
                return OtherValue(kind.__name__, is_shapeless=True)
            return TensorValue(shape, str(tensor.dtype).removeprefix("torch."))
    # calls none of the value's own methods, which could have effects
    plain: Any = tuple if issubclass(kind, tuple) else list if issubclass(kind, list) else None
    if plain is not None and depth and plain.__len__(value) <= _MOST_ITEMS:
        return ItemsValue(kind.__name__, tuple(summarize(item, depth - 1) for item in plain.__iter__(value)))
    return OtherValue(kind.__name__)


_Store = tuple[int, list[tuple[str, int]]]
"""What an instruction binds: its line, and each variable's name and column."""
_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NAMESPACES = ("self.args", "self.cfg", "self.config", "self", "args", "cfg", "config")
"""Objects whose integers comments refer to by name, as `n_head` for `self.n_head`; the last that has a name decides."""
NO_COLUMN = -1
"""Stands for a column that isn't known, as when Python runs with -X no_debug_ranges."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One store to a plain variable, at its line from 1 and its column from 0, or `NO_COLUMN`."""

    line: int
    column: int
    name: str
    value: Value


@dataclass(slots=True)
class Invocation:
    """One call of a function."""

    function: FunctionId
    arguments: dict[str, Value]
    numbers: dict[str, int]
    """The integers that the function can access by name: of its module, of `self`, of a config."""
    began: int
    """How many torch calls the recorder had counted when it began."""
    bindings: list[Binding] = field(default_factory=list)
    results: list[tuple[int, Value]] = field(default_factory=list)
    """Each with the line of its return statement."""
    ended: int | None = None
    """How many torch calls the recorder had counted when it returned; None if it didn't return."""
    unwatched_from: int | None = None
    """The line from which on stores aren't watched; None if all are."""

    @property
    def bound(self) -> list[tuple[str, Value]]:
        """The arguments and every store to a variable, in order."""
        return [*self.arguments.items(), *((store.name, store.value) for store in self.bindings)]


class VariableWatch:
    """Records the calls of the functions that `wanted` accepts, within its context."""

    def __init__(self, wanted: Callable[[CodeType], bool]) -> None:
        self._wanted = wanted
        self._recorded = 0
        self._stores: dict[CodeType, _WatchedStores] = {}
        self._resumed: dict[int, Invocation] = {}
        self.invocations: list[Invocation] = []
        self._before: Any = None
        self._gc_callbacks: set[CodeType | None] = set()

    def count_call(self, outputs: Sequence[Tensor]) -> None:
        """Count a torch call that the recorder has recorded."""
        self._recorded += 1

    def clear(self) -> None:
        """Discard all records."""
        self._recorded = 0
        self._resumed.clear()
        self.invocations.clear()

    def __enter__(self) -> VariableWatch:
        self._before = sys.gettrace()
        # a library's callback may run at any allocation of the target, and isn't the target's code
        self._gc_callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
        sys._getframe().f_trace_opcodes = True  # Python 3.12 needs this before tracing begins
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<") or not self._wanted(code) or code in self._gc_callbacks:
            return None
        resumed = bool(code.co_flags & _RESUMABLE)
        invocation = self._resumed.get(id(frame)) if resumed and not _is_first_resume(frame) else None
        if invocation is None:
            name = code.co_qualname.replace(".<locals>", "")
            function = FunctionId(code.co_filename, name, code.co_firstlineno)
            invocation = Invocation(function, dict(_arguments(frame)), _numbers(frame), self._recorded)
            self.invocations.append(invocation)
            if resumed:
                self._resumed[id(frame)] = invocation
        if code not in self._stores:
            self._stores[code] = _watched_stores(code)
        stores, invocation.unwatched_from = self._stores[code]
        pending: _Store | None = None

        def watched(frame: FrameType, event: str, value: object) -> Any:
            nonlocal pending
            if event == "line":
                # Python 3.13 honours this only from a line on, not from the call
                frame.f_trace_opcodes = True
            elif event == "opcode":
                store = stores.get(frame.f_lasti)
                # Python 3.12 reports an instruction again after its prefix
                if pending is not None and store is not pending:
                    line, names = pending
                    for name, column in names:
                        with contextlib.suppress(LookupError):
                            value = summarize(read_variable(frame, name))
                            invocation.bindings.append(Binding(line, column, name, value))
                pending = store
            elif event == "return":
                pending = None
                # a function that raises also "returns" None, from the instruction that raised
                if not resumed and dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("RETURN_VALUE", "RETURN_CONST"):
                    invocation.results.append((frame.f_lineno, summarize(value)))
                    invocation.ended = self._recorded
            return watched

        return watched


_WatchedStores = tuple[dict[int, _Store], int | None]
"""The stores by the offset of the instruction and of its prefixes, and the line from which on they aren't watched."""


def _watched_stores(code: CodeType) -> _WatchedStores:
    stores = list(_stores(code))
    variables = len(code.co_varnames) + len(code.co_cellvars) + len(code.co_freevars)
    most = _MOST_COPIES // max(1, variables) if COPIES_ALL else len(stores)
    by_offset = {offset: store for offsets, store in stores[:most] for offset in offsets}
    return by_offset, stores[most][1][0] if most < len(stores) else None


def _stores(code: CodeType) -> Iterator[tuple[range, _Store]]:
    """Yield the offsets of each instruction that binds variables, its prefixes included, with what it binds."""
    inlined: list[tuple[str, dis.Positions]] = []
    first: int | None = None
    for instruction in dis.get_instructions(code):
        first = instruction.offset if first is None else first
        if instruction.opname == "EXTENDED_ARG":
            continue
        offsets, first = range(first, instruction.offset + 1, 2), None
        positions = instruction.positions
        if positions is None:
            continue
        if instruction.opname == "LOAD_FAST_AND_CLEAR":
            inlined.append((instruction.argval, positions))
        if not instruction.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            continue
        line, column = positions.lineno or 0, positions.col_offset
        # from Python 3.13 on, one instruction may store twice, with the position of the first store, or store and load
        name, *others = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        names = [(name, column if column is not None else NO_COLUMN)]
        if "LOAD" not in instruction.opname:
            names += [(name, _column_of_store(code.co_filename, line, column, name)) for name in others]
        # from Python 3.12 on, a comprehension binds its variables in the function around it
        comprehension = {name for name, within in inlined if _in(positions, within)}
        if own := [(name, at) for name, at in names if name not in comprehension]:
            yield offsets, (line, own)


def _column_of_store(file: str, line: int, column: int | None, name: str) -> int:
    """Return where a line binds a name, right after a column if it does so there."""
    if column is None or file.startswith("<"):
        return NO_COLUMN
    columns = [at for at, bound in _names_bound(SourceFile.for_filename(file)).get(line, ()) if bound == name]
    return next((at for at in columns if at > column), columns[0] if len(columns) == 1 else NO_COLUMN)


@functools.lru_cache(maxsize=8)
def _names_bound(source: Source) -> dict[int, list[tuple[int, str]]]:
    """Return the names that each line of a file binds, with their columns, in order."""
    bound: dict[int, list[tuple[int, str]]] = {}
    for node in ast.walk(source.tree) if source.tree is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.lineno, []).append((node.col_offset, node.id))
    return {line: sorted(names) for line, names in bound.items()}


def _in(one: dis.Positions, other: dis.Positions) -> bool:
    """Return whether a source position is within another."""
    (line, end, column, end_column), (first, last, left, right) = one, other
    if line is None or end is None or first is None or last is None:
        return one == other
    return (first, left or 0) <= (line, column or 0) and (end, end_column or 0) <= (last, right or 0)


def _is_first_resume(frame: FrameType) -> bool:
    """Return whether a generator or coroutine starts here; the argument of a later RESUME isn't 0."""
    code, at = frame.f_code.co_code, max(frame.f_lasti, 0)
    return dis.opname[code[at]] == "RESUME" and code[at + 1] & 3 == 0


def _arguments(frame: FrameType) -> Iterator[tuple[str, Value]]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    held = frame.f_locals
    yield from ((name, summarize(held[name])) for name in code.co_varnames[:count] if name in held)


def _numbers(frame: FrameType) -> dict[str, int]:
    """Return the integers in scope by name; an inner scope wins over an outer one."""
    held = frame.f_locals
    scopes = [frame.f_globals]
    for path in _NAMESPACES:
        first, _, rest = path.partition(".")
        holder = held.get(first)
        scopes.append(_attributes(_attributes(holder).get(rest) if rest else holder))
    return {name: value for scope in (*scopes, held) for name, value in scope.items() if type(value) is int}


def _attributes(value: object) -> dict[str, Any]:
    """Return an object's own attributes, without running any of its code."""
    with contextlib.suppress(AttributeError):
        attributes: dict[str, Any] = object.__getattribute__(value, "__dict__")
        return attributes
    return {}


_PART_OF_BUDGET = 2
"""The part of the work of all extra runs that watched runs may take: one divided by this."""
_STANDARD = sysconfig.get_path("stdlib")
_RECORDING = str(Path(executing.__file__).parent)
"""Code of this package runs on behalf of the recorder."""


@dataclass(frozen=True)
class ObservedRun:
    """One run: its sizes, its steps, and the calls of the target's functions in order."""

    numbers: Mapping[str, int]
    raw: RawTrace
    invocations: Sequence[Invocation]
    parameters: Mapping[str, tuple[int, ...]]
    """The shapes of the target's parameters and buffers, by path."""
    file: str | None
    """The file of the called code; None if it has none."""


@dataclass(frozen=True)
class TargetObservation:
    """Several runs of one target."""

    variation: Samples
    """The samples at sizes at which the target was observed."""
    small: tuple[ObservedRun, ...]
    """The runs at small sizes, in the order of `variation.every`."""
    actual: ObservedRun


def observe(target: Target, variation: Samples, options: RunOptions, limit: TimeLimit) -> TargetObservation:
    """Return what the variables of the target's functions held, at the user's sizes and at the variation's.

    Raises whatever the target raises at the user's sizes.
    """
    with unattended():  # the run that isn't watched has printed already
        actual = limit.learn_from(lambda: _run(target, variation.plan.sizes.numbers, options))
    watched = runs_at(target, variation.cheap_sizes(_PART_OF_BUDGET), options, limit)
    variation = variation.only_at([run.numbers for run in watched])
    small = [next(run for run in watched if run.numbers == numbers) for numbers, _ in variation.every]
    return TargetObservation(variation, tuple(small), actual)


def runs_at(
    target: Target, sizes: Iterable[Mapping[str, int]], options: RunOptions, limit: TimeLimit
) -> list[ObservedRun]:
    """Return a run at each of these sizes, without those at which the target fails or takes too long."""
    runs = []
    for numbers in sizes:
        with contextlib.suppress(TooLong), one_thread(), unattended():
            try:
                runs.append(limit.run(functools.partial(_run, target, numbers, options)))
            except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
                reraise_interruption(error)
    return runs


def _run(target: Target, numbers: Mapping[str, int], options: RunOptions) -> ObservedRun:
    files: set[str | None] = set()
    frames: list[Frames] = []
    parameters: dict[str, tuple[int, ...]] = {}

    def wanted(code: CodeType) -> bool:
        file = code.co_filename
        if file.startswith(_RECORDING) or (file.startswith(_STANDARD) and installed_package(file) is None):
            return False
        return bool(frames) and frames[-1].kind(code) == "own"

    watch = VariableWatch(wanted)

    def build() -> Runnable:
        frames.clear()  # building the target isn't watched
        runnable = target.build(numbers, single)
        files.add(file := source_file(runnable.function))
        tensors = parameters_within(runnable.function, runnable.bound())
        parameters.update((name, shape_of(tensor)) for name, tensor in tensors)
        frames.append(Frames(frozenset({file} if file else ())))
        watch.clear()
        return runnable

    single = replace(options, device="cpu", dtype="float32")
    with watch:
        raw = build_and_record(build, options.seed, on_step=watch.count_call)
    if raw.failure is not None:
        raise raw.failure.error
    return ObservedRun(numbers, raw, tuple(watch.invocations), parameters, next(iter(files), None))


def symbols_of_other_numbers(function: FunctionId, runs: Iterable[ObservedRun]) -> set[str]:
    """Return the size symbols that a function has bound to other numbers, in some run."""
    return {
        name
        for run in runs
        for call in run.invocations
        if call.function == function
        for name, value in call.bound
        if type(value) is int and run.numbers.get(name, value) != value
    }
