"""A target at one set of small sizes, run again and again with something changed."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from attnshape.checks.interventions.module_state import ModuleState
from attnshape.checks.interventions.replay import OutputRef, Replace, Replay, ReplayedCall, copies
from attnshape.checks.interventions.small_sizes import LENGTHS
from attnshape.dims.sizes import are_large
from attnshape.options.spec import DtypeName, RunOptions
from attnshape.runtime.isolation import isolated, seed_all, unattended
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import TimeLimit, TooLong, reraise_interruption_or_timeout
from attnshape.targets.inputs import torch_dtype
from attnshape.targets.target import Target
from attnshape.tracing.containers import modules_within, source_file, tensor_paths
from attnshape.tracing.frames import Frames
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.raw import RawStep, RawTrace
from attnshape.tracing.runner import Runnable, build_and_record, parameters_within, run_to_completion
from attnshape.tracing.tensor_access import describe_kind, is_ordinary

_LARGEST = 1e4
"""Larger parameters are taken for uninitialized memory."""
_SPREAD = 0.3
_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
Observed = TypeVar("Observed")


def _initial_state(named: Sequence[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the parameters and buffers that every build gets, from those of the first one.

    Parameters that are zero or uninitialized get random numbers, since they would hide every change.
    """
    generator = torch.Generator().manual_seed(1)
    values, _ = _read([(name, tensor) for name, tensor in named if is_ordinary(tensor)])
    for name, tensor in named:
        if name not in values:
            continue
        value = values[name]
        if value.is_floating_point() and value.numel() and _hides(tensor, value):
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            values[name] = (noise * _SPREAD).to(value.dtype)
    return values


