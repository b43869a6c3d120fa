"""Tries proposals at small sizes, in order, until one works."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnshape.dims.sizes import are_large
from attnshape.errors import AttnshapeError
from attnshape.options.flags import flag_syntax
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.proposals.alternatives import alternatives
from attnshape.proposals.axis_orders import with_heads_behind_tokens, with_sequence_first, with_two_lengths
from attnshape.proposals.configurations import ANY_NUMBER, namespace
from attnshape.proposals.examples import Example
from attnshape.proposals.inputs import (
    Inputs,
    axes_are_named,
    input_candidates,
    optional_context,
    optional_inputs,
    optional_masks,
)
from attnshape.proposals.trial_sizes import literals_of, trial_sizes
from attnshape.proposals.widths import with_length_of_code, with_width_of_layer
from attnshape.runtime.isolation import isolated, seed_all, unattended
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import TooLong, call_within
from attnshape.targets.find import find_target
from attnshape.targets.missing import missing_package
from attnshape.targets.target import Target
from attnshape.tracing.containers import tensor_paths
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.runner import Runnable, run_to_completion

_Result = TypeVar("_Result")

_MOST_ATTEMPTS = 200
_MOST_ATTEMPTS_WITH_ONE = 70
_MOST_REFINEMENTS = 600
_MOST_STARTS = 4
_MOST_WITHOUT_PACKAGE = 20
_MOST_SECONDS = 20.0
"""How long all attempts together may compute, however busy the machine is; three times as long if they only wait."""
_LONGEST_WAIT = 3
_ONE_ATTEMPT = 10.0
_AT_SIZES_ASKED_FOR = 2.0
_MOST_ELEMENTS = 10**8
_ALLOCATING = frozenset((torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye))
_ADDED_FIELD = re.compile(r"SimpleNamespace\((\w+)=None")
_SOFTMAXES = frozenset((torch.softmax, Tensor.softmax, torch.nn.functional.softmax))
_MISSING_FIELD = re.compile(r"'(?:types\.)?SimpleNamespace' object has no attribute '(\w+)'")


@dataclass
class FailedAttempt:
    """How far an attempt got, and why it failed."""

    spec: TargetSpec
    error: BaseException
    is_built: bool
    progress: tuple[int, int] = (0, 0)
    """How many calls of torch it completed at the set of sizes at which it failed, and at how many sets it ran before.

    What runs at one set only does so by coincidence, as where two sizes happen to be the same.
    """

    def is_nearer_than(self, other: FailedAttempt | None) -> bool:
        """Return whether this attempt got further than another."""
        return other is None or (self.is_built, *self.progress) > (other.is_built, *other.progress)


class _CallCounter(TorchFunctionMode):
    """Counts the calls of torch that return, and notices weights over one key only."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.has_one_key = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        if func in _SOFTMAXES and isinstance(result, Tensor):
            axis = next((one for one in ((kwargs or {}).get("dim"), *args[1:2]) if type(one) is int), None)
            self.has_one_key |= axis is not None and result.shape[axis] == 1
        return result


class _AllocationLimit(TorchFunctionMode):
    """Ends a construction that allocates far more than small sizes do, as with the sizes of a real model by default."""

    def __init__(self) -> None:
        super().__init__()
        self._elements = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _ALLOCATING and "out" not in (kwargs or {}):
            with contextlib.suppress(Exception):  # the call itself fails in the same way
                self._elements += func(*args, **{**(kwargs or {}), "device": "meta"}).numel()
            if self._elements > _MOST_ELEMENTS:
                raise AttnshapeError(f"its tensors have more than {_MOST_ELEMENTS} elements even at small sizes")
        return func(*args, **(kwargs or {}))


class _DoubtfulError(Exception):
    """A target runs, but its result doesn't depend on one of its inputs, or is NaN, as where a mask hides every key."""


