"""Tries proposals at small sizes, in order, until one works."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from attnshape.errors import AttnshapeError
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.proposals.candidates import (
    Inputs,
    axes_are_named,
    input_candidates,
    namespace,
    optional_inputs,
    with_sequence_first,
)
from attnshape.runtime.isolation import isolated, seed_all, unattended
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import at_most
from attnshape.targets.find import find_target
from attnshape.targets.target import Target
from attnshape.tracing.containers import tensor_paths
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.runner import Runnable, run_to_completion

_SMALL = (
    {"B": 2, "H": 4, "Hkv": 2, "G": 2, "L": 8, "Lq": 6, "Lk": 10, "Lp": 3, "D": 32, "Dk": 8, "Dv": 12, "W": 4},
    {"B": 3, "H": 8, "Hkv": 4, "G": 2, "L": 12, "Lq": 5, "Lk": 9, "Lp": 2, "D": 64, "Dk": 8, "Dv": 20, "W": 6},
)
"""Two sets of sizes at which proposals are tried; widths are multiples of 32, since some norms have so many groups."""
_OTHERS = ({"V": 11, "N": 2}, {"V": 13, "N": 1})
_MOST_ATTEMPTS = 200
_MOST_SECONDS = 20.0
_ONE_ATTEMPT = 5.0
_MISSING_FIELD = re.compile(r"'(?:types\.)?SimpleNamespace' object has no attribute '(\w+)'")


@dataclass
class Failure:
    """The attempt that got furthest, and why it failed."""

    spec: TargetSpec
    error: BaseException
    is_built: bool


class _DoubtfulError(Exception):
    """A target runs, but its result doesn't depend on one of its inputs, or is NaN, as where a mask hides every key."""


class Search:
    """Tries proposals in order, within limits on their number and on time."""

    def __init__(self, maps: Mapping[str, int]) -> None:
        """`maps` are the sizes of feature maps."""
        self.attempts = 0
        self._maps = maps
        self.failure: Failure | None = None
        self._deadline = time.monotonic() + _MOST_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached."""
        return self.attempts >= _MOST_ATTEMPTS or time.monotonic() > self._deadline

    def first_that_works(
        self,
        spec: TargetSpec,
        inits: Sequence[str | None],
        module: ModuleType,
        call: Callable[..., Any],
        given: Mapping[str, str],
        is_function: bool,
    ) -> TargetSpec | None:
        """Return the first completed description with which the target runs at both sets of sizes and uses each input.

        Where there is none, what makes it doubtful may be a mistake in the code: return the first that runs.
        """
        waiting = list(inits)
        runs: TargetSpec | None = None
        while waiting:
            init = waiting.pop(0)
            for inputs in _all_inputs(call, module, given, init or "", is_function):
                if self.is_over:
                    return runs
                tried = _with(spec, init, inputs, self._maps)
                error, is_built = self._error_of(tried)
                if error is None:
                    return self._in_likelier_order(tried, inputs, call)
                if runs is None and isinstance(error, _DoubtfulError):
                    runs = tried
                if init is not None and (fuller := _with_missing_field(init, error)) is not None:
                    waiting.insert(0, fuller)
                    break
                if not is_built:
                    break  # no other input helps
        return runs

    def _in_likelier_order(self, spec: TargetSpec, inputs: Inputs, call: Callable[..., Any]) -> TargetSpec:
        """Return the description with sequences first, as in torch's own attention, if that is the order of the code.

        The code then mixes what was taken for batch elements, and in the other order it doesn't.
        """
        swapped = with_sequence_first(inputs.tensors)
        if swapped == inputs.tensors or axes_are_named(call, swapped):
            return spec
        other = replace(spec, inputs={**spec.inputs, **swapped})
        mixes = [self._mixes_batch(one, axis) for one, axis in ((spec, 0), (other, 1))]
        return other if mixes == [True, False] and self._error_of(other) == (None, True) else spec

    def _mixes_batch(self, spec: TargetSpec, axis: int) -> bool | None:
        """Return whether a change in the first batch element of the inputs reaches others; None if it can't be told."""
        try:
            with _limited():
                numbers, target = _at(spec, 0)
                plain, changed = (target.build(numbers, RunOptions()) for _ in range(2))
                for name, tensor in changed.named_inputs():
                    if name in spec.inputs and tensor.is_floating_point():
                        tensor.select(axis, 0).add_(1.0 + torch.rand(tensor.select(axis, 0).shape))
                before, after = _results(plain)[0], _results(changed)[0]
                if before.ndim <= axis or before.shape[axis] != numbers["B"]:
                    return None
                one, other = (tensor.narrow(axis, 1, numbers["B"] - 1) for tensor in (before, after))
                return not torch.allclose(one, other, equal_nan=True)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            reraise_interruption(error)
            return None

    def _error_of(self, spec: TargetSpec) -> tuple[BaseException | None, bool]:
        """Return why a description doesn't work, or None; and whether the target was built."""
        self.attempts += 1
        is_built = False
        try:
            with _limited():
                for place in range(len(_SMALL)):
                    is_built = False
                    numbers, target = _at(spec, place)
                    runnable = target.build(numbers, RunOptions())
                    is_built = True
                    plain = _results(runnable)
                    if not plain:
                        raise AttnshapeError("it returns no tensor")
                    if any(bool(tensor.isnan().any()) for tensor in plain if tensor.is_floating_point()):
                        raise _DoubtfulError
                    for name in spec.inputs:
                        changed = target.build(numbers, RunOptions())
                        _change(changed, name)
                        if _same(plain, _results(changed)):
                            raise _DoubtfulError
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            reraise_interruption(error)
            if self.failure is None or (is_built and not self.failure.is_built):
                self.failure = Failure(spec, error, is_built)
            return error, is_built
        return None, True


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Run the user's code apart from the rest of the process, without its output, and not for long."""
    with isolated(), unattended(), torch.no_grad(), force_eager(), at_most(_ONE_ATTEMPT):
        yield


