"""What becomes of the results of a run: which of them are kept or read, and through which gradients flow."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from attnshape.checks.interventions.experiment import Experiment
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.errors import format_exception
from attnshape.runtime.time_limit import reraise_interruption_or_timeout
from attnshape.tracing.calls import TracedCall
from attnshape.tracing.containers import tensor_paths
from attnshape.tracing.function_mode import CallMode
from attnshape.tracing.opaque import force_eager
from attnshape.tracing.operations import SIZE_QUERIES, base_name
from attnshape.tracing.runner import Runnable, run_to_completion
from attnshape.tracing.tensor_access import NoNumbersError, numbers_of


class _Uses(CallMode):
    """Watches the results of calls without keeping them alive; calls are numbered as in a replay."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[OutputRef, weakref.ref[Tensor]] = {}
        self._made: dict[int, OutputRef] = {}
        """The last call that returned each tensor, by the tensor's id, which a later tensor may take over."""
        self._begun: dict[int, list[OutputRef]] = {}
        """The operands of each call that has returned no tensor so far."""
        self._calls = 0
        self.differentiable: set[OutputRef] = set()
        """The results that require a gradient."""
        self.not_finite: set[OutputRef] = set()
        """The results whose gradient has a number that isn't finite, where gradients are watched."""

    def before_call(self, call: TracedCall, frame: FrameType) -> int:
        """Note the operands, and return what identifies the call."""
        self._calls += 1
        if base_name(call.name) not in SIZE_QUERIES:
            self._begun[self._calls] = [
                self._made[id(operand)] for operand in call.operands if id(operand) in self._made
            ]
        return self._calls

    def after_call(
        self,
        call: TracedCall,
        frame: FrameType,
        outputs: list[Tensor],
        written: Tensor | None,
        result: Any,
        before: Any,
    ) -> Any:
        """Note which tensors the call returned."""
        self._begun.pop(before, None)
        for place, output in enumerate(outputs):
            ref = OutputRef(self.count, place)
            self._results[ref] = weakref.ref(output)
            self._made[id(output)] = ref
            if output.requires_grad:
                self.differentiable.add(ref)
        return result

    def kept(self) -> frozenset[OutputRef]:
        """Return the results that still exist, and those that Python read as numbers, such as by `item`."""
        read = {ref for refs in self._begun.values() for ref in refs}
        return frozenset(read | {ref for ref, result in self._results.items() if result() is not None})


class _GradientUses(_Uses):
    """Also looks at the gradients of the results, once they are computed."""

    def after_call(
        self,
        call: TracedCall,
        frame: FrameType,
        outputs: list[Tensor],
        written: Tensor | None,
        result: Any,
        before: Any,
    ) -> Any:
        """Note which tensors the call returned, and wait for their gradients."""
        for place, output in enumerate(outputs):
            # torch crashes on hooks of some views that were written to
            if output.requires_grad and written is None:
                note = partial(self._note, OutputRef(self.count, place))
                output.register_hook(note)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return super().after_call(call, frame, outputs, written, result, before)

    def _note(self, ref: OutputRef, gradient: Tensor | None) -> None:
        # of several results of a call, those on which nothing depends get none
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            self.not_finite.add(ref)


def kept_results(experiment: Experiment) -> frozenset[OutputRef]:
    """Return the results that are not gone after the call: something holds them, or Python has read their numbers.

    The target returns them, or an attribute, a list or a cache holds them.
    """

    def call(runnable: Runnable, state: Mapping[str, Tensor]) -> frozenset[OutputRef]:
        uses = _Uses()
        with torch.no_grad(), force_eager(), uses:
            returned = run_to_completion(runnable.call())
        kept = uses.kept()
        del returned  # until here it holds what the target returned
        return kept

    return experiment.observe(call)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a random linear combination of all results, in one run with autograd."""

    by_name: Mapping[str, Tensor | None]
    """The gradient of each input and parameter that requires one, None if autograd doesn't reach it.

    Gradients whose numbers torch can't read are left out. Empty if no result has a graph.
    """
    differentiable: frozenset[OutputRef] = frozenset()
    """The results of calls that require a gradient."""
    calls: int = 0
    """How many calls there were."""
    results_are_finite: bool = True
    not_finite: frozenset[OutputRef] = frozenset()
    """The results of calls whose gradient has a number that isn't finite, if a gradient in `by_name` has one."""
    failure: str = ""
    """Why there are none, if the run fails with autograd."""

    @property
    def reached(self) -> tuple[str, ...]:
        """The inputs and parameters that get a gradient."""
        return tuple(name for name, gradient in self.by_name.items() if gradient is not None)

    @property
    def names_not_finite(self) -> tuple[str, ...]:
        """The inputs and parameters whose gradient has a number that isn't finite."""
        known = ((name, gradient) for name, gradient in self.by_name.items() if gradient is not None)
        return tuple(name for name, gradient in known if not bool(torch.isfinite(gradient).all()))


def gradients(
    experiment: Experiment,
    inputs: Collection[str],
    parameters: bool = True,
    replaced: Mapping[str, Replace] | None = None,
) -> Gradients:
    """Return the gradients of a random linear combination of all results.

    `inputs` require gradients; parameters do as the target sets it, or not at all. `replaced` replaces the numbers of
    inputs and parameters.
    """

    def call(uses: _Uses, runnable: Runnable, state: Mapping[str, Tensor]) -> Gradients:
        given = dict(runnable.named_inputs())
        every = {**state, **given}
        for name, new in (replaced or {}).items():
            every[name].data = new(every[name].detach().clone())
        leaves = {name: given[name] for name in inputs if name in given and given[name].is_leaf}
        for name, tensor in state.items():
            if is_lazy(tensor):
                continue  # it has no numbers yet
            if tensor.is_leaf and tensor.is_floating_point() and not parameters:
                tensor.requires_grad_(False)
            elif tensor.is_leaf and tensor.requires_grad:
                leaves.setdefault(name, tensor)
        if not leaves:
            return Gradients({})
        try:
            with torch.enable_grad(), force_eager():
                for tensor in leaves.values():
                    tensor.requires_grad_().grad = None
                with uses:
                    result, _ = run_to_completion(runnable.call())
                results = [tensor for _, tensor in tensor_paths("output", result) if tensor.is_floating_point()]
                total = _combination(results)
                if total is None:
                    return Gradients({})
                are_finite = all(bool(torch.isfinite(tensor).all()) for tensor in results)
                total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        except BaseException as error:  # noqa: BLE001 - whatever the traced code raises
            reraise_interruption_or_timeout(error)
            return Gradients({}, failure=format_exception(error))
        by_name: dict[str, Tensor | None] = {}
        for name, tensor in leaves.items():
            with contextlib.suppress(NoNumbersError):
                by_name[name] = numbers_of(tensor.grad) if tensor.grad is not None else None
        return Gradients(by_name, frozenset(uses.differentiable), uses.count, are_finite, frozenset(uses.not_finite))

    found = experiment.observe(partial(call, _Uses()))
    return experiment.observe(partial(call, _GradientUses())) if found.names_not_finite else found


def _combination(results: list[Tensor]) -> Tensor | None:
    """Return the sum of all floating-point results that have a graph, with random factors; None if there are none."""
    generator = torch.Generator().manual_seed(5)
    total: Tensor | None = None
    for result in results:
        if result.requires_grad:
            factors = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
            part = (result * factors).sum()
            total = part if total is None else total + part
    return total