class Search:
    """Tries proposals in order, within limits on their number and on time."""

    def __init__(
        self,
        maps: Mapping[str, int],
        module: ModuleType | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Start without an attempt.

        Args:
            maps: The sizes of feature maps.
            module: The module of the code, whose numbers no size should have.
            report: What is told each description that is tried, as flags.
        """
        self.attempts = 0
        self._report = report
        self._maps = maps
        self._sizes = trial_sizes(module)
        self._literals = literals_of(module) - set(self._sizes[0].values())
        self._most_attempts = _MOST_ATTEMPTS
        self.doubtful: TargetSpec | None = None
        """The first description that runs although something is odd about it, which may be a mistake in the code."""
        self.failure: FailedAttempt | None = None
        """The attempt that got furthest."""
        self.likeliest: TargetSpec | None = None
        """The first description with which the target was built."""
        self._nearest_of: dict[str, FailedAttempt] = {}
        """The attempts that got furthest of those that describe the first tensor alike."""
        self.missing: FailedAttempt | None = None
        """An attempt that failed for want of a package that isn't installed."""
        self._without_package = 0
        self.cut_short = False
        """Whether time ended an attempt, so that a quieter machine may find another proposal."""
        self._begun = _now()

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached, or a package that isn't installed has been needed often."""
        is_hopeless = self._without_package >= _MOST_WITHOUT_PACKAGE
        return is_hopeless or self.attempts >= self._most_attempts or self.is_out_of_time

    @property
    def is_out_of_time(self) -> bool:
        """Whether the limit on time is reached."""
        computed, waited = (now - then for now, then in zip(_now(), self._begun, strict=True))
        return computed > _MOST_SECONDS or waited > _LONGEST_WAIT * _MOST_SECONDS

    def works(self, spec: TargetSpec) -> bool:
        """Return whether a target runs as described."""
        return self._failure_of(spec) is None

    def first_that_works(
        self,
        spec: TargetSpec,
        inits: Sequence[str | None],
        module: ModuleType,
        call: Callable[..., Any],
        given: Mapping[str, str],
        root: Any,
    ) -> TargetSpec | None:
        """Return the first description with which the target runs at both sets of sizes and uses each input."""
        waiting = list(inits)
        while waiting:
            init = waiting.pop(0)
            # with other arguments of the constructor the likeliest inputs may work
            most = _MOST_ATTEMPTS_WITH_ONE if waiting else None
            for inputs in itertools.islice(_all_inputs(call, module, given, init or "", root), most):
                if self.is_over:
                    self.cut_short = self.cut_short or self.attempts < self._most_attempts
                    return None
                tried = _with(spec, init, inputs, self._maps)
                error, is_built = self._error_of(tried)
                if error is None:
                    return self._in_likelier_order(tried, inputs, call)
                cause = error.__cause__ or error
                for tensors in (
                    *with_width_of_layer(tried.inputs, cause, self._sizes[0]),
                    *with_length_of_code(tried.inputs, cause, self._literals),
                ):
                    if self.works(fixed := replace(tried, inputs=tensors)):
                        return self._in_likelier_order(fixed, Inputs(tensors, inputs.expressions), call)
                if init is not None and (fuller := _with_missing_field(init, error)) is not None:
                    waiting.insert(0, fuller)
                    if self.failure is not None and self.failure.error is error:
                        self.failure = None
                    break
                if not is_built:
                    break  # no other input helps
        return None

    def example_that_works(
        self, spec: TargetSpec, examples: Iterable[Example], given: Mapping[str, str]
    ) -> TargetSpec | None:
        """Return the description that follows the first example with which the target runs at both sets of sizes."""
        for example in examples:
            if self.is_over:
                return None
            tensors = {name: text for name, text in example.inputs.tensors.items() if name not in given}
            expressions = {name: text for name, text in example.inputs.expressions.items() if name not in given}
            init = example.init if spec.init is None else spec.init
            tried = _with(spec, init, Inputs(tensors, expressions), self._maps)
            if tensors and self._error_of(tried)[0] is None:
                return tried
        return None

    def refined(self, call: Callable[..., Any], given: Mapping[str, str]) -> TargetSpec | None:
        """Return the description that works after changes to one argument at a time of an attempt that fails.

        That is the attempt that got furthest, then the one of each other description of the first tensor. Of the
        changes of an argument with which the code gets further, the one with which it gets furthest is kept.
        """
        self._most_attempts += _MOST_REFINEMENTS
        masks = [name for name in optional_masks(call) if name not in given]
        starts = sorted(self._nearest_of.values(), key=lambda one: one.progress, reverse=True)[:_MOST_STARTS]
        return next(filter(None, (self._changed(start, call, given, masks) for start in starts)), None)

    def _changed(
        self, start: FailedAttempt | None, call: Callable[..., Any], given: Mapping[str, str], masks: Sequence[str]
    ) -> TargetSpec | None:
        nearest = start
        while nearest is not None and nearest.is_built:
            before = nearest
            inputs, line = Inputs(before.spec.inputs, before.spec.arguments), failing_line(before.error, call)
            for choices in alternatives(inputs, given, masks, line):
                for inputs in choices:
                    if self.is_over:
                        return None
                    tried = replace(before.spec, inputs=dict(inputs.tensors), arguments=dict(inputs.expressions))
                    failure = self._failure_of(tried)
                    if failure is None:
                        return self._in_likelier_order(tried, inputs, call)
                    if failure.is_nearer_than(nearest):
                        nearest = failure
                if nearest is not before:
                    break
            else:
                return None
        return None

    def _in_likelier_order(self, spec: TargetSpec, inputs: Inputs, call: Callable[..., Any]) -> TargetSpec:
        """Return the description with sequences first, or with heads behind tokens, if that is the order of the code.

        The code then mixes what was taken for batch elements or heads, and in the other order it doesn't.
        """
        first = with_sequence_first(inputs.tensors)
        if (other := self._likelier(spec, first, call, "B", (0, 1))) is not None:
            apart = replace(other, inputs={**other.inputs, **with_two_lengths(first)})
            return apart if apart != other and self._error_of(apart) == (None, True) else other
        return self._likelier(spec, with_heads_behind_tokens(inputs.tensors), call, "H", (1, 2)) or spec

    def _likelier(
        self, spec: TargetSpec, swapped: Mapping[str, str], call: Callable[..., Any], symbol: str, axes: tuple[int, int]
    ) -> TargetSpec | None:
        """Return the description with swapped axes if that is the order of the code, None if it isn't.

        The axes are those of the size symbol before and after.
        """
        other = replace(spec, inputs={**spec.inputs, **swapped})
        if other == spec or axes_are_named(call, swapped):
            return None
        mixes = [self._mixes(one, symbol, axis) for one, axis in zip((spec, other), axes, strict=True)]
        return other if mixes == [True, False] and self._error_of(other) == (None, True) else None

    def _mixes(self, spec: TargetSpec, symbol: str, axis: int) -> bool | None:
        """Return whether a change at the first index of an axis of the inputs reaches others; None if it can't be told.

        The axis is that of the batch or of the heads, whose size symbol is given. A result without an axis of the
        batch comes from all of its elements, as where a sequence's last vector is taken: `x[-1]`.
        """

        def mixes() -> bool | None:
            numbers, target = _at(spec, self._sizes[0])
            plain, changed = (target.build(numbers, RunOptions()) for _ in range(2))
            for name, tensor in changed.named_inputs():
                part = tensor.select(axis, 0)
                if name in spec.inputs and tensor.is_floating_point():
                    part.add_(1.0 + torch.rand(part.shape))
                elif name in spec.inputs:
                    part.copy_(_reordered(part))
            before, after = _results(plain)[0], _results(changed)[0]
            fitting = [place for place, size in enumerate(before.shape) if size == numbers[symbol]]
            if symbol == "B" and not fitting:
                return True
            if symbol != "B" and axis not in fitting:
                return None
            kept = axis if axis in fitting else fitting[0]
            one, other = (tensor.narrow(kept, 1, numbers[symbol] - 1) for tensor in (before, after))
            return not torch.allclose(one, other, equal_nan=True)

        try:
            return _limited(mixes)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            reraise_interruption(error)
            if isinstance(error, TooLong):
                self.cut_short = True
            return None

    def _error_of(self, spec: TargetSpec) -> tuple[BaseException | None, bool]:
        """Return why a description doesn't work, or None; and whether the target was built."""
        failure = self._failure_of(spec)
        return (None, True) if failure is None else (failure.error, failure.is_built)

    def _failure_of(self, spec: TargetSpec) -> FailedAttempt | None:
        """Return how an attempt with a description fails, None if it works."""
        self.attempts += 1
        if self._report is not None:
            self._report(" ".join(map(flag_syntax, spec.given_options())))
        is_built = is_doubtful = False
        place, counter = 0, _CallCounter()

        def attempt() -> None:
            nonlocal place, counter, is_built, is_doubtful
            for place in range(len(self._sizes)):
                is_built, counter = False, _CallCounter()
                numbers, target = _at(spec, self._sizes[place])
                with _AllocationLimit():
                    runnable = target.build(numbers, RunOptions())
                is_built = True
                with counter:
                    plain = _results(runnable)
                if not plain:
                    raise AttnshapeError("it returns no tensor")
                is_doubtful |= counter.has_one_key
                is_doubtful |= any(bool(one.isnan().any()) for one in plain if one.is_floating_point())
                for name in spec.inputs:
                    changed = target.build(numbers, RunOptions())
                    _change(changed, name)
                    is_doubtful |= _same(plain, _results(changed))

        try:
            _limited(attempt)
            if is_doubtful or not self._runs_as_asked(spec):
                self.doubtful = self.doubtful or spec
                raise _DoubtfulError
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            reraise_interruption(error)
            if isinstance(error, TooLong):
                self.cut_short = True
            failure = FailedAttempt(spec, error, is_built, (counter.calls, place))
            self.likeliest = self.likeliest or (spec if is_built else None)
            first = next(iter(spec.inputs.values()), "")
            if is_built and failure.is_nearer_than(self._nearest_of.get(first)):
                self._nearest_of[first] = failure
            if missing_package(error) is not None:
                self.missing = self.missing or failure
                self._without_package += 1
            if failure.is_nearer_than(self.failure):
                self.failure = failure
            return failure
        return None

    def _runs_as_asked(self, spec: TargetSpec) -> bool:
        """Return whether a target that runs at small sizes also runs at those that it gets, unless that takes long."""

        def run() -> None:
            target = find_target(spec)
            if not are_large(target.sizes):
                _results(target.build(target.sizes.numbers, RunOptions()))

        try:
            _limited(run, _AT_SIZES_ASKED_FOR)
        except TooLong:
            self.cut_short = True
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return False
        return True


def has_module(spec: TargetSpec, kind: type) -> bool:
    """Return whether a target that can be built has a module of a class."""

    def built() -> object:
        numbers, target = _at(spec, trial_sizes()[0])
        return target.build(numbers, RunOptions()).function

    module = _limited(built)
    return isinstance(module, torch.nn.Module) and any(isinstance(one, kind) for one in module.modules())


def failing_line(error: BaseException, call: Callable[..., Any]) -> str:
    """Return the text of the last line of the code that is called, or of its file, which an error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    file = inspect.getsourcefile(inspect.unwrap(call))
    return next((frame.line or "" for frame in reversed(frames) if frame.filename == file), "")


def _now() -> tuple[float, float]:
    """Return how long this thread has computed, and the time."""
    return time.thread_time(), time.monotonic()


def _limited(action: Callable[[], _Result], seconds: float | None = None) -> _Result:
    """Run the user's code apart from the rest of the process, without its output, and not for long."""
    with isolated(), unattended(), torch.no_grad(), force_eager():
        return call_within(_ONE_ATTEMPT if seconds is None else seconds, action)


def _at(spec: TargetSpec, small: Mapping[str, int]) -> tuple[dict[str, int], Target]:
    """Return the sizes of a target in one of the two sets of small sizes, and the target."""
    target = find_target(spec)
    records = target.sizes.records
    return target.sizes.at({name: small.get(name, records[name].size) for name in target.sizes.independent}), target


def _results(runnable: Runnable) -> list[Tensor]:
    seed_all(0)
    result, _ = run_to_completion(runnable.call())
    return [tensor for _, tensor in tensor_paths("output", result)]


def _change(runnable: Runnable, name: str) -> None:
    """Give an input other numbers."""
    for path, tensor in runnable.named_inputs():
        if path != name:
            continue
        if tensor.is_floating_point():
            generator = torch.Generator().manual_seed(7)
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
        else:
            tensor.copy_(_reordered(tensor))


def _reordered(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in another order, which all of its axes notice: ids stay ids, masks stay masks."""
    return tensor.flatten().flip(0).roll(1).reshape(tensor.shape)


def _same(results: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(results) == len(others) and all(
        one.shape == other.shape and torch.equal(one, other) for one, other in zip(results, others, strict=True)
    )


def _all_inputs(
    call: Callable[..., Any], module: ModuleType, given: Mapping[str, str], init: str, root: Any
) -> Iterator[Inputs]:
    """Yield proposals for the required parameters, then with optional ones that the code may need.

    A cross-attention gets what its keys come from at once, although it may do without.
    """
    for also in dict.fromkeys([*optional_context(call, root), (), *optional_inputs(call)]):
        yield from input_candidates(call, module, given, init, root, [name for name in also if name not in given])


def _with(spec: TargetSpec, init: str | None, inputs: Inputs, maps: Mapping[str, int]) -> TargetSpec:
    written = " ".join([*inputs.tensors.values(), *inputs.expressions.values(), init or ""])
    texts = re.findall(r"\w+(?!\w*=)", written)
    maps = {name: size for name, size in maps.items() if name in texts and name not in spec.sizes}
    return replace(
        spec,
        init=init,
        inputs={**spec.inputs, **inputs.tensors},
        arguments={**spec.arguments, **inputs.expressions},
        sizes={**spec.sizes, **maps},
    )


def _with_missing_field(init: str, error: BaseException) -> str | None:
    """Return the arguments with the field of a namespace that the code turned out to read.

    A field that was added without a value is a number if the code turns out to compute with it.
    """
    added = _ADDED_FIELD.search(init)
    if added is not None and isinstance(error.__cause__ or error, TypeError) and "NoneType" in str(error):
        return init.replace(added[0], f"SimpleNamespace({added[1]}={ANY_NUMBER}", 1)
    missing = _MISSING_FIELD.search(f"{error} {error.__cause__}")
    if missing is None or "SimpleNamespace(" not in init or f"{missing[1]}=" in init:
        return None
    names = [missing[1], *re.findall(r"(\w+)=", init)]
    field = namespace(names).removeprefix("SimpleNamespace(").partition(", ")[0].removesuffix(")")
    return init.replace("SimpleNamespace(", f"SimpleNamespace({field}, ", 1)