def _at(spec: TargetSpec, place: int) -> tuple[dict[str, int], Target]:
    """Return one of the two sets of small sizes, and the target."""
    target = find_target(spec)
    small = {**_SMALL[place], **_OTHERS[place]}
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
            tensor.copy_(tensor.flip(-1).roll(1, -1))


def _same(results: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(results) == len(others) and all(
        one.shape == other.shape and torch.equal(one, other) for one, other in zip(results, others, strict=True)
    )


def _all_inputs(
    call: Callable[..., Any], module: ModuleType, given: Mapping[str, str], init: str, is_function: bool
) -> Iterator[Inputs]:
    """Yield proposals for the required parameters, then with optional ones that the code may need."""
    yield from input_candidates(call, module, given, init, is_function)
    for also in optional_inputs(call):
        yield from input_candidates(
            call, module, given, init, is_function, [name for name in also if name not in given]
        )


def _with(spec: TargetSpec, init: str | None, inputs: Inputs, maps: Mapping[str, int]) -> TargetSpec:
    texts = [*" ".join(inputs.tensors.values()).split(), *re.findall(r"\w+(?!\w*=)", init or "")]
    maps = {name: size for name, size in maps.items() if name in texts and name not in spec.sizes}
    return replace(
        spec,
        init=init,
        inputs={**spec.inputs, **inputs.tensors},
        arguments={**spec.arguments, **inputs.expressions},
        sizes={**spec.sizes, **maps},
    )


def _with_missing_field(init: str, error: BaseException) -> str | None:
    """Return the arguments with the field of a namespace that the code turned out to read."""
    missing = _MISSING_FIELD.search(f"{error} {error.__cause__}")
    if missing is None or "SimpleNamespace(" not in init or f"{missing[1]}=" in init:
        return None
    field = namespace([missing[1]]).removeprefix("SimpleNamespace(").removesuffix(")")
    return init.replace("SimpleNamespace(", f"SimpleNamespace({field}, ", 1)