def _read(named: Sequence[tuple[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return copies of the tensors by their names, and why others can't be read."""
    values, unread = copies([tensor for _, tensor in named])
    readable = {name: values[place] for place, (name, _) in enumerate(named) if place not in unread}
    return readable, {named[place][0]: why for place, why in unread.items()}


def _zero_parameters(named: Sequence[tuple[str, Tensor]]) -> frozenset[str]:
    ordinary = ((name, tensor) for name, tensor in named if isinstance(tensor, nn.Parameter) and is_ordinary(tensor))
    return frozenset(name for name, tensor in ordinary if tensor.numel() and not bool(tensor.any()))


def _hides(tensor: Tensor, value: Tensor) -> bool:
    if not isinstance(tensor, nn.Parameter):
        return bool(value.isnan().all())  # infinity may be what hidden scores are filled with
    # NaN isn't below the limit either
    return not bool((value.abs() <= _LARGEST).all()) or not bool(value.any())


def _has_nan(value: Tensor) -> bool:
    return bool(torch.isnan(value).any())


class UnreadableError(Exception):
    """A rule needs the numbers of a call's result or operands, and they can't be read or replaced."""

    def __init__(self, ref: OutputRef, why: str) -> None:
        """`why` is the end of a sentence about the call."""
        super().__init__(why)
        self.ref = ref
        self.why = why


class OutOfTimeError(Exception):
    """The time limit is over, and nothing more is checked."""


@dataclass
class Budget:
    """The time that all runs together may take, and how many there were."""

    seconds: float
    runs: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that are left, negative where the time is over."""
        return self.started + self.seconds - time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether the time is over."""
        return self.left < 0

    def spend(self) -> None:
        """Count a run. Raises OutOfTimeError if the time is over."""
        if self.is_spent:
            raise OutOfTimeError
        self.runs += 1


@dataclass(frozen=True)
class Intervention:
    """What to replace in a run."""

    inputs: Mapping[str, Replace] = field(default_factory=dict)
    parameters: Mapping[str, Replace] = field(default_factory=dict)
    results: Mapping[OutputRef, Replace] = field(default_factory=dict)
    seed: int = 0
    """Added to the seed of the call; parameters and inputs keep theirs."""


UNCHANGED = Intervention()


@dataclass
class ReplayRun:
    """What one run did."""

    events: list[ReplayedCall]
    returned: list[tuple[str, Tensor]]
    """Copies of the tensors that the target returned, with their paths."""
    inputs: dict[str, Tensor]
    """The inputs before the call."""
    inputs_after: dict[str, Tensor]
    """The inputs after the call."""
    state: dict[str, Tensor]
    state_after: dict[str, Tensor]
    error: BaseException | None = None
    results: tuple[Tensor, ...] = ()
    """The returned tensors themselves."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why the numbers of an input, a parameter or a buffer can't be read."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The kind of each input that can't be replaced by other numbers."""
    unread_results: Mapping[str, str] = field(default_factory=dict)
    """Why the numbers of a returned tensor can't be read, by its path."""
    results_are_compared: bool = False
    """Whether the results were compared with another run's; who wants to know of later comparisons sets it back."""

    def value(self, ref: OutputRef) -> Tensor:
        """Return a result's value right after its call. Raises UnreadableError if it can't be read."""
        event = self.event(ref)
        if ref.output in event.unread:
            raise UnreadableError(ref, event.unread[ref.output])
        return event.values[ref.output]

    def event(self, ref: OutputRef) -> ReplayedCall:
        """Return the call that returned a result."""
        return self.events[ref.order - 1]

    @property
    def has_nan(self) -> bool:
        """Whether a result has a number that is NaN, although no input has one."""
        given, results = self.inputs.values(), (value for _, value in self.returned)
        return any(map(_has_nan, results)) and not any(map(_has_nan, given))

    def follows(self, other: ReplayRun) -> bool:
        """Return whether the run made the same calls as another one, and ended the same way."""
        operations, others = ([event.operation for event in run.events] for run in (self, other))
        return (self.error is None) == (other.error is None) and operations == others


_TRAINING = ("training", "train", "is_training")
"""The names of flags by which callers ask functions without a mode of their own to train."""


@dataclass(frozen=True)
class RepeatedLayer:
    """A module that a list of layers has several times."""

    paths: list[str]
    owner: type[nn.Module] | None
    """The class that has the list as an attribute; None if the list is the target itself."""
    attribute: str


@dataclass(frozen=True)
class Structure:
    """What a target's module consists of; nothing if the target is no module."""

    parameters: frozenset[str]
    """The names of the parameters, buffers left out."""
    repeated_layers: tuple[RepeatedLayer, ...]
    """The modules with parameters that one list of layers has several times."""
    plain_containers: tuple[tuple[type[nn.Module], str], ...]
    """The attributes that hold layers or parameters in a list, tuple or dictionary, each with its class."""
    classes: Mapping[str, type[nn.Module]]
    """The class of each module by its name; that of the target itself has none."""


def _repeated_layers(root: nn.Module) -> Iterator[RepeatedLayer]:
    for path, container in root.named_modules():
        places: dict[int, list[str]] = {}
        for name, layer in container._modules.items() if isinstance(container, _LISTS) else ():
            if layer is not None and next(layer.parameters(), None) is not None:
                places.setdefault(id(layer), []).append(f"{path}.{name}" if path else name)
        owner, _, attribute = path.rpartition(".")
        kind = type(root.get_submodule(owner)) if attribute else None
        yield from (RepeatedLayer(names, kind, attribute) for names in places.values() if len(names) > 1)


def _plain_containers(root: nn.Module) -> Iterator[tuple[type[nn.Module], str]]:
    for module in root.modules():
        for name, value in vars(module).items():
            items = value.values() if isinstance(value, dict) else value
            plain = isinstance(value, (list, tuple, dict)) and not name.startswith("_")
            if plain and any(isinstance(item, (nn.Module, nn.Parameter)) for item in items):
                yield type(module), name


@dataclass(frozen=True)
class ModeRuns:
    """What calls of one target in several modes did."""

    runs: list[ReplayRun]
    written: list[tuple[type[nn.Module], str]]
    """The attributes of modules, other than parameters and buffers, that have other values after the calls."""


def _plain_attributes(roots: Sequence[nn.Module]) -> dict[tuple[nn.Module, str], object]:
    """Return the attributes of modules that hold neither the mode nor what torch registers."""
    every = dict.fromkeys(module for root in roots for module in root.modules())
    return {
        (module, name): value
        for module in every
        for name, value in vars(module).items()
        if name != "training" and not name.startswith("_")
    }


def _same(value: object, other: object) -> bool:
    return value is other or (isinstance(value, (int, float, str)) and value == other)


class Experiment:
    """A target at one set of sizes, with what is known about it."""

    def __init__(
        self,
        target: Target,
        numbers: Mapping[str, int],
        options: RunOptions,
        limit: TimeLimit,
        budget: Budget,
        modules: ModuleState | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Run the target for the first time.

        `modules` is what each run finds in the target's Python modules; by default what they hold now. `state` has
        values for parameters and buffers of the same shapes.
        """
        self.numbers = dict(numbers)
        self.target = target
        self.budget = budget
        self._modules = modules if modules is not None else ModuleState(target.module)
        self._options = options
        self._limit = limit
        self._given_state = state or {}
        self._state: dict[str, Tensor] | None = None
        self.zero_parameters: frozenset[str] = frozenset()
        """The parameters whose numbers are all zero as the target is built, and random in every run."""
        self._default = torch_dtype(options)
        self.made_in: frozenset[torch.dtype] = frozenset()
        """The dtypes in which the user's code makes parameters, whatever the dtype of the runs."""
        self.varies_inputs = False
        """Whether inputs were replaced in some run; who wants to know of later runs sets it back."""
        self.base = self._first()

    @cached_property
    def structure(self) -> Structure:
        """What the target's module consists of."""
        with isolated(), unattended():
            runnable = self._build()
            _, state = _named(runnable)
        root = runnable.function if isinstance(runnable.function, nn.Module) else nn.Module()
        parameters = frozenset(name for name, tensor in state if isinstance(tensor, nn.Parameter))
        classes = {name: type(module) for name, module in root.named_modules()}
        return Structure(parameters, tuple(_repeated_layers(root)), tuple(_plain_containers(root)), classes)

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters, buffers left out."""
        return self.structure.parameters

    @property
    def bytes(self) -> int:
        """The bytes that the results of one run take."""
        return sum(value.nbytes for event in self.base.events for value in event.values)

    @property
    def training(self) -> bool:
        """Whether modules run in training mode, or an argument such as `training=True` asks the target for it."""
        return self._options.train or self.observe(lambda runnable, _: _asks_to_train(runnable))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the runs."""
        return torch_dtype(self._options)

    @cached_property
    def tolerance(self) -> float:
        """The relative difference up to which two numbers count as equal."""
        dtypes = {value.dtype for event in self.base.events for value in event.values}
        exact = self.dtype == torch.float64 and dtypes.isdisjoint((torch.float32, torch.float16, torch.bfloat16))
        return 1e-9 if exact else 2e-5

    @cached_property
    def raw(self) -> RawTrace:
        """A recording of a run, which has each call's location in the source."""
        self.budget.runs += 1
        return self._limited(lambda: build_and_record(self._build, self._options.seed))

    @cached_property
    def steps(self) -> dict[int, RawStep]:
        """The recorded steps by the number of their call."""
        return {step.order: step for step in self.raw.steps if step.order is not None}

    def run(self, change: Intervention = UNCHANGED) -> ReplayRun:
        """Run the target with an intervention; a failure of the target is part of the result."""
        self.budget.spend()
        self.varies_inputs |= bool(change.inputs)
        return self._limited(lambda: self._run(change))

    def run_in(self, dtype: DtypeName) -> ReplayRun | None:
        """Run the target at its own sizes in another dtype; None if these are large, or the run fails."""
        if are_large(self.target.sizes):
            return None
        return self._run_elsewhere(self.target.sizes.numbers, replace(self._options, dtype=dtype))

    def at(self, numbers: Mapping[str, int]) -> Experiment:
        """Return the target at other sizes, with the parameters and buffers of this one where their shapes agree."""
        state = self._state or {}
        return Experiment(self.target, numbers, self._options, self._limit, self.budget, self._modules, state)

    def in_training(self) -> Experiment:
        """Return an experiment with the same numbers, and with modules in training mode."""
        options = replace(self._options, train=True)
        return Experiment(self.target, self.numbers, options, self._limit, self.budget, self._modules, self._state)

    def input_shapes_at(self, numbers: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs with which the target is called at other sizes; none if building it fails."""

        def shapes() -> dict[str, tuple[int, ...]]:
            with isolated():
                inputs, _ = _named(self.target.build(numbers, self._options))
                return {name: tuple(tensor.shape) for name, tensor in inputs}

        try:
            return self._limited(shapes)
        except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
            reraise_interruption(error)
            return {}

    def run_at_length(self, length: int, dtype: DtypeName) -> ReplayRun | None:
        """Run the target in a dtype with other lengths and a small batch; None if it has none, or the run fails."""
        sizes = self.target.sizes
        chosen = {symbol: self.numbers[symbol] for symbol in sizes.independent if symbol in self.numbers}
        lengths = dict.fromkeys(chosen.keys() & set(LENGTHS), length)
        if not lengths or len(chosen) < len(sizes.independent) or not self.target.resizable:
            return None
        few = {"B": min(chosen["B"], 2)} if "B" in chosen else {}
        return self._run_elsewhere(sizes.at({**chosen, **lengths, **few}), replace(self._options, dtype=dtype))

    def _run_elsewhere(self, numbers: Mapping[str, int], options: RunOptions) -> ReplayRun | None:
        """Run the target at other sizes or in another dtype; None if the run fails."""
        self.budget.spend()

        def once() -> ReplayRun:
            with isolated():
                torch.set_default_dtype(torch.float32)
                self._modules.restore()
                try:
                    runnable = self.target.build(numbers, options)
                except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
                    reraise_interruption_or_timeout(error)
                    return _failed(error)
                return self._called(runnable)

        with contextlib.suppress(TooLong):
            run = self._limited(once)
            return run if run.error is None else None
        return None

    def run_altered(self, alter: Callable[[Runnable], Runnable], change: Intervention = UNCHANGED) -> ReplayRun:
        """Run the target with an intervention, after a function has altered it, such as a number that it takes."""
        self.budget.spend()

        def altered() -> ReplayRun:
            with isolated():
                return self._called(alter(self._build()), change)

        return self._limited(altered)

    def call_twice(
        self, other: Mapping[str, int] | None = None, second_call: Intervention = UNCHANGED
    ) -> tuple[ReplayRun, ReplayRun] | None:
        """Call one built target twice, with a call at the sizes `other` between them if given; None if a call fails.

        The second call gets new arguments, since the first may have changed its own; `second_call` changes them.
        """
        self.budget.spend()

        def both() -> tuple[ReplayRun, ReplayRun] | None:
            with isolated():
                target, again = self._build(), self._build()
                first = self._called(target)
                if other is not None:
                    between = self.target.build(other, self._options)
                    self._called(Runnable(target.function, between.args, between.kwargs))
                second = self._called(Runnable(target.function, again.args, again.kwargs), second_call)
                return (first, second) if first.error is None and second.error is None else None

        return self._limited(both)

    def call_in_modes(self, modes: Sequence[bool]) -> ModeRuns | None:
        """Call one built target once in each mode, True for training; None if it has no modules, or a call fails.

        Each call gets new arguments, and the parameters and buffers that the first one got.
        """
        self.budget.spend()

        def each() -> ModeRuns | None:
            with isolated():
                target = self._build()
                roots = [module for _, module in modules_within(target.function)]
                before = _plain_attributes(roots)
                runs: list[ReplayRun] = []
                for train in modes if roots else ():
                    for root in roots:
                        root.train(train)
                    again = self._build()
                    self._put_back(target)
                    runs.append(self._called(Runnable(target.function, again.args, again.kwargs)))
                    if runs[-1].error is not None:
                        return None
                after = _plain_attributes(roots)
                written = [
                    place for place, value in before.items() if place in after and not _same(value, after[place])
                ]
                return ModeRuns(runs, [(type(module), name) for module, name in written]) if runs else None

        return self._limited(each)

    def observe(self, call: Callable[[Runnable, Mapping[str, Tensor]], Observed]) -> Observed:
        """Return what a function observes that calls the target itself, without a replay around it.

        The function gets the target, built as for any other run, and its parameters and buffers by name.
        """
        self.budget.spend()

        def built() -> Observed:
            with isolated():
                runnable = self._build()
                _, state = _named(runnable)
                seed_all(self._options.seed)
                return call(runnable, dict(state))

        return self._limited(built)

    def _limited(self, work: Callable[[], Observed]) -> Observed:
        """Do work that calls the target, within the limit of time and without showing what the target prints."""
        with unattended():
            return self._limit.run(work)

    def _first(self) -> ReplayRun:
        """Return the first run that works: with float64 as torch's default dtype, with float32, or all in float32.

        A run without NaN is preferred: a mask's number may overflow in one dtype only.
        """
        options, single = self._options, replace(self._options, dtype="float32")
        tries = [(options, torch.float64), (options, torch.float32), (single, torch.float32)]
        best: ReplayRun | None = None
        for attempt in tries:
            self._options, self._default = attempt
            self._state = None
            run = self.run()
            if run.error is None and (best is None or not run.has_nan):
                best, chosen, state = run, attempt, self._state
            if best is not None and not best.has_nan:
                break
        if best is None:
            return run
        (self._options, self._default), self._state = chosen, state
        return best

    def repeat_if_remembered(self) -> None:
        """Repeat the first run if the recorded one made another number of calls, as where a table is filled once."""
        if len(self.base.events) != max(self.steps, default=0):
            self.base = self.run()

    def _build(self) -> Runnable:
        torch.set_default_dtype(self._default)
        self._modules.restore()
        runnable = self.target.build(self.numbers, self._options)
        self.made_in = runnable.made_in
        if not self.target.resizable:  # they are the caller's own
            runnable = Runnable(runnable.function, *copy.deepcopy((runnable.args, runnable.kwargs)))
        if self._state is None:
            named = parameters_within(runnable.function, {})
            self._state = _initial_state(named) | dict(self._given_state)
            self.zero_parameters = _zero_parameters(named)
        self._put_back(runnable)
        return runnable

    def _put_back(self, runnable: Runnable) -> None:
        """Give the parameters and buffers of a runnable the numbers that every build gets."""
        for name, tensor in parameters_within(runnable.function, {}):
            value = (self._state or {}).get(name)
            if value is not None and value.shape == tensor.shape and value.dtype == tensor.dtype:
                tensor.data = value.clone()
        _enter_modes_again(runnable)

    def _run(self, change: Intervention) -> ReplayRun:
        with isolated():
            try:
                runnable = self._build()
            except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
                reraise_interruption_or_timeout(error)
                return _failed(error)
            return self._called(runnable, change)

    def _called(self, runnable: Runnable, change: Intervention = UNCHANGED) -> ReplayRun:
        """Call a runnable with an intervention, and keep everything that it does."""
        inputs, parameters = _named(runnable)
        for name, tensor in inputs + parameters:
            new = change.inputs.get(name) or change.parameters.get(name)
            if new is not None and is_ordinary(tensor):
                tensor.data = new(tensor.detach().clone())
        (before, unread), (state, unread_state) = _read(inputs), _read(parameters)
        file = source_file(runnable.function)
        frames = Frames(frozenset({file} if file else ())) if change is UNCHANGED else None
        replay = Replay(inputs + parameters, change.results, frames)
        failure: BaseException | None = None
        results: list[tuple[str, Tensor]] = []
        returned: list[tuple[str, Tensor]] = []
        unread_results: dict[str, str] = {}
        seed_all(self._options.seed + change.seed)
        try:
            with torch.no_grad(), force_eager(), replay:
                result, _ = run_to_completion(runnable.call())
            results = list(tensor_paths("output", result))
            readable, unread_results = _read(results)
            returned = list(readable.items())
        except BaseException as raised:  # noqa: BLE001 - the run keeps whatever the traced code raises
            reraise_interruption_or_timeout(raised)
            failure = raised
        (after, _), (state_after, _) = _read(inputs), _read(parameters)
        tensors = tuple(tensor for _, tensor in results)
        run = ReplayRun(replay.events, returned, before, after, state, state_after, failure, tensors)
        run.unread, run.unread_results = unread | unread_state, unread_results
        run.fixed = {name: describe_kind(tensor) for name, tensor in inputs if not is_ordinary(tensor)}
        return run


def _enter_modes_again(runnable: Runnable) -> None:
    """Let modules with a `train` of their own compute again what they keep of their parameters in each mode."""
    for _, root in modules_within(runnable.function):
        modes = [(module, module.training) for module in root.modules()]
        for module, training in modes:
            if type(module).train is not nn.Module.train:
                module.train(training)
        for module, training in modes:
            module.training = training


def _asks_to_train(runnable: Runnable) -> bool:
    bound = runnable.bound()
    return any(bound.get(name) is True for name in _TRAINING)


def _failed(error: BaseException) -> ReplayRun:
    """Return the run of a target that couldn't be built."""
    return ReplayRun([], [], {}, {}, {}, {}, error)


def _named(runnable: Runnable) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """Return the inputs, and the parameters and buffers, under distinct names."""
    bound = runnable.bound()
    inputs = [item for name, value in bound.items() for item in tensor_paths(name, value)]
    taken = {name for name, _ in inputs}
    parameters = parameters_within(runnable.function, bound)
    return _once(inputs), _once([(f"self.{name}" if name in taken else name, t) for name, t in parameters])


def _once(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return each tensor once, under its first name."""
    first = {id(tensor): name for name, tensor in reversed(named)}
    return [(name, tensor) for name, tensor in named if first.pop(id(tensor), None) == name]
