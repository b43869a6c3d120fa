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
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attnshape.checks.interventions.experiment import Experiment
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.errors import format_exception
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import TooLong
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

    def __init__(self) -> None:
        super().__init__()
        self.not_finite: set[OutputRef] = set()
        """The results whose gradient has a number that isn't finite."""

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
    """The gradients of one run with autograd."""

    by_parameter: Mapping[str, Tensor | None]
    """The gradient of each trainable parameter, None if autograd doesn't reach it; empty if no result has a graph.

    Gradients whose numbers torch can't read are left out.
    """
    differentiable: frozenset[OutputRef]
    """The results of calls that require a gradient."""
    failure: str = ""
    """Why there are none, if the run fails with autograd."""


def gradients(experiment: Experiment) -> Gradients:
    """Return the gradients of a random linear combination of all results, as `requires_grad` is set by the target.

    If a parameter gets none, the inputs require gradients in another run: then the results have a graph in any case,
    and checkpoints, which need such inputs, work.
    """
    found = experiment.observe(lambda runnable, state: _gradients(runnable, state, with_inputs=False))
    if not found.failure and (not found.by_parameter or None in found.by_parameter.values()):
        again = experiment.observe(lambda runnable, state: _gradients(runnable, state, with_inputs=True))
        return found if again.failure else again
    return found


def _gradients(runnable: Runnable, state: Mapping[str, Tensor], with_inputs: bool) -> Gradients:
    trainable = {
        name: tensor
        for name, tensor in state.items()
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad and tensor.is_floating_point()
    }
    if not trainable:
        return Gradients({}, frozenset())
    for _, tensor in runnable.named_inputs() if with_inputs else ():
        if tensor.is_leaf and tensor.is_floating_point():
            tensor.requires_grad_()
    uses = _Uses()
    try:
        with torch.enable_grad(), force_eager():
            with uses:
                result, _ = run_to_completion(runnable.call())
            total = _combination([tensor for _, tensor in tensor_paths("output", result)])
            if total is None:
                return Gradients({}, frozenset())
            for parameter in trainable.values():
                parameter.grad = None
            total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except BaseException as error:
        reraise_interruption(error)
        if isinstance(error, TooLong):
            raise
        return Gradients({}, frozenset(), format_exception(error))
    by_parameter: dict[str, Tensor | None] = {}
    for name, parameter in trainable.items():
        with contextlib.suppress(NoNumbersError):
            by_parameter[name] = numbers_of(parameter.grad) if parameter.grad is not None else None
    return Gradients(by_parameter, frozenset(uses.differentiable))


def _combination(results: list[Tensor]) -> Tensor | None:
    """Return the sum of all floating-point results that have a graph, with random factors; None if there are none."""
    generator = torch.Generator().manual_seed(5)
    total: Tensor | None = None
    for result in results:
        if result.requires_grad and result.is_floating_point():
            factors = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
            part = (result * factors).sum()
            total = part if total is None else total + part
    return total


@dataclass(frozen=True)
class Backward:
    """What autograd does in one run in which inputs require gradients."""

    differentiable: frozenset[OutputRef]
    """The results of calls that require a gradient."""
    not_finite: frozenset[OutputRef]
    """The results of calls whose gradient has a number that isn't finite."""
    names: tuple[str, ...]
    """The inputs and parameters that get a gradient."""
    names_not_finite: tuple[str, ...]
    """Those whose gradient has a number that isn't finite."""
    calls: int
    """How many calls there were."""


def backward(
    experiment: Experiment,
    inputs: Collection[str],
    parameters: bool = True,
    replaced: Mapping[str, Replace] | None = None,
) -> Backward | None:
    """Return what autograd does with a random linear combination of all results, whose numbers are all finite.

    `inputs` require gradients; parameters do as the target sets it, or not at all. `replaced` replaces inputs. None if
    the run fails with autograd, no result has a graph, or a result isn't finite.
    """

    def call(uses: _Uses, runnable: Runnable, state: Mapping[str, Tensor]) -> Backward | None:
        given = dict(runnable.named_inputs())
        for name, new in (replaced or {}).items():
            given[name].data = new(given[name].detach().clone())
        leaves = {name: given[name] for name in inputs if name in given and given[name].is_leaf}
        for name, tensor in state.items():
            if is_lazy(tensor):
                continue  # it has no numbers yet
            if tensor.is_leaf and tensor.is_floating_point() and not parameters:
                tensor.requires_grad_(False)
            elif tensor.is_leaf and tensor.requires_grad:
                leaves.setdefault(name, tensor)
        try:
            with torch.enable_grad(), force_eager():
                for tensor in leaves.values():
                    tensor.requires_grad_().grad = None
                with uses:
                    result, _ = run_to_completion(runnable.call())
                results = [tensor for _, tensor in tensor_paths("output", result) if tensor.is_floating_point()]
                total = _combination(results)
                if total is None or not all(bool(torch.isfinite(tensor).all()) for tensor in results):
                    return None
                total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                slopes = {name: tensor.grad for name, tensor in leaves.items() if tensor.grad is not None}
                wrong = [name for name, slope in slopes.items() if not bool(torch.isfinite(slope).all())]
        except BaseException as error:
            reraise_interruption(error)
            if isinstance(error, TooLong):
                raise
            return None
        not_finite = frozenset(uses.not_finite if isinstance(uses, _GradientUses) else ())
        return Backward(frozenset(uses.differentiable), not_finite, tuple(slopes), tuple(wrong), uses.count)

    found = experiment.observe(partial(call, _Uses()))
    if found is None or not found.names_not_finite:
        return found
    return experiment.observe(partial(call, _GradientUses()))
