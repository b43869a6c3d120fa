"""A target at one set of small sizes, ready to be run again and again with something changed."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from attnshape.ending import reraise_interruption
from attnshape.replaying.replay import Address, Event, Replace, Replay
from attnshape.replaying.state import Settled
from attnshape.target.request import Placement, Target
from attnshape.tracing.compiled import uncompiled
from attnshape.tracing.contained import paths
from attnshape.tracing.frames import Frames
from attnshape.tracing.isolation import isolated, one_thread, seed_all
from attnshape.tracing.modules import own_file
from attnshape.tracing.outcome import run_to_its_end
from attnshape.tracing.patience import Patience, TooLong
from attnshape.tracing.raw import RawStep, RawTrace
from attnshape.tracing.runner import Runnable, parameters_within, record_anew


class OutOfTimeError(Exception):
    """The time limit is over: nothing further is examined."""


@dataclass
class Budget:
    """How long all runs together may take, and how many there were."""

    seconds: float
    runs: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() - self.started > self.seconds

    def spend(self) -> None:
        """Count a run. Raises OutOfTimeError where the time is over."""
        if self.is_spent:
            raise OutOfTimeError
        self.runs += 1


@dataclass(frozen=True)
class Change:
    """What is to be different in a run."""

    inputs: Mapping[str, Replace] = field(default_factory=dict)
    parameters: Mapping[str, Replace] = field(default_factory=dict)
    results: Mapping[Address, Replace] = field(default_factory=dict)
    seed: int = 0
    """Added to the seed of the call, not to that of parameters and inputs."""


NOTHING = Change()


@dataclass
class Run:
    """What one run did."""

    events: list[Event]
    returned: list[tuple[str, Tensor]]
    """The tensors that the target returned, with the paths to them, as they were then."""
    inputs: dict[str, Tensor]
    """The inputs as they were before the call."""
    after: dict[str, Tensor]
    """The inputs as they were behind the call."""
    state: dict[str, Tensor]
    state_after: dict[str, Tensor]
    error: BaseException | None = None
    results: tuple[Tensor, ...] = ()
    """The very tensors that were returned."""

    def value(self, address: Address) -> Tensor:
        """Return what a result held behind its call."""
        return self.events[address.order - 1].values[address.output]

    def event(self, address: Address) -> Event:
        """Return the call that made a result."""
        return self.events[address.order - 1]

    def follows(self, other: Run) -> bool:
        """Say whether the run took the steps of another, and ended as it did."""
        return (
            (self.error is None) == (other.error is None)
            and len(self.events) == len(other.events)
            and all(a.operation == b.operation for a, b in zip(self.events, other.events, strict=True))
        )


class Bench:
    """A target at one set of sizes."""

    def __init__(
        self, target: Target, numbers: Mapping[str, int], placement: Placement, patience: Patience, budget: Budget
    ) -> None:
        self.numbers = dict(numbers)
        self.target = target
        self.budget = budget
        self._placement = placement
        self._patience = patience
        self._settled: Settled | None = None
        self._default = placement.dtype
        self.base = self._first()

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of what is a parameter, not a buffer."""
        with isolated():
            _, state = _named(self._build())
            return frozenset(name for name, tensor in state if isinstance(tensor, nn.Parameter))

    @property
    def bytes(self) -> int:
        """How much memory the results of one run take."""
        return sum(value.nbytes for event in self.base.events for value in event.values)

    @property
    def training(self) -> bool:
        """Whether modules run in training mode."""
        return self._placement.train

    @property
    def dtype(self) -> torch.dtype:
        """In what type the runs are."""
        return self._placement.dtype

    @cached_property
    def tolerance(self) -> float:
        """The relative difference of two numbers that means nothing."""
        exact = self.dtype == torch.float64 and not any(
            value.dtype in (torch.float32, torch.float16, torch.bfloat16)
            for event in self.base.events
            for value in event.values
        )
        return 1e-9 if exact else 2e-5

    @cached_property
    def raw(self) -> RawTrace:
        """The raw facts of a run, which tell each call's place in the source."""
        self.budget.runs += 1
        with one_thread():
            return self._patience.run(lambda: record_anew(self._build, self._placement.seed))

    @cached_property
    def steps(self) -> dict[int, RawStep]:
        """The recorded steps by the number of their call."""
        return {step.order: step for step in self.raw.steps if step.order is not None}

    def run(self, change: Change = NOTHING) -> Run:
        """Return what the target does with something changed; its failure is part of the result."""
        self.budget.spend()
        with one_thread():
            return self._patience.run(lambda: self._run(change))

    def calls(self, other: Mapping[str, int] | None = None) -> tuple[Run, Run] | None:
        """Return two calls of one built target, None where one fails; with `other`, one of other sizes lies between.

        The second call gets arguments built anew: the first may have changed its own.
        """
        self.budget.spend()

        def both() -> tuple[Run, Run] | None:
            with isolated():
                first, second = self._build(), self._build()
                runs = [self._called(first)]
                if other is not None:
                    between = self.target.build(other, self._placement)
                    self._called(Runnable(first.function, between.args, between.kwargs))
                runs.append(self._called(Runnable(first.function, second.args, second.kwargs)))
                return (runs[0], runs[1]) if runs[0].error is None and runs[1].error is None else None

        with one_thread():
            return self._patience.run(both)

    def _first(self) -> Run:
        """Return the first run that works: in float64 by default, with float64 where it is asked for, in float32."""
        placement = self._placement
        tries = [(placement, torch.float64), (placement, torch.float32)]
        tries.append((replace(placement, dtype=torch.float32), torch.float32))
        for self._placement, self._default in tries:
            self._settled = None
            run = self.run()
            if run.error is None:
                break
        return run

    def _build(self) -> Runnable:
        torch.set_default_dtype(self._default)
        runnable = self.target.build(self.numbers, self._placement)
        if not self.target.varies:  # they are the caller's own
            runnable = Runnable(runnable.function, *copy.deepcopy((runnable.args, runnable.kwargs)))
        named = parameters_within(runnable.function, {})
        if self._settled is None:
            self._settled = Settled.of(named)
        self._settled.put_into(named)
        return runnable

    def _run(self, change: Change) -> Run:
        with isolated():
            try:
                runnable = self._build()
            except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
                reraise_interruption(error)
                return Run([], [], {}, {}, {}, {}, error)
            return self._called(runnable, change)

    def _called(self, runnable: Runnable, change: Change = NOTHING) -> Run:
        """Call what was built, with its inputs and parameters changed, and keep what it does."""
        inputs, parameters = _named(runnable)
        for name, tensor in inputs + parameters:
            new = change.inputs.get(name) or change.parameters.get(name)
            if new is not None:
                tensor.data = new(tensor.detach().clone())
        before = {name: tensor.detach().clone() for name, tensor in inputs}
        state = {name: tensor.detach().clone() for name, tensor in parameters}
        file = own_file(runnable.function)
        frames = Frames(frozenset({file} if file else ())) if change is NOTHING else None
        replay = Replay(inputs + parameters, change.results, frames)
        failure: BaseException | None = None
        results: tuple[Tensor, ...] = ()
        returned: list[tuple[str, Tensor]] = []
        seed_all(self._placement.seed + change.seed)
        try:
            with torch.no_grad(), uncompiled(), replay:
                result, _ = run_to_its_end(runnable.call())
            found = list(paths("output", result))
            results = tuple(tensor for _, tensor in found)
            returned = [(path, tensor.detach().clone()) for path, tensor in found]
        except BaseException as raised:
            reraise_interruption(raised)
            failure = raised
            if isinstance(raised, TooLong):
                raise
        after = {name: tensor.detach().clone() for name, tensor in inputs}
        state_after = {name: tensor.detach().clone() for name, tensor in parameters}
        return Run(replay.events, returned, before, after, state, state_after, failure, results)


def _named(runnable: Runnable) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """Return the inputs, and the parameters and buffers under names that no input has."""
    bound = runnable.bound()
    inputs = [item for name, value in bound.items() for item in paths(name, value)]
    taken = {name for name, _ in inputs}
    found = parameters_within(runnable.function, bound)
    return _once(inputs), _once([(f"self.{name}" if name in taken else name, t) for name, t in found])


def _once(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return each tensor under its first name."""
    seen: set[int] = set()
    return [(name, t) for name, t in named if id(t) not in seen and not seen.add(id(t))]  # type: ignore[func-returns-value]
